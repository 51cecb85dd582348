"""Why the parser stopped, in words: what stands there, and what would have been accepted instead."""

import re
import unicodedata

from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from cheops.scope.errors import Place, ScopeSyntaxError
from cheops.text import shortened

_SIGNS = {
    "COLON": "':'",
    "AMPERSAND": "'&'",
    "PERCENT": "'%'",
    "SEMICOLON": "';'",
    "COMMA": "','",
    "RPAR": "')'",
    "RBRACE": "'}'",
    "$END": "the end",
}
_COMMA_HINT = "',' separates services; several sites of one service are joined with '&', '%' or ';'."
_BRACES_HINT = "Braces hold a location for each service: {image: site1}."
_DURATION_BEFORE = re.compile(r"[(,]\s*[0-9.]+m?s\s*$")
_HINTS = {
    "'": 'Names with unusual characters stand in double quotes: "Saint-Malo (2)".',
    "=": "A service and its location are joined with ':', as in {image: site1}.",
    "|": "'a ; b' means a, or b if a has a problem.",
    "/": 'Names with unusual characters stand in double quotes: "eu/west".',
}


def diagnose(parser: InteractiveParser, text: str, error: UnexpectedInput) -> ScopeSyntaxError:
    """The error to show for what the parser found."""
    accepted = set(parser.accepts())  # type: ignore[no-untyped-call]
    start = error.pos_in_stream if error.pos_in_stream is not None else len(text)
    end = start + 1
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        start = end = len(text.rstrip())
        found = "the scope ends too early"
    elif isinstance(error, UnexpectedToken):
        end = start + len(error.token)
        found = f"'{shortened(error.token)}' cannot stand here"
    else:
        found = f"{_character(text[start])} cannot stand here"
    return ScopeSyntaxError(
        f"{found}: expected {_words(accepted)}",
        place=Place(text, start, end),
        hint=_hint(text, start, accepted),
    )


def _words(accepted: set[str]) -> str:
    words = []
    if "LPAR" in accepted and "NAME" in accepted:
        words += ["a site", "a function", "'('"]
    elif "NAME" in accepted:
        words.append("a service name")
    elif "LPAR" in accepted:
        words.append("'('")
    if "DURATION" in accepted:
        words.append("a duration")
    words += [word for kind, word in _SIGNS.items() if kind in accepted]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _hint(text: str, start: int, accepted: set[str]) -> str | None:
    found = text[start : start + 1]
    if _DURATION_BEFORE.search(text[:start]) and "DURATION" not in accepted and "NAME" not in accepted:
        return 'A site that is called like a duration stands in quotes here: "10ms".'
    if found in _HINTS:
        return _HINTS[found]
    if accepted == {"COLON"}:
        return _COMMA_HINT if "," in text[:start] else _BRACES_HINT
    return _COMMA_HINT if found == "," and "NAME" not in accepted else None


def _character(character: str) -> str:
    if character.isascii():
        return f"'{character}'"
    return f"'{character}' ({unicodedata.name(character, 'unnamed').lower()})"
