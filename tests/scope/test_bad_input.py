"""Bad scopes: each is refused with one message that says what is wrong, where, and what would do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.scope import ScopeError, ScopeResolutionError, ScopeSyntaxError, SiteInfo, Snapshot, parse
from cheops.scope.parser import MAX_CANONICAL, MAX_CHARACTERS, MAX_DEPTH, MAX_SIGNS
from tests.scope.world import routed, world


def refusal(text: str) -> ScopeSyntaxError:
    with pytest.raises(ScopeSyntaxError) as refused:
        parse(text)
    return refused.value


SHOWN = [
    ("", "the scope is empty", None),
    (" \t\n", "the scope is empty", None),
    ("{}", "'}' is not allowed here: expected a service name", "}"),
    ("(site1", "this '(' is never closed", "("),
    ("{image: site1", "this '{' is never closed", "{"),
    ("site1)", "this ')' closes nothing", ")"),
    ("{image: (site1}", "')' must close '(' here, not '}'", "}"),
    ('{image: "site1}', "this quote is never closed", '"'),
    ('""', "a name cannot be empty", '""'),
    ('"  "', "a name cannot be empty", '"  "'),
    (r'"a\b"', 'a backslash in quotes is written \\\\ (and a quote \\")', "\\"),
    ("site1 &", "the scope ends too early: expected a site, a function or '('", ""),
    ("& site1", "'&' is not allowed here: expected a site, a function or '('", "&"),
    ("site1 & % site2", "'%' is not allowed here: expected a site, a function or '('", "%"),
    ("{image:}", "'}' is not allowed here: expected a site, a function or '('", "}"),
    ("{image: a, image: b}", "service 'image' is bound twice, first at character 2", "image"),
    ('{"DC 1": a, DC  1: b}', "service 'DC 1' is bound twice, first at character 2", "DC  1"),
    ("arround(a, 10ms)", "unknown function 'arround'", "arround"),
    (
        "around(a, 10)",
        "the radius in around(site, radius) is a duration such as 10ms or 1.5s, not '10'",
        "10",
    ),
    (
        "around(a, 10 ms)",
        "the radius in around(site, radius) is a duration such as 10ms or 1.5s, not '10 ms'",
        "10 ms",
    ),
    ("around(10ms, a)", "the site in around(site, radius) is one site, not '10ms'", "10ms"),
    ("around(a & b, 10ms)", "the site in around(site, radius) is one site, not 'a & b'", "a & b"),
    ("around(a)", "around(site, radius) takes 2 arguments, not 1", "around"),
    ("strong()", "strong(replication) takes 1 argument, not 0", "strong"),
    ("strong(10ms)", "the replication in strong(replication) is a location, not '10ms'", "10ms"),
    ("around(a, 0.0001ms)", "a duration is not finer than a microsecond, 0.001ms", "0.0001ms"),
    ("around(a, 86401s)", "a duration is at most one day, 86400s", "86401s"),
    ("a, b", "',' is not allowed here: expected ':', '&', '%', ';' or the end", ","),
    ("a\x07b", "the scope holds the control or invisible character U+0007", "\x07"),
    ("a\x00", "the scope holds the control or invisible character U+0000", "\x00"),
    ("a\u202eb", "the scope holds the control or invisible character U+202E", "\u202e"),
    ("a\udcff", "the scope holds the control or invisible character U+DCFF", "\udcff"),
    ('"a\tb"', "a quoted name cannot hold the control character U+0009", "\t"),
    (
        "a\u00a0b",
        "'\u00a0' (no-break space) is not allowed here: expected '(', ':', '&', '%', ';' or the end",
        "\u00a0",
    ),
    ("a\nb", "'b' is not allowed here: expected '(', ':', '&', '%', ';' or the end", "b"),
]


@pytest.mark.parametrize(("text", "problem", "underlined"), SHOWN)
def test_refusal_says_what_and_where(text: str, problem: str, underlined: str | None) -> None:
    error = refusal(text)
    assert error.problem == problem
    if underlined is None:
        assert error.place is None
    else:
        assert error.place
        assert error.place.text == text
        assert text[error.place.start : error.place.end] == underlined
        assert "^" in str(error)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "Say where, for example {image: site1} or site1 & site2."),
        (
            "{image: a, b}",
            "',' separates services; several sites of one service are joined with '&', '%' or ';'.",
        ),
        ("{site1}", "Braces hold a location for each service: {image: site1}."),
        ("{image=a}", "A service and its location are joined with ':', as in {image: site1}."),
        ("a | b", "'a ; b' means a, or b if a has a problem."),
        ("around(a, 10)", "It has no unit: write 10ms or 10s."),
        ("around(a, 10 MS)", "Write 10ms."),
        ("strong(10ms & a)", 'A site whose name looks like a duration needs quotes here: "10ms".'),
        ("arround(a, 1s)", "Did you mean 'around'? Known functions: around, atomic, eventual, none, strong."),
    ],
)
def test_refusal_says_what_to_do(text: str, hint: str) -> None:
    assert refusal(text).hint == hint


def test_a_megabyte_is_refused_by_its_length() -> None:
    error = refusal("a & " * 250_000)
    assert error.problem == f"the scope is longer than {MAX_CHARACTERS:,} characters"
    assert len(str(error)) < 200


@pytest.mark.parametrize("text", ["(" * 10_000, "(" * 10_000 + "a" + ")" * 10_000, "strong(" * 1_500])
def test_deep_nesting_is_refused(text: str) -> None:
    error = refusal(text)
    assert error.problem == f"more than {MAX_DEPTH} brackets are open here; use fewer"
    assert len(str(error)) < 400


@pytest.mark.parametrize("text", ["a&" * MAX_SIGNS + "a & b", "&".join(["((a))"] * 600), "&".join(["none(a)"] * 700)])
def test_too_many_signs_are_refused(text: str) -> None:
    assert refusal(text).problem == f"more than {MAX_SIGNS:,} operators and brackets; use fewer"


AT_THE_LIMIT = [
    "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "{s: " + "strong(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH + "}",
    "s: " + "strong(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "&".join("x" for _ in range(MAX_SIGNS + 1)),
    "s: " + "&".join(f"a-site-with-a-long-name-{number}" for number in range(1_000)),
    "&".join("x" * 13 for _ in range(MAX_SIGNS)),
]


@pytest.mark.parametrize("text", AT_THE_LIMIT)
def test_what_is_accepted_at_the_limits_has_an_accepted_canonical_text(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)


def test_the_canonical_text_is_limited_whatever_was_typed() -> None:
    text = "&".join("x" * 15 for _ in range(2_000))
    assert len(text) < MAX_CANONICAL
    assert refusal(text).problem == f"the scope is longer than {MAX_CANONICAL:,} characters"


@pytest.mark.parametrize(
    "text", ["a\n" + "b" * 30_000, "f" * 30_000 + "(a)", f"{{{'s' * 9_000}: a, {'s' * 9_000}: b}}"]
)
def test_foreign_text_does_not_flood_a_message(text: str) -> None:
    assert len(str(refusal(text))) < 500


@pytest.mark.parametrize(
    "character",
    ["\u3164", "\u115f", "\uffa0", "\u2800", "\ufe0f", "\u034f", "\U000e0001", "\U000e0061", "\U0001d173"],
)
@pytest.mark.parametrize("form", ["a{}", '"a{}b"'])
def test_no_character_that_cannot_be_seen_is_accepted(character: str, form: str) -> None:
    assert "invisible character" in refusal(form.format(character)).problem


def test_names_that_look_the_same_are_the_same() -> None:
    assert parse("cafe\u0301") == parse("caf\u00e9") == parse('"cafe\u0301"')


def test_a_long_text_is_shown_as_an_excerpt_around_the_caret() -> None:
    lines = str(refusal("{image: " + "site & " * 100 + "| b}")).splitlines()
    assert lines[1].startswith("  …")
    assert lines[1][lines[2].index("^")] == "|"
    assert max(map(len, lines)) < 110


@pytest.mark.parametrize("prefix", ["日本 & ", "x\u0331"])
def test_the_caret_counts_columns_not_characters(prefix: str) -> None:
    lines = str(refusal(f'"{prefix}" & |')).splitlines()
    columns = {"日本 & ": 12, "x\u0331": 6}[prefix]
    assert lines[2].index("^") == 2 + columns


@given(st.one_of(st.text(), st.text(alphabet='{}()&%;:,+"\\ab1.- \nms', max_size=60)))
def test_any_text_is_a_scope_or_refused_with_a_message(text: str) -> None:
    try:
        scope = parse(text)
    except ScopeSyntaxError as error:
        str(error).encode("utf-8")  # it can be printed
    else:
        assert parse(str(scope)) == scope


RESOLUTION = [
    (
        "{image: siet2}",
        "unknown site 'siet2'",
        "Did you mean 'site2'? Known sites: site1, site2, site3, site4.",
    ),
    (
        "{image: SITE2}",
        "unknown site 'SITE2'",
        "Did you mean 'site2'? Known sites: site1, site2, site3, site4.",
    ),
    (
        "{image: site1 site2}",
        "unknown site 'site1 site2'",
        "Is an operator missing, as in 'site1 & site2'? Known sites: site1, site2, site3, site4.",
    ),
    (
        "strong(site1)",
        "strong(…) is a level of replication, and 'site1' is not replicated",
        "Put it around a whole replication: strong(site1 & site2).",
    ),
    (
        "strong(site1 & site2) & site3",
        "'strong(site1 & site2) & site3' gives a level to some of its replicas only",
        "Put it around the whole replication: strong(a & b & c).",
    ),
    (
        "strong(atomic(site1 & site2))",
        "'atomic(site1 & site2)' has a level already: it is either atomic or strong",
        None,
    ),
    (
        "site1 & (site2 % site3)",
        "'site1 & (site2 % site3)' replicates a resource that spans sites, which is not possible",
        "Replicate its parts instead: (a & b) % (c & d).",
    ),
]


@pytest.mark.parametrize(("text", "problem", "hint"), RESOLUTION)
def test_what_cannot_be_resolved_is_refused(text: str, problem: str, hint: str | None) -> None:
    with pytest.raises(ScopeResolutionError) as refused:
        routed(text, "image")
    assert (refused.value.problem, refused.value.hint) == (problem, hint)


def test_unknown_names_are_underlined_in_their_role() -> None:
    with pytest.raises(ScopeError) as refused:
        routed("{image: network, network: site1}", "image")
    assert str(refused.value).splitlines()[1:3] == ["  {image: network, network: site1}", "          ^^^^^^^"]


def test_an_unknown_service_is_refused_also_when_another_one_is_asked_for() -> None:
    with pytest.raises(ScopeError, match="unknown service 'imgae'"):
        routed("{compute: site1, imgae: site2}", "compute")


def test_an_unknown_service_lists_the_known_ones() -> None:
    with pytest.raises(ScopeError, match=r"Did you mean 'image'\? Known services: .*compute"):
        routed("site1", "imag")


def test_around_with_nobody_near_says_who_is_nearest() -> None:
    snapshot = world()
    sites = {**snapshot.sites, "site9": SiteInfo("site9")}
    rtts_ms = {**snapshot.rtts_ms, frozenset(("site9", "site3")): 25.0}
    with pytest.raises(ScopeError, match="no service 'image' is known within 10ms of 'site9'") as refused:
        routed("around(site9, 10ms)", "image", Snapshot("site1", sites, rtts_ms))
    assert refused.value.hint == "The nearest is 'site3', 25 ms away."


def test_a_level_inside_an_alternative_is_a_partial_one_too() -> None:
    with pytest.raises(ScopeError, match="gives a level to some of its replicas only"):
        routed("site1 & (strong(site2 & site3) ; site4)")
