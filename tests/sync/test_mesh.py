"""The mesh as a whole: how it grows, and what it costs, in simulated networks of 3, 50 and 300 sites; `make soak` has one
of 1,000."""

import os
from math import ceil, log2

import pytest
from msgspec.structs import replace

from cheops.peers.heartbeat import Heartbeat, MeshError, SavedMesh, decode_saved, encode
from cheops.peers.mesh import Mesh
from cheops.peers.settings import MeshSettings, Now
from tests.sync.mesh_world import World, entry, grown, settled, three

SETTINGS = MeshSettings()
MANY = int(os.environ.get("CHEOPS_TEST_MESH_SITES", "300"))
MOST_PROBES = SETTINGS.interest_probes + 2 * SETTINGS.urgent_probes + SETTINGS.near_probes + SETTINGS.random_probes


# -- growing -----------------------------------------------------------------------------------------------


def test_a_site_started_with_one_peer_learns_of_all() -> None:
    world = World()
    three(world)
    for name in "abc":
        views = {view.name: view for view in world.mesh(name).sites(world.at(name))}
        assert sorted(views) == ["a", "b", "c"]
        assert {view.state.value for view in views.values()} == {"up"}
        assert all(view.services == (("image", ""),) and view.version == "1.0" for view in views.values())
        assert [view.name for view in views.values() if view.here] == [name]


@pytest.mark.parametrize("sites", [3, 50])
def test_a_mesh_grows_from_single_links_in_logarithmic_time(sites: int) -> None:
    world = World(seed=sites)
    names = grown(world, sites)
    world.run_until(
        lambda: all(len(world.mesh(name).saved().entries) == sites - 1 for name in names),
        periods=2 + 2 * ceil(log2(sites)),
    )


