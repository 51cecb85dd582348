"""A store that is an old copy, or new; and stamps that are ahead of the clocks."""

from dataclasses import replace

from msgspec import structs

from cheops.engine import incarnation, ledger
from cheops.engine.documents import Message
from cheops.engine.events import Effects, Received, StoreOutdated, Verified
from cheops.engine.health import State
from cheops.engine.status import Overall
from cheops.log.causality import Clock
from cheops.log.matrix import Entry, Matrix, Result
from cheops.sim.apps import COUNTER, FILE
from cheops.sim.node import Backup
from tests.engine.lab import Lab

HOUR_MS = 3_600_000


def lab_of(lines: tuple[str, ...] = ("set x", "add y"), **changes: object) -> Lab:
    lab = Lab()
    lab.make("f", FILE, "abc", **changes)
    for line in lines:
        lab.submit("a", "f", line)
    lab.run()
    return lab


def put_back(lab: Lab, site: str, backup: Backup, *, with_application: bool = False) -> None:
    lab.crash(site)
    lab.nodes[site].restore(backup, with_application=with_application)
    lab.restart(site)


def test_what_a_restored_site_acknowledged_alone_is_issued_again() -> None:
    lab = lab_of()
    backup = lab.nodes["a"].back_up()
    lab.submit("a", "f", "add lost")
    lab.run()
    lab.partition("a", "bc")
    put_back(lab, "a", backup)
    lab.submit("a", "f", "add alone")  # with the number that the others know as another operation
    lab.run()
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "lost", "alone")] * 3
    assert lab.status("b", "f").overall is Overall.CONVERGED
    assert lab.nodes["a"].origin.incarnation == "2"
    (one,) = lab.at("a", "f").withdrawn.values()
    assert one.again is not None
    assert one.again.origin == lab.nodes["a"].origin


def test_a_claim_is_no_proof() -> None:
    """A peer that counts more of this site's operations is asked for them, and nothing else follows."""
    lab = lab_of()
    own = lab.nodes["a"].origin
    message = Message("f", "1", known={own: 100}, known_replies={own: 100})
    lab.take("a", Received("b", message))
    assert lab.nodes["a"].origin == own
    assert any(flight.message.recall for flight in lab.flights)
    lab.run()
    assert lab.nodes["a"].origin == own
    assert lab.status("a", "f").overall is Overall.CONVERGED


def test_how_a_peer_that_counts_more_sums_up_what_it_has_is_not_compared() -> None:
    """Less is left of its report than what the sum is about: it would seem that the sites have applied the same, and
    differ."""
    lab = lab_of()
    known = {lab.nodes["a"].origin: 100}
    summary = ".".join(["0" * 16] * 3)
    lab.take("a", Received("b", Message("f", "1", known=known, settled=known, digest="other", summary=summary)))
    assert lab.status("a", "f").overall is Overall.CONVERGING
    assert not lab.at("a", "f").peer("b").differs


def test_nothing_is_issued_again_before_all_sites_have_answered() -> None:
    lab = lab_of()
    backup = lab.nodes["a"].back_up()
    lab.submit("a", "f", "add lost")
    lab.run()
    lab.partition("a", "b", "c")
    put_back(lab, "a", backup)
    lab.submit("a", "f", "add alone")
    lab.run()
    lab.partition("ab", "c")
    lab.run()
    assert lab.nodes["a"].origin.incarnation == "2"
    assert incarnation.waiting(lab.at("a", "f"))
    assert lab.status("a", "f").overall is not Overall.CONVERGED
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "lost", "alone")] * 3


def test_a_new_store_resets_what_the_application_had() -> None:
    lab = lab_of(("add x", "add y"))
    lab.crash("b")
    lab.nodes["b"].new_disk()  # and its application goes on
    lab.restart("b")
    lab.run()
    assert lab.states("f", "abc") == [("x", "y")] * 3
    assert lab.status("b", "f").overall is Overall.CONVERGED


def test_without_a_base_the_status_says_that_the_effects_may_be_there_twice() -> None:
    lab = lab_of(("add x", "add y"), reset=None)
    lab.crash("b")
    lab.nodes["b"].new_disk()
    lab.restart("b")
    lab.run()
    found = lab.status("b", "f")
    assert found.overall is Overall.DIVERGED
    assert "its application may have had these effects before" in found.drift
    assert "cheops repair f --from SITE" in found.drift
    assert lab.status("a", "f").overall is not Overall.CONVERGED
    lab.nodes["b"].states["f"] = ("x", "y")  # the operator has put it right, and compares
    lab.take("b", Verified("f", "b", "", lab.now_ms))
    lab.run()
    assert lab.status("b", "f").overall is Overall.CONVERGED


