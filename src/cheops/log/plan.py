"""What a site must run to get from what it applied to what is effective.

Both are lists of operations. They give the same state when they hold the same operations, and any two that do not
commute are in the same order. The plan is the first of these that reaches that state:

1. run what is missing, in order (this covers the tail, and what commutes with all that came after it);
2. replay from the last base that will do: a replace operation again, then what it wiped (what else is
   missing is run before or after, on its own);
3. replay everything from the type's reset, or from the checkpoint;
4. nothing reaches it: run what is missing in the order at hand, and report that the order is not enforced.

What was applied but is no longer effective must be wiped by something that is run; if nothing wipes it, that too
requires a replay.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from cheops.log.matrix import Matrix
from cheops.log.operation import Applied, Operation, OpId


class Plan(Struct, frozen=True):
    """Operations to run, in order. `from_start`: the reset (or checkpoint) first."""

    run: tuple[Operation, ...] = ()
    replay: bool = False
    from_start: bool = False
    order_not_enforced: bool = False

    def __bool__(self) -> bool:
        return bool(self.run) or self.from_start


IsFailed = Callable[[OpId], bool]


def plan(
    applied: Sequence[Applied],
    effective: Sequence[Operation],
    matrix: Matrix,
    *,
    is_failed: IsFailed = lambda _id: False,
    has_start: bool = False,
) -> Plan:
    """The plan for these lists. An operation that failed here is run again only as part of a replay."""
    wanted = [op for op in effective if not is_failed(op.id)]
    if [a.id for a in applied] == [op.id for op in wanted]:
        return Plan()
    here = {a.id for a in applied}
    missing = tuple(op for op in wanted if op.id not in here)
    # Case 1. The result is simulated rather than deduced, because the same function then checks every other case.
    if same_state(after_running(applied, missing, matrix), wanted, matrix):
        return Plan(missing)
    return (
        _from_last_base(applied, effective, matrix, is_failed)
        or _from_start(effective, has_start=has_start)
        or Plan(missing, order_not_enforced=True)
    )


def _from_last_base(
    applied: Sequence[Applied], effective: Sequence[Operation], matrix: Matrix, is_failed: IsFailed
) -> Plan | None:
    """The step that comes first: the replay, or what is missing before it and must not come after it."""
    here = {a.id for a in applied}
    for place in range(len(effective) - 1, -1, -1):  # the last base that will do repeats the least
        base = effective[place]
        if not matrix.is_replace_type(base.key):
            continue
        redone = from_base(effective, place, matrix)
        again = {op.id for op in redone}
        rest = [op for op in effective if op.id not in again and not is_failed(op.id)]
        wanted = [op for op in effective if op.id in again or not is_failed(op.id)]
        missing = tuple(op for op in rest if op.id not in here)
        if same_state(after_running(applied, (*redone, *missing), matrix), wanted, matrix):
            return Plan(redone, replay=True)
        before = {op.id for op in effective[:place]}
        earlier = tuple(op for op in missing if op.id in before)
        later = tuple(op for op in missing if op.id not in before)
        steps = (*earlier, *redone, *later)
        if earlier and same_state(after_running(applied, steps, matrix), wanted, matrix):
            return Plan(earlier)
    return None


def from_base(effective: Sequence[Operation], place: int, matrix: Matrix) -> tuple[Operation, ...]:
    """The base at this place, and what it wipes of what comes after it: a replay runs these and no others.

    An interrupted replay is repeated, so its base must wipe everything that it runs.
    """
    base = effective[place]
    return (base, *(op for op in effective[place + 1 :] if matrix.replaces(base.key, op.key)))


def _from_start(effective: Sequence[Operation], *, has_start: bool) -> Plan | None:
    return Plan(tuple(effective), replay=True, from_start=True) if has_start else None


def after_running(applied: Iterable[Applied], run: Iterable[Operation], matrix: Matrix) -> list[Applied]:
    """What is applied once these were run: each wipes what it replaces, and itself if it is run again."""
    state = list(applied)
    for op in run:
        name = op.key
        if matrix.is_replace_type(name):
            state = [a for a in state if not matrix.replaces(name, a.key) and a.id != op.id]
        state.append(Applied(op.id, name))
    return state


def same_state(state: Sequence[Applied], effective: Sequence[Operation], matrix: Matrix) -> bool:
    """Whether both hold the same operations, and none that do not commute in different order."""
    place = {op.id: number for number, op in enumerate(effective)}
    if len(state) != len(place) or any(a.id not in place for a in state):
        return False
    if len({a.id for a in state}) != len(state):
        return False
    # Per key, the greatest place seen so far. Keys are few, so this is far cheaper than comparing all pairs.
    last: dict[str, int] = {}
    for a in state:
        here = place[a.id]
        for name, greatest in last.items():
            if greatest > here and not matrix.commutes(name, a.key):
                return False
        last[a.key] = max(last.get(a.key, -1), here)
    return True
