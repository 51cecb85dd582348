"""What no correct site sends, and what it costs its sender: that one document."""

from typing import Any

import pytest
from msgspec.structs import replace

from cheops.engine.documents import Message
from cheops.engine.events import Fault, MatricesReceived, Notify, Received, Save, Send
from cheops.engine.intake import (
    BAD_NAME,
    BAD_NUMBER,
    FOREIGN_STAMP,
    FUTURE_STAMP,
    LATEST_MS,
    UNPROVEN_SEAL,
    document_objection,
    future_objection,
)
from cheops.engine.matrices import MAX_UNCLAIMED
from cheops.log.causality import Clock
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    MAX_COUNT,
    MAX_COUNTER,
    MAX_ORIGINS,
    Command,
    Kind,
    MatrixRef,
    Operation,
    Origin,
    Reply,
    Seal,
    Stamp,
    Statement,
    Status,
    Verdict,
    seal_hash,
)
from cheops.sim.apps import COUNTER
from cheops.store import codec
from cheops.store.interface import CodecError
from tests.engine.lab import Lab

A, B = Origin("a", "1"), Origin("b", "1")
NOW = Stamp(1_000_000, 0, B)
OP = Operation(
    resource="n",
    rtype="n",
    type="inc",
    kind=Kind.NORMAL,
    payload=Command("inc 1"),
    origin=B,
    seq=1,
    deps={},
    stamp=NOW,
    matrix=MatrixRef("m", Stamp(0, 0, Origin("-", "-"))),
    sites=("a", "b"),
    verdict=Verdict.OK,
)
STATEMENT = Statement("n", A, seal_hash({}, (A, B), NOW), 0)


def test_an_ordinary_operation_is_taken() -> None:
    assert document_objection(OP) is None


def test_a_seal_with_the_statements_of_all_its_sites_is_taken() -> None:
    assert document_objection(replace(OP, seal=Seal({}, NOW, (B,)))) is None
    assert document_objection(replace(OP, seal=Seal({}, NOW, (A, B), (STATEMENT,)))) is None
    earlier = Stamp(900_000, 0, B)  # it is not the first seal of its resource
    stated = replace(STATEMENT, seal=seal_hash({}, (A, B), earlier))
    assert document_objection(replace(OP, seal=Seal({}, earlier, (A, B), (stated,)))) is None


@pytest.mark.parametrize(
    "statement",
    [
        replace(STATEMENT, resource="other"),
        replace(STATEMENT, origin=Origin("c", "1")),
        replace(STATEMENT, made=1),  # an operation that the author of the seal did not know
        replace(STATEMENT, seal=seal_hash({B: 1}, (A, B), NOW)),
        replace(STATEMENT, seal=seal_hash({}, (A, B, Origin("c", "1")), NOW)),
        replace(STATEMENT, seal=seal_hash({}, (A, B), Stamp(900_000, 0, B))),
        replace(STATEMENT, origin=Origin("a", "2")),  # of another store than the seal names
        replace(STATEMENT, seal=seal_hash({}, (Origin("a", "2"), B), NOW)),
    ],
)
def test_a_statement_counts_for_what_it_states(statement: Statement) -> None:
    objection = document_objection(replace(OP, seal=Seal({}, NOW, (A, B), (statement,))))
    assert objection is not None
    assert objection.reason == UNPROVEN_SEAL


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"resource": "../../x"}, BAD_NAME),
        ({"resource": "x\x1b[2J"}, BAD_NAME),
        ({"rtype": "t\n"}, BAD_NAME),
        ({"type": "inc\x00"}, BAD_NAME),
        ({"type": "!delete"}, BAD_NAME),
        ({"type": "*"}, BAD_NAME),
        ({"sites": ("a", "b\u202e")}, BAD_NAME),
        ({"sites": ("a", "a")}, BAD_NAME),
        ({"seq": 2}, BAD_NUMBER),
        ({"deps": {B: 7}}, BAD_NUMBER),
        ({"matrix": MatrixRef("m", Stamp(2_000_000, 0, B))}, BAD_NUMBER),
        ({"seal": Seal({A: 3}, NOW, (B,))}, BAD_NUMBER),
        ({"seal": Seal({}, Stamp(2_000_000, 0, B), (B,))}, BAD_NUMBER),
        ({"seal": Seal({}, NOW, (A,))}, BAD_NAME),
        ({"seal": Seal({}, NOW, (Origin("b", "2"),))}, BAD_NAME),
        ({"seal": Seal({}, NOW, (B, Origin("b", "2")))}, BAD_NAME),
        ({"seal": Seal({}, NOW, ())}, BAD_NAME),
        ({"seal": Seal({}, NOW, (B, Origin("a\n", "1")))}, BAD_NAME),
        ({"seal": Seal({}, NOW, (A, B))}, UNPROVEN_SEAL),
        ({"seal": Seal({}, NOW, (A, B), (replace(STATEMENT, made=1),))}, UNPROVEN_SEAL),
        ({"kind": Kind.SEAL}, BAD_NUMBER),
        ({"stamp": Stamp(LATEST_MS + 1, 0, B)}, BAD_NUMBER),
        ({"stamp": Stamp(1_000_000, 0, Origin("a", "1"))}, FOREIGN_STAMP),
    ],
)
def test_what_no_correct_site_sends_is_refused(changes: dict[str, Any], reason: str) -> None:
    objection = document_objection(replace(OP, **changes))
    assert objection is not None
    assert objection.reason == reason
    assert not objection.later


