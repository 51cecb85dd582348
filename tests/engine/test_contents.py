"""Two operations under one id, and operations that a site was made to forget: the sites end equal, and say who lied."""

from dataclasses import replace as replace_type
from typing import Any

import pytest
from msgspec.structs import replace

from cheops.engine.contents import EQUIVOCATION
from cheops.engine.documents import Base, Message, Proof, Snapshot, written
from cheops.engine.events import Received
from cheops.engine.status import Overall
from cheops.log.operation import (
    Command,
    Kind,
    Operation,
    OpId,
    Origin,
    Seal,
    Stamp,
    Statement,
    content_hash,
    precedence,
    seal_hash,
)
from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER, App
from tests.engine.lab import Lab
from tests.engine.thief import run, send, stolen, without_m


def lab_of(app: App = COUNTER, **changes: Any) -> Lab:
    """Three honest sites a, b and c. The resource is also at m, whose keys are stolen; nobody hears from its agent."""
    lab = Lab("abcm")
    lab.make("n", app, "abcm", checkpoint=None, **changes)
    lab.submit("a", "n", "set 1" if app is COUNTER else "set x")
    lab.run()
    return lab


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_of_two_contents_under_one_id_the_smaller_hash_stands_everywhere(order: str) -> None:
    lab = lab_of()
    without_m(lab)
    one, other = stolen(lab, "set 100"), stolen(lab, "set 200")
    first, rest = order[0], order[1:]
    send(lab, first, one)
    for site in rest:
        send(lab, site, other)
    run(lab)
    winner = min(one, other, key=content_hash)
    expected = int(winner.payload.line.split()[1])
    assert lab.states("n", "abc") == [expected] * 3
    for site in "abc":
        replica = lab.at(site, "n")
        assert content_hash(replica.history.ops[winner.id]) == content_hash(winner)
        (proof,) = replica.proofs.values()
        assert content_hash(proof.lost[0].op) == max(content_hash(one), content_hash(other))
    alarms = {site for site in "abc" if any(f"{site} notifies" in line and EQUIVOCATION in line for line in lab.output)}
    assert alarms == set("abc")
    assert any("m signed two different operations as m:1" in line for line in lab.output)


def test_a_site_that_ran_the_wrong_one_replays_from_a_base() -> None:
    lab = lab_of()
    without_m(lab)
    pair = sorted((stolen(lab, "inc 100"), stolen(lab, "inc 200")), key=content_hash)
    send(lab, "a", pair[1])
    run(lab, 2)
    assert lab.states("n", "a") == [1 + int(pair[1].payload.line.split()[1])]
    send(lab, "b", pair[0])
    run(lab)
    expected = 1 + int(pair[0].payload.line.split()[1])
    assert lab.states("n", "abc") == [expected] * 3


def test_the_proof_and_the_decision_outlive_a_crash() -> None:
    lab = lab_of()
    without_m(lab)
    pair = sorted((stolen(lab, "inc 100"), stolen(lab, "inc 200")), key=content_hash)
    send(lab, "a", pair[1])
    run(lab, 2)
    send(lab, "b", pair[0])
    run(lab)
    for site in "abc":
        lab.crash(site)
        lab.restart(site)
    lab.submit("c", "n", "inc 5")
    run(lab)
    assert lab.states("n", "abc") == [6 + int(pair[0].payload.line.split()[1])] * 3
    assert all(lab.at(site, "n").proofs for site in "abc")
    assert any(isinstance(d, Proof) for d in lab.nodes["a"].disk.durable.values())


def test_sites_whose_contents_differ_are_not_converged_and_seal_nothing() -> None:
    lab = lab_of()
    other, one = sorted((stolen(lab, "set 100"), stolen(lab, "set 200")), key=precedence)
    without_m(lab)
    send(lab, "a", one)
    lab.run()
    lab.partition("a", "b", "c", "m")
    for site in "bc":
        send(lab, site, other)
    lab.run()
    assert len({lab.at(site, "n").applied.digest() for site in "ab"}) == 2
    assert all(lab.status(site, "n").overall is not Overall.CONVERGED for site in "abc")


def test_a_digest_follows_what_failed_and_what_is_added() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    applied = lab.at("a", "n").applied
    before, failed = applied.digest(), applied.entries[0].id
    applied.failed[failed] = "a reason"
    assert applied.digest() not in ("", before)
    del applied.failed[failed]
    assert applied.digest() == before
    lab.submit("b", "n", "inc 2")
    lab.run()
    assert lab.at("a", "n").applied.digest() == lab.at("b", "n").applied.digest() != before


