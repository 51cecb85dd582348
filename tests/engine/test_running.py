"""What one site's engine runs, when it does, and what it says where that failed; in a hand-driven world."""

from collections.abc import Sequence
from unittest.mock import patch

from cheops.engine.documents import Started
from cheops.engine.events import Effect, Event, Outcome, Ran, Resolved, Result, Run, Save, Send, Submitted
from cheops.engine.site import Site
from cheops.engine.status import Overall
from cheops.log.operation import Command, Kind, Operation
from cheops.sim.apps import COUNTER, FILE, PCOUNTER
from cheops.sim.scripted_world import Trouble
from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES
from tests.engine.lab import Lab
from tests.engine.picky import diverged


def test_nothing_is_run_or_sent_before_it_is_saved() -> None:
    """In every step of whole histories: one save, first; and what is run or sent is in it or in one before."""
    saved: set[object] = set()
    true_step = Site.step

    def watched(self: Site, event: Event, now_ms: int) -> list[Effect]:
        effects = true_step(self, event, now_ms)
        assert not any(isinstance(effect, Save) for effect in effects[1:])
        for effect in effects:
            match effect:
                case Save(documents):
                    saved.update((self.origin.site, d.id) for d in documents if isinstance(d, Operation))
                    saved.update((self.origin.site, d.resource, d.n) for d in documents if isinstance(d, Started))
                case Send(_, message):
                    assert all((self.origin.site, op.id) in saved for op in message.ops)
                case Run(resource, n, steps):
                    read_only = [step.payload.line for step in steps] == ["read"]
                    assert read_only or (self.origin.site, resource, n) in saved
        return effects

    with patch.object(Site, "step", watched):
        for seed in range(10):
            assert not play(seed, 3, PROFILES["crashes"]).problems
    assert saved


def test_an_operation_goes_out_only_after_it_ran_at_its_origin() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.benches["a"].paused = True
    lab.submit("a", "n", "set 5")
    lab.run()
    assert lab.states("n", "b") == [0]
    lab.resume("a")
    lab.run()
    assert lab.states("n", "ab") == [5, 5]


def test_parallel_does_not_wait_for_the_origin() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", parallel=True)
    lab.benches["a"].paused = True
    lab.submit("a", "n", "set 5")
    lab.run()
    assert lab.states("n", "ab") == [0, 5]
    assert lab.status("b", "n").overall is Overall.CONVERGING
    lab.resume("a")
    lab.run()
    assert lab.states("n", "ab") == [5, 5]


def test_a_parallel_operation_that_fails_makes_the_resource_diverge() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", parallel=True)
    lab.submit("a", "n", "set 5")
    lab.run()
    lab.submit("a", "n", "fail")
    lab.run()
    assert lab.states("n", "ab") == [5, 5]
    assert [lab.status(site, "n").overall for site in "ab"] == [Overall.DIVERGED] * 2


def sorted_words(ops: Sequence[Operation]) -> tuple[Command, ...]:
    """A logic for appended words: concurrent ones are sorted, in one command."""
    words = sorted(op.payload.line.split()[1] for op in ops)
    return tuple(Command(f"add {word}") for word in words)


def test_a_logic_plugin_takes_the_place_of_the_order() -> None:
    lab = Lab("ab")
    lab.make("f", FILE, "ab", logic=sorted_words)
    lab.submit("a", "f", "set base")
    lab.run()
    lab.write_apart("f", "add zebra", "add ant")
    lab.heal()
    lab.run()
    assert lab.states("f", "ab") == [("base", "ant", "zebra")] * 2
    assert lab.status("a", "f").overall is Overall.CONVERGED


def test_ok_at_the_origin_and_ko_elsewhere_is_diverged_until_it_is_dealt_with() -> None:
    lab, _ = diverged(None)
    assert lab.states("n", "ab") == [8, 1]
    for site in "ab":
        assert lab.status(site, "n").overall is Overall.DIVERGED
    assert any("diverged" in line and "no sevens here" in line for line in lab.output)
    lab.submit("b", "n", "set 30", Kind.FORCE)
    lab.run()
    assert lab.states("n", "ab") == [30, 30]
    assert [lab.status(site, "n").overall for site in "ab"] == [Overall.CONVERGED] * 2


