"""Who is up: partitions, loss, one-way cuts, crashes and rebirths; and the laws of evidence."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from cheops.engine.events import PeerDown, PeerUp
from cheops.peers.heartbeat import MAX_NUMBER, Heartbeat, SavedMesh
from cheops.peers.liveness import HeartbeatCounters, ProbeHistory, SiteState, assess
from cheops.peers.mesh import Mesh
from cheops.peers.probes import ProbeCandidates, ProbeScheduler
from cheops.peers.settings import MeshSettings, Now
from tests.sync.mesh_world import World, entry, groups, settled, three

SETTINGS = MeshSettings()
PERIOD_MS = SETTINGS.period_ms


def share_with_opposite(world: World, names: list[str]) -> dict[str, str]:
    """Each site shares resources with one in the other half."""
    half = len(names) // 2
    opposite = dict(zip(names, names[half:] + names[:half], strict=True))
    for name, other in opposite.items():
        world.mesh(name).interest([other])
    return opposite


def states(world: World, here: list[str], there: list[str]) -> set[str]:
    return {world.state(one, other) for one in here for other in there if one != other}


# -- in a mesh ---------------------------------------------------------------------------------------------


def test_first_contact_is_an_event_and_silence_is_none() -> None:
    world = World()
    three(world)
    world.run(30)
    for name in "abc":
        assert sorted(world.events(name), key=str) == [PeerUp(peer, "1") for peer in "abc" if peer != name]


def test_a_partition_shows_on_both_sides_and_heals() -> None:
    """Sites that share resources see it within seconds, by own probes; all others soon after, by silence."""
    world = World(encode_every=5)
    names = settled(world, 24)
    opposite = share_with_opposite(world, names)
    world.run(24)
    west, east = names[:12], names[12:]
    assert states(world, names, names) == {"up"}
    world.cut, cut_ms = groups(west, east), world.now_ms
    world.run_until(
        lambda: all(world.state(one, other) == "down" for one, other in opposite.items()),
        periods=SETTINGS.least_misses + 6,
    )
    bound_ms = SETTINGS.down_ms(len(names)) + 5 * PERIOD_MS
    left = int((cut_ms + bound_ms - world.now_ms) / PERIOD_MS)
    world.run_until(lambda: states(world, west, east) == states(world, east, west) == {"down"}, periods=left)
    world.run(2)  # the engine hears of it at the next tick
    assert states(world, west, west) == states(world, east, east) == {"up"}
    assert not any(peer in east for name in west for peer in world.mesh(name).up)
    world.cut, healed_ms = lambda _one, _other: False, world.now_ms
    world.run_until(lambda: states(world, names, names) == {"up"}, periods=20)
    for name, other in opposite.items():
        assert world.events(name, cut_ms).count(PeerDown(other)) == 1
        assert world.events(name, healed_ms).count(PeerUp(other, "1")) == 1


def test_loss_of_a_fifth_of_all_packets_takes_nobody_down() -> None:
    world = World(loss=0.2, encode_every=5)
    names = settled(world, 12)
    for name in names:
        world.mesh(name).interest(names)
    world.run(100)
    assert states(world, names, names) <= {"up", "suspect"}
    assert not [event for name in names for event in world.events(name) if isinstance(event, PeerDown)]


def test_one_lost_heartbeat_makes_a_suspect_and_no_event() -> None:
    world = World()
    three(world)
    world.run(5)
    world.cut, since_ms = lambda one, _other: one == "b", world.now_ms
    world.run_until(lambda: world.state("a", "b") == "suspect", periods=5)
    world.cut = lambda _one, _other: False
    world.run_until(lambda: world.state("a", "b") == "up", periods=5)
    assert world.events("a", since_ms) == []


def test_a_site_that_we_hear_but_that_does_not_hear_us_is_not_up() -> None:
    """Packets from a to b are lost, so a hears b's probes while its own get no answer."""
    world = World()
    three(world)
    world.cut = lambda one, other: (one, other) == ("a", "b")
    world.run(40)
    assert (world.state("a", "b"), world.state("b", "a")) == ("down", "down")
    assert states(world, ["c"], ["a", "b"]) == {"up"}
    view = {view.name: view for view in world.mesh("a").sites(world.at("a"))}["b"]
    assert view.only_through_others
    assert view.note == "reachable only through others"
    assert view.direct
    assert view.contact_ms is not None
    assert view.contact_ms > 20 * PERIOD_MS
    assert "b" not in world.mesh("a").up


def test_a_wall_that_lets_calls_through_in_one_direction_counts_in_that_direction() -> None:
    world = World()
    three(world)
    world.refuse = lambda one, other: (one, other) == ("a", "b")
    world.run(40)
    assert (world.state("a", "b"), world.state("b", "a")) == ("down", "up")


