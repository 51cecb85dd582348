"""Random histories of edits by editors who are cut off from each other, with an oracle that knows every character.

Every character that an editor inserts is there only once in a history. So the merged text must have exactly those that
were inserted and that no editor deleted: the oracle needs no merging.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from cheops.log.operation import Command, Kind, MatrixRef, Operation, OpId, Origin, Stamp, Verdict
from cheops.logic.edit import ANY, Edit, apply, decoded, difference, encoded, hash_of
from cheops.logic.text import text_logic

_FIRST = 0x4E00  # characters that are printable, and words of their own
_MATRIX = MatrixRef("m", Stamp(0, 0, Origin("a", "1")))


def edit_op(edit: Edit, text: str, origin: Origin, deps: dict[Origin, int], time_ms: int) -> Operation:
    line = f"cheops-text notes/__ID__ {hash_of(text)} '{encoded(edit)}'"
    seq, stamp = deps.get(origin, 0) + 1, Stamp(time_ms, 0, origin)
    return Operation(
        "n", "note", "edit", Kind.NORMAL, Command(line), origin, seq, deps, stamp, _MATRIX, verdict=Verdict.OK
    )


def after_commands(commands: Sequence[Command], text: str) -> str:
    """As `cheops-text` does at a site."""
    for command in commands:
        program, file, hash_, word = shlex.split(command.line)
        assert (program, file) == ("cheops-text", "notes/__ID__")
        assert hash_ in (ANY, hash_of(text))
        text = apply(decoded(word), text)
    return text


@dataclass
class History:
    """Editors at sites that know different operations."""

    random: Random
    base: str = ""
    ops: list[Operation] = field(default_factory=list)
    inserted: list[str] = field(default_factory=list)  # what one edit put at one place
    deleted: set[str] = field(default_factory=set)
    known: dict[str, list[Operation]] = field(default_factory=dict)

    @classmethod
    def played(cls, seed: int, steps: int = 20) -> "History":
        random = Random(seed)  # noqa: S311
        self = cls(random)
        self.base = "".join(self._fresh() for _ in range(random.randint(0, 8)))
        self.known = {name: [] for name in "abcd"[: random.randint(2, 4)]}
        for _ in range(steps):
            self.step()
        return self

    def _fresh(self) -> str:
        text = chr(_FIRST + len(self.inserted))
        self.inserted.append(text)
        return text

    def step(self) -> None:
        one, other = self.random.sample(sorted(self.known), 2)
        if self.random.random() < 0.4:
            self.known[other] += [op for op in self.known[one] if op not in self.known[other]]
        else:
            self.edit(one)

    def text_at(self, site: str) -> str:
        return self.merged(self.known[site])

    def merged(self, ops: Sequence[Operation]) -> str:
        ordered = sorted(ops, key=lambda op: op.stamp)
        return after_commands(text_logic(ordered), self.base)

    def edit(self, site: str) -> None:
        before = text = self.text_at(site)
        for _ in range(self.random.randint(1, 3)):
            place = self.random.randint(0, len(text))
            if self.random.random() < 0.65:
                new = "".join(self._fresh() for _ in range(self.random.randint(1, 4)))
                self.inserted[-len(new) :] = [new]  # one insertion
                self.inserted += [""] * (len(new) - 1)  # so that the next character is a new one
                text = text[:place] + new + text[place:]
            else:
                gone = text[place : place + self.random.randint(1, 4)]
                self.deleted |= set(gone)
                text = text[:place] + text[place + len(gone) :]
        edit, origin = difference(before, text), Origin(site, "1")
        deps: dict[Origin, int] = {}
        for op in self.known[site]:
            deps[op.origin] = max(deps.get(op.origin, 0), op.seq)
        op = edit_op(edit, before, origin, deps, len(self.ops))
        self.known[site].append(op)
        self.ops.append(op)

    def meet(self) -> None:
        """All editors know everything."""
        self.known = {name: list(self.ops) for name in self.known}

    def folded(self) -> None:
        """What all know becomes the text that the next edits start from, as a checkpoint does."""
        self.base = self.merged(self.ops)
        self.ops = []
        self.known = {name: [] for name in self.known}

    def ids(self) -> list[OpId]:
        return [op.id for op in self.ops]
