"""Scopes as the grammar has them: lark parses with grammar.lark, `TreeBuilder` makes our own tree and checks what a
grammar cannot express (one binding per service, known functions, their arguments), and `diagnose` explains what the
parser refuses.

Imported when the first scope comes that `parser` does not read by itself: lark and its tables take 2 MB.
"""

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import TypeAlias

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from cheops.scope.errors import ScopeSyntaxError, Span
from cheops.scope.functions import Function, Functions, Kind
from cheops.scope.names import is_duration, read_name
from cheops.scope.tree import Across, And, Argument, At, Binding, Call, Duration, Location, Otherwise, Scope
from cheops.text import listed, nearest, shortened

_MAX_DURATION_US = 86_400_000_000  # one day, far above any round-trip time: keeps numbers small

ParseTree: TypeAlias = Tree[Token]


class TreeBuilder:
    """Turns the parser's tree of one text into ours."""

    def __init__(self, text: str, functions: Functions) -> None:
        self._text = text
        self._functions = functions

    def scope(self, tree: ParseTree) -> Scope:
        if tree.data == "bare":
            return Scope((Binding(None, self._location(*_trees(tree))),))
        first_places: dict[str, Token] = {}
        return Scope(tuple(self._binding(node, first_places) for node in _trees(tree)))

    def _binding(self, node: ParseTree, first_places: dict[str, Token]) -> Binding:
        service = read_name(_name(node))
        first = first_places.setdefault(service, _name(node))
        if first is not _name(node):
            where = (first.start_pos or 0) + 1
            raise self._problem(
                _name(node),
                f"service '{shortened(service)}' is bound twice, first at character {where}",
                "Name each service once; several sites of one service are joined with '&', '%' or ';'.",
            )
        return Binding(service, self._location(*_trees(node)))

    def _location(self, node: ParseTree) -> Location:
        match node.data:
            case "at":
                return At(read_name(_name(node)))
            case "call":
                return self._call(node)
        parts = tuple(map(self._location, _trees(node)))
        match node.data:
            case "and_":
                return And(parts)
            case "across":
                return Across(parts)
            case _:
                return Otherwise(parts)

    def _call(self, node: ParseTree) -> Call:
        name = _name(node)
        function = self._functions.get(read_name(name))
        if function is None:
            raise self._unknown_function(name)
        arguments = node.children[1:]
        if len(arguments) != len(function.parameters):
            raise self._problem(
                name,
                f"{function.signature} takes {_count(len(function.parameters))}, not {len(arguments)}",
            )
        return Call(function.name, tuple(self._argument(function, i, a) for i, a in enumerate(arguments)))

    def _unknown_function(self, name: Token) -> ScopeSyntaxError:
        known = [function.name for function in self._functions]
        suggestion = nearest(name, known)
        hint = f"Did you mean '{suggestion}'? " if suggestion else ""
        hint += f"Known functions: {listed(known)}."
        return self._problem(name, f"unknown function '{shortened(name)}'", hint)

    def _argument(self, function: Function, index: int, node: Token | ParseTree) -> Argument:
        kind = function.parameters[index].kind
        if isinstance(node, Token):
            if kind is not Kind.DURATION:
                raise self._wrong_kind(function, index, node)
            return self._duration(node)
        location = self._location(node)
        # Whether a call gives one site is known only when it is expanded; `expand` checks that.
        if kind is Kind.DURATION or (kind is Kind.SITE and not isinstance(location, At | Call)):
            raise self._wrong_kind(function, index, node, location)
        return location

    def _wrong_kind(
        self, function: Function, index: int, node: Token | ParseTree, location: Location | None = None
    ) -> ScopeSyntaxError:
        parameter = function.parameters[index]
        written = str(node if location is None else location)
        wanted = f"the {parameter.name} in {function.signature} is {parameter.kind.value}"
        hint = _duration_hint(location.site) if isinstance(location, At) else None
        return self._problem(
            node, f"{wanted}, not '{shortened(written)}'", hint if parameter.kind is Kind.DURATION else None
        )

    def _duration(self, token: Token) -> Duration:
        number, unit = (token[:-2], 1_000) if token.endswith("ms") else (token[:-1], 1_000_000)
        us = Decimal(number) * unit  # exact: 0.1ms must equal 100 microseconds, not about that
        if us > _MAX_DURATION_US:
            raise self._problem(token, "a duration is at most one day, 86400s")
        if us != us.to_integral_value():
            raise self._problem(token, "a duration is not finer than a microsecond, 0.001ms")
        return Duration(int(us))

    def _problem(self, node: Token | ParseTree, problem: str, hint: str | None = None) -> ScopeSyntaxError:
        tokens = [node] if isinstance(node, Token) else list(_tokens(node))
        place = Span(self._text, tokens[0].start_pos or 0, tokens[-1].end_pos or 0)
        return ScopeSyntaxError(problem, place=place, hint=hint)


