"""Where the next page of a list over several sites begins."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cheops.config.pages import PagesConfig
from cheops.errors import ClientError
from cheops.gateway.json_items import BodyError
from cheops.gateway.pages import (
    Next,
    Position,
    after_page,
    limit_of,
    link_to_next,
    next_in,
    next_member,
    parameter,
    position_of,
    read,
    signs_of_pages,
    unexplained_parameters,
    with_parameter,
    written,
)

MARKERS = PagesConfig(limit="limit", marker="marker", next=("$", "next"))
NUMBERS = PagesConfig(limit="per_page", page="page", next=("Link",))
NAMES = st.text(min_size=1, max_size=12)


def beside(**members: Any) -> dict[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in members.items()}


@given(
    st.builds(
        Position,
        parts=st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
        part=st.just(0),
        query=st.none(),
        site=NAMES,
        seen=st.text(max_size=12),
        missing=st.lists(st.tuples(NAMES, st.integers(100, 599)), max_size=3).map(tuple),
        style=st.sampled_from(["", "url", "token", "links"]),
    )
)
def test_markers_are_read_as_they_were_written(position: Position) -> None:
    for one in (position, structs.replace(position, query="a=b%20&c=+", site=position.parts[0][0])):
        assert position_of(MARKERS, with_parameter("limit=3", "marker", written(one))) == one


@given(st.text() | st.binary().map(lambda data: "cheops1." + data.hex()) | st.just(written(Position((("a",),), 0))))
def test_other_texts_are_refused(text: str) -> None:
    try:
        read(text)
    except ClientError:
        return
    assert text == written(Position((("a",),), 0))


@pytest.mark.parametrize(
    "position",
    [
        Position((), 0),
        Position((("a",),), 1),
        Position((("a",),), -1),
        Position(((),), 0),
        Position((("a",),), 0, "a b", "a"),
        Position((("a",),), 0, "a\r\nX: y", "a"),
        Position((("a",),), 0, "a#b", "a"),
        Position((("a",),), 0, "a" * 10_000, "a"),
        Position((("a",), ("b",)), 0, "a", "b"),
        Position((("a",), ("b",)), 0, "a", "site9"),
    ],
)
def test_markers_that_cannot_be_followed(position: Position) -> None:
    with pytest.raises(ClientError):
        read(written(position))


def test_queries() -> None:
    assert parameter("a=1&limit=2&limit=3", "limit") == "2"
    assert with_parameter("a=1&limit=2&b=%20x", "limit", "5") == "a=1&b=%20x&limit=5"
    assert with_parameter("l%69mit=2", "limit", None) == ""
    assert with_parameter("", "page[number]", "a/b") == "page[number]=a%2Fb"
    assert [limit_of(MARKERS, f"limit={text}") for text in ("5", "0", "-1", "x", "9" * 20)] == [5, *([None] * 4)]
    assert unexplained_parameters("name=x&Limit=5&page%5Bsize%5D=1") == ["Limit", "page[size]"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        (False, None),
        ("/v2/images?marker=5", Next("marker=5", "url")),
        ("http://h:1/base/v2/images?marker=5&x=1", Next("marker=5&x=1", "url")),
        ("?marker=5", Next("marker=5", "url")),
        ("token5", Next("limit=2&marker=token5", "token")),
        ({"href": "/v2/images?marker=5"}, Next("marker=5", "url")),
        ([{"rel": "self", "href": "x"}, {"rel": "next", "href": "/v2/images?a=1"}], Next("a=1", "links")),
        ([], None),
    ],
)
def test_what_services_say_comes_next(value: Any, expected: Next | None) -> None:
    assert next_in(MARKERS, (), beside(next=value), ("/v2/images", "limit=2&marker=1")) == expected


@pytest.mark.parametrize("value", [5, "/v2/other?marker=1", "/v2/images/", "/v2/images?", "?a b", "http://["])
def test_what_leads_astray(value: Any) -> None:
    with pytest.raises(BodyError):
        next_in(MARKERS, (), beside(next=value), ("/v2/images", ""))


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ('</a?page=2>; rel="next"', "/a?page=2"),
        ('</a?page=1>; rel=prev, </a?page=3,4>; title="x"; rel=next', "/a?page=3,4"),
        ('</a?page=2>; rel="last next"', "/a?page=2"),
        ('</a?page=2>; rel="nextish"', None),
        ("</a>", None),
        ("<" * 1000, None),
    ],
)
def test_links(value: str, url: str | None) -> None:
    assert link_to_next((("link", value),)) == url


@pytest.mark.parametrize(
    ("members", "sign"),
    [
        ({}, None),
        ({"next": None, "has_more": False, "metadata": {"continue": ""}}, None),
        ({"next": "/x"}, "$.next"),
        ({"nextPageToken": "x"}, "$.nextPageToken"),
        ({"has_more": True}, "$.has_more"),
        ({"metadata": {"continue": "x"}}, "$.metadata.continue"),
        ({"servers_links": [{"rel": "next", "href": "x"}]}, "$.servers_links"),
        ({"links": {"next": {"href": "x"}}}, "$.links.next"),
    ],
)
def test_signs_of_pages(members: dict[str, Any], sign: str | None) -> None:
    assert signs_of_pages((), beside(**members)) == sign


def test_services_that_say_nothing_are_asked_until_a_page_is_empty() -> None:
    silent, numbers = PagesConfig(limit="limit", marker="marker"), PagesConfig(limit="n", page="p")
    assert after_page(silent, "limit=2&marker=a", 2, "b") == Next("limit=2&marker=b")
    assert after_page(silent, "limit=2", 1, "b") == Next("limit=2&marker=b")
    assert after_page(silent, "limit=2", 0, None) is None
    assert after_page(numbers, "n=2&p=3", 2, None) == Next("n=2&p=4")
    with pytest.raises(BodyError):
        after_page(silent, "limit=2", 2, None)
    with pytest.raises(BodyError):
        after_page(numbers, "n=2&p=x", 2, None)


@pytest.mark.parametrize(
    ("next_", "style", "expected"),
    [
        (("$", "next"), "", ("next", "/x?marker=m")),
        (("$", "next"), "token", ("next", "m")),
        (("$", "x_links"), "", ("x_links", [{"rel": "next", "href": "/x?marker=m"}])),
        (("$", "metadata", "continue"), "", ("metadata", {"continue": "m"})),
        (("Link",), "url", None),
        ((), "", None),
    ],
)
def test_what_the_client_is_told(next_: tuple[str, ...], style: str, expected: Any) -> None:
    assert next_member(PagesConfig(limit="limit", marker="marker", next=next_), style, "/x", "marker=m") == expected