def test_a_stamp_of_the_near_future_may_be_taken_later() -> None:
    assert future_objection(OP, now_ms=999_000, skew_ms=1_000) is None
    early = future_objection(OP, now_ms=998_000, skew_ms=1_000)
    assert early is not None
    assert (early.reason, early.later) == (FUTURE_STAMP, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"stamp": Stamp(1_000_000, MAX_COUNTER + 1, B)},
        {"seq": MAX_COUNT + 1},
        {"deps": {B: MAX_COUNT + 1}},
        {"deps": {Origin(f"s{n}", "1"): 1 for n in range(MAX_ORIGINS + 1)}},
        {"origin": Origin("b\x07", "1")},
    ],
)
def test_numbers_that_leave_no_room_are_no_document(changes: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        codec.encode(replace(OP, **changes))


def test_a_clock_whose_counter_is_used_up_goes_on() -> None:
    full = Clock().seen(Stamp(5_000, MAX_COUNTER, B))
    after = full.tick(4_000)
    assert after == Clock(5_001, 0)
    codec.encode(replace(OP, stamp=after.stamp(B)))


# -- in the engine --------------------------------------------------------------------------------------------


def lab_with_a_counter() -> Lab:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    return lab


def made_by_b(lab: Lab, seq: int, line: str, **changes: Any) -> Operation:
    """The next operation of b, as b would make it if it were hostile."""
    history = lab.at("b", "n").history
    origin = lab.nodes["b"].origin
    deps = {**history.known, origin: seq - 1} if seq > 1 else dict(history.known)
    (first,) = (op for op in history.ops.values() if op.sites)
    changed = {"origin": origin, "seq": seq, "deps": deps, "payload": Command(line), "type": line.split(maxsplit=1)[0]}
    stamp = Stamp(lab.now_ms, seq, origin)
    return replace(first, **{"sites": None, "stamp": stamp, **changed, **changes})


def receive(lab: Lab, message: Message) -> list[object]:
    site = lab.nodes["a"].site
    assert site is not None
    return list(site.step(Received("b", message), lab.now_ms))


def test_one_bad_document_costs_its_sender_that_one() -> None:
    lab = lab_with_a_counter()
    good = made_by_b(lab, 1, "inc 5")
    bad = made_by_b(lab, 2, "inc 7", type="!force")
    effects = receive(lab, Message("n", "1", (good, bad), known={good.origin: 2}))
    assert good.id in lab.at("a", "n").history.ops
    assert bad.id not in lab.at("a", "n").history.ops
    (notice,) = (effect for effect in effects if isinstance(effect, Notify))
    assert (notice.what, notice.reason, notice.by, notice.op) == ("refused", BAD_NAME, "b", bad.id)


def test_a_reply_after_a_bad_one_is_not_acknowledged() -> None:
    lab = lab_with_a_counter()
    origin = lab.nodes["b"].origin
    op = next(iter(lab.at("a", "n").history.ops))
    last = lab.at("a", "n").replies.known[origin]
    bad = Reply("n", origin, last + 1, op, "set\x00", Status.OK)
    good = Reply("n", origin, last + 2, op, "set", Status.OK)
    receive(lab, Message("n", "1", (), (bad, good), replies_after={origin: last}))
    assert lab.at("a", "n").replies.known[origin] == last


def test_a_document_of_another_resource_does_not_slip_in() -> None:
    lab = lab_with_a_counter()
    foreign = made_by_b(lab, 1, "inc 5", resource="other")
    receive(lab, Message("n", "1", (foreign,)))
    assert foreign.id not in lab.at("a", "n").history.ops


def test_a_site_that_saw_the_greatest_counter_still_makes_operations() -> None:
    lab = lab_with_a_counter()
    high = made_by_b(lab, 1, "inc 5", stamp=Stamp(lab.now_ms + 50, MAX_COUNTER, lab.nodes["b"].origin))
    receive(lab, Message("n", "1", (high,)))
    lab.submit("a", "n", "inc 1")
    (made,) = lab.at("a", "n").drafts
    assert made.stamp > high.stamp
    assert codec.decode(codec.encode(made)) == made


def test_what_is_refused_is_not_reported_as_known() -> None:
    lab = lab_with_a_counter()
    bad = made_by_b(lab, 1, "inc 7", rtype="n\n")
    effects = receive(lab, Message("n", "1", (bad,), ask=True))
    (answer,) = (effect for effect in effects if isinstance(effect, Send))
    assert bad.origin not in answer.message.known


# -- what may pile up -----------------------------------------------------------------------------------------


def unused(n: int) -> Matrix:
    return Matrix([Entry(f"x{n}", f"x{n}", Result.TAKE_ONE)])


def test_matrices_that_no_operation_names_are_not_kept() -> None:
    lab = lab_with_a_counter()
    site = lab.nodes["a"].site
    assert site is not None
    before = set(site.matrices)
    effects = receive(lab, Message("n", "1", matrices=tuple(unused(n) for n in range(300))))
    assert set(site.matrices) == before
    assert not any(isinstance(d, Matrix) for e in effects if isinstance(e, Save) for d in e.documents)


def test_a_matrix_of_an_operation_that_waits_is_kept() -> None:
    lab = lab_with_a_counter()
    site = lab.nodes["a"].site
    assert site is not None
    rules = unused(1)
    stamp = Stamp(lab.now_ms, 2, lab.nodes["b"].origin)
    waits = made_by_b(lab, 2, "inc 1", matrix=MatrixRef(rules.hash, stamp), stamp=stamp)
    receive(lab, Message("n", "1", (waits,), matrices=(rules, unused(2))))
    assert waits.id in lab.at("a", "n").inbox.waiting
    assert rules.hash in site.matrices
    assert unused(2).hash not in site.matrices


def test_of_matrices_that_come_alone_only_the_last_are_kept() -> None:
    lab = lab_with_a_counter()
    site = lab.nodes["a"].site
    assert site is not None
    before = len(site.matrices)
    for n in range(0, 3 * MAX_UNCLAIMED, 10):
        lab.take("a", MatricesReceived(tuple(unused(m) for m in range(n, n + 10))))
    assert len(site.matrices) == before + MAX_UNCLAIMED
    stored = [d for d in lab.nodes["a"].disk.durable.values() if isinstance(d, Matrix)]
    assert len(stored) <= before + MAX_UNCLAIMED
    assert unused(3 * MAX_UNCLAIMED - 1).hash in site.matrices


def test_one_site_of_a_resource_cannot_take_all_places_in_the_queue() -> None:
    lab = Lab("ab", waiting=100)
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    flood = [made_by_b(lab, n, "inc 1") for n in range(3, 300)]  # number 2 never comes
    receive(lab, Message("n", "1", tuple(flood)))
    inbox = lab.at("a", "n").inbox
    assert len(inbox.waiting) == 50
    other = Origin("c", "1")
    waits = made_by_b(lab, 2, "inc 1", origin=other, deps={other: 1}, stamp=Stamp(lab.now_ms, 0, other))
    receive(lab, Message("n", "1", (waits,)))
    assert waits.id in inbox.waiting


def test_a_full_queue_takes_what_it_waits_for() -> None:
    lab = Lab("ab", waiting=100)
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    receive(lab, Message("n", "1", tuple(made_by_b(lab, n, "inc 1") for n in range(11, 61))))
    inbox = lab.at("a", "n").inbox
    assert len(inbox.waiting) == 50
    receive(lab, Message("n", "1", tuple(made_by_b(lab, n, "inc 1") for n in range(1, 11))))
    assert not inbox.waiting
    assert lab.at("a", "n").history.known[lab.nodes["b"].origin] == 60


def test_nobody_knows_more_of_this_site_than_it_has_made() -> None:
    lab = lab_with_a_counter()
    a = lab.nodes["a"].origin
    receive(lab, Message("n", "1", known={a: 2**40}, settled={a: 2**40}, known_replies={a: 2**40}))
    view = lab.at("a", "n").peer("b")
    assert (view.known[a], view.settled[a]) == (1, 1)
    assert view.known_replies[a] == lab.at("a", "n").replies.known[a]


def test_a_matrix_that_comes_twice_in_one_message_is_one_matrix() -> None:
    lab = lab_with_a_counter()
    effects = receive(lab, Message("n", "1", matrices=(unused(1), unused(1))))
    assert not any(isinstance(effect, Fault) for effect in effects)
