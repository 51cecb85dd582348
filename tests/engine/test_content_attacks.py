"""Attacks with two contents under one id, with invented sites and stores, and with a second beginning, by one site of a
resource whose keys are stolen: m.

Those that still work are marked, with the reason; docs/limitations.md says so too. A test that passes unexpectedly
fails, so that its mark is removed."""

from typing import Any

import pytest
from msgspec.structs import replace

from cheops.engine import contents
from cheops.engine.status import Overall
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    MAX_ORIGINS,
    Command,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Stamp,
)
from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab
from tests.engine.thief import (
    begun,
    effective,
    run,
    run_on,
    send,
    stolen,
    without_m,
    without_the_thief,
)


def equivocate_on_the_list(lab: Lab, seq: int, payload: str) -> tuple[Operation, Operation]:
    """Two contents of a new list, by the site that may set it: the one that stands leaves c out, the other has this
    payload."""
    m = lab.nodes["m"].origin
    fields: dict[str, Any] = {"kind": Kind.SITES, "deps": {m: seq - 1}}
    stands = stolen(lab, "x", seq, payload=Command(""), sites=("a", "b", "m"), **fields)
    later = stands.stamp._replace(counter=stands.stamp.counter + 1)
    loser = stolen(lab, "x", seq, payload=Command(payload), sites=("a", "b", "c", "m"), stamp=later, **fields)
    return stands, loser


def check_operation_after_the_loser(lab: Lab, seq: int, payload: str) -> None:
    c = lab.nodes["c"].origin
    stands, loser = equivocate_on_the_list(lab, seq, payload)
    lab.partition("ab", "c", "m")
    for site in "ab":
        send(lab, site, stands)
    send(lab, "c", loser)
    lab.submit("c", "n", "inc 5")
    run(lab, 3)
    lab.heal()
    without_m(lab)
    run_on(lab)
    for site in "ab":
        assert OpId(c, 1) in effective(lab, site)


def test_an_operation_after_the_content_that_loses_is_taken() -> None:
    """the proof has the other content."""
    check_operation_after_the_loser(begun(by="m"), 2, "")


def test_an_operation_after_a_large_content_that_loses_is_taken() -> None:
    """A content of more than 1 MB is kept without its payload, so that a policy can judge by it what c made and
    acknowledged with it in its past."""
    check_operation_after_the_loser(begun(by="m"), 2, "x" * 1_000_000)


def test_an_operation_after_the_hundred_and_first_content_that_loses_is_taken() -> None:
    """Once, only 100 were kept, whatever their size."""
    lab = begun(by="m")
    m = lab.nodes["m"].origin
    without_m(lab)
    for seq in range(2, 102):
        stamp = Stamp(lab.now_ms, seq, m)
        for line in ("inc 0", "inc 00"):
            for site in "abc":
                send(lab, site, stolen(lab, line, seq, deps={m: seq - 1}, stamp=stamp))
    run(lab, 3)
    check_operation_after_the_loser(lab, 102, "")


def test_an_operation_after_the_third_content_is_taken() -> None:
    """a and b have kept another losing content before they hear of the one that c knew."""
    lab = begun(by="m")
    _, loser = equivocate_on_the_list(lab, 2, "")
    for site in "ab":
        stands, _ = equivocate_on_the_list(lab, 2, "")
        send(lab, site, stands, replace(loser, sites=stands.sites, stamp=loser.stamp._replace(counter=9)))
    check_operation_after_the_loser(lab, 2, "")


def test_an_operation_by_the_matrix_of_the_content_that_loses_is_taken() -> None:
    """m, which may set the matrix, introduces one in the content that loses; c operates by it."""
    lab = begun(by="m")
    c, m = lab.nodes["c"].origin, lab.nodes["m"].origin
    other = Matrix([*COUNTER.matrix.entries, Entry("set", "reset", Result.TAKE_ONE)])
    stands = stolen(lab, "inc 1", 2, deps={m: 1})
    later = stands.stamp._replace(counter=stands.stamp.counter + 1)
    loser = replace(stands, stamp=later, matrix=MatrixRef(other.hash, later))
    lab.partition("ab", "c", "m")
    for site in "ab":
        send(lab, site, stands)
    send(lab, "c", loser, matrices=(other,))
    lab.submit("c", "n", "inc 5")
    run(lab, 3)
    lab.heal()
    without_m(lab)
    run_on(lab)
    for site in "abc":
        assert OpId(c, 1) in effective(lab, site)
    assert lab.states("n", "abc") == [7, 7, 7]
    assert without_the_thief(lab) is Overall.CONVERGED