def test_wrong_stamps_are_taken_back_and_the_clock_goes_back() -> None:
    lab = lab_of()
    lab.partition("a", "bc")
    lab.nodes["a"].skew_ms = HOUR_MS
    lab.submit("a", "f", "add wrong")
    lab.run()
    lab.nodes["a"].skew_ms = 0
    lab.take("a", StoreOutdated("its clock was wrong", Clock(lab.now_ms), old_copy=False))
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "wrong")] * 3
    newest = lab.at("b", "f").history.latest
    assert newest is not None
    assert newest.time_ms <= lab.now_ms


def with_note(name: str) -> Matrix:
    """The rules of files, in a matrix of another hash."""
    return Matrix((*FILE.matrix.entries, Entry("never", name, Result.TAKE_BOTH)))


def without_ops(message: Message) -> Message:
    return structs.replace(message, ops=())


def cure(lab: Lab, site: str) -> None:
    lab.nodes[site].skew_ms = 0
    lab.take(site, StoreOutdated("its clock was wrong", Clock(lab.now_ms), old_copy=False))


def test_a_matrix_of_the_wrong_time_is_introduced_again() -> None:
    """The ledger may say that it is in force, since a time that no other site accepts."""
    lab = lab_of()
    lab.partition("a", "bc")
    lab.nodes["a"].skew_ms = HOUR_MS
    lab.submit("a", "f", "add one", matrix=with_note("one"))
    lab.run()
    lab.submit("a", "f", "add two", matrix=with_note("two"))
    lab.run()
    ledger.save(lab.at("a", "f"), out := Effects())
    for document in out.documents.values():
        lab.nodes["a"].disk.put(document)
    cure(lab, "a")
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "one", "two")] * 3
    for site in "abc":
        adopted = lab.at(site, "f").history.adopted
        assert adopted is not None
        assert adopted.hash == with_note("two").hash
        assert adopted.introduced.time_ms <= lab.now_ms


def test_a_cure_while_the_clock_is_still_wrong_can_be_repeated() -> None:
    lab = lab_of()
    lab.partition("a", "bc")
    lab.nodes["a"].skew_ms = HOUR_MS
    lab.submit("a", "f", "add wrong")
    lab.run()
    lab.take("a", StoreOutdated("its clock was wrong", Clock(lab.now_ms + HOUR_MS), old_copy=False))
    lab.run()
    cure(lab, "a")
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "wrong")] * 3
    newest = lab.at("a", "f").history.latest
    assert newest is not None
    assert newest.time_ms <= lab.now_ms


def test_what_is_issued_again_does_not_bring_back_rules_that_were_replaced() -> None:
    lab = lab_of()
    lab.partition("a", "bc")
    lab.nodes["a"].skew_ms = HOUR_MS
    lab.submit("a", "f", "add wrong")
    lab.run()
    lab.submit("b", "f", "add right", matrix=with_note("newer"))
    lab.run()
    cure(lab, "a")
    lab.partition("ab", "c")  # a gets the newer rules, and waits for c
    lab.run()
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "right", "wrong")] * 3
    assert {lab.at(site, "f").matrix.hash for site in "abc"} == {with_note("newer").hash}


def write_alone(lab: Lab, resource: str, *lines: str) -> None:
    """What a site makes and seals, alone on the list, while its clock is ahead."""
    lab.nodes["a"].skew_ms = HOUR_MS
    for line in lines:
        lab.submit("a", resource, line)
        lab.run()
    assert lab.at("a", resource).history.floor


def test_what_was_sealed_under_a_wrong_clock_is_sealed_again() -> None:
    """Otherwise nothing proves to a site that joins what this one has forgotten."""
    lab = lab_of()
    lab.move("a", "f", "a")
    lab.run()
    write_alone(lab, "f", "add z", "set y", "add z")
    cure(lab, "a")
    lab.run()
    lab.move("a", "f", "ac")
    lab.run()
    assert lab.states("f", "ac") == [("y", "z")] * 2
    assert lab.status("c", "f").overall is Overall.CONVERGED


def test_what_also_began_under_a_wrong_clock_is_sealed_again() -> None:
    lab = Lab()
    lab.make("f", FILE, "a")
    write_alone(lab, "f", "add w", "add x", "set y", "add z")
    cure(lab, "a")
    lab.run()
    lab.move("a", "f", "ac")
    lab.run()
    assert lab.states("f", "ac") == [("y", "z")] * 2
    assert lab.status("c", "f").overall is Overall.CONVERGED