def test_content_that_a_policy_refuses_does_not_stand() -> None:
    """Otherwise a thief could choose, by trying hashes, what is refused at one site and not at another."""
    lab = lab_of()
    without_m(lab)
    one, other = stolen(lab, "set 100"), stolen(lab, "set 200", deps={})
    send(lab, "a", one)
    send(lab, "b", one)
    send(lab, "c", other)
    run(lab)
    assert len({tuple(lab.states("n", site)) for site in "abc"}) == 1


def test_of_two_contents_with_different_stamps_the_earlier_stands_everywhere() -> None:
    """So an operation that an honest site made after either of them has a later stamp than the one that stands."""
    lab = lab_of()
    without_m(lab)
    pair = sorted((stolen(lab, "inc 100"), stolen(lab, "inc 200")), key=content_hash)
    late = replace(pair[0], stamp=pair[0].stamp._replace(counter=pair[0].stamp.counter + 50))
    early = pair[1] if content_hash(late) < content_hash(pair[1]) else stolen(lab, "inc 300")
    lab.partition("a", "bc", "m")
    send(lab, "a", early)
    for site in "bc":
        send(lab, site, late)
    lab.submit("a", "n", "inc 1000")
    run(lab, 3)
    lab.heal()
    without_m(lab)
    run(lab)
    assert lab.states("n", "abc") == [1001 + int(early.payload.line.split()[1])] * 3
    assert all(content_hash(lab.at(site, "n").history.ops[early.id]) == content_hash(early) for site in "abc")


@pytest.mark.parametrize("restricted", [False, True])
def test_a_stamp_that_is_not_later_than_what_it_depends_on_is_refused(restricted: bool) -> None:
    lab = lab_of(COUNTER, policy=Policy() if restricted else None)
    begun = lab.at("a", "n").history.latest
    lab.pass_time(1_000)
    lab.submit("b", "n", "inc 1")
    lab.run()
    without_m(lab)
    assert begun is not None
    origin = Origin("m", "x")
    early = stolen(lab, "inc 100", origin=origin, stamp=Stamp(begun.time_ms + 1, 0, origin))
    for site in "abc":
        send(lab, site, early)
        assert origin not in lab.at(site, "n").history.known
        assert "stamped earlier than b:1" in lab.at(site, "n").inbox.refused[early.id]
    send(lab, "a", replace(early, stamp=Stamp(lab.now_ms, 9, origin)))
    run(lab, 3)
    assert lab.states("n", "abc") == [102] * 3


@pytest.mark.parametrize(
    "change", [{"why": "x"}, {"sites": ("a", "b", "c", "m", "x")}, {"sites": ("a", "c", "m")}], ids=str
)
@pytest.mark.parametrize("restricted", [False, True])
def test_two_contents_of_the_beginning_cost_nobody_an_operation(restricted: bool, change: dict[str, Any]) -> None:
    """Each honest site operates on the content that it got; when they meet, all have all of it."""
    lab = Lab("abcm")
    lab.make("n", COUNTER, "abcm", checkpoint=None, **({"policy": Policy()} if restricted else {}))
    lab.partition("ab", "c", "m")
    lab.submit("m", "n", "set 1")
    lab.run()
    made = next(iter(lab.at("m", "n").history.ops.values()))
    matrices = (COUNTER.matrix,)
    for site in "ab":
        send(lab, site, made, matrices=matrices)
    send(lab, "c", replace(made, **change), matrices=matrices)
    lab.submit("a", "n", "inc 10")
    lab.submit("c", "n", "inc 100")
    run(lab, 3)
    lab.heal()
    without_m(lab)
    run(lab, 60)
    contents = {content_hash(lab.at(site, "n").history.ops[made.id]) for site in "abc"}
    assert len(contents) == 1
    for site in "abc":
        known = lab.at(site, "n").history.known
        assert known.get(lab.nodes["a"].origin) == known.get(lab.nodes["c"].origin) == 1
        assert not lab.at(site, "n").inbox.refused


def begun_by_m() -> tuple[Lab, Operation]:
    """Three sites that do not see each other, of which m has begun a resource; and a second type."""
    lab = Lab("abm")
    lab.make("n", COUNTER, "abm", checkpoint=None, policy=Policy())
    lab.settings.types["other"] = replace_type(lab.settings.types["n"], name="other")
    lab.partition("a", "b", "m")
    lab.submit("m", "n", "set 1")
    lab.run()
    return lab, next(iter(lab.at("m", "n").history.ops.values()))


