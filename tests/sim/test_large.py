"""A mesh of many sites: invariants hold, and budgets are kept."""

from dataclasses import replace

import pytest

from cheops.sim.large_mesh import Connections
from cheops.sim.simulation import SimulationResult, play
from cheops.sim.workload import PROFILES
from tests.support.command import run_here

SITES = 60
SMALL = replace(PROFILES["large"], resources=1, operations=2, duration_ms=20_000)


def found(result: SimulationResult, what: str) -> float:
    return next(one.found for one in result.measures if one.what == what)


@pytest.mark.timeout(300)  # the longest of the simulator: so it is one of the first, and has time on a busy machine
def test_a_mesh_of_sixty_sites_keeps_the_budgets() -> None:
    result = play(1, SITES, SMALL)
    assert result.problems == ()
    assert {one.what for one in result.measures} >= {
        "messages per operation and site, no fault",
        "messages per operation and site, no fault, by satellite",
        "bytes per operation and site, no fault",
        "seconds until all know that newcomer1 joins",
        "seconds until all know that site60 is forgotten",
    }
    assert result.injected["crash"] > 0
    assert result.injected["region cut off"] > 0
    assert result.operations > SITES
    assert found(result, "heartbeats per site and second") > 5
    for group in ("no fault", "no fault, by satellite", "crashes, cuts, new sites"):
        assert found(result, f"bytes per operation and site, {group}") > 100, "some of each kind are weighed"


def test_an_agent_closes_the_connections_that_it_used_longest_ago() -> None:
    connections = Connections()
    for number in range(60):
        connections.use("a", f"site{number}", now_ms=number * 100)
    assert connections.most["a"] <= 40
    connections.close_surplus("a", now_ms=6_000)
    assert not connections.has("a", "site0")
    assert connections.has("a", "site59")
    assert not connections.has("site0", "a")


def test_the_other_profiles_do_not_play_so_many_sites() -> None:
    ran = run_here("sim", "--sites", "51", "--profile", "calm")
    assert ran.code == 1
    assert "profile 'calm' plays at most 50 sites; use --profile large for more" in ran.err
