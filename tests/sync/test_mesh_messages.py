"""Heartbeats on the wire: what is accepted, what is refused, and that nothing accepted does harm."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cheops.errors import Fault
from cheops.peers.heartbeat import (
    BUCKETS,
    MAX_BYTES,
    MAX_NUMBER,
    Coordinate,
    Heartbeat,
    MembershipRecord,
    MeshError,
    SiteRecord,
    decode,
    encode,
)
from cheops.peers.membership import Catalogue, GossipQueue, record_rank
from cheops.peers.mesh import Mesh
from cheops.peers.settings import MeshSettings, Now
from tests.sync.mesh_world import EPOCH_MS, entry

SETTINGS = MeshSettings()
NOW = Now(0, EPOCH_MS)
PLAIN: dict[str, Any] = {"sender": "b", "incarnation": "1", "revision": 1, "beat": 1, "sent_ms": 1.5}
ENTRY: dict[str, Any] = {"name": "c", "incarnation": "1", "url": "https://c", "revision": 3}

CHANGES: dict[str, dict[str, Any]] = {
    "no sender": {"sender": ""},
    "a sender nobody can read": {"sender": "b\u200b"},
    "a sender of blanks": {"sender": "  "},
    "a long sender": {"sender": "b" * 129},
    "a text for a number": {"beat": "7"},
    "a fraction for a number": {"beat": 7.5},
    "a negative number": {"beat": -1},
    "a huge number": {"revision": 2**60},
    "a huge time": {"sent_ms": 1e300},
    "half of what was seen": {"seen": [1]},
    "too many digests": {"digests": [0] * (BUCKETS + 1)},
    "too many beats": {"beats": [["c", 1]] * 257},
    "too many entries": {"entries": [ENTRY] * 513},
    "a beat of nobody": {"beats": [["", 1]]},
    "a negative distance": {"pairs": [["b", "c", -1, 1]]},
    "a distance to the stars": {"pairs": [["b", "c", 1e9, 1]]},
    "a long address": {"entries": [{**ENTRY, "url": f"https://{'x' * 512}"}]},
    "a version with an escape sequence": {"entries": [{**ENTRY, "version": "\u001b[2J"}]},
    "a version with a line end": {"entries": [{**ENTRY, "version": "1.0\n"}]},
    "an incarnation with an escape sequence": {"incarnation": "\u001b[2J"},
    "an incarnation with a line end": {"incarnation": "1\n"},
    "a certificate that is no base64": {"entries": [{**ENTRY, "certificate": "?"}]},
    "a certificate that is too long": {"entries": [{**ENTRY, "certificate": "A" * 16_000}]},
    "a decision that is too late for all": {"members": [["c", 2**53 + 1, True]]},
    "a service nobody can read": {"entries": [{**ENTRY, "services": [["\u202e", ""]]}]},
    "an entry without incarnation": {"entries": [{**ENTRY, "incarnation": ""}]},
    "an entry that is too large": {"entries": [{**ENTRY, "services": [["s", "x" * 500]] * 60}]},
    "a member nobody can read": {"members": [["\u0007", 1, True]]},
    "a coordinate out of bounds": {"coordinate": [1e9, 0, 0, 1, 1]},
    "a place out of bounds": {"places": [["c", 1, [0, 0, 0, 1, 0]]]},
    "a height below ground": {"coordinate": [0, 0, 0, -1, 1]},
    "a period of nothing": {"every": 0},
}
BAD: dict[str, bytes] = {
    "not JSON": b"\xff",
    "not an object": b"[]",
    "nested": b"[" * 100_000,
    "too large": b" " * (MAX_BYTES + 1),
    **{what: json.dumps({**PLAIN, **change}).encode() for what, change in CHANGES.items()},
    "not a number": json.dumps({**PLAIN, "sent_ms": float("nan")}).encode(),
    "infinite": json.dumps(PLAIN).replace("1.5", "1e999").encode(),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_not_a_heartbeat_is_refused(data: bytes) -> None:
    with pytest.raises(MeshError) as caught:
        decode(data)
    assert (caught.value.fault, caught.value.status) == (Fault.PEER, 400)
    assert len(str(caught.value)) < 300


def test_what_a_newer_agent_adds_is_ignored() -> None:
    assert decode(json.dumps({**PLAIN, "mood": "fine"}).encode()) == decode(json.dumps(PLAIN).encode())


names = st.sampled_from(["a", "b", "c", "DC 1", "d"])
numbers = st.integers(0, 9) | st.integers(0, MAX_NUMBER)
wall_ms = st.floats(0, MAX_NUMBER)
coordinates = st.builds(Coordinate, *[st.floats(-1e5, 1e5)] * 3, st.floats(0, 1e5), st.floats(0.001, 1))
entries = st.builds(
    SiteRecord,
    names,
    st.sampled_from("123"),
    st.just("http://x"),
    numbers,
    st.just("1"),
    st.lists(st.tuples(names, st.just("")), max_size=2).map(tuple),
)
heartbeats = st.builds(
    Heartbeat,
    names,
    st.sampled_from("123"),
    numbers,
    numbers,
    wall_ms,
    st.none() | wall_ms,
    st.tuples(numbers, numbers),
    st.booleans(),
    st.integers(1, 1_000),
    coordinates,
    st.lists(numbers, max_size=BUCKETS).map(tuple),
    st.lists(entries, max_size=3).map(tuple),
    st.lists(st.tuples(names, numbers), max_size=3).map(tuple),
    st.lists(st.tuples(names, names, st.floats(0, 1e5), numbers), max_size=3).map(tuple),
    st.lists(st.tuples(names, numbers, coordinates), max_size=3).map(tuple),
    st.lists(st.builds(MembershipRecord, names, numbers, st.booleans()), max_size=2).map(tuple),
)


@given(heartbeats)
def test_what_was_encoded_decodes_to_the_same(heartbeat: Heartbeat) -> None:
    assert decode(encode(heartbeat)) == heartbeat


@settings(max_examples=60)
@given(st.lists(heartbeats, max_size=6))
def test_whatever_others_say_our_own_words_stay_well_formed(heard: list[Heartbeat]) -> None:
    """No heartbeat that is accepted makes us fail, or say what others would refuse."""
    mesh = Mesh(entry("a"), {"b": "https://b.example"}, NOW)
    for second, heartbeat in enumerate(heard):
        now = Now(second * 1_060, EPOCH_MS)
        probes, _ = mesh.tick(now, lambda most: most - 1)
        answer, _ = mesh.received_probe(heartbeat, now)
        assert decode(encode(answer)) == answer
        for probe in probes:
            assert decode(encode(probe.payload)) == probe.payload
            mesh.probe_answered(probe.id, heartbeat, now)
    now = Now(99_000, EPOCH_MS)
    assert mesh.own.name == "a"
    assert all(view.name for view in mesh.sites(now))
    assert mesh.snapshot(now).sites["a"].up
    mesh.problems()


def test_a_message_is_bounded_whatever_the_names() -> None:
    """A thousand sites with the longest names and entries, all of them news."""
    mesh = Mesh(entry("a"), {}, NOW)
    services = tuple((f"{number:02}" + "ü" * 126, f"https://{'x' * 200}") for number in range(30))
    for batch in range(100):
        others = tuple(
            SiteRecord(f"{batch:02}{number}" + "ü" * 125, "1", "https://x", 1, services=services)
            for number in range(10)
        )
        mesh.received_probe(Heartbeat("b", "1", 1, 1, 0.0, entries=others), NOW)
    beats = [(entry_.name, count) for count in (1, 2) for entry_ in mesh.saved().entries]
    for start in range(0, len(beats), 200):
        mesh.received_probe(Heartbeat("b", "1", 1, 1, 0.0, beats=tuple(beats[start : start + 200])), NOW)
    mesh.tick(NOW, lambda _most: 0)  # a new period: answers carry gossip again
    answer, _ = mesh.received_probe(Heartbeat("b", "1", 1, 1, 0.0, digests=(1,) * BUCKETS), NOW)
    assert len(answer.beats) == SETTINGS.beats_per_message
    assert answer.entries
    assert len(encode(answer)) < MAX_BYTES
    assert decode(encode(answer)) == answer


# -- catalogue ---------------------------------------------------------------------------------------------

own = msgspec.structs.replace(entry("me"), revision=1)


def after(found: list[SiteRecord]) -> Catalogue:
    catalogue = Catalogue(own, SETTINGS)
    for one in found:
        catalogue.take(one)
    return catalogue


@given(st.lists(entries, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter(found: list[SiteRecord], random: Any) -> None:
    """Of two entries with the same revision and incarnation, which an honest site never makes, the first stays."""
    honest = list({(one.name, record_rank(one)): one for one in found}.values())
    shuffled = [*honest, *honest]
    random.shuffle(shuffled)
    assert sorted(after(shuffled).entries(), key=repr) == sorted(after(honest).entries(), key=repr)
    assert after(shuffled).digests == after(honest).digests


@given(st.lists(entries, max_size=12), st.lists(entries, max_size=12))
def test_pages_make_two_catalogues_equal(here: list[SiteRecord], there: list[SiteRecord]) -> None:
    honest = {(one.name, record_rank(one)): one for one in [*here, *there]}
    one = after([honest[found.name, record_rank(found)] for found in here])
    other = after([honest[found.name, record_rank(found)] for found in there])
    for _ in range(2):
        for found in other.page(one.digests, 10_000):
            one.take(found)
        one, other = other, one
    assert one.digests == other.digests
    assert one.page(other.digests, 10_000) == []


def test_news_goes_out_with_the_next_probes_and_then_no_more() -> None:
    mesh = Mesh(entry("a"), {"b": "https://b.example"}, NOW)
    mesh.received_probe(Heartbeat("b", "1", 1, 1, 0.0, entries=(entry("b"), entry("c"))), NOW)
    ticks = (mesh.tick(Now(second * 1_060, EPOCH_MS), lambda _most: 0) for second in range(30))
    told = ["c" in {one.name for one in probe.payload.entries} for probes, _ in ticks for probe in probes]
    assert told[0]
    assert not told[-1]


def test_a_page_is_bounded_and_the_next_one_goes_on() -> None:
    catalogue = after([entry(f"site{number}") for number in range(200)])
    nothing = (0,) * BUCKETS
    pages = [catalogue.page(nothing, 4_096) for _ in range(20)]
    assert all(sum(len(encode(one)) for one in page) <= 4_096 for page in pages)
    assert {one.name for page in pages for one in page} == set(catalogue.names)


def test_dropping_an_entry_leaves_no_trace() -> None:
    catalogue = after([entry("x"), entry("y")])
    catalogue.drop("x")
    assert catalogue.digests == after([entry("y")]).digests
    assert catalogue.get("x") is None
    assert "x" not in {one.name for one in catalogue.fresh()}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=20), st.integers(1, 4))
def test_all_news_is_told_as_often_as_asked(added: list[tuple[int, int]], most: int) -> None:
    news: GossipQueue[int] = GossipQueue(100)
    for key, times in added:
        news.add(key, times)
    told = []
    while len(news):
        told += news.take(most)
    assert {key: told.count(key) for key in told} == dict(added)


def test_news_that_does_not_fit_pushes_out_the_oldest() -> None:
    news: GossipQueue[int] = GossipQueue(2)
    for key in (1, 2, 1, 3):
        news.add(key, 1)
    assert news.take(9) == [2, 3]