def test_a_dead_site_is_down_for_all_and_not_reachable_through_anybody() -> None:
    world = World()
    three(world)
    world.run(10)
    world.kill("b")
    world.run_until(lambda: states(world, ["a", "c"], ["b"]) == {"down"}, periods=SETTINGS.least_misses + 6)
    world.run(60)
    for name in "ac":
        view = {view.name: view for view in world.mesh(name).sites(world.at(name))}["b"]
        assert (view.state, view.note) == (SiteState.DOWN, "")
        assert world.events(name)[-1] == PeerDown("b")


@pytest.mark.parametrize("absence_s", [0, 30])
def test_a_site_reborn_is_up_with_its_new_incarnation(absence_s: int) -> None:
    """A quick one is never down, but is another."""
    world = World()
    three(world)
    world.kill("b")
    world.run(absence_s)
    world.add("b", peers=["a"], incarnation="2")
    world.run_until(lambda: {world.mesh(name).up.get("b") for name in "ac"} == {"2"}, periods=10)
    gone = [PeerDown("b")] if absence_s else []
    about_b = [event for event in world.events("a") if event.peer == "b"]
    assert about_b == [PeerUp("b", "1"), *gone, PeerUp("b", "2")]


def test_old_news_that_keeps_going_round_does_not_keep_a_site_alive() -> None:
    mesh = Mesh(entry("a"), {}, Now(0, 0))
    chatter = {"sender": "b", "incarnation": "1", "revision": 1, "entries": (entry("b"), entry("dead"))}
    for second in range(60):
        beats = (("dead", min(100 + second, 105)),)
        message = Heartbeat(**chatter, beat=second, sent_ms=0.0, beats=beats)  # type: ignore[arg-type]
        now = Now(second * 1_000, second * 1_000)
        mesh.tick(now, lambda _most: 0)
        mesh.received_probe(message, now)
        if second == 5:
            assert mesh.state_of("dead", now).state is SiteState.UP
    assert mesh.state_of("dead", now).state is not SiteState.UP
    assert "dead" not in mesh.up


def test_a_site_known_by_hearsay_is_up_and_the_engine_hears_of_it_when_it_has_answered() -> None:
    world = World()
    names = settled(world, 30)
    here = names[0]
    world.run(6)
    heard = [view for view in world.mesh(here).sites(world.at(here)) if view.is_up and view.contact_ms is None]
    others = [view.name for view in heard if not view.here]
    assert others
    assert {view.note for view in heard if not view.here} == {"by what others say"}
    assert not world.mesh(here).up.keys() & set(others)
    world.mesh(here).interest([others[0]])
    world.run(1)
    assert others[0] in world.mesh(here).up


def test_after_an_outage_that_all_saw_a_site_is_judged_anew() -> None:
    """Our own misses are of the outage. It is up by what others say, and probed to be sure."""
    mesh = Mesh(entry("a"), {"b": "https://b.example"}, Now(0, 0))
    known = Heartbeat("c", "1", 1, 1, 0.0, entries=(entry("b"), entry("c")))
    mesh.received_probe(known, Now(0, 0))
    states = []
    for second in range(100):
        now = Now(second * 1_060, 0)
        probes, _ = mesh.tick(now, lambda most: most - 1)
        for probe in probes:
            mesh.probe_failed(probe.id, now)
        if second < 20 or second in (60, 61):
            gossip = Heartbeat("c", "1", 1, second, 0.0, beats=(("b", second),))
            mesh.received_probe(gossip, now)
        verdict = mesh.state_of("b", now)
        states.append((verdict.state.value, verdict.direct))
        assert second != 62 or "b" in {probe.to_site for probe in probes}
    assert states[19] == states[59] == states[60] == ("down", True)
    assert states[61] == ("up", False)
    assert states[99][0] == "down"


def test_of_the_random_partners_one_is_absent_if_any_is() -> None:
    partners = ProbeScheduler(SETTINGS)
    names = [f"s{number}" for number in range(10)]
    field = ProbeCandidates(names, lambda _site: True, lambda _site: True, lambda site: site in names[:3])
    draw = Random(5).randrange  # noqa: S311 - a simulation
    chosen = [set(partners.choose(field, draw)) for _ in range(200)]
    assert all(len(pair) == SETTINGS.random_probes for pair in chosen)
    assert sum(len(pair & set(names[:3])) == 1 for pair in chosen) > 140
    assert set().union(*chosen) == set(names)


