"""Catching up: each document is sent once to a site that lacks it, by one site, in batches and pieces."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from cheops.engine.documents import Message, Piece, Snapshot
from cheops.engine.events import Received
from cheops.engine.pieces import Assemblies, TooLargeError
from cheops.engine.settings import Limits
from cheops.engine.status import Overall
from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER
from cheops.sim.scripted_world import Flight
from tests.engine.lab import Lab

_MOST_SENT = 1.2  # documents sent per document of the log


class Counted(Lab):
    """Counts the documents that are sent to a site."""

    def __init__(self, sites: str, **limits: int) -> None:
        super().__init__(sites, **limits)
        self.sent: Counter[str] = Counter()

    def fill(self, count: int, at: str, writers: str, lines: tuple[str, ...] = ("inc 1",)) -> None:
        self.make("n", COUNTER, at, checkpoint=None)
        for number in range(count):
            self.submit(writers[number % len(writers)], "n", lines[number % len(lines)])
            if number % 100 == 99:
                self.pass_and_deliver()
        self.run()

    def pass_and_deliver(self) -> None:
        while self.flights:
            self.deliver(self.flights[0])
        self.pass_time()

    def deliver(self, flight: Flight) -> None:
        self.sent[flight.peer] += len(flight.message.ops) + len(flight.message.replies)
        super().deliver(flight)

    def go_until(self, condition: Callable[[], bool]) -> None:
        """Deliver one message after the other, and let time pass when there is none."""
        for _ in range(5_000):
            if condition():
                return
            if self.flights:
                self.deliver(self.flights[0])
            else:
                self.pass_time()
        raise AssertionError("it does not come to that")

    def documents_at(self, site: str) -> int:
        """What a newcomer needs: all but its own replies."""
        replica = self.at(site, "n")
        return len(replica.history.ops) + sum(reply.origin.site != site for reply in replica.replies)


@pytest.mark.parametrize(("sites", "writers"), [("abc", "a"), ("abc", "ab"), ("abcde", "abcd")])
def test_a_log_of_many_batches_is_sent_once_to_a_newcomer(sites: str, writers: str) -> None:
    lab = Counted(sites, batch=20)
    lab.fill(240, sites[:-1], writers)
    lab.sent.clear()
    lab.move("a", "n", sites)
    lab.run()
    newcomer = sites[-1]
    assert lab.states("n", sites) == [240] * len(sites)
    assert lab.status(newcomer, "n").overall is Overall.CONVERGED
    assert lab.documents_at(newcomer) > 24 * 20
    assert lab.sent[newcomer] <= _MOST_SENT * lab.documents_at(newcomer)


def test_a_newcomer_catches_up_while_others_write() -> None:
    lab = Counted("abc", batch=20)
    lab.fill(300, "ab", "ab")
    lab.sent.clear()
    lab.move("a", "n", "abc")
    for number in range(100):
        for flight in list(lab.flights):
            lab.deliver(flight)
        lab.pass_time()
        lab.submit("ab"[number % 2], "n", "inc 1")
    lab.run()
    assert lab.states("n", "abc") == [400, 400, 400]
    assert lab.sent["c"] <= _MOST_SENT * lab.documents_at("c")


def test_a_site_that_comes_back_gets_what_it_missed_once() -> None:
    """Nobody has sent it what was made without it: so nothing of that counts as lost, at no site."""
    lab = Counted("abcde")
    lab.fill(10, "abcde", "abcde")
    lab.move("a", "n", "abcd")
    lab.run()
    had = lab.documents_at("e")
    for number in range(20):
        lab.submit("abcd"[number % 4], "n", "inc 1")
        lab.run()
    lab.sent.clear()
    lab.move("b", "n", "abcde")
    for _ in range(10):  # it takes a second until e hears of it
        for flight in [one for one in lab.flights if one.peer != "e"]:
            lab.deliver(flight)
        lab.pass_time()
    lab.run()
    assert lab.states("n", "abcde") == [30] * 5
    assert lab.documents_at("e") - had > 80, "operations, and the replies of four sites"
    assert lab.sent["e"] <= _MOST_SENT * (lab.documents_at("e") - had)


@pytest.mark.parametrize("line", ["inc 1", "set 1"])
def test_a_site_that_left_gets_a_later_list_without_replies(line: str) -> None:
    """It needs the operations before the list too; with 'set', most are forgotten, and it gets a snapshot."""
    lab = Counted("abcde")
    lab.fill(10, "abcde", "abcde", (line,))
    lab.move("a", "n", "abcd")
    lab.run()
    for number in range(20):
        lab.submit("abcd"[number % 4], "n", line)
        lab.run()
    replies = dict(lab.at("e", "n").replies.known)
    lab.sent.clear()
    lab.move("b", "n", "abc")
    lab.run()
    assert lab.at("e", "n").history.site_list == ("a", "b", "c")
    assert lab.at("e", "n").replies.known == replies
    lab.sent.clear()
    lab.submit("a", "n", line)
    lab.run()
    assert lab.sent["e"] == 0, "it knows that it left"


def test_a_newcomer_whose_source_dies_gets_the_rest_from_another_site() -> None:
    lab = Counted("abc", batch=20)
    lab.fill(200, "ab", "a")
    lab.move("a", "n", "abc")
    lab.go_until(lambda: (replica := lab.replica("c", "n")) is not None and len(replica.history.ops) >= 60)
    source = lab.at("c", "n").source.site
    assert source in ("a", "b")
    lab.crash(source)
    for _ in range(200):
        lab.pass_and_deliver()
    assert len(lab.at("c", "n").history.ops) == 201


def test_a_source_that_brings_nothing_is_replaced_though_it_is_up() -> None:
    """What a sends to c is lost, and c sees it as up."""
    lab = Counted("abc", batch=20)
    lab.fill(100, "ab", "a")
    lab.move("a", "n", "abc")
    for _ in range(400):
        for flight in list(lab.flights):
            if (flight.sender, flight.peer) == ("a", "c") and flight.message.ops:
                lab.flights.remove(flight)
            else:
                lab.deliver(flight)
        lab.pass_time()
    assert lab.states("n", "c") == [100]


def test_a_batch_that_is_lost_goes_again_after_a_time_that_grows() -> None:
    lab = Counted("ab", batch=20)
    lab.fill(60, "a", "a")
    lab.move("a", "n", "ab")
    times: list[int] = []
    for _ in range(300):
        for flight in list(lab.flights):
            if flight.peer == "b" and len(flight.message.ops) >= 20:
                times.append(lab.now_ms)
                lab.flights.remove(flight)
            else:
                lab.deliver(flight)
        lab.pass_time()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 1_900
    assert len(times) <= 8, "in 30 seconds"


def test_a_newcomer_under_a_policy_learns_first_that_the_resource_concerns_it() -> None:
    """The list that names it is the last operation of a log of many batches, and was lost when it was pushed."""
    lab = Lab("abc", batch=10)
    lab.make("n", COUNTER, "ab", checkpoint=None, policy=Policy())
    for _ in range(60):
        lab.submit("a", "n", "inc 1")
    lab.run()
    lab.partition("ab", "c")
    lab.move("a", "n", "abc")
    lab.run()
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [60, 60, 60]


# -- snapshots in pieces -----------------------------------------------------------------------------------


def _sealed(**limits: int) -> Counted:
    """A resource at a and b with something forgotten, whose snapshot has many pieces."""
    lab = Counted("abc", batch=10, **limits)
    lab.fill(120, "ab", "ab", lines=("set 1", *["inc 1"] * 39))
    assert lab.at("a", "n").history.floor
    return lab


def _deliver_until(lab: Counted, pieces: int) -> None:
    """Until c has so many pieces, and the next one is on its way."""
    lab.go_until(
        lambda: any(
            flight.peer == "c" and flight.message.piece and flight.message.piece.number > pieces
            for flight in lab.flights
        )
    )


def test_a_resource_that_is_on_its_way_does_not_begin_a_second_time() -> None:
    lab = _sealed()
    lab.move("a", "n", "abc")
    _deliver_until(lab, 2)
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("c", "n", "inc 5")
    assert "on its way here; try again" in lab.output[-1]
    lab.run()
    assert len(set(lab.states("n", "abc"))) == 1


def test_a_snapshot_comes_in_pieces_and_once() -> None:
    lab = _sealed()
    lab.sent.clear()
    lab.move("a", "n", "abc")
    pieces: list[Piece] = []
    lab.settle(lambda flight: pieces.append(flight.message.piece) if flight.message.piece else None)
    assert [piece.number for piece in pieces] == list(range(1, pieces[0].total + 1))
    assert pieces[0].total >= 10
    assert len(set(lab.states("n", "abc"))) == 1
    assert lab.status("c", "n").overall is Overall.CONVERGED
    assert lab.sent["c"] <= _MOST_SENT * lab.documents_at("c")
    assert all(not len(node.site.assemblies) for node in lab.nodes.values() if node.site)


def test_a_snapshot_goes_on_after_a_cut_where_it_was() -> None:
    lab = _sealed()
    lab.move("a", "n", "abc")
    _deliver_until(lab, 5)
    lab.partition("ab", "c")
    lab.pass_time(3_000)
    lab.heal()
    numbers: list[int] = []
    lab.settle(lambda flight: numbers.append(flight.message.piece.number) if flight.message.piece else None)
    assert numbers[0] == 6
    assert numbers == sorted(set(numbers))
    assert len(set(lab.states("n", "abc"))) == 1


def test_a_snapshot_ends_though_its_sender_takes_further_operations() -> None:
    lab = _sealed()
    lab.move("a", "n", "abc")
    _deliver_until(lab, 2)
    for number in range(150):
        lab.submit("ab"[number % 2], "n", "set 7" if number % 5 == 0 else "inc 1")
        for flight in list(lab.flights):
            lab.deliver(flight)
        lab.pass_time()
    assert lab.at("c", "n").history.ops, "it was taken while others wrote"
    lab.run()
    assert len(set(lab.states("n", "abc"))) == 1


def test_a_snapshot_whose_receiver_restarts_begins_anew() -> None:
    lab = _sealed()
    lab.move("a", "n", "abc")
    _deliver_until(lab, 5)
    lab.crash("c")
    lab.restart("c")
    lab.run()
    assert len(set(lab.states("n", "abc"))) == 1


def test_a_snapshot_goes_on_though_its_receiver_has_fewer_pieces_than_a_late_message_says() -> None:
    """The receiver dropped its pieces for a late one of an earlier snapshot, and has begun anew."""
    lab = _sealed()
    lab.move("a", "n", "abc")
    lab.partition("ac", "b")  # otherwise b would send it after a while
    _deliver_until(lab, 1)
    held = lab.at("c", "n").assemblies.held("n", "a")
    assert held is not None
    assert held.number == 1
    lab.take("a", Received("c", Message("n", "1", source="a", held=replace(held, number=5))))
    lab.run()
    assert len(set(lab.states("n", "ac"))) == 1
    assert lab.at("c", "n").history.known == lab.at("a", "n").history.known


def test_a_snapshot_that_is_too_large_is_refused_with_the_reason() -> None:
    lab = _sealed(snapshot_bytes=20_000)
    lab.move("a", "n", "abc")
    for _ in range(100):
        lab.pass_and_deliver()
    assert any("raise limits.snapshot_size" in line for line in lab.output)
    assert lab.nodes["c"].site is not None
    assert lab.nodes["c"].site.assemblies.bytes <= 20_000


def _piece(number: int, *, snapshot: str = "s", total: int = 3, resource: str = "n") -> Message:
    last = Snapshot({}, {}, None, None, ()) if number == total else None
    return Message(resource, "1", snapshot=last, piece=Piece(snapshot, number, total))


def test_pieces_are_kept_in_order_and_given_back_as_one_message() -> None:
    kept = Assemblies(Limits())
    assert kept.add("a", _piece(2), 0) is None, "the first one is missing"
    assert kept.held("n", "a") is None
    for number in (1, 1, 3, 2):
        assert kept.add("a", _piece(number), 0) is None
    held = kept.held("n", "a")
    assert held is not None
    assert held.number == 2
    assert kept.held("n", "b") is None
    whole = kept.add("a", _piece(3), 0)
    assert whole is not None
    assert whole.snapshot is not None
    assert whole.piece is None
    assert len(kept) == 0


def test_another_snapshot_takes_the_place_of_the_pieces_that_are_here() -> None:
    kept = Assemblies(Limits())
    kept.add("a", _piece(1), 0)
    kept.add("a", _piece(2), 0)
    kept.add("a", _piece(1, snapshot="t"), 0)
    assert kept.held("n", "a") == Piece("t", 1, 3)
    kept.add("a", _piece(3, snapshot="u"), 0)
    assert len(kept) == 0, "its first piece is missing"


def test_what_others_can_make_a_site_keep_is_bounded() -> None:
    kept = Assemblies(Limits(snapshot_bytes=2_000))
    kept.add("a", _piece(1), 0)
    kept.add("a", _piece(2), 0)
    kept.add("a", _piece(1, resource="m"), 0)
    kept.add("a", _piece(1, resource="l"), 0)
    with pytest.raises(TooLargeError):
        kept.add("a", _piece(1, resource="k"), 0)
    assert kept.bytes <= 2_000
    for name in "bcdefgh":
        kept.add(name, _piece(1, resource=name), 0)
    assert [name for name in "bcdefgh" if kept.held(name, name)] == ["b", "c", "d"], "with a, four senders"
    kept.drop_silent(29_000)
    assert len(kept) > 0
    kept.drop_silent(31_000)
    assert len(kept) == 0


def test_pieces_that_nobody_asked_for_take_no_memory() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.take("a", Received("b", replace(_piece(1), ask=False)))
    assert lab.nodes["a"].site is not None
    assert len(lab.nodes["a"].site.assemblies) == 0


def test_a_source_that_waits_for_long_between_two_attempts_is_listened_to() -> None:
    """What it brings shows that it is not in vain, even if it has brought nothing for longer than the patience."""
    lab = Counted("ab", batch=50)
    lab.fill(20, "ab", "a")
    replica = lab.at("b", "n")
    ahead = dict(replica.history.known)
    ahead[lab.nodes["a"].origin] += 1
    replica.source.choose("a", lab.now_ms)
    lab.now_ms += 60_000
    piece = Piece("s", 1, 2)
    lab.take("b", Received("a", Message("n", "1", known=ahead, ask=True, piece=piece)))
    assert replica.source.site == "a"
    assert replica.assemblies.held("n", "a") == piece
