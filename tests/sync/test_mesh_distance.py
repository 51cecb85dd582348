"""Distances: measured, told, estimated; and `around` on top of them."""

from math import hypot
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.peers.distances import Distances, estimate_ms, moved, sampled
from cheops.peers.heartbeat import MAX_MS, Coordinate, Heartbeat
from cheops.peers.probes import SentProbe, updated_round_trip
from cheops.peers.settings import MeshSettings, Now
from cheops.scope import Fallback, One, parse, resolve
from tests.sync.mesh_world import World, settled, three

SETTINGS = MeshSettings()


class Plane:
    """Sites on a plane of 100 ms, each with an access link of its own; measurements come with noise."""

    def __init__(self, names: list[str], noise: float = 0.1) -> None:
        self._random = Random(7)  # noqa: S311 - a simulation
        self._noise = noise
        uniform = self._random.uniform
        self._places = {name: (uniform(0, 100), uniform(0, 100), uniform(1, 8)) for name in names}

    def true_ms(self, one: str, other: str) -> float:
        a, b = self._places[one], self._places[other]
        return hypot(a[0] - b[0], a[1] - b[1]) + a[2] + b[2]

    def __call__(self, one: str, other: str) -> float:
        return self.true_ms(one, other) * (1 + self._random.uniform(0, self._noise))


# -- in a mesh ---------------------------------------------------------------------------------------------


def test_each_site_can_say_how_far_others_are_from_any_site() -> None:
    """Most pairs were not measured by anybody who told; the estimates of those are sane."""
    names = [f"site{number:04}" for number in range(40)]
    plane = Plane(names)
    world = World(rtt_ms=plane, encode_every=5, settings=MeshSettings(row_size=8))
    settled(world, 40)
    world.run(45)
    here = names[0]
    errors: list[float] = []
    told: list[float] = []
    for site in names:
        distances = world.mesh(here).distances_from(site, world.at(here))
        assert distances.keys() == set(names) - {site}
        for other, distance in distances.items():
            error = abs(distance.rtt_ms - plane.true_ms(site, other)) / plane.true_ms(site, other)
            (told if distance.measured else errors).append(error)
    assert max(told) <= 0.15
    assert len(errors) > 300
    assert median(errors) < 0.2


def test_around_is_answered_for_other_sites_too() -> None:
    """a and b are near each other, c is far from both; c answers for a as a does for itself."""
    rtt_ms = {frozenset("ab"): 8.0, frozenset("ac"): 90.0, frozenset("bc"): 80.0}
    world = World(rtt_ms=lambda one, other: rtt_ms[frozenset((one, other))])
    three(world)
    world.run(10)
    for here in "abc":
        snapshot = world.mesh(here).snapshot(world.at(here))
        assert snapshot.here == here
        assert snapshot.rtts_ms
        assert len(snapshot.rtts_ms) == len(list(snapshot.rtts_ms)) == 3
        assert {pair: pytest.approx(ms) for pair, ms in snapshot.rtts_ms.items()} == rtt_ms
        near = resolve(parse("{image: around(a, 10ms)}"), "image", snapshot)
        assert near == Fallback((One("a"), One("b")))
        assert resolve(parse("{image: around(c, 10ms)}"), "image", snapshot) == One("c")


def test_a_site_that_is_down_is_in_the_snapshot_and_not_up() -> None:
    world = World()
    three(world)
    world.kill("b")
    world.run(30)
    snapshot = world.mesh("a").snapshot(world.at("a"))
    assert {name: site.up for name, site in snapshot.sites.items()} == {"a": True, "b": False, "c": True}
    assert snapshot.services == {"image"}
    assert snapshot.rtts_ms.get(frozenset(("a", "x"))) is None
    assert snapshot.rtts_ms.get(frozenset("a")) is None


# -- rows --------------------------------------------------------------------------------------------------


def test_a_row_tells_the_nearest_and_again_what_changed() -> None:
    distances = Distances("a", MeshSettings(row_size=2))
    for beat, (peer, rtt_ms) in enumerate([("b", 10), ("c", 20), ("d", 5), ("d", 5.5), ("b", 30)]):
        distances.measured(peer, rtt_ms, Coordinate(), beat, beat)
    assert list(distances.gossip_pairs(9)) == [("a", "b", 30, 4), ("a", "c", 20, 1)]
    assert distances.trim_row() == ["d", "c"]
    distances.measured("d", 5.6, Coordinate(), 5, 5)
    assert ("a", "d", 5.6, 5) in list(distances.gossip_pairs(9))


def test_of_two_measurements_the_later_counts_and_old_ones_are_dropped() -> None:
    distances = Distances("a", SETTINGS)
    known = {"b", "c"}
    pairs = [
        ("b", "c", 10.0, 5_000),
        ("b", "c", 11.0, 7_000),
        ("b", "c", 12.0, 6_000),
        ("b", "x", 1.0, 9_000),
        ("b", "b", 1.0, 9_000),
    ]
    distances.take_pairs(pairs, known, lambda _site: 10_000, now_ms=20_000)
    found = distances.table(20_000).between("c", "b")
    assert found is not None
    assert (found.rtt_ms, found.measured, found.as_of_ms) == (11.0, True, 3_000)
    assert distances.table(20_000).between("b", "x") is None
    distances.expire(40_000, keep_ms=10_000)
    assert distances.table(40_000).between("b", "c") is None


