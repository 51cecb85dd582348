"""Keys as text: any name goes through, and each key has one spelling."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from cheops.engine.documents import Key, Ledger, key_of
from cheops.log.operation import Origin
from cheops.store.codec import id_of, key_of_id, resource_of
from cheops.store.interface import CodecError
from tests.store.documents import COUNTER, draft, operation, reply
from tests.store.strategies import AWKWARD, names, ordinals, origins

INCARNATIONS = [name for name in AWKWARD if "/" not in name]
numbered = st.tuples(st.sampled_from(["op", "reply"]), names, origins, ordinals)
named = st.tuples(st.sampled_from(["matrix", "started", "ledger"]), names)


@given(st.one_of(numbered, named, st.sampled_from([("clock",), ("peers",)])))
def test_a_key_comes_back_as_it_was_from_an_id_that_suits_couchdb(key: Key) -> None:
    id_ = id_of(key)
    assert key_of_id(id_) == key
    assert not id_.startswith("_")
    assert id_.isascii()
    assert id_.isprintable()


def test_the_resource_that_a_document_belongs_to() -> None:
    assert [resource_of(key_of(document)) for document in (operation("r", 1), reply("r", 1), Ledger("r"))] == ["r"] * 3
    assert [resource_of(key) for key in (key_of(COUNTER), ("clock",), ("peers",))] == [""] * 3


def test_different_keys_have_different_ids() -> None:
    keys = [("op", one, Origin(two, three), 1) for one in AWKWARD for two in AWKWARD for three in INCARNATIONS]
    assert len(set(map(id_of, keys))) == len(keys)


def test_how_ids_look() -> None:
    assert id_of(key_of(operation("a/b", 7))) == "op/a%2Fb/paris/p1/7"
    assert id_of(key_of(draft("a/b", 7))) == "op/a%2Fb/paris/p1/7"
    assert id_of(key_of(reply("_r", 2))) == "reply/_r/paris/p1/2"
    assert id_of(key_of(COUNTER)) == f"matrix/{COUNTER.hash}"
    assert id_of(("ledger", "r")) == "ledger/r"
    assert id_of(("clock",)) == "clock"


@pytest.mark.parametrize(
    "id_",
    [
        "",
        "op",
        "op/r",
        "op/r/s/i/1/more",
        "op/r/s/i/01",
        "op/r/s/i/0",
        "op/r/s/i/-1",
        "op/r/s/i/+1",
        "op/r/s/i/x",
        "op/r/s/i/99999999999999999",
        "op//s/i/1",
        "op/r/s/i%2Fj/1",
        "op/r//i/1",
        "op/%ff/s/i/1",
        "op/%C3%28/s/i/1",
        "op/%c3%a9/s/i/1",
        "op/%41/s/i/1",
        "op/é/s/i/1",
        "op/r r/s/i/1",
        "_design/x",
        "clock/",
        "clock/x",
        "matrix",
        "unknown/r",
        "ledger/" + "a" * 100_000,
        "\ud800",
    ],
    ids=lambda id_: str(ascii(id_))[:30],
)
def test_any_other_spelling_is_refused(id_: str) -> None:
    with pytest.raises(CodecError, match="is not the id of a document"):
        key_of_id(id_)


@given(st.text(max_size=30))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        key = key_of_id(text)
    except CodecError:
        event("refused")
    else:
        assert id_of(key) == text


@pytest.mark.parametrize(
    "key",
    [
        (),
        ("op",),
        ("op", "r"),
        ("op", "r", "origin", 1),
        ("op", "r", Origin("s", "i"), "1"),
        ("op", "r\ud800", Origin("s", "i"), 1),
        ("ledger",),
        ("ledger", 5),
        ("ledger", "r", Origin("s", "i"), 1),
        ("clock", "r"),
        ("nothing", "r"),
        ("clock", "a", "b", "c", "d"),
    ],
    ids=ascii,
)
def test_what_is_no_key_has_no_id(key: Key) -> None:
    with pytest.raises(CodecError, match="is not the key of a document"):
        id_of(key)
