"""Replays from a base: what they hold, and what a crash in the middle of one leaves."""

from dataclasses import replace

from cheops.log.matrix import Entry, Matrix, Result
from cheops.sim.apps import FILE
from tests.engine.lab import Lab

Pages = tuple[tuple[str, ...], tuple[str, ...]]  # the text, and the notes beside it, which no set wipes


def _write(state: Pages, line: str) -> Pages:
    text, notes = state
    verb, word = line.split(maxsplit=1)
    return {
        "set": ((word,), notes),
        "add": ((*text, word), notes),
        "note": (text, (*notes, word)),
    }[verb]


_RULES = Matrix(
    (
        Entry("set", "set", Result.TAKE_ONE),
        Entry("set", "add", Result.KEEP_ORDER),
        *(Entry(other, "note", Result.TAKE_BOTH) for other in ("set", "add", "note")),
    )
)
PAGE = replace(FILE, matrix=_RULES, run=_write, start=((), ()))


def _b_has_to_replay() -> Lab:
    """At b an add is missing before its own, and so is a note of before the set that both stand on."""
    lab = Lab()
    lab.make("page", PAGE, "abc", checkpoint=None, reset=None)
    lab.submit("a", "page", "set first")
    lab.run()
    lab.partition("a", "bc")
    lab.submit("a", "page", "note beside")
    lab.now_ms += 1_000
    lab.submit("b", "page", "set base")
    lab.run()
    lab.partition("a", "b", "c")
    lab.now_ms += 1_000
    lab.submit("c", "page", "add zero")
    lab.now_ms += 1_000
    lab.submit("b", "page", "add two")
    lab.partition("ac", "b")
    lab.run()
    return lab


def test_a_replay_holds_what_its_base_wipes_and_nothing_else() -> None:
    lab = _b_has_to_replay()
    lab.heal()
    lab.run()
    assert [line for line in lab.output if line.startswith("b ") and ("replays" in line or "beside" in line)] == [
        'b replays b:1 "set base", c:1 "add zero", b:2 "add two"',
        'b runs a:2 "note beside"',
    ]
    assert lab.states("page", "abc") == [(("base", "zero", "two"), ("beside",))] * 3


def test_a_crash_after_a_replay_runs_nothing_twice_that_its_base_does_not_wipe() -> None:
    lab = _b_has_to_replay()
    lab.benches["b"].paused = True
    lab.heal()
    lab.run()
    (held,) = lab.benches["b"].held
    for step in held.steps:  # the application has run them all; the engine never hears of it
        lab.nodes["b"].states["page"] = _write(lab.nodes["b"].states["page"], step.payload.line)
    lab.crash("b")
    lab.restart("b")
    lab.run()
    assert lab.states("page", "abc") == [(("base", "zero", "two"), ("beside",))] * 3
