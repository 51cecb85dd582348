"""From text to scope: `parse(text)`, cached.

`scan` refuses what no parser should see (limits, invisible characters, open quotes and brackets); `plain` reads a text
of bare names and operators; `grammar` reads every other text, with lark, and explains what is no scope. For a text that
both read, both give the same scope.

`scan` takes one pass, so hostile input (a megabyte, ten thousand parentheses) is refused before anything grows
with it, and it says more than a grammar can: *this* bracket is never closed.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from cheops.scope.errors import ScopeSyntaxError, Span
from cheops.scope.functions import BUILTIN, Functions
from cheops.scope.names import normal, read_name
from cheops.scope.tree import Across, And, At, Binding, Location, Otherwise, Scope
from cheops.text import code_point, is_invisible

MAX_CANONICAL = 32_768  # characters of the canonical text: a thousand sites with long names fit
MAX_CHARACTERS = 65_536  # of the text as it was typed, blanks and all
MAX_SIGNS = 2_048  # operators, commas and parentheses: what the parser's time depends on
MAX_DEPTH = 64  # of brackets: the tree is built and walked recursively, and Python's stack is limited

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"?|[(){}&%+;,]', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\[^"\\]', re.DOTALL)
_BLANKS = "\t\r\n"
_IGNORED = " " + _BLANKS  # between words, as in grammar.lark
_EXAMPLES = "for example {image: site1} or site1 & site2"
_CLOSING = {"(": ")", "{": "}"}


def scan(text: str) -> None:
    """Refuse a text that the parser should not see. Does not check its grammar."""
    if len(text) > MAX_CHARACTERS:
        raise ScopeSyntaxError(f"the scope is longer than {MAX_CHARACTERS:,} characters")
    if not text.strip():
        raise ScopeSyntaxError("the scope is empty", hint=f"Say where, {_EXAMPLES}.")
    for position, character in enumerate(text):
        if not " " <= character <= "~" and character not in _BLANKS and is_invisible(character):
            raise ScopeSyntaxError(
                f"the scope holds the control or invisible character {code_point(character)}",
                place=Span(text, position, position + 1),
            )
    _scan_signs(text)


def _scan_signs(text: str) -> None:
    signs = 0
    opened: list[re.Match[str]] = []
    for sign in _SIGNS.finditer(text):
        character = sign.group()[0]
        signs += character not in '"{}'  # braces are optional, so they do not count
        if signs > MAX_SIGNS:
            raise _problem(text, sign, f"more than {MAX_SIGNS:,} operators and brackets; use fewer")
        if character == '"':
            _check_quoted(text, sign)
        elif character in "({":
            opened.append(sign)
            _check_depth(text, sign, opened)
        elif character in ")}":
            _check_closing(text, sign, opened)
    if opened:
        raise _problem(text, opened[-1], f"this '{opened[-1].group()}' is never closed")


def _check_quoted(text: str, quoted: re.Match[str]) -> None:
    spelling = quoted.group()
    if len(spelling) < 2 or not re.fullmatch(r'"(?:[^"\\]|\\.)*"', spelling, re.DOTALL):
        raise ScopeSyntaxError("this quote is never closed", place=Span(text, quoted.start(), quoted.start() + 1))
    if not spelling[1:-1].strip():
        raise _problem(text, quoted, "a name cannot be empty")
    if bad := re.search(r"[\t\r\n]", spelling):
        start = quoted.start() + bad.start()
        raise ScopeSyntaxError(
            f"a quoted name cannot hold the control character {code_point(bad.group())}",
            place=Span(text, start, start + 1),
        )
    # Valid escapes are blanked out first: the second backslash of a pair must not start another one.
    if bad := _BAD_ESCAPE.search(re.sub(r'\\["\\]', "__", spelling)):
        start = quoted.start() + bad.start()
        raise ScopeSyntaxError(
            'a backslash in quotes is written \\\\ (and a quote \\")', place=Span(text, start, start + 1)
        )


def _check_depth(text: str, sign: re.Match[str], opened: list[re.Match[str]]) -> None:
    # The canonical text of a scope may have braces that were not typed: they must not make it too deep.
    allowed = MAX_DEPTH + (opened[0].group() == "{")
    if len(opened) > allowed:
        raise _problem(text, sign, f"more than {MAX_DEPTH} brackets are open here; use fewer")


def _check_closing(text: str, sign: re.Match[str], opened: list[re.Match[str]]) -> None:
    if not opened:
        raise _problem(text, sign, f"this '{sign.group()}' closes nothing")
    expected = _CLOSING[opened[-1].group()]
    if sign.group() != expected:
        raise _problem(text, sign, f"'{expected}' must close '{opened[-1].group()}' here, not '{sign.group()}'")
    opened.pop()


def _problem(text: str, sign: re.Match[str], problem: str) -> ScopeSyntaxError:
    return ScopeSyntaxError(problem, place=Span(text, sign.start(), sign.end()))


_SHORT = 1_024  # characters: nearly all scopes in practice


_NAME = re.compile(r"\w[\w.\-]*(?:[ \t]+[\w.\-]+)*")  # as in grammar.lark
_ACROSS = re.compile("[%+]")


def plain(text: str) -> Scope | None:
    """The scope of a text of bare names, operators and colons, as nearly all are; None for any other text, and for one
    that is no scope."""
    inside = text.strip(_IGNORED)
    is_braced = inside.startswith("{") and inside.endswith("}")
    if is_braced:
        inside = inside[1:-1]
    if ":" not in inside and not is_braced:
        location = _plain_location(inside)
        return Scope((Binding(None, location),)) if location else None
    bindings: dict[str, Binding] = {}
    for part in inside.split(","):
        service, _, where = part.partition(":")
        name, location = _plain_name(service), _plain_location(where)
        if name is None or location is None or name in bindings:
            return None
        bindings[name] = Binding(name, location)
    return Scope(tuple(bindings.values()))


def _plain_location(text: str) -> Location | None:
    return _joined(Otherwise, [_plain_across(part) for part in text.split(";")])


def _plain_across(text: str) -> Location | None:
    return _joined(Across, [_plain_and(part) for part in _ACROSS.split(text)])


def _plain_and(text: str) -> Location | None:
    names = [_plain_name(part) for part in text.split("&")]
    return _joined(And, [None if name is None else At(name) for name in names])


def _joined(kind: type[Otherwise | Across | And], parts: Sequence[Location | None]) -> Location | None:
    found = tuple(part for part in parts if part is not None)
    if len(found) < len(parts):
        return None
    return found[0] if len(found) == 1 else kind(found)


def _plain_name(text: str) -> str | None:
    spelling = text.strip(_IGNORED)
    return read_name(spelling) if _NAME.fullmatch(spelling) else None


def parse(text: str, functions: Functions = BUILTIN) -> Scope:
    """The scope of a text; raises ScopeSyntaxError. Equal texts are parsed once."""
    return (_parse_short if len(text) <= _SHORT else _parse_long)(text, functions)


def _parse(text: str, functions: Functions) -> Scope:
    text = normal(text)
    scan(text)
    scope = plain(text)
    if scope is None:
        from cheops.scope.grammar import parse_by_grammar  # noqa: PLC0415 - few agents need it

        scope = parse_by_grammar(text, functions)
    # A text may be long because of its blanks: what counts is the canonical form, which other sites get.
    if len(text) > _SHORT and len(str(scope)) > MAX_CANONICAL:
        raise ScopeSyntaxError(f"the scope is longer than {MAX_CANONICAL:,} characters")
    return scope


# Two caches limit the memory that clients can cause us to use: many short texts, or a few long ones.
_parse_short = lru_cache(maxsize=1_024)(_parse)
_parse_long = lru_cache(maxsize=64)(_parse)
