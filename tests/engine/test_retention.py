"""What one site's engine keeps, in memory and on disk, and what it lets go."""

from dataclasses import replace

import pytest
from msgspec import structs

from cheops.engine import tombstones
from cheops.engine.events import ClientLeft, Outcome, Queried, Run, SitesRemoved
from cheops.engine.settings import Checkpoint, Limits
from cheops.log.causality import contains
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, OpId
from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER, FILE
from tests.engine.lab import Lab
from tests.engine.thief import run


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that has left a resource counts what it once heard of the others as what they have now."""
    monkeypatch.setattr(tombstones, "is_undecided", lambda *_: False)


def test_memory_follows_what_is_active_not_what_exists() -> None:
    lab = Lab("ab")
    for number in range(100):
        lab.make(f"n{number}", COUNTER, "ab")
        lab.submit("a", f"n{number}", "set 1")
    lab.run()
    lab.pass_time(Limits().idle_ms + 1_000)
    sites = [node.site for node in lab.nodes.values()]
    assert [len(site.replicas) for site in sites if site] == [0, 0]
    lab.submit("b", "n42", "inc 1")
    lab.run()
    assert lab.states("n42", "ab") == [2, 2]
    assert [list(site.replicas) for site in sites if site] == [["n42"], ["n42"]]


def test_many_at_rest_leave_memory_before_their_time() -> None:
    lab = Lab("ab", resident=10)
    for number in range(100):
        lab.make(f"n{number}", COUNTER, "ab")
        lab.submit("a", f"n{number}", "set 1")
    lab.run()
    lab.pass_time(6_000)
    sites = [node.site for node in lab.nodes.values()]
    assert [len(site.replicas) for site in sites if site] == [10, 10]
    for number in range(100):
        lab.submit("b", f"n{number}", "inc 1")
    lab.run()
    assert all(lab.states(f"n{number}", "ab") == [2, 2] for number in range(100))


def test_a_restart_loads_only_what_is_not_finished() -> None:
    lab = Lab("ab")
    for name in ("done", "cut"):
        lab.make(name, COUNTER, "ab")
    lab.submit("a", "done", "set 1")
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "cut", "set 1")
    lab.crash("a")
    lab.restart("a")
    site = lab.nodes["a"].site
    assert site
    assert list(site.replicas) == ["cut"]
    lab.heal()
    lab.run()
    assert lab.states("cut", "ab") == [1, 1]


def test_logs_stay_bounded() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.make("f", FILE, "ab")
    for number in range(40):
        lab.submit("ab"[number % 2], "n", "inc 1")
        lab.submit("ab"[number % 2], "f", f"set {number}")
        lab.run()
    for site in "ab":
        assert len(lab.at(site, "n").history.ops) <= 10
        assert len(lab.at(site, "f").history.ops) <= 3
        assert len(lab.nodes[site].disk.of_resource("f")) < 20
    assert lab.states("n", "ab") == [40, 40]


def test_what_can_only_wait_leaves_memory_where_there_is_much_of_it() -> None:
    lab = Lab("ab", parked=3)
    names = [f"n{number}" for number in range(10)]
    for name in names:
        lab.make(name, COUNTER, "ab")
        lab.submit("a", name, "set 1")
    lab.run()
    lab.partition("a", "b")
    for name in names:
        lab.submit("a", name, "inc 1")
    lab.run()
    for name in names:
        for op in list(lab.at("a", name).clients.operations):
            lab.take("a", ClientLeft(name, op))
    lab.pass_time(5_000)
    site = lab.nodes["a"].site
    assert site
    assert len(site.replicas) == 3
    known = lab.status("a", next(iter(site.replicas)))
    assert [one.pending for one in known.sites] == [0, 1], "of what stays, what the other knows is remembered"
    lab.heal()
    lab.run()
    assert all(lab.states(name, "ab") == [2, 2] for name in names)


def test_what_is_taken_and_forgotten_in_one_step_does_not_stay_on_disk() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    for _ in range(20):
        lab.submit("a", "n", "fail")
        lab.run()
    for site in "ab":
        assert len(lab.nodes[site].disk.of_resource("n")) < 10


def test_a_state_that_cannot_be_read_is_not_read_for_ever() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=replace(COUNTER.type.checkpoint, read=Command("fail")))  # type: ignore[type-var]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
    lab.run()
    assert sum('"fail"' in line for line in lab.output) < 10
    assert lab.states("n", "ab") == [12, 12]


def test_a_state_that_was_cut_is_no_checkpoint() -> None:
    lab = Lab("a")
    lab.make("n", COUNTER, "a")
    true = lab.execute

    def cut(name: str, run: Run) -> tuple[Outcome, ...]:
        outcomes = true(name, run)
        return (
            tuple(structs.replace(outcome, cut=True) for outcome in outcomes) if run.steps[0].op is None else outcomes
        )

    lab.execute = cut  # type: ignore[method-assign]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    assert lab.at("a", "n").applied.base is None
    assert any("no-checkpoint" in output for output in lab.output)


def test_nobody_says_that_a_site_ran_what_it_skipped() -> None:
    """a holds the effect of an operation in its checkpoint. b has made none, so c gets the operation from b when it
    joins, and skips it: a later one supersedes it."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "ab")
    true = lab.execute

    def cut_at_b(name: str, run: Run) -> tuple[Outcome, ...]:
        outcomes = true(name, run)
        is_cut = name == "b" and run.steps[0].op is None
        return tuple(structs.replace(outcome, cut=True) for outcome in outcomes) if is_cut else outcomes

    lab.execute = cut_at_b  # type: ignore[method-assign]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
    run(lab, 2)
    early = OpId(lab.nodes["a"].origin, 3)
    assert contains(lab.at("a", "n").history.folded, early)
    assert early in lab.at("b", "n").history.ops
    lab.partition("a", "b", "c")
    lab.move("b", "n", "abc")
    lab.submit("b", "n", "set 5")
    run(lab, 1)
    lab.partition("a", "bc")
    run(lab, 3)
    assert early in lab.at("c", "n").history.fates
    lab.take("a", Queried("n"))  # loads it
    lab.at("a", "n").clients.add(early, "r", lab.at("a", "n"))  # one that has not heard from all sites yet
    lab.output.clear()
    lab.heal()
    run(lab, 3)
    assert contains(lab.at("a", "n").peers["c"].settled, early)
    assert not [line for line in lab.output if line.startswith("a answers:") and "OK at c" in line]


