"""Sites that are forgotten stay so, whoever still speaks of them, until they are admitted again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cheops.engine.events import PeerDown, PeerUp
from cheops.errors import ClientError
from cheops.peers.heartbeat import Heartbeat, MembershipRecord, decode_saved, encode
from cheops.peers.membership import Membership
from cheops.peers.mesh import Mesh
from cheops.peers.proofs import NoProofs, RecordError
from cheops.peers.settings import MeshSettings, Now
from tests.sync.mesh_world import EPOCH_MS, World, entry, settled, three

SETTINGS = MeshSettings()


def view(world: World, here: str, site: str) -> tuple[str, str]:
    found = {view.name: view for view in world.mesh(here).sites(world.at(here))}[site]
    return found.state.value, found.note


def test_a_dead_site_that_was_forgotten_is_gone_everywhere() -> None:
    world = World(encode_every=4)
    names = settled(world, 50)
    dead = names[20]
    world.kill(dead)
    others = [name for name in names if name != dead]
    world.run(2)
    world.forget(names[0], dead)
    world.run_until(lambda: all(world.mesh(name).entry_of(dead) is None for name in others), periods=8)
    world.run(3)
    assert {world.state(name, dead) for name in others} == {"forgotten"}
    assert dead not in world.mesh(names[1]).snapshot(world.at(names[1])).sites


def test_a_forgotten_site_does_not_come_back_by_old_news() -> None:
    world = World()
    three(world)
    stale = world.mesh("c").saved()
    world.kill("b")
    world.kill("c")
    world.run(10)
    assert world.forget("a", "b") == []
    world.add("c", saved=stale)
    assert world.mesh("c").entry_of("b") is not None
    world.run_until(lambda: world.mesh("c").entry_of("b") is None, periods=10)
    world.run(10)
    assert world.mesh("a").entry_of("b") is None
    assert {world.state("a", "b"), world.state("c", "b")} == {"forgotten"}


def test_a_forgotten_site_that_is_alive_knows_it_and_others_see_it() -> None:
    world = World()
    three(world)
    assert world.forget("a", "b") == [PeerDown("b")]
    world.run(10)
    assert world.mesh("b").is_forgotten
    (problem,) = world.mesh("b").problems()
    assert problem.startswith("the other sites have forgotten this one, so it takes no part. To admit it again: ")
    assert "'cheops site invite b --again' there" in problem
    assert view(world, "b", "b") == ("forgotten", "forgotten, and it is alive")
    assert view(world, "a", "b") == ("forgotten", "forgotten, and it is alive")
    assert {name: dict(world.mesh(name).up) for name in "abc"} == {"a": {"c": "1"}, "b": {}, "c": {"a": "1"}}
    assert [event for event in world.events("b") if isinstance(event, PeerDown)] != []


@pytest.mark.parametrize("where", ["a", "b", "c"])
def test_it_can_be_admitted_again_at_any_site(where: str) -> None:
    world = World()
    three(world)
    world.forget("a", "b")
    world.run(10)
    world.admit(where, "b")
    world.run_until(
        lambda: [sorted(world.mesh(name).up) for name in "abc"] == [["b", "c"], ["a", "c"], ["a", "b"]],
        periods=30,
    )
    assert world.events("a")[-1] == PeerUp("b", "1")
    assert not world.mesh("b").is_forgotten


def test_what_was_forgotten_stays_so_after_a_restart() -> None:
    world = World()
    three(world)
    world.forget("a", "b")
    kept = decode_saved(encode(world.mesh("a").saved()))
    again = Mesh(entry("a"), {"b": "https://b.example:8079"}, world.at("a"), saved=kept)
    assert again.state_of("b", world.at("a")).state == "forgotten"
    assert all(probe.to_site != "b" for probe in again.tick(world.at("a"), lambda _most: 0)[0])


def test_an_answer_that_comes_after_its_site_was_forgotten_changes_nothing() -> None:
    now = Now(0, EPOCH_MS)
    mesh, peer = Mesh(entry("a"), {"b": "https://b.example"}, now), Mesh(entry("b"), {}, now)
    probe = mesh.tick(now, lambda _most: 0)[0][0]
    answer, _ = peer.received_probe(probe.payload, now)
    mesh.forget("b", now)
    assert mesh.probe_answered(probe.id, answer, now) == []
    assert mesh.state_of("b", now).state == "forgotten"
    assert mesh.entry_of("b") is None


def test_mistakes_are_named() -> None:
    mesh = Mesh(entry("paris"), {"lyon": "https://lyon.example"}, Now(0, EPOCH_MS))
    with pytest.raises(ClientError, match="unknown site 'lion'; did you mean 'lyon'"):
        mesh.forget("lion", Now(0, EPOCH_MS))
    with pytest.raises(ClientError, match="'paris' cannot forget itself"):
        mesh.forget("paris", Now(0, EPOCH_MS))
    with pytest.raises(ClientError, match="'lyon' was not forgotten"):
        mesh.admit("lyon", Now(0, EPOCH_MS))


# -- the laws of records -----------------------------------------------------------------------------------

records = st.lists(st.builds(MembershipRecord, st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=12)


def after(members: list[MembershipRecord]) -> dict[str, MembershipRecord]:
    membership = Membership(SETTINGS, NoProofs())
    for member in members:
        membership.take(member, 0)
    return {record.name: record for record in membership.records()}


@given(records, st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(members: list[MembershipRecord], random: object) -> None:
    shuffled = [*members, *members]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert after(shuffled) == after(members)


@given(records, st.booleans(), st.floats(0, 10))
def test_a_decision_made_here_counts_whatever_the_clocks_say(
    members: list[MembershipRecord], forgotten: bool, wall_ms: float
) -> None:
    membership = Membership(SETTINGS, NoProofs())
    for member in members:
        membership.take(member, 0)
    membership.decide("a", wall_ms, forgotten=forgotten)
    assert membership.is_forgotten("a") == forgotten


def test_no_decision_is_dropped_and_what_is_beyond_the_limit_is_refused() -> None:
    membership = Membership(MeshSettings(max_members=3), NoProofs())
    for stamp in range(1, 4):
        membership.take(MembershipRecord(f"s{stamp}", stamp, forgotten=True), 0)
    with pytest.raises(RecordError, match="the decision about 's4' is one more than 3"):
        membership.take(MembershipRecord("s4", 4, forgotten=True), 0)
    assert membership.forgotten() == ["s1", "s2", "s3"]
    assert membership.take(MembershipRecord("s1", 9, forgotten=False), 0)  # one that is known can change
    assert membership.refused == 1


def test_all_records_go_round_though_a_message_holds_few() -> None:
    membership = Membership(SETTINGS, NoProofs())
    for number in range(100):
        membership.take(MembershipRecord(f"s{number}", 1, forgotten=True), 0)
    told = {record.name for _ in range(300) for record in membership.gossip(8)}
    again = {record.name for _ in range(15) for record in membership.gossip(8)}
    assert told == again == set(membership.forgotten())


def test_what_others_still_say_of_a_forgotten_site_is_not_taken_in() -> None:
    now = Now(0, EPOCH_MS)
    mesh = Mesh(entry("a"), {"b": "https://b.example"}, now)
    mesh.forget("b", now)
    stale = replace(entry("b"), revision=int(EPOCH_MS) + 1)
    for beat in range(3):
        mesh.received_probe(Heartbeat("c", "1", 1, beat, 0.0, entries=(stale,), beats=(("b", beat),)), now)
    assert mesh.entry_of("b") is None
    assert mesh.state_of("b", now).state == "forgotten"
    assert "b" not in mesh.snapshot(now).sites


def test_nothing_is_learned_from_a_forgotten_site() -> None:
    now = Now(0, EPOCH_MS)
    mesh = Mesh(entry("a"), {"b": "https://b.example"}, now)
    mesh.forget("b", now)
    answer, _ = mesh.received_probe(Heartbeat("b", "1", 1, 1, 0.0, entries=(entry("ghost"),)), now)
    assert mesh.entry_of("ghost") is None
    assert [(member.name, member.forgotten) for member in answer.members] == [("b", True)]
    assert answer.entries == ()