def test_a_client_that_means_another_type_is_refused() -> None:
    """A stolen site may have taken the name for a resource of its own."""
    lab, made = begun_by_m()
    send(lab, "a", replace(made, rtype="other"), matrices=(COUNTER.matrix,))
    lab.submit("a", "n", "inc 10")
    run(lab, 3)
    assert any("the resource is of type 'other', not 'n'" in line for line in lab.output)
    assert lab.states("n", "a") == [1]


def test_a_false_type_of_a_second_beginning_does_not_refuse_the_first() -> None:
    lab, first = begun_by_m()
    store = Origin("m", "second")
    true = replace(first, origin=store, stamp=Stamp(first.stamp.time_ms + 1, 0, store))
    # The false type stands: of equal stamps, the smaller hash does.
    false = min((replace(true, rtype="other", why=str(n)) for n in range(100)), key=precedence)
    assert precedence(false) < precedence(true)
    for op in (false, true):
        send(lab, "b", op, matrices=(COUNTER.matrix,))
    send(lab, "b", first, matrices=(COUNTER.matrix,))
    assert first.id in lab.at("b", "n").history.ops
    assert not lab.at("b", "n").inbox.refused


@pytest.mark.parametrize("change", [{"rtype": "other"}, {"sites": ("a", "m")}], ids=str)
def test_nobody_takes_the_name_of_a_resource_that_this_site_is_just_beginning(change: dict[str, Any]) -> None:
    lab, made = begun_by_m()
    lab.benches["a"].paused = True
    lab.submit("a", "n", "set 2")  # and it has not run yet
    send(lab, "a", replace(made, **change), matrices=(COUNTER.matrix,))
    assert made.id in lab.at("a", "n").inbox.refused
    lab.resume("a")
    lab.run()
    assert lab.states("n", "a") == [2]


def test_nobody_else_makes_operations_of_this_site() -> None:
    lab = lab_of()
    own = lab.nodes["a"].origin
    history = lab.at("a", "n").history
    first = next(op for op in history.ops.values() if op.sites)
    forged = replace(first, seq=2, deps={own: 1}, sites=None, stamp=Stamp(lab.now_ms, 9, own), payload=Command("set 9"))
    send(lab, "a", forged)
    run(lab, 3)
    # Who has its key can make it believe that its store is an old copy, and nothing else.
    assert lab.nodes["a"].origin != own
    assert lab.at("a", "n").history.known[own] == 1
    lab.submit("a", "n", "inc 1")
    run(lab, 3)
    assert lab.states("n", "abc") == [2, 2, 2]


# -- snapshots ------------------------------------------------------------------------------------------------


def snapshot_of(lab: Lab, floor: dict[Origin, int], ops: tuple[Operation, ...], **changes: Any) -> Message:
    history = lab.at("m", "n").history
    fields: dict[str, Any] = {"floor": floor, "reply_floor": {}, "base": None, "adopted": history.adopted, "epochs": ()}
    fields["contents"] = written(history.contents.floor)
    return Message("n", "1", ops, known=floor, snapshot=Snapshot(**{**fields, **changes}))


def lying_seal(lab: Lab, stable: dict[Origin, int], sites: str = "m") -> Operation:
    """A seal over operations that not all sites have settled; m says that these are all sites."""
    origin = lab.nodes["m"].origin
    deps = {**lab.at("m", "n").history.known, **stable}
    stamp = Stamp(lab.now_ms, 1, origin)
    seal = Seal(stable, stamp, tuple(lab.nodes[site].origin for site in sites))
    return stolen(lab, "seal", kind=Kind.SEAL, payload=Command(""), deps=deps, stamp=stamp, seal=seal)


def signed_by_all(op: Operation) -> Operation:
    """The seal with statements of all its sites, as if they had made them."""
    assert op.seal is not None
    said = seal_hash(op.seal.stable, op.seal.origins, op.seal.root)
    statements = tuple(Statement("n", origin, said, 0) for origin in op.seal.origins if origin != op.origin)
    return replace(op, seal=op.seal._replace(statements=statements))