def _forget_alone(lab: Lab) -> None:
    """Let a, which is alone on the list, make a state of 5, and forget how."""
    for number in range(6):
        lab.submit("a", "n", f"set {number}")
        run(lab, 1)
    assert lab.at("a", "n").history.floor, "it has forgotten something"


def test_a_site_that_comes_back_takes_what_another_sealed_alone() -> None:
    """The seal of one site proves what is forgotten where its list of sites is known, which named it alone."""
    lab = Lab("ac")
    lab.make("n", COUNTER, "ac", checkpoint=None, policy=Policy())
    lab.submit("a", "n", "set 1")
    run(lab, 2)
    lab.move("a", "n", "a")
    run(lab, 2)
    _forget_alone(lab)
    lab.move("a", "n", "ac")
    run(lab, 3)
    assert lab.states("n", "ac") == [5, 5]


def test_what_a_site_sealed_alone_counts_after_that_site_is_gone() -> None:
    lab = Lab("abc")
    lab.make("n", COUNTER, "abc", checkpoint=None, policy=Policy())
    lab.submit("a", "n", "set 1")
    run(lab, 2)
    lab.partition("ab", "c")
    lab.move("a", "n", "a")
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset("c")))  # so that a need not wait for it
    run(lab, 2)
    _forget_alone(lab)
    lab.move("a", "n", "abc")
    run(lab, 3)
    lab.partition("a", "bc")
    for site in "bc":
        lab.take(site, SitesRemoved(frozenset("a")))
    run(lab, 6)
    assert lab.states("n", "bc") == [5, 5]