def test_on_error_runs_where_it_failed() -> None:
    lab, _ = diverged(Command("mend"))
    assert lab.states("n", "ab") == [8, 99]
    assert lab.at("b", "n").replies[lab.at("a", "n").history.effective[-1].id, "b"].detail == "handled by on_error"
    assert lab.status("a", "n").overall is Overall.CONVERGED


def test_status_tells_each_situation_apart() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    assert lab.status("a", "n").overall is Overall.CONVERGING
    lab.run()
    assert lab.status("a", "n").overall is Overall.CONVERGED
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 1")
    lab.run()
    output = lab.status("a", "n")
    assert (output.overall, output.unreachable) == (Overall.UNREACHABLE, ("c",))
    assert [site.pending for site in output.sites] == [0, 0, 1]
    lab.heal()
    lab.run()
    lab.benches["b"].trouble.append(Trouble.TIMEOUT_AFTER)
    lab.submit("b", "n", "inc 1")
    lab.run()
    assert lab.status("b", "n").overall is Overall.DIVERGED
    assert lab.at("b", "n").applied.unknown


def sold_twice() -> Lab:
    """Of 100 pieces 50 are sold at one site and 51 at the other, which is cut off from it."""
    lab = Lab("ab")
    lab.make("p", PCOUNTER, "ab")
    lab.submit("a", "p", "set 100")
    lab.run()
    lab.write_apart("p", "dec 50", "dec 51")
    return lab


def test_refused_units_are_reported() -> None:
    lab = sold_twice()
    lab.heal()
    lab.run()
    assert lab.states("p", "ab") == [0, 0]
    assert sum("was refused" in line for line in lab.output) >= 2
    assert lab.status("a", "p").overall is Overall.CONVERGED


def test_units_that_are_interrupted_after_each_replay_are_tried_until_they_end() -> None:
    """The same replay a second time is no sign of an order that cannot be had, if units in between were lost."""
    lab = sold_twice()
    lab.run()
    lost = Trouble.TIMEOUT_AFTER
    lab.benches["b"].trouble.extend([None, lost, None, lost, None, lost])  # whole, units, replay, units …
    lab.heal()
    lab.run()
    assert not lab.benches["b"].trouble
    assert not lab.at("b", "p").applied.order_not_enforced
    assert lab.states("p", "ab") == [0, 0]
    assert lab.status("b", "p").overall is Overall.CONVERGED


def test_a_replace_draft_that_fails_behind_an_unknown_one_waits_for_its_turn() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].trouble.append(Trouble.TIMEOUT_AFTER)
    lab.submit("a", "n", "inc 1")
    lab.take("a", Submitted("r", "n", "set", Command("fail"), rtype="n"))
    lab.run()
    assert sum('"fail"' in line for line in lab.output) == 1
    unknown = lab.at("a", "n").applied.unknown
    assert unknown
    lab.take("a", Resolved("n", unknown.id, True))
    lab.run()
    assert lab.states("n", "ab") == [2, 2]
    assert lab.status("a", "n").overall is Overall.CONVERGED


def test_a_replace_draft_that_can_run_only_once_waits_for_the_operator() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.benches["a"].paused = True
    lab.submit("a", "n", "set 1")
    running = lab.at("a", "n").slot.running
    assert running is not None
    lab.take("a", Ran("n", running.n, (Outcome(Result.MAYBE, "no response", once=True),)))
    lab.benches["a"].held.clear()
    lab.now_ms += 60_000
    lab.resume("a")
    lab.run()
    assert lab.states("n", "ab") == [0, 0]
    assert lab.at("a", "n").applied.unknown is not None
    assert lab.status("a", "n").overall is not Overall.CONVERGED
    lab.submit("a", "n", "set 2")  # what replaces it need not wait
    lab.run()
    assert lab.states("n", "ab") == [2, 2]
    assert lab.status("a", "n").overall is Overall.CONVERGED
