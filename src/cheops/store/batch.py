"""What one commit writes. All of it is encoded and signed first, so that a document beyond a limit changes nothing.

Documents of this site get its signature just before they are first stored (see cheops.security.signatures);
those of one commit are signed together. A draft is not signed: no other site receives it. A signed document
keeps its signature, even when its commit is repeated.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from cheops.engine.documents import Document, Key, Ledger, key_of
from cheops.engine.events import Save
from cheops.log.operation import Operation, Origin, Reply, Statement
from cheops.security.signatures import Sign
from cheops.store.codec import MAX_DOCUMENT_BYTES, content_of, encode, id_of, is_shared, resource_of, signed
from cheops.store.interface import CodecError, Store

_SIGNED = (Operation, Reply, Statement)  # a tuple, because `|` would make a new object in every check


class Put(NamedTuple):  # a tuple is made several times as fast as a frozen dataclass
    key: Key
    id: str
    resource: str  # empty: the document belongs to the site itself
    body: bytes
    is_shared: bool
    is_unsynced: bool
    sites: tuple[str, ...]  # those that the resource involves from now on
    state: str | None = None  # that the resource is counted in from now on; only a ledger has one
    due_ms: int | None = None  # when the resource may be dropped; likewise


class Forget(NamedTuple):
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
            last.pop(key, None)  # moves the key to the end: the feed has documents in the order of their last write
            last[key] = None
            forgotten.add(key)
        for document in save.documents:
            key = key_of(document)
            if isinstance(before := last.pop(key, None), Statement) and before is not document:
                overtaken.append(before)
            last[key] = document
    writes: list[tuple[Document | None, Write]] = []
    for key, latest in last.items():
        put = None if latest is None else _put(key, latest)
        # Without `Forget`, a document that was forgotten and put again would keep its old number, and readers that are
        # beyond it would not see the change.
        if put is None or (put.is_shared and key in forgotten):
            writes.append((None, Forget(key, id_of(key), resource_of(key))))
        if put is not None:
            writes.append((latest, put))
    if add_signatures is None:
        return [write for _, write in writes]
    if not overtaken:
        return add_signatures(writes)
    unstored: list[tuple[Document | None, Write]] = [(one, _put(key_of(one), one)) for one in overtaken]
    return add_signatures([*unstored, *writes])[len(unstored) :]


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
        (document.state or None) if isinstance(document, Ledger) else None,
        document.due_ms if isinstance(document, Ledger) else None,
    )


HasSigned = Callable[[str], bool]  # whether the current key made this signature
_PAGE = 500  # documents that are read and signed at a time


class DocumentSigner(Struct, frozen=True):
    """Signs the documents of one site, as long as it has this store."""

    origin: Origin
    sign: Sign

    def needs_signature(self, document: Document | None) -> bool:
        """Whether a document comes from this site and lacks the signature that it needs."""
        return (
            isinstance(document, _SIGNED)
            and not document.signature
            and document.origin.shares_store(self.origin)
            and (is_shared(document) or isinstance(document, Statement))  # which other sites get inside of a seal
        )

    def signed(self, writes: Sequence[tuple[Document | None, Write]]) -> list[Write]:
        """The writes, with all signatures that they need; raises CodecError."""
        signed_writes = [write for _, write in writes]
        due = [
            (index, document, write)
            for index, (document, write) in enumerate(writes)
            if isinstance(document, _SIGNED) and isinstance(write, Put) and self.needs_signature(document)
        ]
        if not due:
            return signed_writes
        signatures = self.sign([_covered(document, put) for _, document, put in due])
        for (index, _, put), text in zip(due, signatures, strict=True):
            signed_writes[index] = _with_signature(put, text)
        for (_, document, _), text in zip(due, signatures, strict=True):
            # The engine holds this very object and sends it later, so it must have the signature as well. Documents are
            # changed only here, after everything that can fail.
            force_setattr(document, "signature", text)
        return signed_writes


def _covered(document: Operation | Reply | Statement, put: Put) -> bytes:
    """What the signature of a document covers: what is stored, except an output that has a hash."""
    return content_of(document) if isinstance(document, Reply) and document.output_hash else put.body


def _with_signature(put: Put, text: str) -> Put:
    body = signed(put.body, text)
    if len(body) > MAX_DOCUMENT_BYTES:
        raise CodecError(f"{put.id} has {len(body):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are stored")
    # Field by field, because `_replace` takes twice as long.
    return Put(put.key, put.id, put.resource, body, put.is_shared, put.is_unsynced, put.sites)


def sign_stored_documents(store: Store, signer: DocumentSigner, has_signed: HasSigned) -> int:
    """Sign the documents that were stored before this site had a key, or those that its current key has not signed;
    gives their number. Blocks until it is done."""
    count = since = 0
    while changes := store.changes(since, _PAGE):
        documents = store.read(change.key for change in changes).values()
        for document in documents:
            if not isinstance(document, Operation | Reply) or not document.origin.shares_store(signer.origin):
                continue
            if document.signature and not has_signed(document.signature):
                force_setattr(document, "signature", "")  # nobody else has this object: it was just read
        if due := tuple(document for document in documents if signer.needs_signature(document)):
            store.commit([Save(due)])
            count += len(due)
        since = changes[-1].seq
    return count
