"""Whole causal histories for the laws of the merge: several sites, several matrices, clocks that lie.

A history is made as it would be in life. At some site somebody makes an operation; what it depends on is what
that site knows then, its stamp comes from that site's clock, which has seen all that is known there and is
otherwise as wrong as it likes. Between its own operations a site learns of others', never of one without what
it depends on. So every history that hypothesis can think up could happen, and every small one is thought up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import note
from hypothesis import strategies as st

from cheops.log.causality import Clock, Vector, contains, joined
from cheops.log.history import History
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, MatrixRef, Operation, OpId, Origin, Stamp, Verdict

KEEP, REVERSE, BOTH, ONE = Result.KEEP_ORDER, Result.REVERSE_ORDER, Result.TAKE_BOTH, Result.TAKE_ONE

# Three sites, one of which was born a second time: an origin of its own.
ORIGINS = (Origin("a", "1"), Origin("b", "1"), Origin("c", "1"), Origin("c", "2"))


# -- matrices --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """A named matrix and the types that operations under it have."""

    name: str
    entries: tuple[Entry, ...]
    types: tuple[str, ...]

    @property
    def matrix(self) -> Matrix:
        return MATRICES[self.name]


def _rules(name: str, types: str, *rows: tuple[str, str, Result] | tuple[str, str, Result, bool]) -> Rules:
    return Rules(name, tuple(Entry(*row) for row in rows), tuple(types.split()))


COUNTER = _rules("counter", "set inc", ("set", "inc", KEEP), ("inc", "inc", BOTH), ("set", "set", ONE))
FILE = _rules("file", "set add", ("add", "set", REVERSE), ("set", "set", ONE))
REGISTERS = _rules(
    "registers",
    "put-a put-b wipe",
    ("put-a", "put-a", ONE),
    ("put-b", "put-b", ONE),
    ("put-a", "put-b", BOTH),
    ("wipe", "put-a", KEEP),
    ("wipe", "put-b", KEEP),
)
LEVELS = _rules("levels", "x y z", ("x", "y", REVERSE), ("y", "z", REVERSE))

# Matrices by which concurrent operations may stay beside one that replaces them.
TOLERANT = _rules("tolerant", "set inc note", ("set", "inc", KEEP, True), ("inc", "inc", BOTH), ("set", "set", ONE))
TOLERANT_TWICE = _rules(
    "tolerant twice",
    "put-a add-a put-b add-b",
    ("put-a", "add-a", KEEP, True),
    ("put-b", "add-b", KEEP, True),
)
TOLERANT_LEVELS = _rules("tolerant levels", "x y z", ("x", "y", REVERSE, True), ("y", "z", REVERSE))
# One that lets others stay, above one that does not; and one above two that do not touch each other.
TOLERANT_TOP = _rules(
    "tolerant top", "x y z", ("x", "y", REVERSE), ("y", "z", REVERSE), ("x", "z", REVERSE, True), ("x", "x", BOTH)
)
TOLERANT_WIPE = _rules(
    "tolerant wipe",
    "put-a put-b wipe",
    ("put-a", "put-a", ONE),
    ("put-b", "put-b", ONE),
    ("put-a", "put-b", BOTH),
    ("wipe", "put-a", KEEP, True),
    ("wipe", "put-b", KEEP),
)
LEVELS_UPSIDE_DOWN = _rules("levels upside down", "x y z", ("x", "y", KEEP), ("y", "z", KEEP))

STRICT = (COUNTER, FILE, REGISTERS, LEVELS)
ALL_RULES = (*STRICT, TOLERANT, TOLERANT_TWICE, TOLERANT_LEVELS, TOLERANT_TOP, TOLERANT_WIPE)
MATRICES = {rules.name: Matrix(rules.entries) for rules in (*ALL_RULES, LEVELS_UPSIDE_DOWN)}
BY_HASH = {matrix.hash: matrix for matrix in MATRICES.values()}


# -- histories -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """How one operation comes about: where, what the site learnt before, its clock, and what is done."""

    origin: Origin
    learnt: tuple[int, ...]  # of which operations made so far, counted from the last
    now_ms: int
    type: int
    kind: Kind
    verdict: Verdict
    rules: int | None  # which of the matrices at hand somebody brings, if not the one in force


class Ops(tuple[Operation, ...]):
    """Operations, shown on one line each where hypothesis reports a counterexample."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text("".join(f"\n  {line(op)}" for op in self) or "nothing")


