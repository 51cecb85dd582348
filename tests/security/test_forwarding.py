"""Operations on resources that are not at the site that is asked: when they are forwarded, and what is said if not."""

from collections.abc import Iterator

import pytest

from cheops.api.models.operations import DryRun, SubmitRequest
from cheops.client import AgentError
from tests.agent.rig import Rig, until
from tests.agent.types import FILE
from tests.security.clients import local, refusals

AWAY = "site1 & site2"
TYPES = {
    "default": FILE,  # operate: involved
    "open": {**FILE, "policy": {"operate": "mesh"}},
    "named": {**FILE, "policy": {"operate": ["site1", "site2", "site3"]}},
    "others": {**FILE, "policy": {"operate": ["site1", "site2"]}},
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = Rig(tmp_path_factory.mktemp("forwarding") / "rig", TYPES, ("site1", "site2", "site3"), secure=True)
    try:
        found.start()
        until(lambda: all(one.state == "up" for one in local(found, "site3").sites().sites), "for all to be up")
        yield found
    finally:
        found.close()


def request(rtype: str, sites: str = AWAY) -> SubmitRequest:
    return SubmitRequest(type="set", command="echo 1 > __ID__", sites=sites, resource_type=rtype)


def dry_run(rig: Rig, id_: str, wanted: SubmitRequest) -> DryRun:
    return local(rig, "site3").dry_run(id_, wanted)


@pytest.mark.parametrize("rtype", ["open", "named"])
def test_it_is_forwarded_if_the_policy_lets_the_site_operate(rig: Rig, rtype: str) -> None:
    for _ in range(2):  # the second time the resource is there
        accepted = local(rig, "site3").submit(f"to-{rtype}", request(rtype))
        assert {one.site: one.status for one in accepted.answers} == {"site1": "OK", "site2": "OK"}
    assert "would forward this" in str(dry_run(rig, f"to-{rtype}", request(rtype)).refused)


@pytest.mark.parametrize("rtype", ["default", "others"])
def test_otherwise_the_site_refuses_it_and_names_those_to_ask(rig: Rig, rtype: str) -> None:
    before = refusals(rig, "site not involved"), refusals(rig, "site not involved", "site2")
    for ask in (lambda: local(rig, "site3").submit("x", request(rtype)), lambda: dry_run(rig, "x", request(rtype))):
        with pytest.raises(AgentError) as refused:
            ask()
        assert refused.value.http_status == 403
        said = str(refused.value)
        assert f"'types.{rtype}.policy.operate' lets no other site pass operations on" in said
        assert f"send it to site1 ({rig.url('site1')}), site2 ({rig.url('site2')})" in said
    # No other site was asked, so none takes it for an attack.
    assert (refusals(rig, "site not involved"), refusals(rig, "site not involved", "site2")) == before


def test_of_a_type_that_is_not_named_the_other_site_decides(rig: Rig) -> None:
    local(rig).submit("theirs", request("default"))
    with pytest.raises(AgentError) as refused:
        local(rig, "site3").submit("theirs", request(""))
    assert refused.value.http_status == 403
    assert "site3 is not one of the sites of 'theirs'" in str(refused.value)
    assert "set 'types.default.policy.operate: mesh' at all sites" in str(refused.value)
