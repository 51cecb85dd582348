"""What carriers remember, and what they do not guess."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.errors import CheopsError
from cheops.gateway.carriers import (
    AmbiguousScopeError,
    Carriers,
    RecoveredScope,
    carriers_in,
    with_new_carrier,
)
from cheops.gateway.haproxy import admission
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.admission import CarrierCache, call_key
from cheops.gateway.haproxy.runtime import MapUpdater, RuntimeSocket
from cheops.gateway.headers import RequestHead

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MARK = "0123456789abcdef0123456789abcdef"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def carriers(clock: Clock) -> Carriers:
    return Carriers(4, 60.0, clock)


A, B = ("x-request-id", "a"), ("x-request-id", "b")


def test_a_scope_is_known_while_its_request_is_under_way_and_for_a_while_after(
    carriers: Carriers, clock: Clock
) -> None:
    ticket = carriers.begin([A], "{image: x}")
    clock.now_s = 10_000
    assert carriers.recover([A]) == "{image: x}"
    assert carriers.recover([B]) is None
    ticket.end()
    clock.now_s += 59
    assert carriers.recover([A]) == "{image: x}"
    clock.now_s += 2
    assert carriers.recover([A]) is None


def test_two_scopes_for_one_value_are_not_guessed(carriers: Carriers, clock: Clock) -> None:
    first = carriers.begin([A], "{image: x}")
    carriers.begin([A], "{image: y}")
    with pytest.raises(AmbiguousScopeError):
        carriers.recover([A])
    first.end()
    with pytest.raises(AmbiguousScopeError):
        carriers.recover([A])
    clock.now_s = 61
    assert carriers.recover([A]) == "{image: y}"


def test_no_scope_is_a_scope_too(carriers: Carriers) -> None:
    carriers.begin([A], None)
    assert carriers.recover([A]) is None
    carriers.begin([A], "{image: x}")
    with pytest.raises(AmbiguousScopeError):
        carriers.recover([A])


def test_what_several_carriers_agree_on_counts(carriers: Carriers) -> None:
    carriers.begin([A, B], "{image: x}")
    carriers.begin([B], "{image: y}")
    assert carriers.recover([A, B]) == "{image: x}"
    assert carriers.recover([A, ("x-request-id", "unknown")]) == "{image: x}"
    with pytest.raises(AmbiguousScopeError):
        carriers.recover([B])
    assert carriers.is_unambiguous([A, B], "{image: x}")
    assert not carriers.is_unambiguous([B], "{image: x}")


def test_memory_is_bounded_and_nothing_under_way_is_forgotten(carriers: Carriers) -> None:
    tickets = [carriers.begin([("id", str(n))], "{image: x}") for n in range(4)]
    with pytest.raises(CheopsError, match="too many requests with scopes"):
        carriers.begin([("id", "4")], "{image: x}")
    tickets[2].end()
    carriers.begin([("id", "4")], "{image: x}")
    assert carriers.recover([("id", "2")]) is None
    assert all(carriers.recover([("id", str(n))]) for n in (0, 1, 3, 4))


def test_requests_without_a_scope_push_out_none_that_has_one(carriers: Carriers) -> None:
    carriers.begin([A], "{image: x}").end()
    for number in range(100):
        carriers.begin([("id", str(number))], None).end()
    assert carriers.recover([A]) == "{image: x}"
    assert len(carriers) == 5


@pytest.mark.parametrize(
    ("name", "value", "mark"),
    [
        ("X-Request-Id", " abc ", "abc"),
        ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        ("traceparent", f"00-{TRACE.upper()}-00f067aa0ba902b7-01", TRACE),
        ("traceparent", f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        ("traceparent", "nonsense", None),
        ("baggage", "user=1, cheops = xyz ;ttl=3,other=2", "xyz"),
        ("baggage", "user=1", None),
        ("X-Request-Id", "", None),
    ],
)
def test_what_a_carrier_carries(name: str, value: str, mark: str | None) -> None:
    found = carriers_in(RequestHead("GET", "/", ((name.upper(), value),)), [name])
    assert found == ([(name.lower(), mark)] if mark else [])


def test_a_long_value_is_kept_short() -> None:
    ((_, mark),) = carriers_in(RequestHead("GET", "/", (("X-Request-Id", "x" * 5000),)), ["X-Request-Id"])
    assert len(mark) < 200


def test_a_carrier_is_added_where_there_is_none() -> None:
    assert with_new_carrier((), ["X-Request-Id"], MARK) == (("X-Request-Id", "01234567-89ab-cdef-0123-456789abcdef"),)
    assert with_new_carrier((), ["traceparent"], MARK) == (("traceparent", f"00-{MARK}-0123456789abcdef-01"),)
    assert with_new_carrier((), ["X-Openstack-Request-Id"], MARK)[0][1].startswith("req-")
    given = (("baggage", "a=1"),)
    assert with_new_carrier(given, ["baggage"], MARK) == (("baggage", f"a=1,cheops={MARK}"),)
    taken = (("X-Request-Id", "mine"),)
    assert with_new_carrier(taken, ["X-Request-Id", "traceparent"], MARK)[1][0] == "traceparent"
    assert with_new_carrier(taken, ["X-Request-Id"], MARK) == taken


# -- what the fast path knows of it ------------------------------------------------------------------------

NAMES = ("X-Request-Id", "traceparent")
X, Y = "{image: x}", "{image: y}"


class Told(RuntimeSocket):
    """An HAProxy that has what it is told."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    async def change_map(self, name: str, deleted: Iterable[str], added: Iterable[tuple[str, str]]) -> None:
        assert name == haproxy_names.CARRIED
        for key in deleted:
            self.entries.pop(key, None)
        self.entries.update(added)

    async def replace_map(self, name: str, entries: Iterable[tuple[str, str]]) -> None:
        assert name == haproxy_names.CARRIED
        self.entries = dict(entries)


