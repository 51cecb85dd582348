"""A DIVERGED resource is seen by those who look at the whole site: check, metrics, lists and the status of the site."""

import re
from collections.abc import Callable

import msgspec
import pytest

from cheops.api.models.resources import Resources, SiteHealth
from cheops.api.models.site import Check
from tests.agent.rig import MakeRig, until
from tests.api.agents import Sites, two_sites

FAILS_AT_SITE2 = "test $(basename $PWD) = site1 && echo two >> __ID__"


@pytest.fixture
def sites(make_rig: MakeRig) -> Sites:
    """Three resources, of which `bad` is DIVERGED: its second operation failed at site2."""
    made = two_sites(make_rig)
    made.sees("site1", "site2", "up")
    for id_ in ("bad", "good", "fine"):
        made.make(id_, "set", "echo one > __ID__", "file")
    made.do("site1", "bad", "add", FAILS_AT_SITE2)
    made.becomes("site1", "bad", "DIVERGED")
    made.becomes("site2", "bad", "DIVERGED")
    return made


def gauges(sites: Sites, site: str) -> dict[str, int]:
    """The resources by state, without those that are 0."""
    text = sites.rig.request(site, "GET", "/metrics").decode()
    found = re.findall(r'^cheops_resources\{state="([a-z-]+)"\} (\d+)$', text, re.MULTILINE)
    assert len(found) == 5
    return {state: int(n) for state, n in found if int(n)}


def health(sites: Sites, site: str) -> SiteHealth:
    return sites[site].site_health()


def failed(sites: Sites, site: str) -> list[Check]:
    return [check for check in sites[site].check().checks if check.group == "resources" and not check.ok]


def listed(sites: Sites, site: str) -> list[str]:
    found = sites.rig.request(site, "GET", "/api/v1/resources?overall=DIVERGED")
    return [one.id for one in msgspec.json.decode(found, type=Resources).resources]


def becomes(what: Callable[[], object], expected: object) -> None:
    until(lambda: what() == expected, f"for {expected}; it is {what()}")


@pytest.mark.parametrize("site", ["site1", "site2"])
def test_a_diverged_resource_is_seen_at_its_origin_and_where_it_failed(sites: Sites, site: str) -> None:
    becomes(lambda: gauges(sites, site), {"converged": 2, "diverged": 1})
    (check,) = failed(sites, site)
    assert check.name == "'bad' is DIVERGED"
    assert "site1:2 failed at site2 but not at its origin" in check.detail
    assert "cheops repair bad" in check.hint
    assert not sites[site].check().ok
    found = health(sites, site)
    assert (found.resources, found.states.diverged, found.states.converged, found.unreachable) == (3, 1, 2, ())
    (worst,) = found.worst
    assert (worst.id, worst.state, worst.overall, worst.hint) == ("bad", "diverged", "DIVERGED", "cheops repair bad")
    assert listed(sites, site) == ["bad"]


@pytest.mark.parametrize("site", ["site1", "site2"])
def test_all_of_it_is_right_after_a_restart_without_the_other_site(sites: Sites, site: str) -> None:
    becomes(lambda: gauges(sites, site), {"converged": 2, "diverged": 1})
    for name in sites.names:
        sites.rig.kill(name)
    sites.rig.start(site)
    assert gauges(sites, site) == {"converged": 2, "diverged": 1}
    assert [check.name for check in failed(sites, site)] == ["'bad' is DIVERGED"]
    assert listed(sites, site) == ["bad"]
    assert health(sites, site).states.diverged == 1


def test_a_repair_ends_it_everywhere(sites: Sites) -> None:
    sites.do("site1", "bad", "set", "echo three > __ID__")
    for site in sites.names:
        becomes(lambda s=site: gauges(sites, s), {"converged": 3})  # type: ignore[misc]
        assert failed(sites, site) == []
        assert (listed(sites, site), health(sites, site).worst) == ([], ())
    (check,) = (check for check in sites["site1"].check().checks if check.group == "resources")
    assert (check.name, check.detail) == ("no resource is diverged", "3 resources: 3 converged")


def test_what_was_reported_before_a_restart_is_not_called_converged_while_the_other_site_is_down(sites: Sites) -> None:
    becomes(lambda: gauges(sites, "site1"), {"converged": 2, "diverged": 1})
    for name in sites.names:
        sites.rig.kill(name)
    sites.rig.start("site1")
    found = sites["site1"].status("good")
    assert (found.overall, found.sites[1].pending) == ("UNREACHABLE", 0)
    assert gauges(sites, "site1") == {"converged": 2, "diverged": 1}
    assert health(sites, "site1").unreachable == ("site2",)
    sites.rig.start("site2")
    until(lambda: sites["site1"].status("good").overall == "CONVERGED")


def test_lists_by_another_status_use_the_states_too(sites: Sites) -> None:
    becomes(lambda: gauges(sites, "site1"), {"converged": 2, "diverged": 1})
    agent = sites["site1"]
    assert [one.id for one in agent.all_resources(overall="CONVERGED")] == ["fine", "good"]
    assert [one.id for one in agent.all_resources("go", overall="CONVERGED")] == ["good"]
    assert [one.id for one in agent.all_resources("good", overall="CONVERGED")] == ["good"]
    assert [one.id for one in agent.all_resources("good", overall="DIVERGED")] == []
    assert list(agent.all_resources(overall="UNREACHABLE")) == []


def test_the_lane_of_a_site_says_what_failed_there(sites: Sites) -> None:
    found = msgspec.json.decode(sites.rig.request("site1", "GET", "/api/v1/resources/bad/lanes"))
    assert [(lane["site"], lane["failed"], lane["pending"]) for lane in found["lanes"]] == [
        ("site1", 0, 0),
        ("site2", 1, 0),
    ]