@dataclass(frozen=True)
class Past:
    """Operations in the order in which they were made, which is one causal order of many."""

    ops: Ops
    rules: Rules

    @property
    def matrix(self) -> Matrix:
        return self.rules.matrix

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(f"{self.rules.name}: ")
        printer.pretty(self.ops)


def line(op: Operation) -> str:
    """An operation on one line, for the reader of a counterexample."""
    kind = "" if op.kind is Kind.NORMAL else f" {op.kind.value}"
    brings = f" under {_name(op.matrix.hash)} of {op.matrix.introduced[:2]}"
    return f"{name_of(op)} {op.payload.line}{kind} {op.verdict} at {op.stamp[:2]} knowing [{_short(op.deps)}]{brings}"


def name_of(op: Operation) -> str:
    return f"{op.origin.site}{op.origin.incarnation}:{op.seq}"


def _short(vector: Vector) -> str:
    return " ".join(f"{origin.site}{origin.incarnation}:{n}" for origin, n in vector.items())


def _name(hash_: str) -> str:
    return next(name for name, matrix in MATRICES.items() if matrix.hash == hash_)


class Maker:
    """Several sites that make operations and learn of each other's."""

    def __init__(self, rules: Sequence[Rules]) -> None:
        self.rules = rules
        self.ops: list[Operation] = []
        self._known: dict[Origin, dict[Origin, int]] = {origin: {} for origin in ORIGINS}
        self._clocks = dict.fromkeys(ORIGINS, Clock())

    def learn(self, origin: Origin, vector: Vector) -> None:
        self._known[origin] = joined(self._known[origin], vector)

    def make(self, made: Made) -> Operation:
        for back in made.learnt if self.ops else ():
            self.learn(made.origin, past_of(self.ops[-1 - back % len(self.ops)]))
        deps = self._known[made.origin]
        stamp = self._stamp(made, deps)
        ref = self._matrix_ref(made, deps, stamp)
        types = next(rules for rules in self.rules if rules.matrix.hash == ref.hash).types
        type_ = types[made.type % len(types)] if made.kind is Kind.NORMAL else made.kind.value
        op = Operation(
            resource="r",
            rtype="t",
            type=type_,
            kind=made.kind,
            payload=Command(f"{type_} {len(self.ops) + 1}"),
            origin=made.origin,
            seq=deps.get(made.origin, 0) + 1,
            deps=deps,
            stamp=stamp,
            matrix=ref,
            sites=("a", "b", "c") if made.kind is Kind.SITES else None,
            verdict=made.verdict,
        )
        self.ops.append(op)
        self.learn(made.origin, past_of(op))
        return op

    def _stamp(self, made: Made, deps: Vector) -> Stamp:
        clock = self._clocks[made.origin]
        for op in self.ops:
            clock = clock.seen(op.stamp) if contains(deps, op.id) else clock
        self._clocks[made.origin] = clock.tick(made.now_ms)
        return self._clocks[made.origin].stamp(made.origin)

    def _matrix_ref(self, made: Made, deps: Vector, stamp: Stamp) -> MatrixRef:
        """The matrix in force as far as the site knows, unless somebody brings another one."""
        refs = (op.matrix for op in self.ops if contains(deps, op.id))
        in_force = max(refs, key=lambda ref: ref.introduced, default=None)
        if in_force is not None and made.rules is None:
            return in_force
        brought = self.rules[(made.rules or 0) % len(self.rules)].matrix.hash
        return in_force if in_force and in_force.hash == brought else MatrixRef(brought, stamp)


def past_of(op: Operation) -> Vector:
    """The operation and everything it was made in knowledge of."""
    return joined(op.deps, {op.origin: op.seq})


_KINDS = (Kind.NORMAL,) * 13 + (Kind.DELETE, Kind.FORCE, Kind.SITES)
_VERDICTS = (Verdict.OK,) * 14 + (Verdict.VOID, Verdict.SUPERSEDED)


