"""From the parser's tree to ours, with the checks that a grammar cannot make: one binding per service,
functions that exist, arguments of the right number and kind, durations within reason.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TypeAlias

from lark import Token, Tree

from cheops.scope.errors import Place, ScopeSyntaxError
from cheops.scope.functions import Function, Functions, Kind
from cheops.scope.names import is_duration, read_name
from cheops.scope.tree import Across, And, Argument, At, Binding, Call, Duration, Location, Otherwise, Scope
from cheops.text import listed, nearest, shortened

_MAX_DURATION_US = 86_400_000_000  # one day: nothing on one planet is further away

Node: TypeAlias = Tree[Token]


class Builder:
    """Turns the parser's tree of one text into ours."""

    def __init__(self, text: str, functions: Functions) -> None:
        self._text = text
        self._functions = functions

    def scope(self, tree: Node) -> Scope:
        if tree.data == "bare":
            return Scope((Binding(None, self._location(*_trees(tree))),))
        first_places: dict[str, Token] = {}
        return Scope(tuple(self._binding(node, first_places) for node in _trees(tree)))

    def _binding(self, node: Node, first_places: dict[str, Token]) -> Binding:
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

    def _location(self, node: Node) -> Location:
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

    def _call(self, node: Node) -> Call:
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

    def _argument(self, function: Function, index: int, node: Token | Node) -> Argument:
        kind = function.parameters[index].kind
        if isinstance(node, Token):
            if kind is not Kind.DURATION:
                raise self._wrong_kind(function, index, node)
            return self._duration(node)
        location = self._location(node)
        if kind is Kind.DURATION or (kind is Kind.SITE and not isinstance(location, At | Call)):
            raise self._wrong_kind(function, index, node, location)
        return location

    def _wrong_kind(
        self, function: Function, index: int, node: Token | Node, location: Location | None = None
    ) -> ScopeSyntaxError:
        parameter = function.parameters[index]
        given = str(node if location is None else location)
        wanted = f"the {parameter.name} in {function.signature} is {parameter.kind.value}"
        hint = _duration_hint(location.site) if isinstance(location, At) else None
        return self._problem(
            node, f"{wanted}, not '{shortened(given)}'", hint if parameter.kind is Kind.DURATION else None
        )

    def _duration(self, token: Token) -> Duration:
        number, unit = (token[:-2], 1_000) if token.endswith("ms") else (token[:-1], 1_000_000)
        us = Decimal(number) * unit
        if us > _MAX_DURATION_US:
            raise self._problem(token, "a duration is at most one day, 86400s")
        if us != us.to_integral_value():
            raise self._problem(token, "a duration is not finer than a microsecond, 0.001ms")
        return Duration(int(us))

    def _problem(self, node: Token | Node, problem: str, hint: str | None = None) -> ScopeSyntaxError:
        tokens = [node] if isinstance(node, Token) else list(_tokens(node))
        place = Place(self._text, tokens[0].start_pos or 0, tokens[-1].end_pos or 0)
        return ScopeSyntaxError(problem, place=place, hint=hint)


def _name(node: Node) -> Token:
    """The name that a binding, a site or a call starts with."""
    first = node.children[0]
    assert isinstance(first, Token)  # noqa: S101 - the grammar has it so
    return first


def _tokens(node: Node) -> Iterator[Token]:
    """All names and durations below a node, in reading order."""
    return (token for token in node.scan_values(lambda value: isinstance(value, Token)))


def _trees(node: Node) -> list[Node]:
    return [child for child in node.children if isinstance(child, Tree)]


def _duration_hint(site: str) -> str | None:
    """What was probably meant by a name that stands where a duration must."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", site):
        return f"It has no unit: write {site}ms or {site}s."
    closed = site.replace(" ", "").lower()
    return f"Write {closed}." if is_duration(closed) else None


def _count(parameters: int) -> str:
    return {0: "no argument", 1: "1 argument"}.get(parameters, f"{parameters} arguments")
