"""Two agents that use one name are noticed by every site, and nothing else passes for that."""

import pytest
from msgspec.structs import replace

from cheops.peers.heartbeat import Heartbeat
from cheops.peers.mesh import Mesh
from cheops.peers.name_conflicts import WITHIN_MS, NameConflicts
from cheops.peers.settings import Now
from tests.sync.mesh_world import EPOCH_MS, entry

START = Now(0.0, EPOCH_MS)


def meet(one: Mesh, other: Mesh, now: Now) -> None:
    """One sends the other its heartbeats that are due, and takes the answers."""
    for probe in one.tick(now, lambda _most: 0)[0]:
        one.probe_answered(probe.id, other.received_probe(probe.payload, now)[0], now)


@pytest.mark.parametrize(("incarnation", "url"), [("2", "https://b.example"), ("1", "https://else.example")])
def test_two_agents_of_one_name_outbid_each_other_and_all_three_notice(incarnation: str, url: str) -> None:
    watcher = Mesh(entry("a"), {}, START)
    first = Mesh(entry("b"), {"a": "https://a.example:8079"}, START)
    later = Now(START.mono_ms, START.wall_ms + 7)
    second = Mesh(replace(entry("b", incarnation), url=url), {"a": "https://a.example:8079"}, later)
    for second_s in range(30):
        now = Now(second_s * 1_000.0, EPOCH_MS + second_s * 1_000.0)
        for agent in (first, second):
            meet(agent, watcher, now)
    for mesh in (watcher, first, second):
        (conflict,) = mesh.name_conflicts()
        assert conflict.site == "b"
        assert {(agent.incarnation, agent.url) for agent in conflict.agents} == {
            (first.own.incarnation, first.own.url),
            (incarnation, url),
        }


def test_it_is_over_when_one_has_stopped_for_a_while() -> None:
    seen = NameConflicts()
    agents = entry("b"), entry("b", "2")
    for number in range(5):
        seen.note(agents[number % 2], number)
    assert [conflict.site for conflict in seen.all()] == ["b"]
    seen.expire(WITHIN_MS)
    assert len(seen.all()) == 1
    seen.expire(WITHIN_MS + 5)
    assert seen.all() == []
    for number in range(5):
        seen.note(agents[number % 2], 2 * WITHIN_MS)
    seen.drop("b")
    assert seen.all() == [], "a decision about the site ends it"


def test_what_one_agent_does_is_no_conflict() -> None:
    """It restarts, moves and moves back, renews its certificate, gets new keys, loses its store."""
    seen = NameConflicts()
    here, there = entry("b"), replace(entry("b"), url="https://else.example")
    changes = [here, here, there, here, replace(here, certificate=b"1"), replace(here, certificate=b"2")]
    for number, record in enumerate([*changes, replace(changes[-1], incarnation="2")]):
        seen.note(replace(record, revision=number), number)
    assert seen.all() == []


def test_many_names_take_bounded_memory() -> None:
    seen = NameConflicts()
    for number in range(5_000):
        seen.note(entry(f"s{number}"), 0)
        seen.note(entry("b", str(number)), 0)
    assert len(seen._seen) <= 1_024
    assert len(seen._seen["b"].agents) <= 4


def test_an_old_record_of_this_site_from_before_it_lost_its_store_is_no_conflict() -> None:
    mesh = Mesh(entry("b", "2"), {}, START)
    old = replace(entry("b"), revision=int(EPOCH_MS) + 5)
    mesh.received_probe(Heartbeat("a", "1", 1, 1, 0.0, entries=(old,)), START)
    assert mesh.own.revision == old.revision + 1
    assert mesh.name_conflicts() == []