class Fast:
    def __init__(self, carriers: Carriers, clock: Clock, most: int = 10) -> None:
        self.haproxy = Told()
        self.map_updater = MapUpdater(self.haproxy, {haproxy_names.CARRIED: self._entries})
        self.carrier_cache = CarrierCache(carriers, NAMES, most, self.map_updater, clock)
        self.carrier_cache.started()

    def _entries(self) -> Iterable[tuple[str, str]]:
        return self.carrier_cache.entries()

    def offer(self, value: str, scope: str = X) -> None:
        self.carrier_cache.offer(RecoveredScope(RequestHead("GET", "/", (("x-request-id", value),)), scope), scope)

    @property
    def known(self) -> dict[str, str]:
        """What HAProxy says, when it has been told."""
        asyncio.run(self.map_updater.apply())
        return self.haproxy.entries


@pytest.fixture
def fast(carriers: Carriers, clock: Clock) -> Fast:
    return Fast(carriers, clock)


def entry(value: str, scope: str = X) -> dict[str, str]:
    return {f"|{value}||": haproxy_names.key_of(scope)}


def test_what_was_recovered_once_is_known_until_a_value_may_mean_something_else(carriers: Carriers, fast: Fast) -> None:
    carriers.begin([A], X)
    fast.offer("a")
    assert fast.known == entry("a")
    carriers.begin([A], X)
    carriers.begin([B], Y)
    assert fast.known == entry("a")
    carriers.begin([A], None)
    assert fast.known == {}
    fast.offer("a")  # by a call that was on its way
    assert fast.known == {}


def test_a_carrier_that_was_unknown_counts_too(carriers: Carriers, fast: Fast) -> None:
    trace = ("traceparent", TRACE)
    carriers.begin([A], X)
    call = RequestHead("GET", "/", (("x-request-id", "a"), ("traceparent", f"00-{TRACE}-{MARK[:16]}-01")))
    fast.carrier_cache.offer(RecoveredScope(call, X), X)
    assert fast.known == {f"|a|{TRACE}|": haproxy_names.key_of(X)}
    carriers.begin([trace], Y)
    assert fast.known == {}
    with pytest.raises(AmbiguousScopeError):
        carriers.recover([A, trace])


