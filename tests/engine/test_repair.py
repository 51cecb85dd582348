"""What an operator can do about replicas that differ: have what failed run again, or write a state everywhere."""

from dataclasses import replace
from typing import Any

from cheops.engine.events import Answer, Notify, Retried, Stage, Submitted, Verified
from cheops.engine.status import Overall, status
from cheops.log.operation import Command, Kind, Status
from cheops.sim.apps import COUNTER, FILE, RefusedError
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


# -- drift -------------------------------------------------------------------------------------------------------


def equal() -> Lab:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    assert overall(lab) == [Overall.CONVERGED] * 2
    return lab


def found(lab: Lab, differs: str, by: str = "a", at: str = "ab") -> None:
    for site in at:
        lab.take(site, Verified("n", by, differs, lab.now_ms))
    lab.run()


def test_applications_that_differ_are_diverged_until_they_are_found_equal() -> None:
    lab = equal()
    found(lab, "b has 7")
    assert overall(lab) == [Overall.DIVERGED] * 2
    assert lab.status("b", "n").drift == "b has 7"
    assert status(lab.at("a", "n"), {"b"}, with_drift=False).overall is Overall.CONVERGED
    lab.submit("a", "n", "inc 1")  # this need not heal anything
    lab.run()
    assert overall(lab) == [Overall.DIVERGED] * 2
    found(lab, "")
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_drift_outlives_a_restart() -> None:
    lab = equal()
    found(lab, "b has 7")
    lab.crash("b")
    lab.restart("b")
    lab.submit("b", "n", "inc 1")  # so that it is loaded
    lab.run()
    assert lab.status("b", "n").overall is Overall.DIVERGED


def test_a_forced_operation_ends_drift_when_it_has_run_everywhere() -> None:
    lab = equal()
    found(lab, "b has 7")
    lab.partition("a", "b")
    lab.submit("a", "n", "set 1", Kind.FORCE)
    lab.run()
    assert Overall.CONVERGED not in overall(lab)
    lab.heal()
    lab.run()
    assert overall(lab) == [Overall.CONVERGED] * 2
    lab.crash("a")
    lab.restart("a")
    lab.submit("b", "n", "inc 1")
    lab.run()
    assert overall(lab) == [Overall.CONVERGED] * 2


def test_drift_after_a_forced_operation_counts() -> None:
    lab = equal()
    lab.submit("a", "n", "set 1", Kind.FORCE)
    lab.run()
    found(lab, "b has 7")
    assert overall(lab) == [Overall.DIVERGED] * 2


def test_a_site_takes_back_only_what_it_has_found_itself() -> None:
    lab = equal()
    found(lab, "b has 7", by="a")
    found(lab, "", by="b")
    assert overall(lab) == [Overall.DIVERGED] * 2
    found(lab, "nonsense", by="c")
    assert lab.status("a", "n").drift == "b has 7", "c is no site of the resource"


def test_drift_is_reported_once() -> None:
    lab = equal()
    site = lab.nodes["a"].site
    assert site is not None
    notices = [
        [
            effect.what
            for effect in site.step(Verified("n", "a", differs, lab.now_ms), lab.now_ms)
            if isinstance(effect, Notify)
        ]
        for differs in ("b has 7", "b has 7", "", "b has 8")
    ]
    assert notices == [["drifted"], [], [], ["drifted"]]


def test_drift_that_is_found_while_the_first_operation_runs_is_kept() -> None:
    """What a client creates may be deleted with what contains it, before the engine has the outcome of its create."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.benches["a"].paused = True
    lab.submit("a", "n", "set 1")
    assert lab.at("a", "n").drafts
    lab.take("a", Verified("n", "c", "c is no site of it", lab.now_ms))
    lab.take("a", Verified("n", "a", "it was lost at a", lab.now_ms))
    lab.resume("a")
    lab.run()
    assert lab.status("a", "n").drift == "it was lost at a"
    assert overall(lab, "a") == [Overall.DIVERGED]