def test_what_was_sealed_is_sealed_again_before_the_list_leads_to_other_sites() -> None:
    lab = Lab()
    lab.make("f", FILE, "a")
    write_alone(lab, "f", "add w", "add x", "set y", "add z")
    lab.partition("a", "c")
    lab.move("a", "f", "ac")
    lab.run()
    cure(lab, "a")
    lab.heal()
    lab.run()
    assert lab.states("f", "ac") == [("y", "z")] * 2
    assert lab.status("c", "f").overall is Overall.CONVERGED


def test_what_a_checkpoint_of_the_wrong_time_holds_is_not_done_twice() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "a")
    write_alone(lab, "n", *["inc 1"] * 10)
    assert lab.at("a", "n").applied.base is not None
    cure(lab, "a")
    lab.run()
    lab.move("a", "n", "ac")
    lab.run()
    assert lab.states("n", "ac") == [10] * 2
    assert lab.status("c", "n").overall is Overall.CONVERGED


def test_what_follows_a_first_operation_that_failed_is_issued_again_with_its_list() -> None:
    lab = Lab()
    lab.make("f", FILE, "abc")
    lab.partition("a", "bc")
    lab.nodes["a"].skew_ms = HOUR_MS
    lab.submit("a", "f", "fail")
    lab.submit("a", "f", "add x")
    lab.submit("a", "f", "add y")
    lab.run()
    cure(lab, "a")
    lab.heal()
    lab.run()
    assert lab.states("f", "abc") == [("x", "y")] * 3
    assert not incarnation.waiting(lab.at("a", "f"))


def test_a_failure_of_what_was_withdrawn_is_over() -> None:
    """The reply that it failed has reached the others, and the operation never will."""
    lab = lab_of()
    lab.nodes["a"].skew_ms = HOUR_MS
    lab.submit("a", "f", "fail")
    while lab.flights:  # as agents do, which refuse what is stamped far ahead
        flight = lab.flights.pop(0)
        lab.take(flight.peer, Received(flight.sender, without_ops(flight.message)))
    assert lab.at("b", "f").replies.troubles
    cure(lab, "a")
    lab.run()
    assert not lab.at("b", "f").history.known.keys() - lab.at("a", "f").history.known.keys()
    for site in "abc":
        assert lab.status(site, "f").overall is Overall.CONVERGED
        assert lab.at(site, "f").state == State.CONVERGED


def test_a_counter_is_not_counted_twice() -> None:
    lab = Lab()
    lab.make("n", replace(COUNTER), "abc")
    for line in ("inc 1", "inc 2"):
        lab.submit("a", "n", line)
    lab.run()
    backup = lab.nodes["b"].back_up()
    lab.submit("a", "n", "inc 4")
    lab.run()
    put_back(lab, "b", backup)  # it has run inc 4, and does not know that any more
    lab.take("b", StoreOutdated("a peer has a later mark of its store", Clock(lab.now_ms)))
    lab.submit("b", "n", "inc 8")
    lab.run()
    assert lab.states("n", "abc") == [15, 15, 15]


def test_nobody_says_that_a_site_skipped_what_its_lost_store_may_have_run() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("ac", "b")
    lab.submit("a", "n", "inc 1")
    for flight in [one for one in lab.flights if one.peer == "c"]:
        lab.deliver(flight)
    assert lab.states("n", "c") == [2]
    lab.partition("a", "b", "c")  # the reply of c is lost
    lab.submit("a", "n", "set 5")
    lab.lose_disk("c")
    lab.restart("c")
    lab.output.clear()
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [5, 5, 5]
    assert "a answers: a:2 is SUPERSEDED at b" in lab.output
    assert not any("a:2 is SUPERSEDED at c" in line for line in lab.output)


def test_nobody_waits_for_ever_for_what_was_withdrawn() -> None:
    """An operation that was issued again, and the one before it that never came."""
    lab = lab_of()
    backup = lab.nodes["a"].back_up()
    lab.submit("a", "f", "add lost")
    lab.run()
    put_back(lab, "a", backup)
    for line in ("add p", "add q", "add r"):
        lab.submit("a", "f", line)
    last = [flight for flight in lab.flights if flight.peer == "b" and flight.message.ops][-1]
    lab.flights = [last]
    lab.deliver(last)
    assert [str(id_) for id_ in lab.at("b", "f").inbox.waiting] == ["a:5"]
    lab.run()
    assert lab.states("f", "abc") == [("x", "y", "lost", "p", "q", "r")] * 3
    assert not lab.at("b", "f").inbox.waiting
    assert lab.at("b", "f").state == State.CONVERGED
