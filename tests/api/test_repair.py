"""Repairs of resources of commands, with real agents: run again what failed, or take the state of one site."""

from typing import Any

import pytest

from cheops.api.models.operations import Resolution, Resolved, ResolveRequest
from cheops.client import AgentError
from cheops.log.operation import Status
from tests.agent.rig import MakeRig, until
from tests.agent.types import FILE
from tests.api.agents import Sites, text_of, two_sites

# The command that writes a state is none that operations may contain.
NOTE: dict[str, Any] = {
    **FILE,
    "shell": False,
    "allow": ["cp * __ID__"],
    "reset": "rm -f __ID__",
    "checkpoint": {"write": """sh -c 'printf "%s\\n" "$1" > "$2"' - {state} __ID__"""},
}
RETRY = ResolveRequest(resolution=Resolution.RETRY)


def state_of(site: str) -> ResolveRequest:
    return ResolveRequest(resolution=Resolution.STATE, site=site)


def files(sites: Sites, name: str) -> list[str]:
    return [(sites.rig.folder(site) / name).read_text() for site in sites.names]


def outcomes(done: Resolved) -> dict[str, tuple[Status | None, tuple[str, ...]]]:
    return {one.site: (one.status, one.operations) for one in done.sites}


@pytest.fixture
def sites(make_rig: MakeRig) -> Sites:
    made = two_sites(make_rig, note=NOTE)
    for site in made.names:
        (made.rig.folder(site) / "one").write_text("one\n")
    (made.rig.folder("site1") / "two").write_text("two\n")
    return made


def diverged(sites: Sites, id_: str) -> None:
    """A resource of which site2 lacks an operation, because it lacks the file `two`."""
    sites.make(id_, "set", "cp one __ID__", "note")
    sites.do("site1", id_, "add", "cp two __ID__")
    sites.becomes("site2", id_, "DIVERGED")
    sites.becomes("site1", id_, "DIVERGED")


def test_each_site_runs_again_what_failed_there(sites: Sites) -> None:
    diverged(sites, "n")
    assert outcomes(sites["site1"].resolve("n", RETRY)) == {
        "site1": (None, ()),
        "site2": (Status.KO, ("site1:2",)),
    }
    sites.becomes("site1", "n", "DIVERGED")
    (sites.rig.folder("site2") / "two").write_text("two\n")
    assert outcomes(sites["site1"].resolve("n", RETRY))["site2"] == (Status.OK, ("site1:2",))
    sites.becomes("site1", "n", "CONVERGED")
    assert files(sites, "n") == ["two\n"] * 2
    assert all(not one.operations for one in sites["site2"].resolve("n", RETRY).sites)


def test_the_plan_names_what_is_wrong_and_what_is_lost(sites: Sites) -> None:
    diverged(sites, "n")
    plan = sites["site1"].plan_repair("n")
    assert (plan.overall, plan.same) == ("DIVERGED", False)
    one, two = plan.sites
    assert (one.state, one.failed, one.discards) == ("two\n", (), ())
    assert (two.state, two.discards) == ("one\n", ("site1:2",))
    assert [trouble.operation for trouble in two.failed] == ["site1:2"]
    assert files(sites, "n") == ["two\n", "one\n"], "nothing is changed"


@pytest.mark.parametrize(("source", "state"), [("site1", "two\n"), ("site2", "one\n")])
def test_the_state_of_one_site_becomes_that_of_all(sites: Sites, source: str, state: str) -> None:
    diverged(sites, "n")
    done = sites["site1"].resolve("n", state_of(source))
    assert done.operation.startswith(f"{source}:")
    assert {status for status, _ in outcomes(done).values()} == {Status.OK}
    sites.becomes("site1", "n", "CONVERGED")
    assert files(sites, "n") == [state] * 2
    assert sites["site1"].verify("n").same


def test_a_site_that_is_down_is_named_and_gets_the_state_later(sites: Sites) -> None:
    diverged(sites, "n")
    sites.rig.stop("site2")
    sites.sees("site1", "site2", "down")
    retried = {one.site: one.reached for one in sites["site1"].resolve("n", RETRY).sites}
    assert retried == {"site1": True, "site2": False}
    with pytest.raises(AgentError, match="site2"):
        sites["site1"].resolve("n", state_of("site2"))
    done = sites["site1"].resolve("n", state_of("site1"), timeout_s=0.5)
    assert outcomes(done)["site2"][0] is Status.PENDING
    assert sites["site1"].status("n").overall != "CONVERGED"
    sites.rig.start("site2")
    sites.becomes("site1", "n", "CONVERGED")
    until(lambda: files(sites, "n") == ["two\n"] * 2)


def test_a_type_that_cannot_write_a_state_says_what_to_do(sites: Sites) -> None:
    sites.make("plain", "set", "echo one > plain", "plain")
    with pytest.raises(AgentError, match=r"has no 'checkpoint'.*cheops exec --force --id plain"):
        sites["site1"].resolve("plain", state_of("site1"))
    sites.make("broken", "set", "cp one __ID__", "note")
    (sites.rig.folder("site1") / "broken").unlink()
    with pytest.raises(AgentError, match="the state cannot be read"):
        sites["site1"].resolve("broken", state_of("site1"))


def test_a_forced_command_is_still_one_that_the_type_allows(sites: Sites) -> None:
    sites.make("n", "set", "cp one __ID__", "note")
    write = NOTE["checkpoint"]["write"].replace("{state}", "two")
    force = ResolveRequest(resolution=Resolution.FORCE, command=write, type="set")
    with pytest.raises(AgentError, match="not allowed"):
        sites["site1"].resolve("n", force)


def test_drift_of_a_command_is_found_and_ends_with_an_equal_state(make_rig: MakeRig) -> None:
    sites = two_sites(make_rig, note={**NOTE, "verify_every": "1s"})
    for site in sites.names:
        (sites.rig.folder(site) / "one").write_text("one\n")
    sites.make("n", "set", "cp one __ID__", "note")
    (sites.rig.folder("site2") / "n").write_text("by hand\n")
    status = sites.becomes("site2", "n", "DIVERGED")
    assert status.sentence == "the application at site2 differs from that at site1, although all sites ran the same"
    assert status.sentence in text_of(sites["site1"].explain("n"))
    (sites.rig.folder("site2") / "n").write_text("one\n")
    for site in sites.names:
        sites.becomes(site, "n", "CONVERGED")
