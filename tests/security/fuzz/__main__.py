"""`python -m tests.security.fuzz`: a campaign over all targets, on all processors. `make soak` runs a long one.

--inputs N     how many in all (CHEOPS_FUZZ_INPUTS, or 1,000,000)
--seed S       which ones (CHEOPS_FUZZ_SEED, or 1)
--jobs J       how many processes
--target NAME  only this one; may be given several times
--only N       of one target, just this input, with the error in full
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TextIO

from tests.security.fuzz.campaign import limit_memory, made_input, shares
from tests.security.fuzz.work import TARGETS, Piece, work

_PIECE = 2_000  # inputs that a worker takes at a time


def _pieces(names: list[str], seed: int, total: int) -> list[Piece]:
    counts = shares({name: TARGETS[name] for name in names}, total)
    return [
        (name, seed, first, min(first + _PIECE, count))
        for name, count in counts.items()
        for first in range(0, count, _PIECE)
    ]


def run(names: list[str], seed: int, total: int, jobs: int) -> int:
    pieces, began_s = _pieces(names, seed, total), time.monotonic()
    done: Counter[str] = Counter()
    spent_s: dict[str, float] = {}
    told: list[str] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, limit_memory) as pool:
        for future in as_completed([pool.submit(work, piece) for piece in pieces]):
            try:
                name, count, took_s, findings = future.result()
            except BrokenProcessPool:
                told.append("a worker died: run its target alone, with --jobs 1, to see at which input")
                break
            done[name] += count
            spent_s[name] = spent_s.get(name, 0.0) + took_s
            told += findings
    for name in names:
        rate = done[name] / max(spent_s.get(name, 0.0), 0.001)
        _say(f"  {name:18} {done[name]:>9,} inputs  {rate:>9,.0f} a second")
    minutes = (time.monotonic() - began_s) / 60
    for one in told[:20]:
        _say(one, to=sys.stderr)
    _say(f"{sum(done.values()):,} inputs with seed {seed} in {minutes:.1f} min: {len(told)} findings")
    return 1 if told else 0


def _say(text: str, to: TextIO | None = None) -> None:
    stream = to or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def _only(name: str, seed: int, number: int) -> int:
    data = made_input(TARGETS[name], name, seed, number)
    _say(repr(data))
    try:
        TARGETS[name].run(data)
    except TARGETS[name].allowed as error:
        _say(f"refused, as it should be: {error}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz")
    parser.add_argument("--inputs", type=int, default=int(os.environ.get("CHEOPS_FUZZ_INPUTS", "1000000")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("CHEOPS_FUZZ_SEED", "1")))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()
    names = asked.target or list(TARGETS)
    if asked.only is not None:
        return _only(names[0], asked.seed, asked.only)
    return run(names, asked.seed, asked.inputs, asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
