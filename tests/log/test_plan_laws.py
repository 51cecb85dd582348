"""The laws of running: wherever a site stands, its plan leads to the state that the merge asks for."""

from hypothesis import example, given
from hypothesis import strategies as st

from cheops.log.operation import Applied
from cheops.log.plan import Plan, after_running, plan, same_state
from tests.log.histories import (
    Past,
    Rules,
    State,
    delivered,
    history,
    pasts,
    run,
    wishes,
)
from tests.log.once_broken import AS_MADE, BEFORE_A_BASE, TWO_STEPS
from tests.log.word_by_word import asks_for_a_circle

_MOST_STEPS = 3  # what is missing before a base, the replay of that base, and what comes after it


class Site:
    """What one site has applied, and the state of an application that behaves as its matrix says."""

    def __init__(self, rules: Rules, *, has_start: bool) -> None:
        self.rules = rules
        self.has_start = has_start
        self.history = history(())
        self.applied: list[Applied] = []
        self.state: State = {}

    def plan(self) -> Plan:
        return plan(self.applied, self.history.effective, self.history.matrix, has_start=self.has_start)

    def finish(self) -> Plan:
        """Carry out one plan after the other, since one may give only the step that comes first. Return the last."""
        wanted = self.plan()
        for _ in range(_MOST_STEPS):
            self.carry_out(wanted)
            if wanted.order_not_enforced or not wanted:
                break
            wanted = self.plan()
        return wanted

    def carry_out(self, wanted: Plan, steps: int | None = None) -> None:
        """All of it, or the first steps: what is no replay may be interrupted."""
        ops = wanted.run if wanted.replay else wanted.run[:steps]
        if wanted.from_start:
            self.applied, self.state = [], {}
        self.applied = after_running(self.applied, ops, self.history.matrix)
        self.state = run(self.state, ops, self.rules)


def living(past: Past, wish: bytes, pauses: bytes, *, has_start: bool) -> Site:
    """A site that hears of operations in any order, and runs what it must at any moment, or does not."""
    site = Site(past.rules, has_start=has_start)
    for op, pause in zip(delivered(past.ops, wish), pauses, strict=False):
        site.history.add(op)
        if steps := pause % 4:
            site.carry_out(site.plan(), steps)
    return site


@given(pasts(), wishes, wishes, st.booleans())
@example(TWO_STEPS, AS_MADE, AS_MADE, True)
@example(BEFORE_A_BASE, AS_MADE, b"\0\1\0", False)
def test_the_plan_leads_to_the_state(past: Past, wish: bytes, pauses: bytes, has_start: bool) -> None:
    site = living(past, wish, pauses, has_start=has_start)
    wanted = site.finish()
    if wanted.order_not_enforced:
        assert not site.has_start
    elif not asks_for_a_circle(site.history.effective, past.rules.entries):
        assert same_state(site.applied, site.history.effective, site.history.matrix)
        assert not site.plan()


@given(pasts(), wishes, wishes, st.booleans())
def test_after_the_plan_the_application_is_as_if_replayed_from_scratch(
    past: Past, wish: bytes, pauses: bytes, has_start: bool
) -> None:
    site = living(past, wish, pauses, has_start=has_start)
    wanted = site.finish()
    if not wanted.order_not_enforced:
        assert site.state == run({}, site.history.effective, past.rules)