@pytest.mark.parametrize("sites", [50, MANY])
def test_news_reaches_all_in_logarithmic_time_and_costs_the_same_in_any_mesh(sites: int) -> None:
    """And the newcomer, which knows one of them, learns of the others. Some share resources with many."""
    world = World(encode_every=8)
    names = settled(world, sites)
    sharing = names[:20]
    for name in sharing:
        world.mesh(name).interest(sharing)
    newcomer = world.add("newcomer", peers=[names[sites // 2]])
    periods = world.run_until(
        lambda: all(world.mesh(name).entry_of("newcomer") is not None for name in names),
        periods=ceil(log2(sites)),
    )
    assert len(newcomer.mesh.saved().entries) > min(sites - 1, 100)
    probes = max(count for name, count in world.probes.items() if name != "newcomer")
    assert probes <= MOST_PROBES * (periods + 1)
    assert min(world.probes[name] for name in sharing) >= SETTINGS.interest_probes * (periods - 1)
    assert world.largest_bytes <= 2 * SETTINGS.entry_bytes_per_message + 8_192
    assert world.mean_bytes <= 8_192


def test_a_settled_mesh_says_little() -> None:
    world = World()
    settled(world, 50)
    world.run(6)
    before = sum(world.sent_bytes.values())
    sent = sum(world.messages.values())
    world.run(3)
    assert (sum(world.sent_bytes.values()) - before) / (sum(world.messages.values()) - sent) < 4_096


def test_a_site_that_all_share_with_asks_them_to_come_less_often() -> None:
    few = 4
    world = World(settings=MeshSettings(regulars_per_period=few))
    names = settled(world, 40)
    for name in names[1:]:
        world.mesh(name).interest([names[0]])
    world.run(4)
    before = world.answers[names[0]]
    world.run(8)
    assert (world.answers[names[0]] - before) / 8 <= 2 * few
    assert {world.state(name, names[0]) for name in names} == {"up"}


def test_a_changed_entry_replaces_the_old_one_everywhere() -> None:
    world = World()
    names = settled(world, 50)
    world.run(2)
    world.mesh(names[0]).describe(url="https://new.example", version="2.0", services=(("compute", ""),))
    changed = world.mesh(names[0]).own
    world.run_until(lambda: all(world.mesh(name).entry_of(names[0]) == changed for name in names), periods=6)


# -- restarts ----------------------------------------------------------------------------------------------


def test_a_restart_is_news_only_if_something_changed() -> None:
    world = World()
    three(world)
    kept = decode_saved(encode(world.mesh("a").saved()))
    assert Mesh(entry("a"), {}, world.at("a"), saved=kept).own == world.mesh("a").own
    moved = replace(entry("a"), url="https://elsewhere.example")
    assert Mesh(moved, {}, world.at("a"), saved=kept).own.revision > world.mesh("a").own.revision


def test_a_site_restarted_with_nobody_in_reach_knows_its_peers_and_finds_them_later() -> None:
    world = World()
    three(world)
    kept = world.mesh("c").saved()
    world.kill("c")
    world.cut = lambda _one, _other: True
    world.add("c", saved=kept)
    world.run(60)
    views = world.mesh("c").sites(world.at("c"))
    assert {view.name: view.state.value for view in views} == {"a": "down", "b": "down", "c": "up"}
    world.cut = lambda _one, _other: False
    world.run_until(lambda: sorted(world.mesh("c").up) == ["a", "b"], periods=20)


def test_a_site_reborn_with_its_clock_set_back_is_heard_again() -> None:
    world = World()
    three(world)
    before = world.mesh("b").own
    world.kill("b")
    world.add("b", peers=["a"], incarnation="2", skew_ms=-3_600_000)
    world.run_until(lambda: all(world.mesh(name).entry_of("b") == world.mesh("b").own for name in "ac"), periods=10)
    assert world.mesh("b").own.revision > before.revision
    world.run_until(lambda: {world.state("a", "b"), world.state("c", "b")} == {"up"}, periods=10)


# -- what goes wrong ---------------------------------------------------------------------------------------


def test_another_site_at_the_address_of_a_peer_is_seen_and_not_taken_for_it() -> None:
    world = World()
    three(world)
    now = world.at("a")
    lone = Mesh(entry("d"), {"x": "https://a.example:8079"}, now)
    probe = lone.tick(now, lambda _most: 0)[0][0]
    answer, _ = world.mesh("a").received_probe(probe.payload, now)
    assert lone.probe_answered(probe.id, answer, now) == []
    assert lone.problems() == ["'a' answers at the address of 'x'"]
    assert lone.entry_of("a") == world.mesh("a").own
    assert lone.state_of("x", now).state.value == "unknown"


def test_two_agents_of_one_name_are_told() -> None:
    mesh = Mesh(entry("a"), {}, Now(0, 0))
    other = Mesh(entry("a", incarnation="2"), {"b": "https://b.example"}, Now(0, 0))
    mesh.received_probe(other.tick(Now(0, 0), lambda _most: 0)[0][0].payload, Now(0, 0))
    assert mesh.problems() == ["another agent calls itself 'a' too (incarnation 2)"]


def test_clocks_that_differ_are_measured_and_told() -> None:
    world = World(rtt_ms=lambda _one, _other: 40.0)
    world.add("a", peers=["b"])
    world.add("b", skew_ms=90_000)
    world.run(5)
    clock = {view.name: view for view in world.mesh("a").sites(world.at("a"))}["b"].clock
    assert clock is not None
    assert clock.offset_ms == pytest.approx(90_000, abs=clock.error_ms)
    assert clock.error_ms == pytest.approx(20)
    assert world.mesh("a").problems() == ["the clock of 'b' is 90,000 ms ahead of ours"]
    assert world.mesh("b").problems() == ["the clock of 'a' is 90,000 ms behind ours"]


def test_sites_beyond_the_limit_are_not_taken_in_and_that_is_told() -> None:
    few = MeshSettings(max_sites=4)
    mesh = Mesh(entry("a"), {}, Now(0, 0), few)
    others = tuple(replace(entry(f"s{number}"), revision=1) for number in range(9))
    mesh.received_probe(Heartbeat("s0", "1", 1, 1, 0.0, entries=others), Now(0, 0))
    assert len(mesh.saved().entries) == 3
    assert mesh.problems() == ["the catalogue is full with 4 sites: others are not taken in"]


def test_a_site_that_others_could_not_take_in_does_not_start() -> None:
    services = tuple((f"service{number}", "x" * 500) for number in range(64))
    with pytest.raises(MeshError, match=r"the services of 'a' take 3\d,\d{3} bytes; 16,384 are possible"):
        Mesh(replace(entry("a"), services=services), {}, Now(0, 0))
    with pytest.raises(MeshError, match="invisible character"):
        Mesh(replace(entry("a"), name="a\u200b"), {}, Now(0, 0))
    with pytest.raises(MeshError, match="an address of 'a' cannot be used: expected a URL that starts with http"):
        Mesh(replace(entry("a"), url="ftp://a"), {}, Now(0, 0))


def test_what_was_kept_and_cannot_be_read_is_an_error_of_its_own() -> None:
    assert decode_saved(encode(SavedMesh())) == SavedMesh()
    with pytest.raises(MeshError, match="the saved state of the mesh cannot be read"):
        decode_saved(b'{"entries": 3}')