def test_a_floor_that_no_seal_covers_is_refused() -> None:
    lab = lab_of()
    without_m(lab)
    lab.partition("a", "bc", "m")
    lab.submit("a", "n", "inc 5")  # acknowledged at a, and not known at b and c yet
    lab.run()
    a = lab.nodes["a"].origin
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    lab.take("b", Received("m", snapshot_of(lab, {a: 2**40 - 1}, (listing,))))
    assert lab.at("b", "n").history.known == {a: 1}
    lab.heal()
    without_m(lab)
    run(lab)
    assert lab.states("n", "abc") == [6, 6, 6]


def test_an_operation_that_a_false_snapshot_hides_comes_back_from_who_has_it() -> None:
    """The thief is a site of the resource, so it may make a seal, which proves its floor. The contents give it away."""
    lab = lab_of()
    without_m(lab)
    lab.partition("a", "bc", "m")
    lab.submit("a", "n", "inc 5")
    lab.run()
    a = lab.nodes["a"].origin
    hidden = lab.at("a", "n").history.ops[OpId(a, 2)]
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    seal = lying_seal(lab, {a: 2})
    claimed = {a: f"{content_hash(listing) + content_hash(hidden):x}"}
    message = snapshot_of(lab, {a: 2}, (listing, seal), contents=claimed)
    for site in "bc":
        lab.take(site, Received("m", message))
    lab.take("a", Received("m", Message("n", "1", (seal,))))
    lab.heal()
    without_m(lab)
    run(lab)
    assert lab.states("n", "abc") == [6, 6, 6]


def test_a_checkpoint_does_not_take_the_place_of_what_this_site_has_acknowledged() -> None:
    lab = lab_of()
    without_m(lab)
    a, m = lab.nodes["a"].origin, lab.nodes["m"].origin
    seal = lying_seal(lab, {a: 1, m: 1}, "abcm")
    seal = signed_by_all(replace(seal, seq=2, deps={a: 1, m: 1}))  # m:1 is forgotten, says the thief
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    base = Base({a: 1, m: 2}, Command("write 666"))
    lab.take("a", Received("m", snapshot_of(lab, {a: 1, m: 2}, (listing, seal), base=base)))
    run(lab, 3)
    assert lab.states("n", "a") == [1]
    assert any("its checkpoint would take the place of a:1" in line for line in lab.output)


def test_a_site_counts_its_own_replies() -> None:
    lab = lab_of()
    a = lab.nodes["a"].origin
    before = lab.at("a", "n").replies.known[a]
    listing = next(op for op in lab.at("m", "n").history.ops.values() if op.sites)
    m = lab.nodes["m"].origin
    seal = lying_seal(lab, {a: 1})
    message = snapshot_of(lab, {a: 1, m: 1}, (listing, seal), reply_floor={a: 2**40})
    lab.take("a", Received("m", message))
    assert lab.at("a", "n").replies.known[a] == before


def test_a_seal_without_the_statements_of_all_sites_is_refused() -> None:
    """The thief seals what b has not settled, while b makes an operation that does not know of it."""
    lab = lab_of()
    lab.submit("b", "n", "inc 1")
    lab.run()
    b, m = lab.nodes["b"].origin, lab.nodes["m"].origin
    before = stolen(lab, "inc 10")
    seal = lying_seal(lab, {**before.deps, m: 1}, "abcm")
    seal = replace(seal, seq=2, deps={**before.deps, m: 1}, stamp=Stamp(lab.now_ms + 5, 2, m))
    assert b in seal.seal.stable  # type: ignore[union-attr]
    without_m(lab)
    lab.submit("b", "n", "inc 2")
    for site in "abc":
        send(lab, site, before, seal)
    run(lab)
    assert any("its seal lacks the statement of a, b" in line for line in lab.output)
    for site in "abc":
        history = lab.at(site, "n").history
        assert not history.orphans
        assert OpId(b, 2) in {op.id for op in history.effective}
        assert not history.seals
    assert len({str(lab.states("n", site)) for site in "abc"}) == 1


def test_a_second_content_does_not_profit_from_the_word_for_the_first() -> None:
    """A site that has proof sends both. The one with a wrong stamp was refused there, and must be refused here."""
    lab = lab_of()
    without_m(lab)
    before, good = stolen(lab, "set 100"), stolen(lab, "set 200", seq=2)
    bad = replace(good, stamp=Stamp(before.stamp.time_ms, 0, good.origin))
    for op in (good, bad, before):  # the two wait for the last
        lab.take("c", Received("a", Message("n", "1", (op,))))
    assert lab.at("c", "n").history.ops[good.id].stamp == good.stamp
