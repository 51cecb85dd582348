"""What an operator can do about replicas that differ: have what failed run again, or write a state everywhere."""

from dataclasses import replace
from typing import Any

from cheops.engine.events import Answer, Retried, Stage, Submitted
from cheops.engine.status import Overall
from cheops.log.operation import Command, Kind, Status
from cheops.sim.apps import FILE, RefusedError
from tests.engine.lab import Lab
from tests.engine.picky import Picky, diverged


def overall(lab: Lab, at: str = "ab") -> list[Overall]:
    return [lab.status(site, "n").overall for site in at]


def test_what_failed_runs_again_and_the_resource_converges() -> None:
    lab, picky = diverged(None)
    assert overall(lab) == [Overall.DIVERGED] * 2
    picky.refuse = False
    lab.take("b", Retried("n"))
    lab.run()
    assert lab.states("n", "ab") == [8, 8]
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_no_site_calls_it_converged_before_it_has_run() -> None:
    lab, picky = diverged(None)
    picky.refuse = False
    lab.benches["b"].paused = True
    lab.take("b", Retried("n"))
    lab.run()
    assert lab.states("n", "ab") == [8, 1]
    assert Overall.CONVERGED not in overall(lab)
    [there] = [site for site in lab.status("a", "n").sites if site.site == "b"]
    assert there.failed == (), "it is pending now"
    lab.resume("b")
    lab.run()
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_what_fails_again_is_diverged_again() -> None:
    lab, _ = diverged(None)
    lab.take("b", Retried("n"))
    lab.run()
    assert overall(lab) == [Overall.DIVERGED] * 2
    assert [len(site.failed) for site in lab.status("a", "n").sites] == [0, 1]


def test_a_retry_outlives_a_crash() -> None:
    lab, picky = diverged(None)
    lab.take("b", Retried("n"))  # fails again: the last reply counts
    lab.run()
    picky.refuse = False
    lab.benches["b"].paused = True
    lab.submit("b", "n", "inc 1")  # the slot is taken, so what failed only waits
    lab.take("b", Retried("n"))
    lab.crash("b")
    lab.resume("b")
    lab.restart("b")
    lab.run()
    failed = [site.failed for site in lab.status("a", "n").sites]
    assert failed == [(), ()]
    assert lab.at("b", "n").applied.failed == {}


def test_what_failed_takes_its_place_in_the_order_again() -> None:
    """It is replayed from the last base, because what came after it ran already and does not commute with it."""
    refused = {"add y"}

    def run(state: tuple[str, ...], line: str) -> Any:
        if line in refused and state == ("x",) and len(state) < len(lab.states("n", "a")[0]):
            raise RefusedError("no y here")
        return FILE.run(state, line)

    lab = Lab("ab")
    lab.make("n", replace(FILE, run=run), "ab", reset=None)
    lab.submit("a", "n", "set x")
    lab.run()
    lab.submit("a", "n", "add y")
    lab.submit("a", "n", "add z")
    lab.run()
    assert lab.states("n", "ab") == [("x", "y", "z"), ("x", "z")]
    refused.clear()
    lab.take("b", Retried("n"))
    lab.run()
    assert lab.states("n", "ab") == [("x", "y", "z")] * 2
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_nothing_happens_where_nothing_failed() -> None:
    lab, _ = diverged(None)
    before = lab.at("a", "n").next_reply
    lab.take("a", Retried("n"))
    lab.run()
    assert lab.at("a", "n").next_reply == before


def test_a_later_operation_that_replaces_what_failed_heals_the_status() -> None:
    lab, _ = diverged(None)
    lab.submit("a", "n", "set 5")
    lab.run()
    assert lab.states("n", "ab") == [5, 5]
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_a_replacing_operation_heals_only_when_it_has_run_everywhere() -> None:
    lab, _ = diverged(None)
    lab.partition("a", "b")
    lab.submit("a", "n", "set 5")
    lab.run()
    assert Overall.CONVERGED not in overall(lab)
    lab.heal()
    lab.run()
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_a_forced_operation_is_pending_at_a_site_that_is_cut_off() -> None:
    lab, _ = diverged(None)
    lab.partition("a", "b")
    lab.submit("a", "n", "set 8", Kind.FORCE)
    lab.run()
    assert lab.states("n", "ab") == [8, 1]
    assert Overall.CONVERGED not in overall(lab)
    lab.heal()
    lab.run()
    assert lab.states("n", "ab") == [8, 8]
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_a_state_that_was_read_before_a_change_is_not_written() -> None:
    lab, _ = diverged(None)
    revision = lab.at("a", "n").revision
    lab.submit("a", "n", "inc 1")
    lab.run()
    refused = _force(lab, revision)
    assert refused.stage is Stage.REFUSED
    assert "has changed since its state was read" in refused.detail
    assert _force(lab, lab.at("a", "n").revision).stage is Stage.ACCEPTED


def _force(lab: Lab, revision: str) -> Answer:
    event = Submitted("r", "n", "repair", Command("set 8"), Kind.FORCE, "n", revision=revision)
    site = lab.nodes["a"].site
    assert site is not None
    return next(effect for effect in site.step(event, lab.now_ms) if isinstance(effect, Answer))


def test_the_revision_is_another_one_after_each_run() -> None:
    lab, picky = diverged(None)
    before = lab.at("b", "n").revision
    assert lab.at("b", "n").revision == before
    picky.refuse = False
    lab.take("b", Retried("n"))
    lab.run()
    assert lab.at("b", "n").revision != before
    assert isinstance(picky, Picky)
    ops = lab.at("b", "n").history.ops
    assert {lab.at("a", "n").replies[id_, "b"].status for id_ in ops} == {Status.OK}
