"""What users rely on in one site's engine, each shown in a hand-driven world."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

from cheops.engine.documents import Started
from cheops.engine.events import (
    Answer,
    Effect,
    Event,
    Gone,
    Left,
    Loaded,
    Outcome,
    Resolved,
    Run,
    Save,
    Send,
    Stage,
    Submitted,
)
from cheops.engine.site import Site
from cheops.engine.status import Overall
from cheops.engine.types import Limits, Settings
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, Operation, OpId, Origin
from cheops.sim.apps import COUNTER, FILE, PCOUNTER, SET, App, RefusedError
from cheops.sim.hand_world import Trouble
from cheops.sim.history import play
from cheops.sim.profile import PROFILES
from tests.engine.lab import Lab


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
                    saved.update(
                        (self.origin.site, d.resource, d.n) for d in documents if isinstance(d, Started)
                    )
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
    lab.partition("a", "b")
    lab.submit("a", "f", "add zebra")
    lab.now_ms += 1_000
    lab.submit("b", "f", "add ant")
    lab.heal()
    lab.run()
    assert lab.states("f", "ab") == [("base", "ant", "zebra")] * 2
    assert lab.status("a", "f").overall is Overall.CONVERGED


class Picky:
    """An application that refuses some commands at some sites only."""

    refuse = False

    def run(self, state: int, line: str) -> int:
        if line == "mend":
            return 99
        if line == "inc 7" and self.refuse:
            raise RefusedError("no sevens here")
        return COUNTER.run(state, line)  # type: ignore[no-any-return]


def diverged(on_error: Command | None) -> tuple[Lab, Picky]:
    picky = Picky()
    app = App("picky", 0, picky.run, COUNTER.matrix, COUNTER.type, COUNTER.invent)
    lab = Lab("ab")
    lab.make("n", app, "ab", on_error=on_error, reset=None, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "inc 7")
    picky.refuse = True
    lab.run()
    return lab, picky


def test_ok_at_the_origin_and_ko_elsewhere_is_diverged_until_it_is_dealt_with() -> None:
    lab, _ = diverged(None)
    assert lab.states("n", "ab") == [8, 1]
    for site in "ab":
        assert lab.status(site, "n").overall is Overall.DIVERGED
    assert any("diverged" in line and "no sevens here" in line for line in lab.told)
    lab.submit("b", "n", "set 30", Kind.FORCE)
    lab.run()
    assert lab.states("n", "ab") == [30, 30]
    assert [lab.status(site, "n").overall for site in "ab"] == [Overall.CONVERGED] * 2


def test_on_error_runs_where_it_failed() -> None:
    lab, _ = diverged(Command("mend"))
    assert lab.states("n", "ab") == [8, 99]
    assert (
        lab.at("b", "n").by_op[lab.at("a", "n").history.effective[-1].id, "b"].detail == "handled by on_error"
    )
    assert lab.status("a", "n").overall is Overall.CONVERGED


def test_a_newcomer_gets_what_others_have_not_forgotten() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab", checkpoint=None)
    for line in ("set 1", "inc 2", "set 10", "inc 5", "inc 6"):
        lab.submit("a", "n", line)
        lab.run()
    assert OpId(lab.nodes["a"].origin, 2) not in lab.at("a", "n").history.ops, (
        "what was superseded is forgotten"
    )
    lab.move("b", "n", "abc")
    lab.run()
    assert lab.states("n", "abc") == [21, 21, 21]
    assert lab.status("c", "n").overall is Overall.CONVERGED


def test_a_newcomer_gets_a_checkpoint() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab")
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    assert lab.at("a", "n").base is not None
    assert len(lab.at("a", "n").history.ops) < 8
    lab.move("a", "n", "abc")
    lab.run()
    lab.submit("c", "n", "inc 100")
    lab.run()
    assert lab.states("n", "abc") == [112, 112, 112]


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


def test_a_site_that_leaves_stops_and_can_come_back() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.move("a", "n", "ab")
    lab.run()
    lab.submit("b", "n", "set 2")
    lab.run()
    assert lab.states("n", "abc") == [2, 2, 1]
    lab.submit("c", "n", "inc 1")
    assert "not involved; the resource is at a, b" in lab.told[-1]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    lab.move("b", "n", "abc")
    lab.run()
    assert lab.states("n", "abc") == [14, 14, 14]


def test_a_site_reborn_with_an_empty_disk_gets_everything_again() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("c", "n", "inc 4")
    lab.run()
    lab.lose_disk("c")
    lab.restart("c")
    lab.run()
    assert lab.states("n", "abc") == [5, 5, 5]
    lab.submit("c", "n", "inc 1")
    lab.run()
    assert lab.states("n", "abc") == [6, 6, 6]


def test_the_newest_matrix_is_adopted_everywhere_and_asked_for() -> None:
    lab = Lab("ab")
    lab.make("f", SET, "ab")
    lab.submit("a", "f", "clear")
    lab.run()
    commuting = Matrix((*SET.matrix.entries, Entry("add", "remove", Result.TAKE_BOTH)))
    lab.partition("a", "b")
    lab.submit("a", "f", "add x", matrix=commuting)
    lab.submit("b", "f", "add y")
    lab.heal()
    lab.run()
    assert {lab.at(site, "f").matrix.hash for site in "ab"} == {commuting.hash}
    assert lab.states("f", "ab") == [frozenset("xy")] * 2


def test_a_site_that_lacks_a_matrix_asks_for_it_and_waits() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 5")
    lab.flights = [replace(flight, message=replace(flight.message, matrices=())) for flight in lab.flights]
    lab.deliver(lab.flights[0])
    assert lab.at("b", "n").waiting
    assert lab.states("n", "b") == [0]
    assert [flight.message.wanted for flight in lab.flights] == [(COUNTER.matrix.hash,)]
    lab.run()
    assert lab.states("n", "ab") == [5, 5]


def test_a_submission_is_refused_with_the_reason() -> None:
    site = Site(Origin("a", "1"), Settings(limits=Limits(drafts=1)))
    site.step(Submitted("r0", "x", "inc", Command("")), 1)
    site.step(Loaded("x", ()), 1)

    def refused(event: Submitted) -> str:
        answers = [effect for effect in site.step(event, 1) if isinstance(effect, Answer)]
        return answers[0].detail if answers[0].stage is Stage.REFUSED else ""

    new = Submitted("r", "x", "inc", Command("inc 1"))
    assert refused(new) == "say at which sites the resource is to be"
    assert refused(replace(new, kind=Kind.SITES, sites=("a",))) == "no such resource is known here"
    assert refused(replace(new, sites=("b", "c"))) == "this site, a, is not involved; the resource is at b, c"
    assert refused(replace(new, sites=("a", "b"))) == ""
    assert refused(replace(new, sites=("a", "c"))) == "1 operations are waiting already; try again later"


def test_exec_cannot_move_a_resource_by_accident() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.take("a", Submitted("r", "n", "inc", Command("inc 1"), sites=("a", "c")))
    assert "the resource is at a, b; changing that is an operation of its own" in lab.told[-1]


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
    told = lab.status("a", "n")
    assert (told.overall, told.unreachable) == (Overall.UNREACHABLE, ("c",))
    assert [site.pending for site in told.sites] == [0, 0, 1]
    lab.heal()
    lab.run()
    lab.benches["b"].trouble.append(Trouble.TIMEOUT_AFTER)
    lab.submit("b", "n", "inc 1")
    lab.run()
    assert lab.status("b", "n").overall is Overall.DIVERGED
    assert lab.at("b", "n").unknown


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
        for op in list(lab.at("a", name).clients):
            lab.take("a", Left(name, op))
    lab.pass_time(5_000)
    site = lab.nodes["a"].site
    assert site
    assert len(site.replicas) == 3
    known = lab.status("a", next(iter(site.replicas)))
    assert [one.pending for one in known.sites] == [0, 1], "of what stays, what the other knows is remembered"
    lab.heal()
    lab.run()
    assert all(lab.states(name, "ab") == [2, 2] for name in names)


def test_refused_units_are_reported() -> None:
    lab = Lab("ab")
    lab.make("p", PCOUNTER, "ab")
    lab.submit("a", "p", "set 100")
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "p", "dec 50")
    lab.submit("b", "p", "dec 51")
    lab.heal()
    lab.run()
    assert lab.states("p", "ab") == [0, 0]
    assert sum("was refused" in line for line in lab.told) >= 2
    assert lab.status("a", "p").overall is Overall.CONVERGED


def test_units_that_are_interrupted_after_each_replay_are_tried_until_they_end() -> None:
    """The same replay a second time is no sign of an order that cannot be had, if units in between were lost."""
    lab = Lab("ab")
    lab.make("p", PCOUNTER, "ab")
    lab.submit("a", "p", "set 100")
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "p", "dec 50")
    lab.submit("b", "p", "dec 51")
    lab.run()
    lost = Trouble.TIMEOUT_AFTER
    lab.benches["b"].trouble.extend([None, lost, None, lost, None, lost])  # whole, units, replay, units …
    lab.heal()
    lab.run()
    assert not lab.benches["b"].trouble
    assert not lab.at("b", "p").order_not_enforced
    assert lab.states("p", "ab") == [0, 0]
    assert lab.status("b", "p").overall is Overall.CONVERGED


def test_a_leaver_that_is_still_running_something_is_waited_for() -> None:
    """What it made without knowing that it left must not meet a checkpoint that was made without it."""
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["c"].paused = True
    lab.submit("c", "n", "inc 5")
    lab.submit("a", "n", "set 3")
    lab.run()
    lab.move("a", "n", "ab")
    lab.run()
    for _ in range(9):
        lab.submit("a", "n", "inc 1")
        lab.run()
    lab.resume("c")
    lab.run()
    assert len(set(lab.states("n", "ab"))) == 1
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}


def test_a_dead_site_that_left_is_waited_for_until_it_is_said_to_be_gone() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("ab", "c")
    lab.submit("c", "n", "inc 100")  # which nobody else hears of
    lab.move("a", "n", "ab")
    lab.run()
    for number in range(5):
        lab.submit("a", "n", f"set {number}")
        lab.run()
    kept = len(lab.at("a", "n").history.ops)
    for site in "ab":
        lab.take(site, Gone(frozenset("c")))
    lab.run()
    lab.submit("a", "n", "set 7")
    lab.run()
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}
    assert len(lab.at("a", "n").history.ops) < kept, "what it kept others from forgetting is forgotten"
    # It is back after all, and has to give way.
    for site in "ab":
        lab.take(site, Gone(frozenset()))
    lab.heal()
    lab.run()
    assert lab.states("n", "ab") == [7, 7]
    assert lab.at("c", "n").history.roster == ("a", "b")
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}


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


def test_the_matrix_in_force_outlives_the_operation_that_brought_it() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 0")
    lab.run()
    newer = Matrix((*COUNTER.matrix.entries, Entry("inc", "dec", Result.TAKE_BOTH)))
    lab.submit("a", "n", "inc 1", matrix=newer)
    for _ in range(12):
        lab.submit("b", "n", "inc 1")
        lab.run()
    assert lab.at("a", "n").base
    for site in "ab":
        lab.crash(site)
        lab.restart(site)
    lab.run()
    assert {lab.at(site, "n").matrix.hash for site in "ab"} == {newer.hash}


def test_a_replace_draft_that_fails_behind_an_unknown_one_waits_for_its_turn() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].trouble.append(Trouble.TIMEOUT_AFTER)
    lab.submit("a", "n", "inc 1")
    lab.take("a", Submitted("r", "n", "set", Command("fail"), rtype="n"))
    lab.run()
    assert sum('"fail"' in line for line in lab.told) == 1
    unknown = lab.at("a", "n").unknown
    assert unknown
    lab.take("a", Resolved("n", unknown.id, True))
    lab.run()
    assert lab.states("n", "ab") == [2, 2]
    assert lab.status("a", "n").overall is Overall.CONVERGED


def test_a_state_that_cannot_be_read_is_not_read_for_ever() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=replace(COUNTER.type.checkpoint, read=Command("fail")))  # type: ignore[type-var]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
    lab.run()
    assert sum('"fail"' in line for line in lab.told) < 10
    assert lab.states("n", "ab") == [12, 12]


def test_a_reborn_site_is_recognised_also_after_our_own_restart() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 7")
    lab.run()
    lab.crash("a")
    lab.lose_disk("b")
    lab.restart("a")
    lab.restart("b")
    lab.run()
    assert lab.states("n", "ab") == [7, 7]


def test_of_two_resources_of_one_name_the_one_sealed_first_stands() -> None:
    lab = Lab("abcd")
    for sites, step in (("ab", 1), ("cd", 100)):
        lab.make("n", COUNTER, sites)
        for _ in range(10):
            lab.submit(sites[0], "n", f"inc {step}")
            lab.run()
    assert lab.states("n", "abcd") == [10, 10, 1000, 1000]
    lab.move("d", "n", "bcd")  # the two meet at b
    lab.run()
    assert lab.states("n", "ab") == [10, 10]
    lab.move("a", "n", "abcd")
    lab.run()
    assert lab.states("n", "abcd") == [10, 10, 10, 10]
    assert all(lab.status(site, "n").overall is Overall.CONVERGED for site in "abcd")
    for site in "abcd":
        lab.crash(site)
        lab.restart(site)
    lab.submit("c", "n", "inc 5")
    lab.run()
    assert lab.states("n", "abcd") == [15, 15, 15, 15]


def test_a_state_that_was_cut_is_no_checkpoint() -> None:
    lab = Lab("a")
    lab.make("n", COUNTER, "a")
    true = lab.execute

    def cut(name: str, run: Run) -> tuple[Outcome, ...]:
        outcomes = true(name, run)
        return (
            tuple(replace(outcome, cut=True) for outcome in outcomes) if run.steps[0].op is None else outcomes
        )

    lab.execute = cut  # type: ignore[method-assign]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    assert lab.at("a", "n").base is None
    assert any("no-checkpoint" in told for told in lab.told)
