"""What one commit writes. All of it is encoded and signed first, so that a document beyond a limit changes nothing.

Documents of this site get its signature just before they are first stored (see cheops.security.signatures);
those of one commit are signed together. A draft is not signed: no other site receives it. A signed document
keeps its signature, even when its commit is repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import force_setattr

from cheops.engine.documents import Document, Key, Ledger, key_of
from cheops.engine.events import Save
from cheops.log.operation import Operation, Origin, Reply, Statement
from cheops.security.signatures import Sign
from cheops.store.codec import MAX_DOCUMENT_BYTES, encode, id_of, is_shared, resource_of, signed
from cheops.store.interface import CodecError, Store


@dataclass(frozen=True, slots=True)
class Put:
    key: Key
    id: str
    resource: str  # empty: the document belongs to the site itself
    body: bytes
    is_shared: bool
    is_unsynced: bool
    sites: tuple[str, ...]  # those that the resource involves from now on


@dataclass(frozen=True, slots=True)
class Forget:
    key: Key
    id: str
    resource: str


Write: TypeAlias = Put | Forget
# Takes writes with their documents (None: forgotten); gives the writes with all signatures that they need.
AddSignatures: TypeAlias = Callable[[Sequence[tuple[Document | None, Write]]], list[Write]]


def writes_of(saves: Sequence[Save], add_signatures: AddSignatures | None = None) -> list[Write]:
    """The writes of these saves in order; raises CodecError. Of several writes under one key, only the last remains."""
    last: dict[Key, Document | None] = {}
    # Each statement answers another question, and is sent: it needs a signature even if it is not stored.
    overtaken: list[Statement] = []
    forgotten: set[Key] = set()
    for save in saves:
        for key in save.forget:
            _set_last(last, key, None)
            forgotten.add(key)
        for document in save.documents:
            key = key_of(document)
            if isinstance(before := last.get(key), Statement) and before is not document:
                overtaken.append(before)
            _set_last(last, key, document)
    writes = [(document, write) for key, document in last.items() for write in _writes(key, document, forgotten)]
    if add_signatures is None:
        return [write for _, write in writes]
    unstored = [(statement, _put(key_of(statement), statement)) for statement in overtaken]
    return add_signatures([*unstored, *writes])[len(unstored) :]


def _set_last(last: dict[Key, Document | None], key: Key, document: Document | None) -> None:
    last.pop(key, None)  # moves the key to the end: the feed has documents in the order of their last write
    last[key] = document


def _writes(key: Key, document: Document | None, forgotten: set[Key]) -> Iterator[Write]:
    if document is None:
        yield _forget(key)
        return
    put = _put(key, document)
    if put.is_shared and key in forgotten:
        # Without this, the document would keep its old number, and readers that are beyond it would not see the change.
        yield _forget(key)
    yield put


def _forget(key: Key) -> Forget:
    return Forget(key, id_of(key), resource_of(key))


def _put(key: Key, document: Document) -> Put:
    body = encode(document)  # first, because it refuses values that are not documents
    return Put(
        key,
        id_of(key),
        resource_of(key),
        body,
        is_shared(document),
        isinstance(document, Ledger) and document.unsynced,
        (document.sites or ()) if isinstance(document, Operation) else (),
    )


HasSigned = Callable[[str], bool]  # whether the current key made this signature
_PAGE = 500  # documents that are read and signed at a time


@dataclass(frozen=True, slots=True)
class DocumentSigner:
    """Signs the documents of one origin."""

    origin: Origin
    sign: Sign

    def needs_signature(self, document: Document | None) -> bool:
        """Whether a document comes from this site and lacks the signature that it needs."""
        return (
            isinstance(document, Operation | Reply | Statement)
            and not document.signature
            and document.origin == self.origin
            and (is_shared(document) or isinstance(document, Statement))  # which other sites get inside of a seal
        )

    def signed(self, writes: Sequence[tuple[Document | None, Write]]) -> list[Write]:
        """The writes, with all signatures that they need; raises CodecError."""
        signed_writes = [write for _, write in writes]
        due = [
            (index, document, write)
            for index, (document, write) in enumerate(writes)
            if isinstance(write, Put)
            and isinstance(document, Operation | Reply | Statement)
            and self.needs_signature(document)
        ]
        if not due:
            return signed_writes
        signatures = self.sign([put.body for _, _, put in due])
        for (index, _, put), text in zip(due, signatures, strict=True):
            signed_writes[index] = _with_signature(put, text)
        for (_, document, _), text in zip(due, signatures, strict=True):
            # The engine holds this very object and sends it later, so it must have the signature as well. Documents are
            # changed only here, after everything that can fail.
            force_setattr(document, "signature", text)
        return signed_writes


def _with_signature(put: Put, text: str) -> Put:
    body = signed(put.body, text)
    if len(body) > MAX_DOCUMENT_BYTES:
        raise CodecError(f"{put.id} has {len(body):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are stored")
    # Field by field, because `replace` takes three times as long.
    return Put(put.key, put.id, put.resource, body, put.is_shared, put.is_unsynced, put.sites)


def sign_stored_documents(store: Store, signer: DocumentSigner, has_signed: HasSigned) -> int:
    """Sign the documents that were stored before this site had a key, or those that its current key has not signed;
    gives their number. Blocks until it is done."""
    count = since = 0
    while changes := store.changes(since, _PAGE):
        documents = store.read(change.key for change in changes).values()
        for document in documents:
            if not isinstance(document, Operation | Reply) or document.origin != signer.origin:
                continue
            if document.signature and not has_signed(document.signature):
                force_setattr(document, "signature", "")  # nobody else has this object: it was just read
        if due := tuple(document for document in documents if signer.needs_signature(document)):
            store.commit([Save(due)])
            count += len(due)
        since = changes[-1].seq
    return count
