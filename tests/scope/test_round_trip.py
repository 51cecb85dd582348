"""The law of canonical text: parsing it gives the same scope back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cheops.scope import BUILTIN, At, Duration, Scope, parse
from cheops.scope.grammar import parse_by_grammar
from cheops.scope.names import read_name, write_name
from cheops.scope.parser import plain, scan
from tests.scope.strategies import durations, names, scopes


@given(scopes)
def test_parsing_the_canonical_text_gives_the_scope_back(scope: Scope) -> None:
    assert parse(str(scope)) == scope


@given(scopes)
def test_canonical_text_is_a_fixed_point(scope: Scope) -> None:
    assert str(parse(str(scope))) == str(scope)


@given(names)
@example("10ms")
@example("DC  1")
def test_reading_a_written_name_gives_the_name_back(name: str) -> None:
    assert read_name(write_name(name)) == name


@given(durations)
def test_durations_survive(duration: Duration) -> None:
    assert parse(f"around(a, {duration})").bindings[0].location.arguments[1] == duration  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spellings", "canonical"),
    [
        (["{image:site1}", " image : site1 ", "{ image : (site1) }"], "{image: site1}"),
        (["a&b&c", "(a & b) & c", "a & (b & (c))", "((a)) &\tb\n& c"], "a & b & c"),
        (["a + b", "a%b"], "a % b"),
        (["a & b % c ; d", "((a & b) % c) ; d"], "a & b % c ; d"),
        (["a & (b ; c)", "a & ((b) ; c)"], "a & (b ; c)"),
        (["{c: DC   1}", '{c: "DC 1"}'], "{c: DC 1}"),
        (["around( a ,1.50s )", "around(a, 1500ms)"], "around(a, 1500ms)"),
        (["around(a, 2000ms)"], "around(a, 2s)"),
        (['"10ms"', "10ms"], '"10ms"'),
    ],
)
def test_every_spelling_has_one_canonical_text(spellings: list[str], canonical: str) -> None:
    assert {str(parse(spelling)) for spelling in spellings} == {canonical}


def test_a_quoted_name_may_hold_anything_visible() -> None:
    assert parse(r'"Saint-Malo (2) & \"Brest\" \\ {x}"').bindings[0].location == At(r'Saint-Malo (2) & "Brest" \ {x}')


_PIECES = (
    "a",
    "b1",
    "DC 1",
    "10ms",
    "é",
    "&",
    " & ",
    "%",
    "+",
    ";",
    ":",
    ",",
    " ",
    "\t",
    "\n",
    "{",
    "}",
    "-x",
    ".",
    "(",
    '"q"',
)


@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=9).map("".join))
@example("{a: b & c, d: e ; f}")
@example("{a: b, a: c}")
@example("{a}")
def test_what_is_read_without_the_grammar_is_what_the_grammar_says(text: str) -> None:
    if scope := plain(text):
        scan(text)
        assert scope == parse_by_grammar(text, BUILTIN)


def test_a_plain_scope_needs_no_grammar() -> None:
    assert plain("{compute: site1, image: site2 & DC 1 ; x}") == parse("{compute: site1, image: site2 & DC 1 ; x}")
    assert plain("around(a, 10ms)") is None


def test_equal_texts_are_parsed_once() -> None:
    assert parse("{cached: once & only}") is parse("{cached: once & only}")