def _name(node: ParseTree) -> Token:
    """The name that a binding, a site or a call starts with."""
    first = node.children[0]
    assert isinstance(first, Token)  # noqa: S101 - the grammar has it so
    return first


def _tokens(node: ParseTree) -> Iterator[Token]:
    """All names and durations below a node, in reading order."""
    return (token for token in node.scan_values(lambda value: isinstance(value, Token)))


def _trees(node: ParseTree) -> list[ParseTree]:
    return [child for child in node.children if isinstance(child, Tree)]


def _duration_hint(site: str) -> str | None:
    """What the user probably meant by a name in the place of a duration."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", site):
        return f"It has no unit: write {site}ms or {site}s."
    compact = site.replace(" ", "").lower()
    return f"Write {compact}." if is_duration(compact) else None


def _count(parameters: int) -> str:
    return {0: "no argument", 1: "1 argument"}.get(parameters, f"{parameters} arguments")


_SIGN_NAMES = {
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
    # What users of shells and other languages type instead.
    "'": 'Names with unusual characters need double quotes: "Saint-Malo (2)".',
    "=": "A service and its location are joined with ':', as in {image: site1}.",
    "|": "'a ; b' means a, or b if a has a problem.",
    "/": 'Names with unusual characters need double quotes: "eu/west".',
}


def diagnose(parser: InteractiveParser, text: str, error: UnexpectedInput) -> ScopeSyntaxError:
    """The error to show for an error of the parser."""
    accepted = set(parser.accepts())  # type: ignore[no-untyped-call]
    start = error.pos_in_stream if error.pos_in_stream is not None else len(text)
    end = start + 1
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        start = end = len(text.rstrip())  # the caret goes right behind the last word, not behind blanks
        problem = "the scope ends too early"
    elif isinstance(error, UnexpectedToken):
        end = start + len(error.token)
        problem = f"'{shortened(error.token)}' is not allowed here"
    else:
        problem = f"{_character(text[start])} is not allowed here"
    return ScopeSyntaxError(
        f"{problem}: expected {_words(accepted)}",
        place=Span(text, start, end),
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
    words += [word for kind, word in _SIGN_NAMES.items() if kind in accepted]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _hint(text: str, start: int, accepted: set[str]) -> str | None:
    character = text[start : start + 1]
    if _DURATION_BEFORE.search(text[:start]) and "DURATION" not in accepted and "NAME" not in accepted:
        return 'A site whose name looks like a duration needs quotes here: "10ms".'
    if character in _HINTS:
        return _HINTS[character]
    if accepted == {"COLON"}:
        return _COMMA_HINT if "," in text[:start] else _BRACES_HINT
    return _COMMA_HINT if character == "," and "NAME" not in accepted else None


def _character(character: str) -> str:
    if character.isascii():
        return f"'{character}'"
    return f"'{character}' ({unicodedata.name(character, 'unnamed').lower()})"


@cache
def _grammar() -> Lark:
    """The grammar, compiled when it is first needed: that takes time."""
    return Lark.open_from_package(__package__, "grammar.lark", parser="lalr", maybe_placeholders=False)


def parse_by_grammar(text: str, functions: Functions) -> Scope:
    """The scope of a text that `scan` has let pass; raises ScopeSyntaxError."""
    parser = _grammar().parse_interactive(text)  # on an error it says what it would have accepted
    try:
        parser.exhaust_lexer()
        tree = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedInput as error:
        raise diagnose(parser, text, error) from None
    return TreeBuilder(text, functions).scope(tree)
