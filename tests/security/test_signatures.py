"""Signatures of documents: the hash tree, what is signed and when, and that old documents still read."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr, replace

from cheops.engine.documents import Message, Started, key_of
from cheops.engine.events import Save
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Reply, Seal, Stamp, Status, Verdict
from cheops.peers.couchdb.documents import couch_document, parse_document
from cheops.peers.reports import ReportSigner
from cheops.peers.reports import content_of as content_of_report
from cheops.security import signatures
from cheops.security.certificates import make_signing_key
from cheops.security.signatures import (
    MOST_LEAVES,
    MOST_LEVELS,
    SignatureError,
    Signer,
    Verifier,
    leaf_hash,
    node_hash,
    root_above,
    tree,
)
from cheops.store.batch import DocumentSigner, sign_stored_documents
from cheops.store.codec import content_of, decode, decode_message, encode, encode_message
from cheops.store.interface import StoreError
from cheops.store.memory import MemoryStore

SIGNER = Signer(make_signing_key())
OTHER = Signer(make_signing_key())
contents = st.lists(st.binary(max_size=40), min_size=1, max_size=40)


# -- the tree --------------------------------------------------------------------------------------------


@given(contents)
def test_every_path_leads_to_the_root(leaves: list[bytes]) -> None:
    hashes = [leaf_hash(leaf) for leaf in leaves]
    root, paths = tree(hashes)
    assert all(root_above(hash_, b64decode(path)) == root for hash_, path in zip(hashes, paths, strict=True))


@given(contents, st.data())
def test_no_other_leaf_leads_there(leaves: list[bytes], data: st.DataObject) -> None:
    root, paths = tree([leaf_hash(leaf) for leaf in leaves])
    place = data.draw(st.integers(0, len(leaves) - 1))
    other = data.draw(st.binary(max_size=40).filter(lambda leaf: leaf != leaves[place]))
    assert root_above(leaf_hash(other), b64decode(paths[place])) != root


@given(st.lists(st.binary(max_size=10), min_size=2, max_size=20))
def test_a_node_is_no_leaf(leaves: list[bytes]) -> None:
    """What is hashed to a node, taken for a document, has another hash: it cannot be passed off as one."""
    left, right = leaf_hash(leaves[0]), leaf_hash(leaves[1])
    assert leaf_hash(left + right) != node_hash(left, right)
    assert leaf_hash(b"\x01" + left + right) != node_hash(left, right)


def test_a_path_is_as_long_as_the_tree_is_high() -> None:
    for count, levels in ((1, 0), (2, 1), (3, 2), (5, 3), (64, 6)):
        _, paths = tree([leaf_hash(b"%d" % n) for n in range(count)])
        assert max(len(b64decode(path)) // 33 for path in paths) == levels


def check(content: bytes, text: str) -> None:
    Verifier().check(content, signatures.read(text), SIGNER.public_key)


# -- signing and checking --------------------------------------------------------------------------------


@given(contents)
def test_what_was_signed_is_good(documents: list[bytes]) -> None:
    verifier = Verifier()
    for content, text in zip(documents, SIGNER.sign(documents), strict=True):
        verifier.check(content, signatures.read(text), SIGNER.public_key)
    assert verifier.checked == 1  # all of them hang on one root


def test_many_are_signed_in_trees_of_a_bounded_size() -> None:
    documents = [b"%d" % n for n in range(3 * MOST_LEAVES + 1)]
    verifier = Verifier()
    for content, text in zip(documents, SIGNER.sign(documents), strict=True):
        verifier.check(content, signatures.read(text), SIGNER.public_key)
    assert verifier.checked == 4
    assert SIGNER.sign([]) == []


@given(contents, st.data())
def test_what_was_altered_is_not(documents: list[bytes], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(documents) - 1))
    text = SIGNER.sign(documents)[place]
    raw = bytearray(b64decode(text))
    at, flip = data.draw(st.integers(8, len(raw) - 1)), data.draw(st.integers(1, 255))
    raw[at] ^= flip
    with pytest.raises(SignatureError):
        check(documents[place], b64encode(bytes(raw)).decode())


def test_the_key_of_another_does_not_fit() -> None:
    (text,) = OTHER.sign([b"document"])
    with pytest.raises(SignatureError, match="does not match"):
        Verifier().check(b"document", signatures.read(text), SIGNER.public_key)


def test_what_was_good_once_makes_nothing_else_good() -> None:
    """Remembered is a root with its signature, under one key."""
    verifier = Verifier()
    (text,) = SIGNER.sign([b"document"])
    verifier.check(b"document", signatures.read(text), SIGNER.public_key)
    for content, key in ((b"another", SIGNER.public_key), (b"document", OTHER.public_key)):
        with pytest.raises(SignatureError):
            verifier.check(content, signatures.read(text), key)


def test_few_roots_are_remembered() -> None:
    verifier = Verifier(remember=2)
    signed = [(content, signatures.read(SIGNER.sign([content])[0])) for content in (b"a", b"b", b"c")]
    for content, signature in (*signed, signed[2], signed[1], signed[0]):
        verifier.check(content, signature, SIGNER.public_key)
    assert verifier.checked == 4  # of the second round only the one that had to go


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found_ = signatures.read(text)
    except SignatureError:
        return
    assert len(found_.root) == 64


def test_a_signature_has_one_spelling() -> None:
    (text,) = SIGNER.sign([b"x"])
    for other in (
        "",
        text[:-4],
        text + "AAAA",
        text + "=",
        text + "\n",
        f" {text}",
        text.replace(text[5], "!"),
    ):
        with pytest.raises(SignatureError):
            signatures.read(other)
    step = b64encode(b"\x02" + bytes(32)).decode()  # neither left nor right
    too_high = b64encode(bytes(33)).decode() * (MOST_LEVELS + 1)
    for path in (step, too_high):
        with pytest.raises(SignatureError, match="cannot be read"):
            signatures.read(text + path)


# -- documents -------------------------------------------------------------------------------------------

A, B = Origin("a", "1"), Origin("b", "1")


def operation(origin: Origin = A, seq: int = 1, verdict: Verdict | None = Verdict.OK, line: str = "go") -> Operation:
    stamp = Stamp(seq, 0, origin)
    ref = MatrixRef("h", stamp)
    return Operation(
        "r", "t", "set", Kind.NORMAL, Command(line), origin, seq, {}, stamp, ref, ("a", "b"), verdict=verdict
    )


def reply(origin: Origin = A, n: int = 1) -> Reply:
    return Reply("r", origin, n, operation().id, "set", Status.OK, output="done")


def signing_store() -> MemoryStore:
    store = MemoryStore()
    store.add_signatures = DocumentSigner(A, SIGNER.sign).signed
    return store


def is_good(document: Operation | Reply) -> bool:
    try:
        check(content_of(document), document.signature)
    except SignatureError:
        return False
    return True


def test_a_commit_signs_what_is_decided_here_and_nothing_else() -> None:
    store = signing_store()
    own: list[Operation | Reply] = [operation(), reply(), reply(n=2)]
    others: list[Operation | Reply] = [
        operation(B),
        reply(B),
        operation(A, 2, verdict=None),
        operation(Origin("a", "0")),
    ]
    store.commit([Save((*own[:1], *others)), Save((*own[1:], Started("r", 1, None)))])
    assert all(map(is_good, own))
    assert len({signatures.read(one.signature).root for one in own}) == 1  # with one signing
    assert not any(one.signature for one in others)
    kept = store.read([key_of(one) for one in own])
    assert [encode(kept[key_of(one)]) for one in own] == [encode(one) for one in own]
    assert all(map(is_good, (one for one in kept.values() if isinstance(one, Operation | Reply))))


def test_a_draft_is_signed_when_it_has_its_verdict() -> None:
    store, draft = signing_store(), operation(verdict=None)
    store.commit([Save((draft,))])
    assert not draft.signature
    decided = draft.decided(Verdict.VOID, "no such file")
    store.commit([Save((decided,))])
    assert is_good(decided)


def test_a_commit_that_is_tried_again_signs_nothing_twice() -> None:
    store, op = signing_store(), operation()
    store.close()
    with pytest.raises(StoreError):
        store.commit([Save((op,))])
    again = signing_store()
    again.commit([Save((op,))])
    first = op.signature
    again.commit([Save((op,))])
    assert op.signature == first


@pytest.mark.parametrize("field", Operation.__struct_fields__)
def test_each_field_of_an_operation_is_signed(field: str) -> None:
    op = operation()
    signing_store().commit([Save((op,))])
    changed = {
        "v": 2,
        "resource": "s",
        "rtype": "u",
        "type": "inc",
        "kind": Kind.FORCE,
        "payload": Command("rm"),
        "origin": B,
        "seq": 2,
        "deps": {B: 1},
        "stamp": Stamp(9, 0, A),
        "matrix": MatrixRef("i", Stamp(1, 0, A)),
        "sites": ("a",),
        "parallel": True,
        "verdict": Verdict.VOID,
        "why": "x",
        "seal": Seal({B: 1}, Stamp(1, 0, A), (B,)),
        "signature": op.signature,
    }[field]
    force_setattr(op, field, changed)
    assert is_good(op) is (field == "signature")


def test_an_origin_twice_in_a_vector_is_the_signed_document_or_no_good() -> None:
    """JSON may have a key twice, and the last one counts. The signature covers the document as it was read and is
    encoded again, not the bytes that came: so the last one must be what was signed, and nothing else is stored."""
    op = operation(B)
    force_setattr(op, "deps", {A: 7})
    force_setattr(op, "signature", SIGNER.sign([content_of(op)])[0])
    text = encode(op)
    once = b'"deps":{"a/1":7}'
    assert text.count(once) == 1
    harmless = decode(text.replace(once, b'"deps":{"a/1":9,"a/1":7}'))
    assert (harmless, encode(harmless), is_good(harmless)) == (op, text, True)  # type: ignore[arg-type]
    for forged in (b'"deps":{"a/1":7,"a/1":9}', b'"deps":{"a/1":7,"a/1":6}', once + b',"deps":{"a/1":9}'):
        assert not is_good(decode(text.replace(once, forged)))  # type: ignore[arg-type]


def test_an_origin_twice_in_an_unsigned_part_of_a_message_is_what_its_sender_could_say_anyway() -> None:
    """The vectors of a message are what its sender says of itself, to one receiver. Two numbers say what the last one
    says; the engine gets one vector, and sends on none of these bytes."""
    names = [field for field in Message.__struct_fields__ if isinstance(getattr(Message("r", "i"), field), dict)]
    assert names == ["known", "known_replies", "replies_after", "settled", "seal_wanted", "dropped"]
    for name in names:
        honest = encode_message(Message("r", "i", **{name: {A: 7}}))  # type: ignore[arg-type]
        twice = decode_message(honest.replace(b'{"a/1":7}', b'{"a/1":9,"a/1":7}'))
        assert (twice, encode_message(twice)) == (decode_message(honest), honest), name


def test_what_was_kept_before_there_was_a_key_is_signed_once() -> None:
    store = MemoryStore()
    store.commit([Save((operation(), reply(), operation(B), operation(A, 2, verdict=None)))])
    before = store.changes(0, 100)
    signing = DocumentSigner(A, SIGNER.sign)
    store.add_signatures = signing.signed
    assert sign_stored_documents(store, signing, _signed_by(SIGNER)) == 2
    assert sign_stored_documents(store, signing, _signed_by(SIGNER)) == 0
    assert store.changes(0, 100) == before
    documents = store.load("r")
    assert sum(isinstance(d, Operation | Reply) and is_good(d) for d in documents) == 2


def test_with_a_new_key_everything_of_this_site_is_signed_again_and_nothing_else() -> None:
    store = MemoryStore()
    foreign = operation(B)
    force_setattr(foreign, "signature", OTHER.sign([encode(foreign)])[0])
    store.add_signatures = DocumentSigner(A, OTHER.sign).signed
    store.commit([Save((operation(), reply(), foreign))])
    kept = foreign.signature
    signing = DocumentSigner(A, SIGNER.sign)
    store.add_signatures = signing.signed
    assert sign_stored_documents(store, signing, _signed_by(SIGNER)) == 2
    assert sign_stored_documents(store, signing, _signed_by(SIGNER)) == 0
    documents = [one for one in store.load("r") if isinstance(one, Operation | Reply)]
    assert all(is_good(one) for one in documents if one.origin == A)
    assert [one.signature for one in documents if one.origin == B] == [kept]


def _signed_by(signer: Signer) -> Callable[[str], bool]:
    return lambda text: signatures.read(text).key_id == signer.key_id


def test_documents_without_a_signature_still_read() -> None:
    raw = encode(operation())
    assert b"signature" not in raw
    op = decode(raw)
    assert isinstance(op, Operation)
    assert not op.signature


def test_a_revision_is_of_the_content_not_of_who_signed_it() -> None:
    op = operation()
    before = couch_document(op).rev
    signing_store().commit([Save((op,))])
    seen = couch_document(op)
    assert seen.rev == before
    document, _ = parse_document(json.loads(bytes(seen.as_couch())))
    assert isinstance(document, Operation)
    assert is_good(document)


# -- the reports that follow a commit --------------------------------------------------------------------

SAID = Message("r", "1", known={A: 1}, number=7, for_others=True)


def good_report(message: Message, verifier: Verifier) -> bool:
    report = message.report_of("a")
    try:
        verifier.check(content_of_report("r", report), signatures.read(report.signature), SIGNER.public_key)
    except SignatureError:
        return False
    return True


def test_reports_are_signed_with_the_documents_of_their_commit_and_checked_once() -> None:
    calls: list[int] = []

    def sign(bodies: Sequence[bytes]) -> list[str]:
        calls.append(len(bodies))
        return SIGNER.sign(bodies)

    signer, store, verifier = ReportSigner("a", OTHER.sign, sign), MemoryStore(), Verifier()
    store.add_signatures = DocumentSigner(A, signer.sign_documents).signed
    own, later = reply(), replace(SAID, number=8)
    signer.expect([SAID, SAID, replace(SAID, for_others=False), later])
    store.commit([Save((own,))])
    assert calls == [3], "the reply, and two different reports"
    verifier.check(content_of(own), signatures.read(own.signature), SIGNER.public_key)
    assert all(good_report(signer.signed(one), verifier) for one in (SAID, later))
    assert verifier.checked == 1
    assert not signer.signed(replace(SAID, for_others=False)).signature


def test_a_report_that_no_commit_has_signed_is_signed_by_itself() -> None:
    signer = ReportSigner("a", SIGNER.sign, OTHER.sign)
    signer.expect([SAID])  # and the commit fails
    assert good_report(signer.signed(SAID), Verifier())


def test_a_report_is_not_signed_as_it_was_before_the_commit_of_another() -> None:
    """The key may have changed in between, and nobody takes a signature for another content."""
    signer = ReportSigner("a", SIGNER.sign, OTHER.sign)
    signer.expect([SAID])
    signer.sign_documents([b"a document"])
    assert not good_report(signer.signed(SAID), Verifier()), "as the commit signed it"
    assert good_report(signer.signed(replace(SAID, number=9)), Verifier())
    signer.expect([])
    assert good_report(signer.signed(SAID), Verifier())


def test_a_commit_that_is_repeated_keeps_the_signatures_of_its_reports() -> None:
    signer, verifier = ReportSigner("a", OTHER.sign, SIGNER.sign), Verifier()
    signer.expect([SAID])
    assert len(signer.sign_documents([b"a document"])) == 1
    signer.sign_documents([b"a document"])
    assert good_report(signer.signed(SAID), verifier)
