"""Attacks with false snapshots, by one site of a resource whose keys are stolen: m.

Those that still work are marked, with the reason; docs/limitations.md says so too. A test that passes unexpectedly
fails, so that its mark is removed."""

from typing import Any

import pytest
from msgspec.structs import replace

from cheops.engine.documents import Base, EpochRecord, Message, Snapshot, written
from cheops.engine.events import Received
from cheops.engine.status import Overall
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    Command,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Stamp,
    content_hash,
)
from cheops.log.policy import Policy
from cheops.log.rules import Fate, Rule
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab
from tests.engine.thief import (
    Vector,
    ask,
    begun,
    effective,
    run,
    run_on,
    sealing,
    send,
    stolen,
    true_seal,
    without_m,
    without_the_thief,
)


def snapshot(lab: Lab, floor: Vector, *ops: Operation, **changes: Any) -> Message:
    fields: dict[str, Any] = {"adopted": lab.at("m", "n").history.adopted, "epochs": (), "base": None, **changes}
    return Message("n", "1", ops, matrices=(COUNTER.matrix,), snapshot=Snapshot(floor, {}, **fields))


def test_a_snapshot_brings_no_operation_that_the_policy_refuses() -> None:
    """A seal of m alone proves the floor for m's own new origin, and what is below the floor of a snapshot is
    not judged by the policy. c takes operations of m's that the policy refuses, and in good faith passes the snapshot
    on to the others."""
    lab = begun()
    without_m(lab)
    x = Origin("m", "x")
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    early = Stamp(listing.stamp.time_ms - 10, 0, x)
    rules = listing.matrix._replace(introduced=early)
    mine = stolen(lab, "set 7", origin=x, deps={}, sites=("m",), stamp=early, matrix=rules)
    seal = sealing(lab, {x: 1}, "m", (), origin=x, seq=2, deps={x: 1}, stamp=early._replace(counter=1), matrix=rules)
    contents = written({x: content_hash(mine) + content_hash(seal)})
    lab.take("c", Received("m", snapshot(lab, {x: 2}, listing, mine, seal, contents=contents)))
    lab.submit("c", "n", "inc 5")
    run(lab)
    assert lab.states("n", "abc") == [6, 6, 6]
    for site in "abc":
        assert x not in lab.at(site, "n").history.known


@pytest.mark.parametrize("hidden", [False, True])
def test_a_snapshot_does_not_say_what_has_no_effect(hidden: bool) -> None:
    """The epochs of a snapshot say what was superseded before a matrix came, and take the place of those that
    the receiver has computed. A seal of m alone, over an origin that m invents, is reason enough to take a snapshot.
    It need not even have all the operations that it counts as new."""
    lab = begun()
    lab.submit("c", "n", "inc 5")
    run(lab, 2)
    without_m(lab)
    c, x = lab.nodes["c"].origin, Origin("m", "x")
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    early = Stamp(listing.stamp.time_ms - 10, 0, x)
    rules = listing.matrix._replace(introduced=early)
    mine = stolen(lab, "set 7", origin=x, deps={}, sites=("m",), stamp=early, matrix=rules)
    seal = sealing(lab, {x: 1}, "m", (), origin=x, seq=2, deps={x: 1}, stamp=early._replace(counter=1), matrix=rules)
    contents = written({x: content_hash(mine) + content_hash(seal)})
    settled = ((OpId(c, 1), Fate(Rule.LATER_REPLACES_EARLIER, OpId(x, 1))),)
    epochs = (EpochRecord(listing.matrix.introduced, {}, settled),)
    ops = (listing, seal) if hidden else (listing, mine, seal)
    lie = snapshot(lab, {x: 2}, *ops, contents=contents, epochs=epochs)
    for site in "abc":
        lab.take(site, Received("m", lie))
    run(lab)
    assert lab.states("n", "abc") == [6, 6, 6]


@pytest.mark.parametrize("seq", [1, 2], ids=["all-there", "one-hidden"])
def test_a_snapshot_with_a_true_seal_does_not_say_what_has_no_effect(seq: int) -> None:
    """only m's own operation is
    news to the others."""
    lab = begun()
    lab.submit("c", "n", "inc 5")
    run(lab, 2)
    c = lab.nodes["c"].origin
    known = dict(lab.at("a", "n").history.known)
    statements = tuple(one for site in "abc" if (one := ask(lab, site, known, "abcm")))
    assert len(statements) == 3
    without_m(lab)
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    deps = {**known, lab.nodes["m"].origin: seq - 1} if seq > 1 else known
    seal = sealing(lab, known, "abcm", statements, seq=seq, deps=deps)
    settled = ((OpId(c, 1), Fate(Rule.LATER_REPLACES_EARLIER, seal.id)),)
    epochs = (EpochRecord(listing.matrix.introduced, {}, settled),)
    floor = {seal.origin: seq}
    lie = snapshot(lab, floor, listing, seal, contents=written({seal.origin: content_hash(seal)}), epochs=epochs)
    for site in "abc":
        lab.take(site, Received("m", lie))
    run(lab)
    assert lab.states("n", "abc") == [6, 6, 6]


