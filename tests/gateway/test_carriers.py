"""What carriers remember, and what they do not guess."""

import pytest

from cheops.gateway.carriers import AmbiguousScopeError, Carriers, TooManyScopesError, added, carried
from cheops.gateway.seam import Head

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
    assert carriers.is_clear([A, B], "{image: x}")
    assert not carriers.is_clear([B], "{image: x}")


def test_memory_is_bounded_and_nothing_under_way_is_forgotten(carriers: Carriers) -> None:
    tickets = [carriers.begin([("id", str(n))], "{image: x}") for n in range(4)]
    with pytest.raises(TooManyScopesError):
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
    found = carried(Head("GET", "/", ((name.upper(), value),)), [name])
    assert found == ([(name.lower(), mark)] if mark else [])


def test_a_long_value_is_kept_short() -> None:
    ((_, mark),) = carried(Head("GET", "/", (("X-Request-Id", "x" * 5000),)), ["X-Request-Id"])
    assert len(mark) < 200


def test_a_carrier_is_added_where_there_is_none() -> None:
    assert added((), ["X-Request-Id"], MARK) == (("X-Request-Id", "01234567-89ab-cdef-0123-456789abcdef"),)
    assert added((), ["traceparent"], MARK) == (("traceparent", f"00-{MARK}-0123456789abcdef-01"),)
    assert added((), ["X-Openstack-Request-Id"], MARK)[0][1].startswith("req-")
    given = (("baggage", "a=1"),)
    assert added(given, ["baggage"], MARK) == (("baggage", f"a=1,cheops={MARK}"),)
    taken = (("X-Request-Id", "mine"),)
    assert added(taken, ["X-Request-Id", "traceparent"], MARK)[1][0] == "traceparent"
    assert added(taken, ["X-Request-Id"], MARK) == taken
