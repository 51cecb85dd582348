"""Operations of which an attempt may have had an effect: they are never taken for void."""

from cheops.engine.events import Outcome, Ran, Resolved, Result, Run, Submitted
from cheops.engine.status import Overall
from cheops.log.operation import Command, OpId, Status
from cheops.sim.apps import COUNTER
from cheops.sim.node import Node
from tests.engine.lab import Lab

_LATER_MS = 60_000


class DoubtLab(Lab):
    """Site a has a counter whose runs end as the test says; site b runs what it gets."""

    def __init__(self, *, while_b_writes: str = "") -> None:
        self.runs: list[Run] = []
        super().__init__("ab")
        self.make("n", COUNTER, "ab")
        self.submit("a", "n", "set 1")
        self.run()
        self.partition("a", "b")
        if while_b_writes:
            self.submit("b", "n", while_b_writes)
            self.now_ms += 1_000
        self.benches["a"].paused = True
        self.submit("a", "n", "set 5")
        self.heal()
        self.draft = self.at("a", "n").drafts[0].id

    def _begin(self, node: Node, run: Run) -> None:
        if node.name == "a":
            self.runs.append(run)
        super()._begin(node, run)

    def ends(self, result: Result, *, in_doubt: bool = False) -> None:
        """The run under way at a ends; the next one begins when it is due."""
        self.take("a", Ran("n", self.runs[-1].n, (Outcome(result, "so it ended", in_doubt=in_doubt),)))
        self.now_ms += _LATER_MS
        self.pass_time()

    def stop_and_start(self) -> None:
        self.crash("a")
        self.benches["a"].paused = True
        self.restart("a")
        self.now_ms += _LATER_MS
        self.pass_time()

    @property
    def unknown(self) -> OpId | None:
        found = self.at("a", "n").applied.unknown
        return found.id if found else None

    def replies(self) -> list[Status]:
        return [reply.status for reply in self.at("a", "n").replies if reply.op == self.draft]


def test_what_may_have_run_and_then_fails_is_unknown() -> None:
    lab = DoubtLab()
    assert [step.again for step in lab.runs[-1].steps] == [False]
    lab.ends(Result.MAYBE)
    assert [step.again for step in lab.runs[-1].steps] == [True]
    lab.ends(Result.KO)
    assert lab.unknown == lab.draft
    before = len(lab.runs)
    lab.now_ms += _LATER_MS
    lab.pass_time()
    assert len(lab.runs) == before  # it is not tried for ever
    lab.take("a", Resolved("n", lab.draft, True))
    lab.run()
    assert lab.states("n", "b") == [5]


def two_in_doubt() -> tuple[Lab, OpId, OpId]:
    """An increment is UNKNOWN at site a, and so is what was to replace it."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].paused = True
    for line in ("inc 1", "set 7"):
        lab.submit("a", "n", line)
        running = lab.at("a", "n").slot.running
        assert running is not None
        lab.take("a", Ran("n", running.n, (Outcome(Result.MAYBE, "no response", once=True),)))
        lab.now_ms += _LATER_MS
        lab.pass_time()
    increment, replacement = lab.at("a", "n").drafts
    assert [one.id for one in lab.at("a", "n").applied.all_unknown] == [increment.id, replacement.id]
    return lab, increment.id, replacement.id


def test_what_did_not_run_leaves_the_operation_before_it_in_doubt() -> None:
    lab, increment, replacement = two_in_doubt()
    lab.take("a", Resolved("n", replacement, False))
    assert [one.id for one in lab.at("a", "n").applied.all_unknown] == [increment]
    lab.nodes["a"].disk.sync()
    lab.crash("a")
    lab.benches["a"].paused = True
    lab.restart("a")
    assert lab.at("a", "n").applied.is_unknown(increment)


def test_what_did_run_supersedes_the_operation_before_it() -> None:
    lab, _, replacement = two_in_doubt()
    lab.take("a", Resolved("n", replacement, True))
    lab.run()
    assert not lab.at("a", "n").applied.all_unknown
    assert lab.states("n", "b") == [7]


def test_a_service_that_can_be_asked_again_may_have_done_it_too() -> None:
    lab = DoubtLab()
    lab.ends(Result.RETRY, in_doubt=True)
    lab.ends(Result.KO)
    assert lab.unknown == lab.draft


def test_what_was_certainly_not_run_and_then_fails_is_void() -> None:
    lab = DoubtLab()
    lab.ends(Result.RETRY)
    lab.ends(Result.KO)
    assert lab.unknown is None
    assert lab.replies()[-1] is Status.KO


def test_a_doubt_survives_a_crash_between_two_attempts() -> None:
    lab = DoubtLab()
    lab.take("a", Ran("n", lab.runs[-1].n, (Outcome(Result.RETRY, in_doubt=True),)))
    lab.stop_and_start()
    lab.ends(Result.KO)
    assert lab.unknown == lab.draft


def test_an_unknown_one_that_fails_after_a_restart_stays_unknown() -> None:
    lab = DoubtLab()
    lab.ends(Result.MAYBE)
    lab.ends(Result.KO)
    lab.stop_and_start()
    lab.ends(Result.KO)
    assert lab.unknown == lab.draft


def test_what_the_operator_says_did_not_happen_is_void_when_it_fails_again() -> None:
    lab = DoubtLab()
    lab.ends(Result.MAYBE)
    lab.ends(Result.KO)
    lab.take("a", Resolved("n", lab.draft, False))
    lab.ends(Result.KO)
    assert lab.unknown is None
    lab.run()
    assert lab.states("n", "b") == [1]
    assert not lab.at("a", "n").drafts


def test_a_doubt_ends_with_what_wipes_it() -> None:
    lab = DoubtLab(while_b_writes="set 7")
    lab.run()
    lab.ends(Result.MAYBE)
    assert lab.runs[-1].steps[0].payload.line == "set 7"  # before the draft is tried again
    lab.ends(Result.OK)
    assert [step.again for step in lab.runs[-1].steps] == [False]
    lab.ends(Result.KO)
    assert lab.unknown is None
    assert lab.replies()[-1] is Status.KO


def test_a_late_reply_to_what_is_forgotten_says_nothing() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    lab.take("a", Submitted("r", "n", "set", Command("fail"), rtype="n"))
    late = next(reply for reply in lab.at("a", "n").replies if reply.status is Status.KO)
    lab.heal()
    lab.submit("a", "n", "set 2")
    lab.run()
    replica = lab.at("b", "n")
    assert late.op not in replica.history.ops
    replica.replies.take(late)
    assert lab.status("b", "n").overall is Overall.CONVERGED