def test_proofs_beyond_the_bound_are_dropped_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept against one site is bounded by bytes: whole contents first, then without their payload, then none."""
    monkeypatch.setattr(contents, "_WHOLE_BYTES", 3_000)
    monkeypatch.setattr(contents, "_MOST_BYTES", 6_000)
    lab = begun(by="m")
    m = lab.nodes["m"].origin
    without_m(lab)
    for seq in range(2, 30):
        stamp = Stamp(lab.now_ms, seq, m)
        for line in ("inc 0", "inc 00"):
            for site in "abc":
                send(lab, site, stolen(lab, line, seq, deps={m: seq - 1}, stamp=stamp))
    run(lab, 3)
    proofs = list(lab.at("a", "n").proofs.values())
    assert {one.cut for proof in proofs for one in proof.lost} == {False, True}
    assert len(proofs) < 28
    assert lab.at("a", "n").proof_bytes["m"] <= 6_000
    assert lab.at("a", "n").dropped_proofs["m"] == 28 - len(proofs)
    assert sum("a notifies" in line and "are not kept as proof" in line for line in lab.output) == 1
    lab.submit("c", "n", "inc 5")
    run(lab, 3)
    assert lab.states("n", "abc") == [6, 6, 6]


def test_a_content_without_its_payload_outlives_a_crash() -> None:
    lab = begun(by="m")
    c = lab.nodes["c"].origin
    stands, loser = equivocate_on_the_list(lab, 2, "x" * 1_000_000)
    lab.partition("ab", "c", "m")
    for site in "ab":
        send(lab, site, stands)
        send(lab, site, loser)
    send(lab, "c", loser)
    lab.submit("c", "n", "inc 5")
    run(lab, 3)
    for site in "ab":
        assert all(one.cut for proof in lab.at(site, "n").proofs.values() for one in proof.lost)
        lab.crash(site)
        lab.restart(site)
    lab.heal()
    without_m(lab)
    run_on(lab)
    for site in "ab":
        assert OpId(c, 1) in effective(lab, site)


@pytest.mark.parametrize("invented", [(), ("zz",)], ids=["none", "zz"])
def test_an_invented_site_does_not_end_sealing_for_good(invented: tuple[str, ...]) -> None:
    """The sites that a losing content of m names get proofs, and are waited for until they know that they left.
    One that does not exist never will, so a site that nobody has met is not waited for."""
    lab = Lab("abcm", seal_after=1)
    lab.make("n", COUNTER, "abcm", checkpoint=None, policy=Policy())
    lab.submit("m", "n", "set 1")
    run(lab, 2)
    made = next(iter(lab.at("m", "n").history.ops.values()))
    without_m(lab)
    other = replace(made, sites=("a", "b", "c", "m", *invented), why="x", stamp=made.stamp._replace(counter=9))
    other = replace(other, matrix=made.matrix._replace(introduced=other.stamp))
    for site in "abc":
        send(lab, site, other, matrices=(COUNTER.matrix,))
    run_on(lab, 20)
    without_the_thief(lab)
    for number in range(5):
        lab.submit("a", "n", f"set {number}")
        run_on(lab, 3)
    run_on(lab, 20)
    assert lab.at("a", "n").history.seals


def test_origins_that_a_site_invents_do_not_fill_the_vectors() -> None:
    """A vector has at most 4,096 origins, which the codec checks. m has as many as it likes. Then a can neither
    store its next operation nor send a message about the resource, also when m is forgotten."""
    lab = begun()
    without_m(lab)
    origins = [Origin("m", f"x{number}") for number in range(MAX_ORIGINS)]
    ops = [stolen(lab, "inc 0", origin=one, stamp=Stamp(lab.now_ms, 1, one)) for one in origins]
    for start in range(0, len(ops), 256):
        send(lab, "a", *ops[start : start + 256])
    assert len(lab.at("a", "n").history.known) <= MAX_ORIGINS


@pytest.mark.xfail(strict=True, reason="of two beginnings with one list, the later one counts as the creator's")
def test_a_site_that_begins_the_resource_anew_does_not_own_its_list() -> None:
    """A beginning that names all sites is taken, and if it has the newest stamp, its author counts as the
    creator: then it may set the list as it likes. The others leave, and delete their copies."""
    lab = begun()
    lab.submit("c", "n", "inc 5")
    run(lab, 2)
    without_m(lab)
    x = Origin("m", "x")
    stamp = Stamp(lab.now_ms, 1, x)
    rules = next(iter(lab.at("m", "n").history.ops.values())).matrix._replace(introduced=stamp)
    begin = stolen(lab, "inc 0", origin=x, deps={}, sites=("a", "b", "c", "m"), stamp=stamp, matrix=rules)
    later = stamp._replace(counter=2)
    fields: dict[str, Any] = {"kind": Kind.SITES, "payload": Command(""), "matrix": rules, "stamp": later}
    listing = stolen(lab, "sites", 2, origin=x, deps={x: 1}, sites=("m",), **fields)
    for site in "abc":
        send(lab, site, begin, listing)
    run(lab)
    assert lab.at("a", "n").history.site_list == ("a", "b", "c", "m")
    assert lab.states("n", "abc") == [6, 6, 6]


@pytest.mark.xfail(strict=True, reason="of two beginnings with one list, the later one counts as the creator's")
def test_a_site_that_begins_the_resource_anew_does_not_own_its_matrix() -> None:
    """the matrix of the newest beginning is in force."""
    lab = begun()
    lab.submit("c", "n", "inc 5")
    run(lab, 2)
    without_m(lab)
    x = Origin("m", "x")
    stamp = Stamp(lab.now_ms, 1, x)
    evil = Matrix([Entry("inc", "inc", Result.TAKE_ONE)])
    begin = stolen(
        lab, "inc 0", origin=x, deps={}, sites=("a", "b", "c", "m"), stamp=stamp, matrix=MatrixRef(evil.hash, stamp)
    )
    for site in "abc":
        send(lab, site, begin, matrices=(evil,))
    run(lab)
    assert lab.at("a", "n").history.matrix == COUNTER.matrix
    assert lab.states("n", "abc") == [6, 6, 6]