def test_what_is_known_ends_before_the_value_does(carriers: Carriers, clock: Clock, fast: Fast) -> None:
    ticket = carriers.begin([A], X)
    fast.offer("a")
    clock.now_s = 30
    ticket.end()
    fast.carrier_cache.refresh()
    assert fast.known == entry("a")
    clock.now_s = 59
    fast.carrier_cache.refresh()
    assert fast.known == {}
    fast.offer("a")
    assert fast.known == entry("a")
    clock.now_s = 89
    fast.carrier_cache.refresh()
    assert (fast.known, carriers.recover([A])) == ({}, X)
    fast.offer("a")  # it would end before HAProxy is told
    assert fast.known == {}


def test_what_is_pushed_out_is_known_no_more(carriers: Carriers, fast: Fast) -> None:
    carriers.begin([A], X).end()
    fast.offer("a")
    for number in range(4):
        assert fast.known == entry("a")
        carriers.begin([("x-request-id", str(number))], X)
    assert fast.known == {}


def test_what_is_known_is_bounded(clock: Clock) -> None:
    carriers = Carriers(100, 60.0, clock)
    fast = Fast(carriers, clock, most=2)
    for value in "abcad":
        carriers.begin([("x-request-id", value)], X)
        fast.offer(value)
    assert fast.known == entry("a") | entry("d")
    assert fast.carrier_cache.count == 2


def test_a_request_waits_for_an_haproxy_that_might_be_wrong_and_no_longer_than_that(
    carriers: Carriers, fast: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_SETTLED_S", 0.01)
    carriers.begin([A], X)
    fast.offer("a")
    assert fast.known

    async def changing() -> None:
        first, second = carriers.begin([A], Y), carriers.begin([A], Y)
        for ticket in (first, second):
            with pytest.raises(CheopsError, match="HAProxy does not respond"):
                await ticket.wait_consistent()
        await carriers.begin([B], Y).wait_consistent()  # it is none of its business
        await fast.map_updater.apply()
        await second.wait_consistent()

    asyncio.run(changing())
    assert fast.known == {}


def test_what_haproxy_was_not_told_is_bounded_too(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_SETTLED_S", 0.01)
    carriers = Carriers(100, 60.0, clock)
    fast = Fast(carriers, clock, most=2)
    for value in "abc":
        carriers.begin([("x-request-id", value)], X)
        fast.offer(value)
        carriers.begin([("x-request-id", value)], Y)

    async def beginning() -> None:
        ticket = carriers.begin([("x-request-id", "a")], Y)
        with pytest.raises(CheopsError, match="HAProxy does not respond"):
            await ticket.wait_consistent()
        await fast.map_updater.apply()
        await ticket.wait_consistent()

    asyncio.run(beginning())


@pytest.mark.parametrize("headers", [
    (("X-Request-Id", "a"), ("x-request-id", "b")),
    (("X-Request-Id", "a" * 501),),
    (("traceparent", TRACE),),
    (("traceparent", f"00-{TRACE.upper()}-{MARK[:16]}-01"),),
])  # fmt: skip
def test_what_haproxy_does_not_look_at_has_no_key(headers: tuple[tuple[str, str], ...]) -> None:
    assert call_key(RequestHead("GET", "/", headers), NAMES) is None


_VALUES = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\x00"), max_size=100)


@given(st.tuples(_VALUES, _VALUES), st.tuples(_VALUES, _VALUES))
def test_a_key_stands_for_one_call(one: tuple[str, str], other: tuple[str, str]) -> None:
    names = ("x-request-id", "x-b")
    keys = [call_key(RequestHead("GET", "/", tuple(zip(names, values, strict=True))), names) for values in (one, other)]
    assert keys[0] is not None
    assert (keys[0] == keys[1]) is (one == other)
    assert not set(keys[0]) & set(" ;\t\n")
