"""The built-in `on_error: decompose`: a command that failed, done again as unit steps.

    decompose: {amount: 4, unit: redis-cli decrby __ID__ 1}

makes of `redis-cli decrby stock 50` fifty times the unit, of which as many take effect as the application
accepts. The unit is the command with 1 (or -1) for its number. A command is split only if all its other words
are the unit's: the type's `set 100` has a number too, and a hundred decrements are not what it meant. A word
with __ID__ in the unit goes with any word, since it stands for the id of the resource.
"""

import re
import shlex
from dataclasses import dataclass

from cheops.config.keys import DECOMPOSE
from cheops.config.line import command_line, words_of
from cheops.documents import Value
from cheops.log.operation import Command

MAX_UNITS = 10_000  # steps of one command; a larger number is not split
ID = "__ID__"

_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """See engine.types.Decompose."""

    amount: int  # which word holds the number; the program is word 1
    unit: str

    def __call__(self, command: Command) -> tuple[Command, ...]:
        return (Command(self.unit, command.files),) * self._steps(command.line)

    def _steps(self, line: str) -> int:
        try:
            words, unit = shlex.split(line), shlex.split(self.unit)
        except ValueError:
            return 0
        if len(words) != len(unit):
            return 0
        number, one = words.pop(self.amount - 1), unit.pop(self.amount - 1)
        if not _WHOLE.fullmatch(number) or not all(map(_fits, words, unit)):
            return 0
        steps = int(number) * int(one)  # below zero where the signs differ
        return steps if 0 < steps <= MAX_UNITS else 0


def unit_steps(value: Value, *, shell: bool) -> UnitSteps:
    """The setting `decompose` of a type."""
    record = DECOMPOSE.read(value)
    unit = command_line(record["unit"], shell=shell)
    words = words_of(record["unit"])
    amount = record["amount"].whole(minimum=2, maximum=max(2, len(words)))
    if words[amount - 1 : amount] not in (["1"], ["-1"]):
        found = words[amount - 1] if amount <= len(words) else "nothing"
        raise record["unit"].fail(
            f"word {amount} of the unit must be 1 or -1, since the number stands there (see 'amount'), "
            f"found '{found}'"
        )
    return UnitSteps(amount, unit)


def _fits(word: str, unit_word: str) -> bool:
    pattern = ".+".join(map(re.escape, unit_word.split(ID)))
    return re.fullmatch(pattern, word, re.DOTALL) is not None
