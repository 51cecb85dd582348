"""Outputs stay at their sites: another one fetches them when somebody looks, and says so if it cannot."""

import time
from collections.abc import Callable

import msgspec
import pytest

from cheops.api.models.operations import LogView, OperationView, ReplyView
from tests.agent.rig import MakeRig, Rig
from tests.agent.types import TALLY

LINE = "a line that is longer than a hash"
SITES = ("site1", "site2", "site3")


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def made(make_rig: MakeRig, *, secure: bool = True, **settings: str) -> Rig:
    """Each site prints its own folder: another output everywhere."""
    rig = make_rig({"t": {**TALLY, **settings}}, *SITES, secure=secure)
    rig.start()
    lines = rig.exec("site1", "n", "set", f"echo {LINE} $PWD > __ID__; cat __ID__")
    assert {line["Status"] for line in lines} == {"OK"}
    assert all(LINE in line["Output"] for line in lines), "the client at the origin has all outputs at once"
    until(lambda: statuses(rig, "site3") == {"OK"})
    return rig


def seen(rig: Rig, site: str) -> dict[str, ReplyView]:
    found = rig.request(site, "GET", "/api/v1/resources/n/operations/site1:1")
    view = msgspec.json.decode(found, type=OperationView)
    return {one.site: one for one in view.replies}


def statuses(rig: Rig, site: str) -> set[str]:
    return {str(one.status) for one in seen(rig, site).values()}


@pytest.mark.parametrize("secure", [True, False])
def test_outputs_are_fetched_when_somebody_looks(make_rig: MakeRig, *, secure: bool) -> None:
    rig = made(make_rig, secure=secure)
    found = seen(rig, "site3")
    assert {site: one.output for site, one in found.items()} == {site: f"{LINE} {rig.folder(site)}\n" for site in SITES}
    assert {one.output_missing for one in found.values()} == {None}
    page = msgspec.json.decode(rig.request("site3", "GET", "/api/v1/resources/n/log"), type=LogView)
    (logged,) = (one for one in page.operations[0].replies if one.site == "site2")
    assert (logged.output, logged.output_missing) == ("", "it is at site2; look at this operation to fetch it")


def test_an_output_whose_site_is_down_comes_from_where_the_operation_was_made(make_rig: MakeRig) -> None:
    rig = made(make_rig)
    rig.stop("site2")
    assert seen(rig, "site3")["site2"].output == f"{LINE} {rig.folder('site2')}\n"
    rig.stop("site1")
    until(lambda: seen(rig, "site3")["site2"].output_missing == "site2 and site1 cannot be reached now")
    missing = seen(rig, "site3")["site2"]
    assert (missing.status, missing.output) == ("OK", "")


def test_a_type_may_share_its_outputs(make_rig: MakeRig) -> None:
    rig = made(make_rig, outputs="share")
    rig.stop("site1")
    rig.stop("site2")
    assert {one.output for one in seen(rig, "site3").values()} == {f"{LINE} {rig.folder(site)}\n" for site in SITES}
