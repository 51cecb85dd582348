"""Applications for the simulator: small state machines that behave like the real ones, failures included."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from cheops.engine.settings import Checkpoint, ResourceType
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, Operation
from cheops.logic.edit import Edit, compact
from cheops.logic.edit import apply as apply_edit

State = Any


class RefusedError(Exception):
    """The application refuses a command definitely."""


@dataclass(frozen=True)
class App:
    """What the simulator needs from an application: an initial state, its commands, and a generator of commands."""

    name: str
    start: State
    run: Callable[[State, str], State]
    matrix: Matrix
    type: ResourceType
    invent: Callable[[Random], tuple[str, str]]  # operation type, command line
    # Whether sites may apply an operation differently, so that the state does not follow from the log alone.
    varies: bool = False
    # The state that effective operations give, if that is not the one after running them in their order.
    expected: Callable[[Sequence[Operation]], State] | None = None


def _entries(*rows: tuple[str, str, Result] | tuple[str, str, Result, bool]) -> Matrix:
    return Matrix(Entry(*row) for row in rows)


_KEEP, _BOTH, _ONE = Result.KEEP_ORDER, Result.TAKE_BOTH, Result.TAKE_ONE


# -- counter: set replaces inc, incs commute -----------------------------------------------------------


def _counter(state: int, line: str) -> int:
    match line.split():
        case ["set" | "write", number]:
            return int(number)
        case ["inc", number]:
            return state + int(number)
    raise RefusedError(f"unknown command: {line}")


def _invent_counter(random: Random) -> tuple[str, str]:
    if random.random() < 0.25:
        return "set", f"set {random.randint(0, 99)}"
    return "inc", f"inc {random.randint(-20, 20)}"


COUNTER = App(
    "counter",
    0,
    _counter,
    _entries(("set", "inc", _KEEP), ("inc", "inc", _BOTH), ("set", "set", _ONE)),
    ResourceType(
        "counter",
        reset=Command("set 0"),
        checkpoint=Checkpoint(Command("read"), lambda state: Command(f"write {state}"), after=8),
    ),
    _invent_counter,
)


# -- text file: set replaces, appends are ordered --------------------------------------------------------


def _file(state: tuple[str, ...], line: str) -> tuple[str, ...]:
    match line.split():
        case ["set", word]:
            return (word,)
        case ["add", word]:
            return (*state, word)
        case ["truncate"]:
            return ()
    raise RefusedError(f"unknown command: {line}")


def _invent_file(random: Random) -> tuple[str, str]:
    word = f"w{random.randint(0, 999)}"
    return ("set", f"set {word}") if random.random() < 0.2 else ("add", f"add {word}")


FILE = App(
    "file",
    (),
    _file,
    _entries(("set", "add", _KEEP), ("set", "set", _ONE)),
    ResourceType("file", reset=Command("truncate")),
    _invent_file,
)


# -- set: adds commute, removes commute, add and remove are ordered --------------------------------------


def _set(state: frozenset[str], line: str) -> frozenset[str]:
    match line.split():
        case ["add", item]:
            return state | {item}
        case ["remove", item]:
            return state - {item}
        case ["clear"]:
            return frozenset()
    raise RefusedError(f"unknown command: {line}")


def _invent_set(random: Random) -> tuple[str, str]:
    choice = random.random()
    if choice < 0.1:
        return "clear", "clear"
    kind = "add" if choice < 0.6 else "remove"
    return kind, f"{kind} i{random.randint(0, 5)}"


SET = App(
    "set",
    frozenset(),
    _set,
    _entries(
        ("add", "add", _BOTH),
        ("remove", "remove", _BOTH),
        ("clear", "add", _KEEP),
        ("clear", "remove", _KEEP),
    ),
    ResourceType("set", reset=Command("clear")),
    _invent_set,
)


# -- key-value store: each key is replaced by itself, keys are independent, wipe replaces all --------------

_KEYS = ("a", "b", "c")


def _store(state: tuple[tuple[str, str], ...], line: str) -> tuple[tuple[str, str], ...]:
    match line.split():
        case ["put", name, value]:
            return tuple(sorted({**dict(state), name: value}.items()))
        case ["wipe"]:
            return ()
    raise RefusedError(f"unknown command: {line}")


def _invent_store(random: Random) -> tuple[str, str]:
    if random.random() < 0.08:
        return "wipe", "wipe"
    name = random.choice(_KEYS)
    return f"put-{name}", f"put {name} {random.randint(0, 99)}"


STORE = App(
    "store",
    (),
    _store,
    _entries(
        *((f"put-{k}", f"put-{k}", _ONE) for k in _KEYS),
        *((f"put-{k}", f"put-{other}", _BOTH) for k in _KEYS for other in _KEYS if k < other),
        *(("wipe", f"put-{k}", _KEEP) for k in _KEYS),
    ),
    ResourceType("store"),
    _invent_store,
)


# -- P-counter: never below zero; what fails elsewhere is done in unit steps --------------------------------


def _pcounter(state: int, line: str) -> int:
    match line.split():
        case ["set", number]:
            return int(number)
        case ["dec", number] if state >= int(number):
            return state - int(number)
        case ["dec", number]:
            raise RefusedError(f"{state} is less than {number}")
    raise RefusedError(f"unknown command: {line}")


def _invent_pcounter(random: Random) -> tuple[str, str]:
    if random.random() < 0.1:
        return "set", f"set {random.randint(20, 60)}"
    return "dec", f"dec {random.randint(1, 12)}"


def unit_decrements(payload: Command) -> tuple[Command, ...]:
    """`dec 3` is three times `dec 1`."""
    match payload.line.split():
        case ["dec", number] if number.isdecimal():
            return (Command("dec 1"),) * min(int(number), 100)
    return ()


PCOUNTER = App(
    "pcounter",
    0,
    _pcounter,
    _entries(("set", "dec", _KEEP), ("dec", "dec", _BOTH), ("set", "set", _ONE)),
    ResourceType("pcounter", reset=Command("set 0"), decompose=unit_decrements),
    _invent_pcounter,
    varies=True,
)

APPS = {app.name: app for app in (COUNTER, FILE, SET, STORE, PCOUNTER)}


# -- types of other kinds --------------------------------------------------------------------------------

_KEEP_BOTH = (_KEEP, True)  # `Concurrent: take-both`
_LENIENT_COUNTER = replace(
    COUNTER,
    name="lenient-counter",
    matrix=_entries(("set", "inc", *_KEEP_BOTH), ("inc", "inc", _BOTH), ("set", "set", _ONE)),
    type=replace(COUNTER.type, name="lenient-counter"),
)
_LENIENT_FILE = replace(
    FILE,
    name="lenient-file",
    matrix=_entries(("set", "add", *_KEEP_BOTH), ("set", "set", _ONE)),
    type=replace(FILE.type, name="lenient-file"),
)
# Without a reset. Of concurrent ones, those of the first key stay beside a wipe.
_LENIENT_STORE = replace(
    STORE,
    name="lenient-store",
    matrix=_entries(
        *((f"put-{k}", f"put-{k}", _ONE) for k in _KEYS),
        *((f"put-{k}", f"put-{other}", _BOTH) for k in _KEYS for other in _KEYS if k < other),
        *(("wipe", f"put-{k}", _KEEP, k == _KEYS[0]) for k in _KEYS),
    ),
    type=replace(STORE.type, name="lenient-store"),
)
_PARALLEL_FILE = replace(FILE, name="parallel-file", type=replace(FILE.type, name="parallel-file", parallel=True))


def _drained(state: int, line: str) -> int:
    return 0 if line == "drain" else _pcounter(state, line)


# What fails elsewhere takes all that is left: as soon as there is not enough for all, nothing is left at any site.
_DRAINED = App(
    "drained",
    0,
    _drained,
    PCOUNTER.matrix,
    ResourceType("drained", reset=Command("set 0"), on_error=Command("drain")),
    _invent_pcounter,
    varies=True,
)


# Nothing replaces anything: whatever must be undone is undone by a replay from the reset.
_STOCK = replace(
    PCOUNTER,
    name="stock",
    start=25,
    matrix=_entries(("dec", "dec", _BOTH)),
    type=replace(PCOUNTER.type, name="stock", reset=Command("set 25")),
    invent=lambda random: ("dec", f"dec {random.randint(1, 12)}"),
)


def _in_alphabetical_order(ops: Sequence[Operation]) -> tuple[Command, ...]:
    return tuple(sorted((op.payload for op in ops), key=lambda payload: payload.line))


_SORTED_FILE = replace(
    FILE,
    name="sorted-file",
    type=replace(FILE.type, name="sorted-file", logic=_in_alphabetical_order),
    varies=True,
)

# -- a text, with the logic that merges edits -------------------------------------------------------------


def _text_edit(text: str, line: str) -> Edit:
    """The edit that a line means for the text at hand: its operation is made before its origin reads the text."""
    match line.split():
        case ["insert", mark, percent]:
            place = len(text) * int(percent) // 100
            return compact((place, mark, len(text) - place))
        case ["delete", percent]:
            place = len(text) * int(percent) // 100
            length = min(3, len(text) - place)
            return compact((place, -length, len(text) - place - length))
    raise RefusedError(f"unknown command: {line}")


def _text(state: str, line: str) -> str:
    match line.split(maxsplit=1):
        case ["reset"]:
            return ""
        case ["write", text]:
            return str(json.loads(text))
    return apply_edit(_text_edit(state, line), state)


def _merged_text(ops: Sequence[Operation]) -> str:
    from cheops.logic.text import merged_edit  # noqa: PLC0415 - it needs an optional package

    bases = [place for place, op in enumerate(ops, 1) if op.kind is not Kind.NORMAL]
    after = ops[bases[-1] :] if bases else ops

    def edit_at(op: Operation, text: str) -> Edit | None:
        try:
            return _text_edit(text, op.payload.line)
        except RefusedError:
            return ()

    edit = merged_edit(after, edit_at, "")
    return apply_edit(edit, "") if edit is not None else "an edit does not fit"


def _invent_edit(random: Random) -> tuple[str, str]:
    if random.random() < 0.2:
        return "edit", f"delete {random.randint(0, 100)}"
    return "edit", f"insert <{random.randrange(10**9)}> {random.randint(0, 100)}"


def _write_merged(ops: Sequence[Operation]) -> tuple[Command, ...]:
    return (Command(f"write {json.dumps(_merged_text(ops))}"),)


# Not among the others: a profile draws from all of those, so its histories would change.
TEXT = App(
    "text",
    "",
    _text,
    Matrix(),
    ResourceType("text", reset=Command("reset"), logic=_write_merged),
    _invent_edit,
    expected=_merged_text,
)

OTHER_APPS = {
    app.name: app
    for app in (_LENIENT_COUNTER, _LENIENT_FILE, _LENIENT_STORE, _PARALLEL_FILE, _DRAINED, _STOCK, _SORTED_FILE)
}
ALL_APPS = APPS | OTHER_APPS | {TEXT.name: TEXT}


def with_early_checkpoints(type_: ResourceType) -> ResourceType:
    """The type with frequent checkpoints, because forgetting is the most delicate part."""
    checkpoint = type_.checkpoint
    return replace(type_, checkpoint=replace(checkpoint, after=4)) if checkpoint else type_