def test_a_configured_peer_that_was_never_reached_is_tried_again_and_again() -> None:
    """It may be the one way to a part of the mesh of which nobody here knows."""
    others = tuple(entry(f"s{number}") for number in range(99))
    mesh = Mesh(entry("a"), {"x": "https://x.example"}, Now(0, 0), saved=SavedMesh(entries=others))
    probed = []
    for second in range(200):
        probes, _ = mesh.tick(Now(second * 1_060, 0), lambda most: most - 1)
        probed += [second for probe in probes if probe.to_site == "x"]
    assert mesh.state_of("x", Now(212_000, 0)).state is SiteState.DOWN
    assert len([second for second in probed if second > 100]) >= 5


def test_a_pause_of_our_own_is_no_evidence_against_others() -> None:
    """A process that was stopped for an hour finds its peers up, as they are."""
    now = Now(0, 0)
    mesh, peer = (
        Mesh(entry("a"), {"b": "https://b.example"}, now),
        Mesh(entry("b"), {}, now),
    )
    events = []
    for second in (*range(10), *range(3_600, 3_610)):
        now = Now(second * 1_000 * 1.06, 0)
        probes, told = mesh.tick(now, lambda _most: 0)
        events += told
        for probe in probes:
            if second != 9:  # on its way when the process is stopped
                answer, _ = peer.received_probe(probe.payload, now)
                events += mesh.probe_answered(probe.id, answer, now)
    assert events == [PeerUp("b", "1")]


