"""What one commit writes, encoded and signed before the store is touched: a document beyond a limit changes nothing.

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
from cheops.log.operation import Operation, Origin, Reply
from cheops.security.signatures import Sign
from cheops.store.codec import MAX_DOCUMENT_BYTES, encode, id_of, is_shared, resource_of, signed
from cheops.store.interface import CodecError, Store


@dataclass(frozen=True, slots=True)
class Put:
    key: Key
    id: str
    resource: str  # empty: of the site itself
    body: bytes
    is_shared: bool
    is_unsynced: bool
    sites: tuple[str, ...]  # become involved, if they are not yet


@dataclass(frozen=True, slots=True)
class Forget:
    key: Key
    id: str
    resource: str


Write: TypeAlias = Put | Forget
# Takes writes with their documents; gives the writes, with the signatures that are due.
AddSignatures: TypeAlias = Callable[[Sequence[tuple[Document | None, Write]]], list[Write]]


def writes_of(saves: Sequence[Save], add_signatures: AddSignatures | None = None) -> list[Write]:
    """In their order; raises CodecError. Of several writes under one key, only the last remains."""
    last: dict[Key, Document | None] = {}
    forgotten: set[Key] = set()
    for save in saves:
        for key in save.forget:
            _set_last(last, key, None)
            forgotten.add(key)
        for document in save.documents:
            _set_last(last, key_of(document), document)
    writes = [(document, write) for key, document in last.items() for write in _writes(key, document, forgotten)]
    return add_signatures(writes) if add_signatures else [write for _, write in writes]


def _set_last(last: dict[Key, Document | None], key: Key, document: Document | None) -> None:
    last.pop(key, None)  # the last write decides the order as well: the feed follows it
    last[key] = document


def _writes(key: Key, document: Document | None, forgotten: set[Key]) -> Iterator[Write]:
    if document is None:
        yield _forget(key)
        return
    put = _put(key, document)
    if put.is_shared and key in forgotten:
        yield _forget(key)  # so that it gets a new number: readers of the feed may be beyond its old one
    yield put


def _forget(key: Key) -> Forget:
    return Forget(key, id_of(key), resource_of(key))


def _put(key: Key, document: Document) -> Put:
    body = encode(document)  # first, because it refuses what is not a document
    return Put(
        key,
        id_of(key),
        resource_of(key),
        body,
        is_shared(document),
        isinstance(document, Ledger) and document.unsynced,
        (document.sites or ()) if isinstance(document, Operation) else (),
    )


_PAGE = 500  # documents


@dataclass(frozen=True, slots=True)
class DocumentSigner:
    """Signs the documents of one origin."""

    origin: Origin
    sign: Sign

    def is_due(self, document: Document | None) -> bool:
        """Whether a document is ours, and needs a signature that it does not have."""
        return (
            isinstance(document, Operation | Reply)
            and not document.signature
            and document.origin == self.origin
            and is_shared(document)
        )

    def signed(self, writes: Sequence[tuple[Document | None, Write]]) -> list[Write]:
        """The writes, with the signatures that are due; raises CodecError."""
        signed_writes = [write for _, write in writes]
        due = [
            (index, document, write)
            for index, (document, write) in enumerate(writes)
            if isinstance(write, Put) and isinstance(document, Operation | Reply) and self.is_due(document)
        ]
        if not due:
            return signed_writes
        signatures = self.sign([put.body for _, _, put in due])
        for (index, _, put), text in zip(due, signatures, strict=True):
            signed_writes[index] = _with_signature(put, text)
        for (_, document, _), text in zip(due, signatures, strict=True):
            force_setattr(document, "signature", text)  # only now that nothing can fail any more
        return signed_writes


def _with_signature(put: Put, text: str) -> Put:
    body = signed(put.body, text)
    if len(body) > MAX_DOCUMENT_BYTES:
        raise CodecError(f"{put.id} has {len(body):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are stored")
    # Field by field, because `replace` takes three times as long.
    return Put(put.key, put.id, put.resource, body, put.is_shared, put.is_unsynced, put.sites)


def sign_stored_documents(store: Store, signing: DocumentSigner) -> int:
    """Sign what was stored before this site had a key; gives the number of documents. Blocks until all are signed."""
    count = since = 0
    while changes := store.changes(since, _PAGE):
        documents = store.read(change.key for change in changes).values()
        if due := tuple(document for document in documents if signing.is_due(document)):
            store.commit([Save(due)])
            count += len(due)
        since = changes[-1].seq
    return count
