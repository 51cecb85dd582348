"""Documents and messages as JSON: nothing is lost, equal gives equal, and what is wrong is a CodecError."""

import copy
import json
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec import structs

from cheops.engine.documents import Document, EpochRecord, Ledger, Message, SiteClock, Snapshot, Started
from cheops.log.causality import Clock
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    MAX_NAME_CHARACTERS,
    MAX_NUMBER,
    MAX_SITES,
    Operation,
    OpId,
    Origin,
    Stamp,
    Timing,
    parse_origin,
)
from cheops.log.rules import Fate, Rule
from cheops.matrix_file import MAX_TYPES
from cheops.store import codec
from cheops.store.interface import CodecError
from tests.store.documents import COUNTER, LYON, PARIS, draft, operation, reply
from tests.store.plain import message_from_json, message_to_json, to_json
from tests.store.strategies import contents, documents, messages

# A message is large, and slow to think up.
FEWER = settings(max_examples=settings().max_examples // 5)


# -- nothing is lost -------------------------------------------------------------------------------------


@given(documents, st.randoms(use_true_random=False))
def test_a_document_comes_back_as_it_was(document: Document, random: Random) -> None:
    data = codec.encode(document)
    assert contents(codec.decode(data)) == contents(document)
    plain = to_json(document)
    assert plain == json.loads(data)  # what any reader of JSON makes of it
    fields = random.sample(list(plain), len(plain))  # in any order
    again = codec.from_json({field: plain[field] for field in fields})
    assert contents(again) == contents(document)
    assert codec.encode(again) == data


@FEWER
@given(messages())
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert contents(codec.decode_message(codec.encode_message(message))) == contents(message)
    assert contents(message_from_json(message_to_json(message))) == contents(message)


def test_equal_documents_give_equal_bytes() -> None:
    one, two = {PARIS: 1, LYON: 2}, {LYON: 2, PARIS: 1}
    assert codec.encode(Ledger("r", floor=one)) == codec.encode(Ledger("r", floor=two))
    stamps = [Stamp(number, 0, PARIS) for number in range(100)]
    sets = (frozenset(stamps), frozenset(reversed(stamps)))
    assert codec.encode(Ledger("r", rejected_matrices=sets[0])) == codec.encode(Ledger("r", rejected_matrices=sets[1]))
    said = structs.replace(reply("r", 1), timing=Timing(0, 0), wiped=("set", "inc"))
    assert codec.encode(said) == codec.encode(reply("r", 1))


def test_an_origin_is_one_text() -> None:
    """Sites may have slashes in their names; incarnations have none, so there is one way to read it."""
    origin = Origin("a/b", "c")
    assert (origin, parse_origin("a/b/c"), origin.site, origin.incarnation) == ("a/b/c", origin, "a/b", "c")
    copies = [copy.deepcopy(origin), pickle.loads(pickle.dumps(origin))]  # noqa: S301 - our own
    assert [(one.site, one.incarnation) for one in copies] == [("a/b", "c")] * 2
    with pytest.raises(ValueError, match="no slash"):
        Origin("a", "b/c")


def test_how_an_operation_looks() -> None:
    assert to_json(operation("counter", 2, ("paris", "lyon"))) == {
        "doc": "op",
        "resource": "counter",
        "rtype": "",
        "type": "set",
        "kind": "normal",
        "payload": {"line": "set 1"},
        "origin": "paris/p1",
        "seq": 2,
        "deps": {"paris/p1": 1},
        "stamp": [1002, 0, "paris/p1"],
        "matrix": [COUNTER.hash, [1002, 0, "paris/p1"]],
        "sites": ["paris", "lyon"],
        "verdict": "OK",
    }


def test_what_is_shared() -> None:
    shared: list[Document] = [operation("r", 1), reply("r", 1), COUNTER]
    assert all(map(codec.is_shared, shared))
    own: list[Document] = [draft("r", 1), Ledger("r"), Started("r", 1, None), SiteClock(Clock())]
    assert not any(map(codec.is_shared, own))


# -- newer peers -----------------------------------------------------------------------------------------


def test_fields_that_nobody_knows_are_ignored() -> None:
    data = to_json(operation("r", 1)) | {"_id": "x", "_rev": "1-y", "later": {"deep": [1, None]}}
    data["payload"]["later"] = True
    assert contents(codec.from_json(data)) == contents(operation("r", 1))


def test_a_newer_format_is_named_as_the_reason() -> None:
    with pytest.raises(CodecError, match="version 2 of the format; this agent reads up to 1: upgrade"):
        codec.from_json({"doc": "op", "v": 2, "resource": ["all", "different"]})


# -- bad input -------------------------------------------------------------------------------------------

GOOD = to_json(operation("r", 2, ("paris",)))
BAD_FIELDS: list[tuple[str, Any]] = [
    ("doc", "nothing"),
    ("doc", 1),
    ("v", "1"),
    ("v", 0),
    ("resource", ""),
    ("resource", None),
    ("resource", 5),
    ("resource", "r" * (MAX_NAME_CHARACTERS + 1)),
    ("kind", "other"),
    ("payload", "set 1"),
    ("payload", {"files": []}),
    ("payload", {"line": "x", "files": [["one"]]}),
    ("origin", 5),
    ("origin", ["paris", "p1"]),
    ("origin", "paris"),
    ("origin", "paris/"),
    ("origin", "/p1"),
    ("origin", "p" * (MAX_NAME_CHARACTERS + 1) + "/p1"),
    ("origin", "paris/" + "p" * (MAX_NAME_CHARACTERS + 1)),
    ("seq", 0),
    ("seq", -1),
    ("seq", True),
    ("seq", 1.5),
    ("seq", MAX_NUMBER + 1),
    ("seq", 10**400),
    ("deps", {"paris": 1}),
    ("deps", {"": 1}),
    ("deps", {"paris/p1": -1}),
    ("deps", {"paris/p1": True}),
    ("deps", {"paris/p1": MAX_NUMBER + 1}),
    ("deps", [["paris/p1", 1]]),
    ("stamp", [1, 2, 3]),
    ("stamp", [1, 2, "paris/p1", 4]),
    ("stamp", [-1, 2, "paris/p1"]),
    ("matrix", ["x"]),
    ("matrix", ["", [1, 2, "paris/p1"]]),
    ("sites", "paris"),
    ("sites", [""]),
    ("sites", ["s"] * (MAX_SITES + 1)),
    ("parallel", "no"),
    ("verdict", "MAYBE"),
    ("why", "\ud800"),
    ("why", b"\xff".decode(errors="surrogateescape")),
    ("seal", [{}]),
    ("seal", [{"paris": 1}, [1, 2, "paris/p1"]]),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda value: str(ascii(value))[:40])
def test_a_bad_field_is_refused(field: str, value: object) -> None:
    with pytest.raises(CodecError, match=r"^(not a document of Cheops|not plain JSON data|a document of)"):
        codec.from_json(GOOD | {field: value})


@pytest.mark.parametrize("field", sorted(GOOD.keys() - {"sites", "verdict"}))
def test_a_missing_field_is_refused(field: str) -> None:
    with pytest.raises(CodecError, match="not a document of Cheops"):
        codec.from_json({name: value for name, value in GOOD.items() if name != field})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'"text"',
        b'{"doc":"clock","v":1,"clock":[0,0]} more',
        b'{"doc":"clock","v":1,"clock":[0,NaN]}',
        b'{"doc":"peers","v":1,"incarnations":{"a":"\xff"}}',
        b'{"doc":"peers","v":1,"incarnations":{"a":"\\ud800"}}',
        b'{"doc":"peers","v":1,"incarnations":{"a":"\\udc00\\ud800"}}',
        b'{"doc":"clock","v":1,"clock":[0,0],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"v":' + b"9" * 10_000 + b',"doc":"clock","clock":[0,0]}',
    ],
    ids=lambda data: str(data[:40]),
)
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec.decode(data)
    with pytest.raises(CodecError):
        codec.decode_message(data)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decoder in (codec.decode, codec.decode_message):
        with pytest.raises(CodecError):
            decoder(data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(documents, st.data())
def test_a_document_with_anything_in_any_place_is_read_or_refused(document: Document, data: st.DataObject) -> None:
    plain = to_json(document)
    field = data.draw(st.sampled_from(sorted(plain)))
    _either_way(codec.from_json, plain | {field: data.draw(anything)})


@FEWER
@given(messages(), st.data())
def test_a_message_with_anything_in_any_place_is_read_or_refused(message: Message, data: st.DataObject) -> None:
    plain = message_to_json(message)
    field = data.draw(st.sampled_from(sorted(plain)))
    _either_way(message_from_json, plain | {field: data.draw(anything)})


def _either_way(read: Callable[[dict[str, Any]], object], plain: dict[str, Any]) -> None:
    """Read, or refused with the one error there is: any other fails the test."""
    try:
        read(plain)
    except CodecError:
        event("refused")


@pytest.mark.parametrize("value", [object(), {1, object()}, {("a", "b"): 1}], ids=["object", "set", "tuple key"])
def test_what_is_not_plain_data_is_refused(value: object) -> None:
    with pytest.raises(CodecError, match="not plain JSON data"):
        codec.from_json({"doc": value})


def test_what_contains_itself_is_refused() -> None:
    circle: dict[str, Any] = {}
    circle["doc"] = circle
    with pytest.raises(CodecError, match="not plain JSON data"):
        codec.from_json(circle)


def test_a_document_beyond_the_limit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.encode(operation("r", 1, line="x" * 2_000))
    monkeypatch.setattr(codec, "MAX_DOCUMENT_BYTES", 1_000)
    with pytest.raises(CodecError, match=r"a document of 2,\d+ bytes; at most 1,000 are accepted"):
        codec.decode(data)
    with pytest.raises(CodecError, match="too many to be stored or sent; at most 1,000"):
        codec.encode(operation("r", 1, line="x" * 2_000))


def test_a_message_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message("r", "p1", (operation("r", 1),))
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(CodecError, match="at most 100"):
        codec.encode_message(message)


# -- what msgspec cannot see -----------------------------------------------------------------------------


def test_a_matrix_that_contradicts_itself_is_refused() -> None:
    data = to_json(COUNTER)
    data["entries"].append({"before": "set", "after": "inc", "result": "take-one"})
    with pytest.raises(CodecError, match="contradicts"):
        codec.from_json(data)


def test_a_matrix_under_another_hash_is_refused() -> None:
    with pytest.raises(CodecError, match="give another hash"):
        codec.from_json(to_json(COUNTER) | {"hash": "0" * 32})


def test_a_matrix_with_too_many_types_is_refused() -> None:
    many = [{"before": f"a{n}", "after": f"a{n}", "result": "take-both"} for n in range(MAX_TYPES + 1)]
    with pytest.raises(CodecError, match="at most 100 types"):
        codec.from_json({"doc": "matrix", "v": 1, "hash": "x", "entries": many})


def test_a_matrix_with_a_reserved_type_is_refused() -> None:
    entry = {"before": "!force", "after": "set", "result": "take-one"}
    with pytest.raises(CodecError, match="reserved"):
        codec.from_json({"doc": "matrix", "v": 1, "hash": "x", "entries": [entry]})


def test_epochs_are_given_once() -> None:
    """They become dictionaries, in which the last of two would win."""
    epoch = EpochRecord(Stamp(1, 0, PARIS), {}, ((OpId(PARIS, 1), Fate(Rule.VOID)),))
    twice = EpochRecord(Stamp(1, 0, PARIS), {}, (*epoch.settled, (OpId(PARIS, 1), Fate(Rule.LAST_WRITER))))
    for epochs in ((epoch, epoch), (twice,)):
        with pytest.raises(CodecError, match="twice"):
            codec.encode(Ledger("r", epochs=epochs))
        message = Message("r", "p1", snapshot=Snapshot({}, {}, None, None, epochs))
        with pytest.raises(CodecError, match="twice"):
            message_from_json(message_to_json(message))


def test_a_message_holds_no_draft() -> None:
    with pytest.raises(CodecError, match="holds a draft"):
        message_from_json(message_to_json(Message("r", "p1", (draft("r", 1),))))


def test_a_message_holds_no_documents_of_another_resource() -> None:
    for message in (Message("r", "p1", (operation("s", 1),)), Message("r", "p1", (), (reply("s", 1),))):
        with pytest.raises(CodecError, match="about 'r' and holds a document of 's'"):
            message_from_json(message_to_json(message))


# -- writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        operation("", 1),
        operation("r" * (MAX_NAME_CHARACTERS + 1), 1),
        operation("r\ud800", 1),
        operation("r", 0),
        operation("r", 1, line="\udcff"),
        operation("r", 1, ("",)),
        Matrix([Entry("!delete", "set", Result.TAKE_BOTH)]),
    ],
    ids=[
        "no name",
        "long name",
        "no text",
        "no number",
        "no text in the command",
        "site without name",
        "reserved",
    ],
)
def test_nothing_is_written_that_could_not_be_read(document: Document) -> None:
    with pytest.raises(CodecError, match="cannot be stored or sent"):
        codec.encode(document)


def test_what_is_no_document_cannot_be_written() -> None:
    with pytest.raises(CodecError, match="a dict is not a document"):
        codec.encode({})  # type: ignore[arg-type]


def test_parts_are_checked_as_they_are_declared() -> None:
    """The limits stand in annotations; that they count is msgspec's part, and this holds it to it."""
    epoch = EpochRecord(Stamp(1, 0, PARIS), {}, ((OpId(PARIS, 1), Fate(Rule.VOID)),))
    late = to_json(Ledger("r", epochs=(epoch,)))
    assert late["epochs"] == [[[1, 0, "paris/p1"], {}, [[["paris/p1", 1], {"rule": 1, "by": None}]]]]
    late["epochs"][0][2][0][1]["rule"] = 2  # no such rule
    with pytest.raises(CodecError, match="epochs"):
        codec.from_json(late)
    assert msgspec.json.decode(codec.encode(operation("r", 1)), type=dict)["doc"] == "op"


def test_operations_are_rebuilt_with_what_follows_from_them() -> None:
    again = codec.decode(codec.encode(operation("r", 3)))
    assert isinstance(again, Operation)
    assert (again.id, again.key) == (OpId(PARIS, 3), "set")
