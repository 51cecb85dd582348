"""Errors of scope-lang: what is wrong, where (a caret under the place), and what would be accepted."""

import re
import unicodedata

from msgspec import Struct

from cheops.errors import ClientError
from cheops.scope.names import read_name
from cheops.text import printable

_EXCERPT = 72  # characters of the text shown around the place: with indent and ellipses they fit into 80 columns
_SPELLING = re.compile(r'"(?:[^"\\]|\\.)*"|\w[\w.\-]*(?: [\w.\-]+)*')


class Span(Struct, frozen=True):
    """Where in which text: characters `start` to `end`, counted from 0."""

    text: str
    start: int
    end: int


class ScopeError(ClientError):
    """A scope is refused."""

    reason = "scope"

    def __init__(
        self, problem: str, *, place: Span | None = None, hint: str | None = None, status: int | None = None
    ) -> None:
        self.problem = problem
        self.place = place
        self.hint = hint
        lines = [problem, *([pointed(place)] if place else []), *([f"  {hint}"] if hint else [])]
        super().__init__("\n".join(lines), status=status)


class ScopeSyntaxError(ScopeError):
    """The text is not a scope."""

    reason = "scope syntax"


class ScopeResolutionError(ScopeError):
    """The scope is well formed, but does not fit the sites and services that are known now."""

    definite = False  # sites and services change: the same scope may resolve later
    reason = "scope resolution"


def pointed(place: Span) -> str:
    """The text with carets under the place, cut to an excerpt where it is long."""
    # Each character is replaced by exactly one other, so that `start` and `end` still fit.
    text = printable(place.text.translate({9: " ", 10: " ", 13: " "}))
    start = max(0, min(place.start, len(text)))
    first = max(0, start - _EXCERPT // 2)
    last = min(len(text), first + _EXCERPT)
    head, tail = ("…" if first else ""), ("…" if last < len(text) else "")
    # Counted in columns, not characters: names may be Chinese, or have combining accents.
    carets = max(1, _width(text[start : min(place.end, last)]))
    indent = _width(head) + _width(text[first:start])
    return f"  {head}{text[first:last]}{tail}\n  {' ' * indent}{'^' * carets}"


def find_name(text: str, name: str, *, service: bool) -> Span | None:
    """The place of a site (or service) name in a canonical scope text. Only services are followed by a colon."""
    for match in _SPELLING.finditer(text):
        is_service = text.startswith(":", match.end())
        if is_service == service and read_name(match.group()) == name:
            return Span(text, match.start(), match.end())
    return None


def _width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
