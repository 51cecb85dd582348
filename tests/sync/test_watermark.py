"""What a site makes of the marks that its peers give back."""

from msgspec.structs import replace

from cheops.log.causality import Clock
from cheops.peers.heartbeat import Heartbeat, Watermark
from cheops.peers.watermark import StoreStarts, Watermarks

STORE = StoreStarts(b"a key").with_start("first", 0, "1")


def heartbeat(sender: str) -> Heartbeat:
    return Heartbeat(sender, "1", 1, 1, 0)


def test_a_store_that_went_on_knows_its_own_marks() -> None:
    mark = STORE.mark(5, Clock(7))
    assert not STORE.is_later(mark, 5)
    assert not STORE.with_start("second", 6, "1").is_later(mark, 6)


def test_an_old_copy_does_not_know_how_far_its_start_went_on() -> None:
    """The copy was made at 3, while the agent ran; it is started again."""
    mark = STORE.mark(5, Clock(7))
    assert STORE.with_start("other", 3, "1").is_later(mark, 3)
    assert STORE.with_start("other", 3, "1").is_later(mark, 100)  # even if it has made more since


def test_an_old_copy_does_not_know_later_starts() -> None:
    mark = STORE.with_start("second", 3, "1").mark(3, Clock(7))
    assert STORE.is_later(mark, 3)
    assert STORE.with_start("other", 3, "1").is_later(mark, 100)


def test_nobody_else_can_make_a_mark() -> None:
    mark = STORE.mark(5, Clock(7))
    assert not STORE.is_later(replace(mark, n=2**40), 5)
    assert not STORE.is_later(Watermark("1", 2**40, "x", 2**40, Clock()), 5)


def test_a_new_store_takes_no_notice_of_the_one_before_it() -> None:
    assert not StoreStarts(b"another key").with_start("a", 0, "2").is_later(STORE.mark(5, Clock()), 0)


def test_a_mark_of_a_closed_incarnation_proves_nothing_again() -> None:
    mark = STORE.mark(5, Clock(7))
    assert not STORE.with_start("other", 3, "2", closed=["1"]).is_later(mark, 3)


def test_old_starts_are_forgotten_and_prove_nothing() -> None:
    mark, starts = STORE.mark(5, Clock()), STORE
    for number in range(1_000):
        starts = starts.with_start(str(number), 5, "1")
    assert not starts.is_later(mark, 5)


def marks(starts: StoreStarts, n: int, found: list[Watermark]) -> Watermarks:
    return Watermarks(starts, lambda: (n, Clock()), lambda _peer, mark: found.append(mark))


def test_a_peer_gives_back_what_it_heard_before_a_restart_until_that_was_seen() -> None:
    found: list[Watermark] = []
    a, b = marks(STORE, 5, found), marks(StoreStarts(b"b").with_start("b", 0, "1"), 0, found)
    b.take(a.add_to(heartbeat("a"), "b"))
    restored = marks(STORE.with_start("restored", 3, "1"), 3, found)
    b.take(restored.add_to(heartbeat("a"), "b"))  # its answer is lost
    b.take(restored.add_to(heartbeat("a"), "b"))
    restored.take(b.add_to(heartbeat("b"), "a"))
    assert [mark.n for mark in found] == [5]
    b.take(restored.add_to(heartbeat("a"), "b"))  # now b knows that it was seen
    assert b.kept["a"].tag == "restored"
