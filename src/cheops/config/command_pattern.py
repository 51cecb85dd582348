"""Patterns that say which commands a resource type allows.

    redis-cli incrby * *        these four words, of which the last two are free
    /opt/app/bin/* --verbose    `*` stands for any part of one word, never for a second word
    kubectl apply -f ...        and any further words, or none; only as the last word
    ...                         everything

A pattern is split into words as a command is, so quotes work in both. It is compared word by word, before
`__ID__` and `{name}` are filled in: a pattern speaks about what the operator wrote. Only `*` and a last
`...` have a meaning; `?`, `[` and so on are just characters, since arguments are full of them. A word
with a `..` in its path is not matched by a pattern such as `/opt/app/*`, which was meant for what lies
below, also if it is the id that brings the `..`. Nor does a word that begins with `*` match an option: who
may give a program one argument may not tell it `--force`. A number below zero is no option, and where
options are meant the pattern says so, with `-*` or `--*`.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cheops.errors import ClientError
from cheops.text import printable, shortened

EVERYTHING = "..."
_UPWARDS = re.compile(r"(^|[/=:,])\.\.(/|$)")
_OPTION = re.compile(r"-(?![0-9.]+(?:[eE][+-]?[0-9]+)?$|\s|$)")  # not -12, nor a dash alone or as a bullet


class CommandPatternError(ClientError):
    """A pattern that cannot be meant so."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One expression per word, and whether more words may follow."""

    words: tuple[re.Pattern[str], ...]
    is_open: bool

    def matches(self, words: Sequence[str], filled_in: Sequence[str]) -> bool:
        """Whether it allows these words; with the id filled in they must not lead upwards either."""
        if len(words) < len(self.words) or (len(words) > len(self.words) and not self.is_open):
            return False
        return all(
            expected.fullmatch(word)
            and not (_is_below(expected) and _UPWARDS.search(filled))
            and not (_is_argument(expected) and _OPTION.match(filled))
            for expected, word, filled in zip(self.words, words, filled_in, strict=False)
        )


def _is_argument(expected: re.Pattern[str]) -> bool:
    return expected.pattern.startswith(".*")


def _is_below(expected: re.Pattern[str]) -> bool:
    return "/" in expected.pattern and ".*" in expected.pattern


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> Pattern:
    try:
        words = shlex.split(text)
    except ValueError:
        raise _refused(text, "a quote is not closed, or a backslash stands at its end") from None
    is_open = words[-1:] == [EVERYTHING]
    if is_open:
        words.pop()
    elif not words:
        raise _refused(text, f"it is empty; '{EVERYTHING}' allows everything")
    if EVERYTHING in words:
        raise _refused(text, f"'{EVERYTHING}' can only be the last word; '*' stands for one word")
    return Pattern(tuple(map(_expression, words)), is_open)


def _expression(word: str) -> re.Pattern[str]:
    stars = re.sub(r"\*+", "*", word)  # several mean the same, and would be slow
    return re.compile(".*".join(map(re.escape, stars.split("*"))), re.DOTALL)


def _refused(text: str, why: str) -> CommandPatternError:
    return CommandPatternError(f"the allowed command '{printable(shortened(text))}' cannot be read: {why}")
