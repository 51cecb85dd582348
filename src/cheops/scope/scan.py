"""A first look at a text, before the parser: limits, characters, quotes and brackets.

It costs one pass, so that hostile input (a megabyte, ten thousand parentheses) is refused before
anything grows with it, and it says more than a grammar can: *this* bracket is never closed.
"""

import re

from cheops.scope.errors import Place, ScopeSyntaxError
from cheops.text import code_point, is_invisible

MAX_CANONICAL = 32_768  # characters of the canonical text: a thousand sites with long names fit
MAX_CHARACTERS = 65_536  # of the text as it was typed, blanks and all
MAX_SIGNS = 2_048  # operators, commas and parentheses: what the parser's time depends on
MAX_DEPTH = 64

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"?|[(){}&%+;,]', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\[^"\\]', re.DOTALL)
_BLANKS = "\t\r\n"
_EXAMPLES = "for example {image: site1} or site1 & site2"
_CLOSING = {"(": ")", "{": "}"}


def scan(text: str) -> None:
    """Refuse a text that no parser should see; says nothing about its grammar."""
    if len(text) > MAX_CHARACTERS:
        raise ScopeSyntaxError(f"the scope is longer than {MAX_CHARACTERS:,} characters")
    if not text.strip():
        raise ScopeSyntaxError("the scope is empty", hint=f"Say where, {_EXAMPLES}.")
    for position, character in enumerate(text):
        if not " " <= character <= "~" and character not in _BLANKS and is_invisible(character):
            raise ScopeSyntaxError(
                f"the scope holds the control or invisible character {code_point(character)}",
                place=Place(text, position, position + 1),
            )
    _scan_signs(text)


def _scan_signs(text: str) -> None:
    signs = 0
    opened: list[re.Match[str]] = []
    for sign in _SIGNS.finditer(text):
        character = sign.group()[0]
        signs += character not in '"{}'  # braces are optional, so they do not count
        if signs > MAX_SIGNS:
            raise _problem(text, sign, f"more than {MAX_SIGNS:,} operators and brackets; fewer will do")
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
        raise ScopeSyntaxError(
            "this quote is never closed", place=Place(text, quoted.start(), quoted.start() + 1)
        )
    if not spelling[1:-1].strip():
        raise _problem(text, quoted, "a name cannot be empty")
    if bad := re.search(r"[\t\r\n]", spelling):
        start = quoted.start() + bad.start()
        raise ScopeSyntaxError(
            f"a quoted name cannot hold the control character {code_point(bad.group())}",
            place=Place(text, start, start + 1),
        )
    if bad := _BAD_ESCAPE.search(re.sub(r'\\["\\]', "__", spelling)):
        start = quoted.start() + bad.start()
        raise ScopeSyntaxError(
            'a backslash in quotes is written \\\\ (and a quote \\")', place=Place(text, start, start + 1)
        )


def _check_depth(text: str, sign: re.Match[str], opened: list[re.Match[str]]) -> None:
    allowed = MAX_DEPTH + (opened[0].group() == "{")
    if len(opened) > allowed:
        raise _problem(text, sign, f"more than {MAX_DEPTH} brackets are open here; fewer will do")


def _check_closing(text: str, sign: re.Match[str], opened: list[re.Match[str]]) -> None:
    if not opened:
        raise _problem(text, sign, f"this '{sign.group()}' closes nothing")
    expected = _CLOSING[opened[-1].group()]
    if sign.group() != expected:
        raise _problem(
            text, sign, f"this '{sign.group()}' stands where '{expected}' must close '{opened[-1].group()}'"
        )
    opened.pop()


def _problem(text: str, sign: re.Match[str], problem: str) -> ScopeSyntaxError:
    return ScopeSyntaxError(problem, place=Place(text, sign.start(), sign.end()))
