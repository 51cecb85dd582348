"""The rules of the merge (docs/merging.md), each in one place. Everything else that decides uses these functions.

    Rule 1  void: what definitely failed at its origin has no effect and supersedes nothing    fate_at_origin
    Rule 2  what the past of an operation supersedes does not supersede it                     Superseders, _top_down
    Rule 3  later replaces earlier                                                             superseding_rule
    Rule 4  replace wins over concurrent, unless the entry says that both stay                 superseding_rule
    Rule 5  last writer: of two concurrent that replace each other, the greater stamp stays    superseding_rule
    Rule 6  what is left is effective, in one canonical order                                  canonical
    Rule 7  undefined pairs are ordered                                                        Matrix.commutes
    Rule 8  nothing is lost silently: what has no effect keeps its fate                        Fate, reason_for

`merged` is the merge written straight from the rules, for any set of operations. `History` does the same one operation
at a time; a law in tests/log/test_merge_laws.py says that the two agree. tests/log/test_rules.py has one test per rule.

Before you change a rule:

- tests/log/word_by_word.py and sim/invariants.py state the rules again, on purpose: they are independent models without
  shared code, so that a mistake in one is not in the other. Change them as well, and docs/merging.md.
- Whether y supersedes x depends only on the two and on the past of x (`Superseders.beats`), not on what else is known.
  So what is superseded never comes back, and sites may forget it.
- `history.py` relies on rules 4 and 6: only if the matrix has `Concurrent` entries (`Matrix.has_overrides`) can an
  operation that arrives late move others. Without them it inserts by stamp and does not recompute the order.
- `canonical` decides the order of what stays effective, and every site must compute the same one.
- Sites that run different rules diverge. All sites of a mesh need the change at the same time: say so in CHANGELOG.md.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum

from msgspec import Struct

from cheops.log.causality import NOTHING, Vector, contains
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Origin, Verdict
from cheops.log.seals import excluding_seal, standing


class Rule(IntEnum):
    """Why an operation has no effect: the rule of that number. From 8 on the numbers are codes of other reasons: they
    are stored and part of the API, and are never shown as "rule N"."""

    VOID = 1
    LATER_REPLACES_EARLIER = 3
    REPLACE_WINS_OVER_CONCURRENT = 4
    LAST_WRITER = 5
    BEATEN_AT_ORIGIN = 8
    FOLDED = 9
    ORPHANED = 10

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


def rule_number(code: int | None) -> int | None:
    """The number of a rule of docs/merging.md; None for another reason. A plain number, because it may come from an
    agent of a later version."""
    return code if code is not None and code < Rule.BEATEN_AT_ORIGIN else None


def rule_text(code: int, sentence: str) -> str:
    """The sentence of a rule with its number, for people."""
    number = rule_number(code)
    return sentence if number is None else f"{sentence} (rule {number})"


_SENTENCES = {
    Rule.VOID: "it failed at its origin, so it has no effect anywhere",
    Rule.LATER_REPLACES_EARLIER: "a later operation replaces it",
    Rule.REPLACE_WINS_OVER_CONCURRENT: "a concurrent operation replaces it",
    Rule.LAST_WRITER: "of two operations that replace each other, the later one wins",
    Rule.BEATEN_AT_ORIGIN: "it was superseded before it could run at its origin",
    Rule.FOLDED: "its effect is part of a checkpoint",
    Rule.ORPHANED: "it was made without knowledge of what all sites had already settled for good",
}


class Fate(Struct, frozen=True):
    """Why an operation has no effect."""

    rule: Rule
    by: OpId | None = None


class Merged(Struct, frozen=True):
    """What follows from a set of operations."""

    effective: tuple[Operation, ...]
    fates: dict[OpId, Fate]


def fate_at_origin(op: Operation) -> Fate | None:
    """Rule 1; and what was superseded at its origin before it ran."""
    if op.verdict is Verdict.VOID:
        return Fate(Rule.VOID)
    return Fate(Rule.BEATEN_AT_ORIGIN) if op.verdict is Verdict.SUPERSEDED else None


def fate_of_orphan(op: Operation, seals: Iterable[Operation]) -> Fate | None:
    """The fate of an operation that a seal orphans, see seals.py."""
    sealing = excluding_seal(op, seals)
    return (fate_at_origin(op) or Fate(Rule.ORPHANED, sealing.id)) if sealing else None


def superseding_rule(y: Operation, x: Operation, matrix: Matrix) -> Rule | None:
    """Rules 3 to 5: by which rule an effective y supersedes x, if it does."""
    y_key, x_key = y.key, x.key
    if not matrix.replaces(y_key, x_key):
        return None
    if x.is_before(y):  # Rule 3
        return Rule.LATER_REPLACES_EARLIER
    if y.is_before(x) or x == y:
        return None
    if matrix.replaces(x_key, y_key):  # Rule 5: the stamp is unique, so one of the two stays
        return Rule.LAST_WRITER if y.stamp > x.stamp else None
    if matrix.both_stay_when_concurrent(y_key, x_key):  # Rule 4, and its exception
        return None
    return Rule.REPLACE_WINS_OVER_CONCURRENT


def rule_in_past(y: Operation, x: Operation, matrix: Matrix) -> Rule | None:
    """For two operations that were there before the matrix was introduced: their order stands, even if concurrent.

    So the state that they led to, which may already be folded, does not change afterwards.
    """
    later = matrix.replaces(y.key, x.key) and y.stamp > x.stamp
    return Rule.LATER_REPLACES_EARLIER if later else None


def rule_between(y: Operation, x: Operation, matrix: Matrix, past: Vector) -> Rule | None:
    """By which rule y supersedes x, where `past` was there before the matrix was introduced."""
    if past and contains(past, y.id) and contains(past, x.id):
        return rule_in_past(y, x, matrix)
    return superseding_rule(y, x, matrix)


def merged(ops: Iterable[Operation], matrix: Matrix, past: Vector = NOTHING) -> Merged:
    """Rules 1 to 8 over a whole set, one after the other."""
    fates: dict[OpId, Fate] = {}
    candidates = []
    ops = list(ops)
    seals = standing(op for op in ops if op.seal)
    for op in ops:
        if fate := fate_of_orphan(op, seals) or fate_at_origin(op):
            fates[op.id] = fate
        elif not op.is_silent:
            candidates.append(op)
    superseders = Superseders(matrix, past)
    effective = [x for x in _top_down(candidates, matrix) if not superseders.take(x)]
    fates |= {x.id: reason for x in candidates if (reason := superseders.reason_for(x))}
    return Merged(canonical(effective, matrix), fates)


class Superseders:
    """Rule 2: which operations of replace types supersede others. They are taken from the top down.

    y does not supersede x if an operation that x was made in knowledge of supersedes y. Without `Concurrent` entries
    this means: only effective operations supersede. What supersedes y then supersedes all that y does, except what was
    made in knowledge of it. With such entries it may let x stay, which y superseded: x must not come back.
    """

    def __init__(self, matrix: Matrix, past: Vector) -> None:
        self._matrix, self._past = matrix, past
        self._effective: list[Operation] = []  # few: at most one per class, without `Concurrent` entries and patterns
        self._superseded: list[Operation] = []  # only with `Concurrent` entries
        self._beats: dict[tuple[OpId, OpId], bool] = {}

    def take(self, x: Operation) -> bool:
        """Whether an operation is superseded. All that may supersede it must be taken."""
        is_superseded = any(rule_between(y, x, self._matrix, self._past) for y in self._effective) or any(
            self.beats(y, x) for y in self._superseded
        )
        if self._matrix.is_replace_type(x.key):
            if not is_superseded:
                self._effective.append(x)
            elif self._matrix.has_overrides:
                self._superseded.append(x)
        return is_superseded

    def beats(self, y: Operation, x: Operation) -> bool:
        """Whether y supersedes x."""
        if not rule_between(y, x, self._matrix, self._past):
            return False
        pair = (y.id, x.id)
        if pair not in self._beats:
            others = (*self._effective, *self._superseded)
            self._beats[pair] = not any(self._precedes(z, x) and self.beats(z, y) for z in others)
        return self._beats[pair]

    def _precedes(self, z: Operation, x: Operation) -> bool:
        in_past = contains(self._past, z.id) and contains(self._past, x.id)
        return z.stamp < x.stamp if in_past else z.is_before(x)

    def reason_for(self, x: Operation) -> Fate | None:
        """Rule 8: what superseded x. An effective operation goes first: what is superseded may be forgotten."""
        superseded = (y for y in self._superseded if self.beats(y, x))
        return reason_for(x, self._effective, self._matrix, self._past) or reason_for(
            x, superseded, self._matrix, self._past
        )


def reason_for(x: Operation, superseders: Iterable[Operation], matrix: Matrix, past: Vector = NOTHING) -> Fate | None:
    """Rule 8: of all that supersede x, the one with the greatest stamp, so that every site names the same."""
    beating = [(y.stamp, y.id, rule) for y in superseders if (rule := rule_between(y, x, matrix, past))]
    if not beating:
        return None
    _, by, rule = max(beating)
    return Fate(rule, by)


def dispensable(idle: list[Operation], ops: Iterable[Operation], matrix: Matrix, past: Vector) -> list[Operation]:
    """Those of some operations without effect that no other one of `ops` needs. With `Concurrent` entries, what is
    superseded may still supersede others (rule 2)."""
    if not matrix.has_overrides or not idle:
        return idle
    gone = {op.id for op in idle}
    kept = [op for op in ops if op.id not in gone]
    while kept:
        needed = [y for y in idle if y.id in gone and any(rule_between(y, x, matrix, past) for x in kept)]
        gone.difference_update(op.id for op in needed)
        kept = needed
    return [op for op in idle if op.id in gone]


def _top_down(ops: Sequence[Operation], matrix: Matrix) -> list[Operation]:
    """Rule 2: higher classes first, within a class by falling stamp."""
    keys = {op.key for op in ops}
    height = {name: _rank(name, keys, matrix) for name in keys}
    by_stamp = sorted(ops, key=lambda op: op.stamp, reverse=True)
    return sorted(by_stamp, key=lambda op: height[op.key], reverse=True)


def _rank(name: str, keys: set[str], matrix: Matrix) -> int:
    """How many keys it strictly replaces: greater than that of anything it strictly replaces."""
    return sum(matrix.replaces(name, other) and not matrix.replaces(other, name) for other in keys)


def canonical(effective: Iterable[Operation], matrix: Matrix) -> tuple[Operation, ...]:
    """Rule 6: by stamp, which extends causality. Where an operation must stand before concurrent ones
    (`Concurrent: take-both`), always the smallest stamp of those that need not wait for another one."""
    left = sorted(effective, key=lambda op: op.stamp)
    ahead = [op for op in left if matrix.is_replace_type(op.key)] if matrix.has_overrides else []
    order: list[Operation] = []
    while ahead:
        free, first, left = _up_to_one_ahead(left, ahead, matrix)
        order += [*free, first]
        ahead = [y for y in ahead if y != first]
    return (*order, *left)


def _up_to_one_ahead(
    left: Sequence[Operation], ahead: Sequence[Operation], matrix: Matrix
) -> tuple[list[Operation], Operation, list[Operation]]:
    """What comes before the first of those ahead, that one, and what is left after it, by stamp."""
    free: list[Operation] = []
    held: list[Operation] = []
    held_from: dict[Origin, int] = {}
    for place, op in enumerate(left):
        knows_held = any(op.deps.get(origin, 0) >= seq for origin, seq in held_from.items())
        if knows_held or any(_stands_before(y, op, matrix) for y in ahead):
            held.append(op)
            held_from.setdefault(op.origin, op.seq)
        elif matrix.is_replace_type(op.key):
            return free, op, [*held, *left[place + 1 :]]
        else:
            free.append(op)
    return free, held[0], held[1:]  # a cycle: causality takes precedence over the matrix


def _stands_before(y: Operation, x: Operation, matrix: Matrix) -> bool:
    return matrix.both_stay_when_concurrent(y.key, x.key) and x.is_concurrent(y)