def test_a_site_that_comes_back_takes_the_checkpoint_of_one_that_was_alone() -> None:
    """It knows every operation. But an operation that comes too late for the checkpoint goes on top of it, and not
    before what it holds: so both sites need it."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "ac")
    lab.submit("c", "n", "set 1")
    lab.partition("b", "ac")
    for _ in range(7):
        lab.submit("c", "n", "inc 1")
    lab.move("c", "n", "a")  # at once, so that it is a alone that makes a checkpoint of the eight
    run(lab, 12)
    alone = lab.at("a", "n")
    assert alone.history.folded
    assert [len(op.seal.sites) for op in alone.history.seals if op.seal] == [1]
    lab.make("n", COUNTER, "bc")
    lab.submit("b", "n", "inc 50")  # b knows nothing of all this
    run(lab, 1)
    lab.move("a", "n", "abc")
    run(lab, 3)
    lab.heal()
    run(lab, 6)
    assert lab.states("n", "abc") == [58, 58, 58]


@pytest.mark.usefixtures("trusting")
def test_a_site_that_comes_back_by_another_beginning_takes_the_checkpoint_of_one_that_was_alone() -> None:
    """Its own operation is in effect, and in the checkpoint. It did not sign the seal: it had left by then."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "ac")
    lab.submit("c", "n", "set 1")
    run(lab, 1)
    lab.move("c", "n", "a")
    run(lab, 1)
    for _ in range(7):
        lab.submit("a", "n", "inc 1")
    run(lab, 12)
    assert lab.at("a", "n").history.folded
    lab.partition("a", "bc")
    lab.make("n", COUNTER, "abc")
    lab.submit("b", "n", "inc 50")  # b knows nothing of all this
    run(lab, 1)
    assert lab.at("c", "n").is_involved
    lab.heal()
    run(lab, 6)
    assert lab.states("n", "abc") == [58, 58, 58]


@pytest.mark.parametrize("checkpoint", [COUNTER.type.checkpoint, None], ids=["folded", "pruned"])
def test_what_several_sites_sealed_orphans_also_after_one_of_them_sealed_more_alone(
    checkpoint: Checkpoint | None,
) -> None:
    """A seal of one site orphans nothing. If it took the place of the other one, only the sites that have left would
    know that what begins anew without knowledge of both has no effect."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "ab", checkpoint=checkpoint)
    for number in range(10):
        lab.submit("a", "n", f"set {number}")
        run(lab, 1)
    (common,) = lab.at("a", "n").history.seals
    assert common.seal is not None
    assert common.seal.sites == ("a", "b")
    lab.move("a", "n", "a")
    run(lab, 2)
    for number in range(10):
        lab.submit("a", "n", f"set {number}")
        run(lab, 1)
    newest = lab.at("a", "n").history.seals[-1]
    assert newest.seal is not None
    assert newest.seal.sites == ("a",)
    lab.make("n", COUNTER, "abc")
    lab.submit("c", "n", "set 50")  # c knows nothing of all this
    run(lab, 6)
    lab.move("a", "n", "abc")
    run(lab, 6)
    assert lab.states("n", "abc") == [9, 9, 9]
    assert {lab.at(site, "n").history.root for site in "abc"} == {common.seal.root}


def test_a_site_that_was_gone_when_it_left_is_told_although_the_list_that_named_it_is_forgotten() -> None:
    lab = Lab("abc")
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    run(lab, 2)
    lab.partition("ab", "c")
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset("c")))
    matrix = Matrix((*COUNTER.matrix.entries, Entry("never", "used", Result.TAKE_BOTH)))
    lab.submit("a", "n", "set 2", matrix=matrix)  # otherwise the first operation is kept for its matrix
    lab.move("a", "n", "ab")
    for number in range(6):
        lab.submit("a", "n", f"set {number}")
        run(lab, 1)
    for site in "ab":
        assert not any("c" in (op.sites or ()) for op in lab.at(site, "n").history.ops.values()), "it is forgotten"
        lab.crash(site)
        lab.restart(site)
        lab.take(site, SitesRemoved(frozenset("c")))
    for site in "abc":
        lab.take(site, SitesRemoved(frozenset(), frozenset("c")))
    lab.heal()
    run(lab, 6)
    assert not lab.at("c", "n").is_involved