def _made(drawn: bytes) -> Made:
    """Eight drawn bytes say it all: far faster than to draw each thing on its own."""
    origin, first, second, third, now_ms, type_, luck, rules = drawn
    return Made(
        origin=ORIGINS[origin % len(ORIGINS)],
        learnt=tuple(byte // 3 for byte in (first, second, third) if byte % 3),
        now_ms=now_ms % 10,
        type=type_,
        kind=_KINDS[luck % 16],
        verdict=_VERDICTS[luck // 16],
        rules=rules // 3 if rules % 3 == 2 else None,
    )


_one = st.binary(min_size=8, max_size=8).map(_made)


def _several(max_size: int) -> st.SearchStrategy[list[Made]]:
    """Mostly many, and yet a counterexample shrinks to few."""
    few, many = (
        st.lists(_one, min_size=1, max_size=5),
        st.lists(_one, min_size=max_size // 2, max_size=max_size),
    )
    return few | many | many


def _past(rules: Sequence[Rules], several: Iterable[Made]) -> Past:
    maker = Maker(rules)
    for made in several:
        maker.make(made)
    return Past(Ops(maker.ops), rules[0])


def pasts(rules: Sequence[Rules] = ALL_RULES) -> st.SearchStrategy[Past]:
    """Histories under one matrix."""
    return st.builds(_past, st.sampled_from([(one,) for one in rules]), _several(14))


def pasts_with_changes() -> st.SearchStrategy[Past]:
    """Histories in which another matrix is introduced now and then, also by two sites at once."""
    return st.builds(_past, st.sampled_from(CHANGES), _several(14))


# Matrices with types in common, so that a change of matrix changes what is superseded.
CHANGES = (
    (COUNTER, FILE, TOLERANT),
    (LEVELS, TOLERANT_LEVELS, LEVELS_UPSIDE_DOWN),
    (REGISTERS, TOLERANT_TWICE, COUNTER),
    (TOLERANT_TOP, LEVELS, LEVELS_UPSIDE_DOWN),
    (TOLERANT_WIPE, REGISTERS),
)


@dataclass(frozen=True)
class Stage:
    """Some operations, and up to where every site knows them before anybody makes another one."""

    ops: Ops
    stable: Vector

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.pretty(self.ops)
        printer.text(f"\n  then stable: [{_short(self.stable)}]")


def stages(*, changes: bool = False) -> st.SearchStrategy[tuple[Stage, ...]]:
    """A history in stages: whatever is made in one was made in knowledge of what was stable in the last."""
    rules = st.sampled_from(CHANGES if changes else [(one,) for one in ALL_RULES])
    stage = st.tuples(_several(6), st.binary(min_size=2, max_size=2))
    return st.builds(_staged, rules, st.lists(stage, min_size=2, max_size=3))


def _staged(rules: Sequence[Rules], drawn: Sequence[tuple[list[Made], bytes]]) -> tuple[Stage, ...]:
    maker, found = Maker(rules), list[Stage]()
    stable: Vector = {}
    for several, settled in drawn:
        for origin in ORIGINS:
            maker.learn(origin, stable)
        ops = Ops(maker.make(made) for made in several)
        for back in settled:
            stable = joined(stable, past_of(maker.ops[-1 - back % len(maker.ops)]))
        found.append(Stage(ops, stable))
    return tuple(found)


# -- histories told in words -------------------------------------------------------------------------------


def told(rules: Sequence[Rules], *lines: str) -> Past:
    """A history as written down, one operation on a line: `c2 set at 9 knowing a1:1 b1:2 under file`."""
    maker = Maker(rules)
    for text in lines:
        _tell(maker, text)
    return Past(Ops(maker.ops), rules[0])


def told_in_stages(rules: Sequence[Rules], *lines: str) -> tuple[Stage, ...]:
    """The same, with lines such as `stable a1:1 b1:2` in between."""
    maker, found, begun = Maker(rules), list[Stage](), 0
    for text in lines:
        if not text.startswith("stable"):
            _tell(maker, text)
            continue
        stable: Vector = {}
        for id_ in text.split()[1:]:
            stable = joined(stable, past_of(_named(maker, id_)))
        found.append(Stage(Ops(maker.ops[begun:]), stable))
        begun = len(maker.ops)
    return tuple(found)


def _tell(maker: Maker, text: str) -> None:
    text, _, under = text.partition(" under ")
    text, _, knowing = text.partition(" knowing ")
    who, type_, _, now_ms, *verdict = text.split()
    origin = next(origin for origin in ORIGINS if origin.site + origin.incarnation == who)
    for id_ in knowing.split():
        maker.learn(origin, past_of(_named(maker, id_)))
    kind = Kind(type_) if type_ in set(Kind) else Kind.NORMAL
    names = [rules.name for rules in maker.rules]
    brought = names.index(under) if under else None
    types = next((rules.types for rules in maker.rules if type_ in rules.types), ())
    number = types.index(type_) if kind is Kind.NORMAL else 0
    maker.make(Made(origin, (), int(now_ms), number, kind, Verdict(*verdict or ["OK"]), brought))
    assert maker.ops[-1].type == type_, f"'{type_}' is not of the matrix in force"


def _named(maker: Maker, id_: str) -> Operation:
    return next(op for op in maker.ops if name_of(op) == id_)


# -- delivery --------------------------------------------------------------------------------------------


# A number for each operation of a history: whatever is arbitrary about it can be read off that.
wishes = st.binary(min_size=18, max_size=18)


def delivered(ops: Sequence[Operation], wish: bytes) -> Ops:
    """The operations in any order that causality allows."""
    order = in_causal_order(op for _, op in sorted(zip(wish, ops, strict=False), key=lambda pair: pair[0]))
    note("delivered: " + " ".join(map(name_of, order)))
    return order


def in_causal_order(wished: Iterable[Operation]) -> Ops:
    """As wished, but each only after all that it depends on and that is there at all."""
    left, order = list(wished), list[Operation]()
    while left:
        ready = next(op for op in left if not any(other.is_before(op) for other in left))
        left.remove(ready)
        order.append(ready)
    return Ops(order)


def past_cone(ops: Iterable[Operation], of: Iterable[Operation]) -> list[Operation]:
    """Those operations with everything they were made in knowledge of."""
    vector: Vector = {}
    for op in of:
        vector = joined(vector, past_of(op))
    return [op for op in ops if contains(vector, op.id)]


def history(ops: Iterable[Operation]) -> History:
    made = History(BY_HASH.__getitem__)
    for op in ops:
        made.add(op)
    return made


def ids(ops: Iterable[Operation]) -> list[OpId]:
    return [op.id for op in ops]


# -- applications ----------------------------------------------------------------------------------------

State = Mapping[str, tuple[str, ...]]
Effect = tuple[str, str, str]  # what is done to which slot of the state, and which other slots are emptied

_COUNT = {"set": ("put", "n", ""), "inc": ("count", "n", "")}
_LEVEL = {"x": ("append", "x", ""), "y": ("put", "y", "x"), "z": ("put", "z", "x y")}
_REGISTERS = {"put-a": ("put", "a", ""), "put-b": ("put", "b", ""), "wipe": ("put", "wiped", "a b")}
_APPS: dict[str, dict[str, Effect]] = {
    "counter": _COUNT,
    "file": {"set": ("put", "words", ""), "add": ("append", "words", "")},
    "registers": _REGISTERS,
    "levels": _LEVEL,
    "tolerant": {**_COUNT, "note": ("append", "notes", "")},
    "tolerant twice": {
        f"{how}-{slot}": (effect, slot, "") for how, effect in (("put", "put"), ("add", "append")) for slot in "ab"
    },
    "tolerant levels": _LEVEL,
    "tolerant top": {**_LEVEL, "x": ("count", "x", "")},
    "tolerant wipe": _REGISTERS,
}


def run(state: State, ops: Iterable[Operation], rules: Rules) -> State:
    """What an application that behaves as its matrix says makes of these operations."""
    for op in ops:
        if op.kind in (Kind.DELETE, Kind.FORCE):
            state = {"start": (op.payload.line,)}
            continue
        how, slot, emptied = _APPS[rules.name][op.type]
        kept = {name: value for name, value in state.items() if name not in emptied.split()}
        state = {**kept, slot: _RUN[how](kept.get(slot, ()), op.payload.line.split()[1])}
    return state


_RUN: dict[str, Callable[[tuple[str, ...], str], tuple[str, ...]]] = {
    "put": lambda _, word: (word,),
    "append": lambda words, word: (*words, word),
    "count": lambda total, word: (str(sum(map(int, total)) + int(word)),),
}


def subset(ops: Sequence[Operation], wish: bytes) -> Ops:
    chosen = Ops(op for byte, op in zip(wish, ops, strict=False) if byte % 4)
    note("chosen: " + " ".join(map(name_of, chosen)))
    return chosen


def pairs(ops: Sequence[Operation]) -> Iterator[tuple[Operation, Operation]]:
    return ((a, b) for a in ops for b in ops if a != b)