def test_the_row_of_a_site_that_says_too_much_stays_bounded() -> None:
    distances = Distances("a", SETTINGS)
    names = [f"s{number}" for number in range(100)]
    distances.take_pairs([("s0", name, 5.0, beat) for beat, name in enumerate(names)], names, lambda _s: 99, 0)
    assert len(distances.table(0).rows["s0"]) == 2 * SETTINGS.row_size


# -- round trips and clocks --------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 1_000), min_size=1, max_size=40))
def test_a_smoothed_round_trip_lies_within_its_samples(samples: list[float]) -> None:
    trip = None
    for at_ms, sample in enumerate(samples):
        trip = sampled(trip, sample, 0.0, at_ms)
    assert trip is not None
    assert min(samples) * 0.999 <= trip.rtt_ms <= max(samples) * 1.001


def test_the_time_that_the_peer_takes_is_not_distance() -> None:
    """It took the peer 20 of 50 ms to answer, and its clock is 1,000 ms ahead."""
    sent = SentProbe(1, "b", Now(100, 5_000), expires_ms=900, pauses=0)
    answer = Heartbeat("b", "1", 1, 1, sent_ms=6_035, received_ms=6_015)
    trip = updated_round_trip(None, sent, answer, Now(150, 5_050), 150)
    assert (trip.rtt_ms, trip.clock.offset_ms, trip.clock.error_ms) == (30, 1_000, 15)


def test_a_peer_that_exaggerates_its_time_is_not_nearer_than_half_of_its_distance() -> None:
    sent = SentProbe(1, "b", Now(100, 5_000), expires_ms=900, pauses=0)
    answer = Heartbeat("b", "1", 1, 1, sent_ms=9_000, received_ms=5_000)
    assert updated_round_trip(None, sent, answer, Now(150, 5_050), 150).rtt_ms == 25


def test_what_a_site_measured_itself_counts_more_than_what_others_say_of_it() -> None:
    distances = Distances("a", SETTINGS)
    distances.measured("b", 40.0, Coordinate(), 1_000, 1_000)
    distances.take_pairs([("b", "a", 0.01, 9_000)], {"a", "b"}, lambda _site: 9_000, now_ms=9_000)
    for one, other in (("a", "b"), ("b", "a")):
        found = distances.table(9_000).between(one, other)
        assert found is not None
        assert found.rtt_ms == 40.0
    distances.take_pairs([("c", "a", 7.0, 9_000)], {"a", "b", "c"}, lambda _site: 9_000, now_ms=9_000)
    found = distances.table(9_000).between("a", "c")  # never measured here: better than nothing
    assert found is not None
    assert found.rtt_ms == 7.0


def test_single_slow_answers_do_not_count_as_distance() -> None:
    trip = sampled(None, 500, 0.0, 0)  # a new connection
    for at_ms in range(60):
        trip = sampled(trip, 400 if at_ms % 5 == 0 else 10, 0.0, at_ms)
    assert trip.rtt_ms == pytest.approx(10, rel=0.05)


def test_the_quickest_sample_says_most_of_the_clocks() -> None:
    trip = sampled(sampled(None, 200, 90.0, 0), 10, 3.0, 1)
    assert (trip.clock.offset_ms, trip.clock.error_ms) == (3.0, 5.0)


# -- coordinates -------------------------------------------------------------------------------------------

places = st.builds(
    Coordinate,
    st.floats(-MAX_MS, MAX_MS),
    st.floats(-MAX_MS, MAX_MS),
    st.floats(-MAX_MS, MAX_MS),
    st.floats(0, MAX_MS),
    st.floats(0.01, 1),
)


@given(places, places, st.floats(0, 1e9))
def test_whatever_is_measured_a_place_stays_within_bounds(one: Coordinate, other: Coordinate, ms: float) -> None:
    now = moved(one, other, ms, "names")
    assert all(abs(number) <= MAX_MS for number in (now.x, now.y, now.z, now.height))
    assert 0 < now.error <= 1
    assert now.height > 0


@given(places, places)
def test_an_estimate_is_the_same_from_both_ends(one: Coordinate, other: Coordinate) -> None:
    assert estimate_ms(one, other) == pytest.approx(estimate_ms(other, one))


def test_places_settle_where_the_distances_say() -> None:
    names = [f"s{number}" for number in range(30)]
    plane, random = Plane(names), Random(3)  # noqa: S311 - a simulation
    found = dict.fromkeys(names, Coordinate())
    for _ in range(4_000):
        one, other = random.sample(names, 2)
        found[one] = moved(found[one], found[other], plane(one, other), one + other)
    errors = [
        abs(estimate_ms(found[one], found[other]) - plane.true_ms(one, other)) / plane.true_ms(one, other)
        for one in names
        for other in names
        if one < other
    ]
    assert median(errors) < 0.15
    assert all(place.settled for place in found.values())