def test_a_snapshot_brings_no_matrix_that_the_policy_refuses() -> None:
    """m, which may not change the matrix, introduces one by which what others made is replaced."""
    lab = begun()
    lab.submit("c", "n", "inc 5")
    run(lab, 2)
    without_m(lab)
    x = Origin("m", "x")
    evil = Matrix([Entry("inc", "inc", Result.TAKE_ONE)])
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    early, now = Stamp(listing.stamp.time_ms - 10, 0, x), Stamp(lab.now_ms, 5, x)
    rules = listing.matrix._replace(introduced=early)
    new = MatrixRef(evil.hash, now)
    mine = stolen(lab, "set 7", origin=x, deps={}, sites=("m",), stamp=early, matrix=rules)
    other = stolen(lab, "inc 0", 2, origin=x, deps={x: 1}, stamp=now, matrix=new)
    seal = sealing(lab, {x: 2}, "m", (), origin=x, seq=3, deps={x: 2}, stamp=now._replace(counter=6), matrix=new)
    message = snapshot(lab, {x: 3}, listing, mine, other, seal, adopted=new)
    for site in "abc":
        lab.take(site, Received("m", replace(message, matrices=(COUNTER.matrix, evil))))
    run(lab)
    assert lab.at("a", "n").history.matrix == COUNTER.matrix
    assert lab.states("n", "abc") == [6, 6, 6]


def test_a_checkpoint_of_the_thief_does_not_replace_what_a_site_holds() -> None:
    """A site protects only operations of its own from the checkpoint of a snapshot. The digest does not count
    the checkpoint, and effects are compared only where the same is folded: the status is CONVERGED."""
    lab = begun()
    seal = true_seal(lab)
    without_m(lab)
    a, m = lab.nodes["a"].origin, lab.nodes["m"].origin
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    base = Base({a: 1, m: 1}, Command("write 666"))
    contents = written({a: content_hash(listing), m: content_hash(seal)})
    lie = snapshot(lab, {a: 1, m: 1}, listing, seal, base=base, contents=contents)
    for site in "bc":
        lab.take(site, Received("m", lie))
    send(lab, "a", seal)
    run(lab)
    assert lab.states("n", "abc") == [1, 1, 1] or without_the_thief(lab) is not Overall.CONVERGED
    assert lab.states("n", "abc") == [1, 1, 1]


def test_a_checkpoint_of_the_thief_does_not_replace_an_earlier_one() -> None:
    """Where something is folded, a site does not even protect its own operations."""
    lab = Lab("abcm", seal_after=1)
    lab.make("n", COUNTER, "abcm", policy=Policy())
    lab.submit("a", "n", "set 1")
    for _ in range(20):
        lab.submit("b", "n", "inc 1")
        lab.run()
    run(lab, 3)
    assert all(lab.at(site, "n").history.folded for site in "abc")
    lab.submit("a", "n", "inc 100")
    lab.submit("b", "n", "inc 100")
    run(lab, 3)
    known = dict(lab.at("a", "n").history.known)
    seal = true_seal(lab)
    history = lab.at("m", "n").history
    without_m(lab)
    everything = {**known, seal.origin: 1}
    sums = {**history.contents._known, seal.origin: content_hash(seal)}
    base = Base(everything, Command("write 666"))
    lie = snapshot(lab, everything, *history.ops.values(), seal, base=base, contents=written(sums), root=history.root)
    for site in "abc":
        lab.take(site, Received("m", lie))
    run(lab)
    assert lab.states("n", "abc") == [220, 220, 220]


@pytest.mark.parametrize("wrong", [0, 1], ids=["true", "false"])
def test_sums_that_a_snapshot_brings_do_not_end_sealing_for_good(wrong: int) -> None:
    """The sums of contents in a snapshot take the place of the receiver's own, even for operations that it has.
    They are wrong for good: the status is DIVERGED, and nothing is sealed any more, also after m is forgotten."""
    lab = begun()
    seal = true_seal(lab)
    without_m(lab)
    a, m = lab.nodes["a"].origin, lab.nodes["m"].origin
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    contents = written({a: content_hash(listing) + wrong, m: content_hash(seal)})
    lab.take("c", Received("m", snapshot(lab, {a: 1, m: 1}, listing, seal, contents=contents)))
    for site in "ab":
        send(lab, site, seal)
    run(lab)
    lab.submit("b", "n", "set 2")
    run(lab)
    assert lab.states("n", "abc") == [2, 2, 2]
    assert without_the_thief(lab) is Overall.CONVERGED


def folded(number: int) -> tuple[Lab, Message]:
    """A resource with a checkpoint, after so many operations of c; and a snapshot of m whose floor is one seal of m."""
    lab = Lab("abcm", seal_after=1)
    lab.make("n", COUNTER, "abcm", policy=Policy())
    lab.submit("a", "n", "set 0")
    lab.run()
    for _ in range(number):
        lab.submit("c", "n", "inc 1")
        lab.run()
    run(lab, 3)
    x = Origin("m", "x")
    history = lab.at("c", "n").history
    assert history.folded
    without_m(lab)
    seal = true_seal(lab, x)
    listing = lab.at("m", "n").history.site_list_op
    assert listing is not None
    lie = snapshot(lab, {x: 1}, listing, seal, contents=written({x: content_hash(seal)}), root=history.root)
    return lab, lie


def test_a_snapshot_without_a_checkpoint_does_not_end_the_one_that_a_site_has() -> None:
    """A snapshot's floor and base take the place of the receiver's own, which may be higher. c loses what it has
    folded, and in good faith sends the same snapshot to the others, which lose it too."""
    lab, lie = folded(20)
    lab.take("c", Received("m", lie))
    run_on(lab)
    assert lab.states("n", "abc") == [20, 20, 20]


def test_a_snapshot_does_not_make_a_site_give_its_numbers_again() -> None:
    """c forgets that it has made operations, and begins to count anew."""
    lab, lie = folded(15)
    c = lab.nodes["c"].origin
    last = lab.at("c", "n").history.known[c]
    lab.take("c", Received("m", lie))
    lab.submit("c", "n", "inc 1000")
    run_on(lab)
    assert OpId(c, last + 1) in effective(lab, "c")
    assert not lab.at("a", "n").proofs
    assert lab.states("n", "abc") == [1015] * 3
