"""The merge: the cost of 100,000 operations, all at once and one by one, and whether it stays flat."""

import statistics
import time
from collections.abc import Iterator
from random import Random

from bench.measure import human, seconds
from bench.report import Section
from cheops.log.causality import Clock
from cheops.log.history import History
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Stamp, Verdict
from cheops.log.rules import merged

COUNTER = Matrix(
    (
        Entry("set", "inc", Result.KEEP_ORDER),
        Entry("inc", "inc", Result.TAKE_BOTH),
        Entry("set", "set", Result.TAKE_ONE),
    )
)
FILE = Matrix((Entry("set", "add", Result.KEEP_ORDER), Entry("set", "set", Result.TAKE_ONE)))
MANY = 100_000


def operations(number: int, matrix: Matrix, change: str, sets: float) -> list[Operation]:
    """A history of three sites that exchange operations now and then, in causal order."""
    return list(_operations(number, matrix, change, sets))


def _operations(number: int, matrix: Matrix, change: str, sets: float) -> Iterator[Operation]:
    random = Random(1)
    origins = [Origin(f"site{n}", "1") for n in range(1, 4)]
    counts: dict[Origin, int] = {}
    known: dict[Origin, dict[Origin, int]] = {origin: {} for origin in origins}
    clocks = {origin: Clock() for origin in origins}
    ref: MatrixRef | None = None
    latest: Stamp | None = None
    for place in range(number):
        origin = random.choice(origins)
        if latest and random.random() < 0.3:
            known[origin], clocks[origin] = dict(counts), clocks[origin].seen(latest)
        clocks[origin] = clocks[origin].tick(1_000 + place)
        latest = clocks[origin].stamp(origin)
        ref = ref or MatrixRef(matrix.hash, latest)
        deps = known[origin] | ({origin: counts[origin]} if origin in counts else {})
        counts[origin] = counts.get(origin, 0) + 1
        type_ = "set" if random.random() < sets else change
        yield Operation(
            "resource", "", type_, Kind.NORMAL, Command(""), origin, counts[origin], deps, latest, ref,
            verdict=Verdict.OK,
        )  # fmt: skip


def _history(ops: list[Operation], matrix: Matrix) -> tuple[History, list[float]]:
    history = History({matrix.hash: matrix}.__getitem__)
    took: list[float] = []
    for op in ops:
        start = time.perf_counter()
        history.add(op)
        took.append(time.perf_counter() - start)
    return history, took


def run() -> list[Section]:
    return [_cold(), _appending()]


def _cold() -> Section:
    rows = []
    cases = (
        ("counter, 2 % set", COUNTER, "inc", 0.02),
        ("counter, increments only", COUNTER, "inc", 0.0),
        ("file, 2 % set", FILE, "add", 0.02),
        ("file, appends only", FILE, "add", 0.0),
    )
    for name, matrix, change, sets in cases:
        ops = operations(MANY, matrix, change, sets)
        one_by_one, at_once, by_stamp = _costs(ops, matrix)
        ratio = f"{one_by_one / by_stamp:.0f} x"
        rows.append((name, human(one_by_one), human(at_once), human(by_stamp), ratio, "< 2 s"))
    columns = ("100,000 operations", "one by one", "at once", "reference: sort by stamp", "ratio", "target")
    return Section("merge-cold", columns, tuple(rows))


def _costs(ops: list[Operation], matrix: Matrix) -> tuple[float, float, float]:
    """Medians of three rounds: the history, the merge of the set, and the reference."""
    actions = (
        lambda: _history(ops, matrix),
        lambda: merged(ops, matrix),
        lambda: sorted(ops, key=lambda op: op.stamp),
    )
    rounds = [[seconds(action, 1) for action in actions] for _ in range(3)]
    first, second, third = (statistics.median(took) for took in zip(*rounds, strict=True))
    return first, second, third


def _appending() -> Section:
    rows = []
    for name, matrix, change in (("counter", COUNTER, "inc"), ("file", FILE, "add")):
        _, took = _history(operations(MANY + 1_000, matrix, change, 0.0), matrix)
        at = {size: statistics.median(took[size - 500 : size + 500]) for size in (1_000, 10_000, MANY)}
        rows += [
            (name, f"{size:,}", human(median), f"{median / at[1_000]:.2f} x", "< 1 ms, flat")
            for size, median in at.items()
        ]
    columns = ("append one, all effective", "to a log of", "median", "against 1,000", "target")
    return Section("merge-append", columns, tuple(rows))