def test_a_period_does_not_look_at_all_sites_that_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the work of a mesh would grow with the square of its sites."""
    world = World()
    names = settled(world, 40)
    world.run(30)
    mesh, looked = world.mesh(names[0]), []
    assert len(mesh.up) > 20
    assess_site = mesh._assess

    def counted(site: str, now_ms: float) -> Any:
        looked.append(site)
        return assess_site(site, now_ms)

    monkeypatch.setattr(mesh, "_assess", counted)
    now = world.at(names[0])
    probes, _ = mesh.tick(Now(now.mono_ms + 1.1 * PERIOD_MS, now.wall_ms + 1.1 * PERIOD_MS), lambda most: most - 1)
    assert probes
    assert len(looked) <= 8, "a few for the random probes"


def test_what_nobody_says_anything_of_fails_by_itself() -> None:
    mesh = Mesh(entry("a"), {"b": "https://b.example"}, Now(0, 0))
    for second in range(40):
        mesh.tick(Now(second * 1_060, 0), lambda _most: 0)
    assert mesh.state_of("b", Now(40_000, 0)).state is SiteState.DOWN


def test_a_hurried_probe_does_not_wait_for_the_period() -> None:
    world = World()
    three(world)
    now = world.at("a")
    world.mesh("a").probe_now("b")
    assert world.mesh("a").wait_ms(now) == 0
    assert [probe.to_site for probe in world.mesh("a").tick(now, world.random.randrange)[0]] == ["b"]


def test_many_shared_sites_are_probed_in_turn() -> None:
    world = World(encode_every=5)
    names = settled(world, 30)
    world.mesh(names[0]).interest(names)
    world.run(20)
    assert sorted(world.mesh(names[0]).up) == names[1:]
    dead = names[7]
    world.kill(dead)
    turn = -(-29 // SETTINGS.interest_probes)
    world.run_until(lambda: dead not in world.mesh(names[0]).up, periods=turn + SETTINGS.most_misses)


# -- the laws of evidence ----------------------------------------------------------------------------------

results = st.lists(st.booleans(), max_size=80)


def after(outcomes: list[bool], link: ProbeHistory = ProbeHistory(), at_s: int = 0) -> ProbeHistory:  # noqa: B008 - a frozen value
    for second, answered in enumerate(outcomes, at_s):
        now_ms = second * PERIOD_MS
        link = link.answered(now_ms, SETTINGS) if answered else link.missed(now_ms, SETTINGS)
    return link


@given(results)
def test_fewer_misses_than_the_least_never_take_a_site_down(outcomes: list[bool]) -> None:
    link = after([*outcomes, True, True, True, True, True, True, *[False] * (SETTINGS.least_misses - 1)])
    assert link.reaches


@given(results)
def test_enough_misses_always_do(outcomes: list[bool]) -> None:
    assert after([*outcomes, *[False] * SETTINGS.most_misses]).state is SiteState.DOWN


@given(results)
def test_enough_answers_always_bring_it_back(outcomes: list[bool]) -> None:
    assert after([*outcomes, *[True] * SETTINGS.most_hits]).state is SiteState.UP


def test_a_good_link_is_down_after_four_misses_and_a_lossy_one_takes_more() -> None:
    good, lossy = after([True] * 100), after([True, True, False] * 40)
    assert after([False] * 4, good, 100).state is SiteState.DOWN
    assert after([False] * 8, lossy, 120).state is SiteState.SUSPECT


def test_a_site_that_flaps_must_prove_itself() -> None:
    link = after([True] * 100)
    needed = []
    for _ in range(4):
        link = after([False] * 14, link, 100)
        for hits in range(1, 9):
            link = after([True], link, 114)
            if link.state is SiteState.UP:
                needed.append(hits)
                break
    assert needed == sorted(needed)
    assert needed[0] <= 2
    assert needed[-1] >= 4
    down = after([False] * 14, link, 120)
    assert down.answered(7_200_000, SETTINGS).state is SiteState.UP  # long ago


@given(results, st.none() | st.floats(0, 100_000), st.floats(0, 200_000))
def test_own_misses_beat_hearsay(outcomes: list[bool], heard_ms: float | None, later_ms: float) -> None:
    link = after([*outcomes, *[False] * SETTINGS.most_misses])
    now_ms = len(outcomes) * PERIOD_MS + later_ms
    assert assess(link, heard_ms, now_ms, 50, SETTINGS).state is SiteState.DOWN


@given(st.none() | st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.integers(1, 1_000))
def test_without_own_misses_the_youngest_sign_of_life_counts(
    contact_ms: float | None, heard_ms: float | None, sites: int
) -> None:
    link = ProbeHistory() if contact_ms is None else ProbeHistory().answered(-contact_ms, SETTINGS)
    verdict = assess(link, heard_ms, 0.0, sites, SETTINGS)
    ages = [age for age in (contact_ms, heard_ms) if age is not None]
    if not ages:
        assert verdict.state is SiteState.UNKNOWN
        return
    assert verdict.as_of_ms == min(ages)
    assert (verdict.state is SiteState.DOWN) == (min(ages) > SETTINGS.down_ms(sites))


@given(st.lists(st.integers(0, 20), max_size=40))
def test_a_count_that_does_not_advance_is_no_sign_of_life(counts: list[int]) -> None:
    beats, highest, advances = HeartbeatCounters(), -1, 0
    beats.watch("x")
    for at_ms, count in enumerate(counts):
        advances += count > highest >= 0
        highest = max(highest, count)
        beats.take([("x", count)], at_ms)
    assert beats.count("x") == max(highest, 0)
    assert (beats.age_ms("x", len(counts)) is not None) == (advances > 0)


def test_one_that_fell_silent_must_advance_twice() -> None:
    beats = HeartbeatCounters()
    beats.watch("x")
    assert [beats.take([("x", count)], 0) for count in (5, 5, 6)] == [[], [], []]
    assert beats.age_ms("x", 30) == 30
    beats.expire_silent(100, limit_ms=50)
    assert beats.age_ms("x", 100) == 100
    assert beats.gossip(9) == []
    assert [beats.take([("x", count)], 120) for count in (6, 7)] == [[], []]
    assert beats.age_ms("x", 120) == 120
    assert beats.take([("x", 8)], 120) == ["x"]
    assert beats.age_ms("x", 120) == 0
    assert beats.gossip(9) == [("x", 8)]


def test_a_liar_does_not_silence_a_site_that_lives() -> None:
    """One of 50 says in every heartbeat that another is far ahead: its true counter advances for all others anyway."""
    world = World(encode_every=10)
    names = settled(world, 50)
    victim, liar = names[7], world.mesh(names[3])
    others = [name for name in names if name not in (victim, names[3])]
    compose = liar._known.compose

    def lie(*arguments: Any) -> Heartbeat:
        return replace(compose(*arguments), beats=((victim, MAX_NUMBER), (names[8], 2**52)))

    liar._known.compose = lie  # type: ignore[method-assign, assignment]
    world.run(60)
    assert {world.state(name, victim) for name in others} == {"up"}


def test_what_others_say_takes_no_site_down_that_shares_resources_and_answers() -> None:
    """Its counter stands still for all: but our own probes are answered, and a site that shares nothing is down."""
    world = World()
    three(world)
    mesh = world.mesh("a")
    mesh.interest(["b"])
    since_ms = world.now_ms
    mesh._known.beats.take = lambda _beats, _now_ms, _latest: []  # type: ignore[method-assign, assignment, misc]
    mesh._known.beats._live.clear()
    mesh._peers["b"].link = structs.replace(mesh._peers["b"].link, contact_ms=-1e6)
    world.run(1)
    assert world.events("a", since_ms) == []
    assert "b" in mesh.up
    world.kill("b")
    world.run_until(lambda: PeerDown("b") in world.events("a", since_ms), periods=20)


def test_a_site_that_is_down_is_shown_as_of_its_last_answer_not_of_the_last_probe() -> None:
    world = World()
    three(world)
    world.run(5)
    world.kill("b")
    world.run(60)
    assert world.state("a", "b") == "down"
    shown = world.mesh("a").state_of("b", world.at("a")).as_of_ms
    assert shown is not None
    assert shown > 50_000
