"""The items of a list: the same however the body is cut, and nothing but BodyError for what is no list."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.gateway.json_items import MAX_BESIDE_BYTES, BodyError, ListNames, ListSplitter, Shape, checked

NAMES = ListNames(in_path=frozenset({"servers"}))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
CUTS = st.lists(st.integers(0, 400), max_size=40).map(sorted)
BESIDE = st.dictionaries(st.text(max_size=6).filter(lambda n: not NAMES.is_list(n) and n != "id"), VALUES, max_size=3)


def split(body: bytes, cuts: list[int]) -> tuple[ListSplitter, list[bytes]]:
    splitter, items, start = ListSplitter(NAMES), [], 0
    for end in (*cuts, len(body)):
        items += splitter.feed(body[start:end])
        start = max(start, end)
    splitter.finish()
    return splitter, items


def written(value: Any, indent: int | None, *, is_ascii: bool) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")


@given(st.lists(VALUES, max_size=6), CUTS, st.sampled_from([None, 1]), st.booleans())
def test_the_items_of_an_array(items: list[Any], cuts: list[int], indent: int | None, is_ascii: bool) -> None:
    splitter, found = split(written(items, indent, is_ascii=is_ascii), cuts)
    assert [json.loads(item) for item in found] == items
    assert (splitter.shape, splitter.beside, splitter.is_complete) == (Shape.ARRAY, {}, True)


@given(BESIDE, st.lists(VALUES, max_size=5), BESIDE, CUTS, st.sampled_from([None, 2]))
def test_the_items_of_a_member(
    before: dict[str, Any], items: list[Any], after: dict[str, Any], cuts: list[int], indent: int | None
) -> None:
    body = {**before, "servers": items, **{k: v for k, v in after.items() if k not in before}}
    splitter, found = split(written(body, indent, is_ascii=True), cuts)
    assert [json.loads(item) for item in found] == items
    assert {name: json.loads(value) for name, value in splitter.beside.items()} == {
        name: value for name, value in body.items() if name != "servers"
    }
    assert (splitter.shape, splitter.list_name) == (Shape.OBJECT, "servers")


@given(VALUES.filter(lambda value: not isinstance(value, list)), CUTS)
def test_any_json_is_a_list_or_a_document(value: Any, cuts: list[int]) -> None:
    splitter, found = split(written(value, None, is_ascii=True), cuts)
    assert splitter.shape is not None
    assert not found or (splitter.shape is Shape.OBJECT and "servers" in value)


@given(st.binary(max_size=60) | st.text('[]{}",:\\1 e-serv', max_size=60).map(str.encode), CUTS)
def test_hostile_bytes(body: bytes, cuts: list[int]) -> None:
    """What is not refused is JSON, item by item; and it does not depend on how the body is cut."""
    outcomes: list[Any] = []
    for one in ([], cuts, list(range(len(body)))):
        try:
            splitter, items = split(body, one)
            for item in items:
                checked(item)
            outcomes.append((splitter.shape, items, splitter.beside))
        except BodyError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    if outcomes[0] and outcomes[0][0] in (Shape.ARRAY, Shape.OBJECT):
        json.loads(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[1,]", "found ']'"),
        (b"[1 2]", "found '2'"),
        (b"[1", "cut off"),
        (b"", "cut off"),
        (b"<html>", "found '<'"),
        (b'{"servers": [], "servers": []}', "two lists"),
        (b"[]x", "found 'x'"),
        (b'{"a" 1}', "found '1'"),
        (b'{"\\x": 1}', "not JSON"),
        (b'{"servers": [], "a": {]}}', "not JSON"),
        (b"[" + b"1" * 2_000_000, "larger than"),
        (b'["' + b"1" * 2_000_000, "larger than"),
        (b'{"' + b"n" * 3_000, "longer than"),
        (b'{"servers": [], "x": "' + b"1" * MAX_BESIDE_BYTES, "beside the list"),
    ],
)
def test_what_is_refused(body: bytes, why: str) -> None:
    for cuts in ([], list(range(0, len(body), 977))):
        with pytest.raises(BodyError, match=why):
            split(body, cuts)


def test_deep_nesting() -> None:
    with pytest.raises(BodyError, match="too deep"):
        checked(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize("body", [b'{"id": 5, "servers": [1]}', b'{"data": 1}', b"5 ", b'"x"', b"{}", b'{"x": [1]}'])
def test_documents(body: bytes) -> None:
    assert split(body, [])[0].shape is Shape.DOCUMENT


def test_a_large_document_is_not_held() -> None:
    splitter = ListSplitter(NAMES)
    splitter.feed(b'{"text": "')
    for _ in range(200):
        assert splitter.feed(b"x" * 1_000) == []
    assert (splitter.shape, len(splitter._data)) == (Shape.DOCUMENT, 0)


def test_names_of_lists() -> None:
    assert ListNames(named="things").is_list("things")
    assert not ListNames(named="things").is_list("items")
    assert ListNames().is_list("items")
    assert not ListNames(in_path=frozenset({"servers"}), is_item=True).is_list("servers")


def test_pieces_of_one_byte_cost_no_more_than_their_number() -> None:
    """A string of a megabyte, byte by byte: what was searched is not searched again."""
    splitter = ListSplitter(NAMES)
    splitter.feed(b'["')
    for _ in range(1_000_000):
        splitter.feed(b"\\")
    assert [len(item) for item in splitter.feed(b'"]')] == [1_000_002]
