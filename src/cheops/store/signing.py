"""Documents of this site get its signature just before they are first kept: see cheops.security.signatures.

Those of one commit are signed together. A draft is not: nobody else hears of it. What was signed once stays
as it is, also when a commit is tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cheops.engine.documents import Document
from cheops.engine.events import Save
from cheops.log.operation import Operation, Origin, Reply
from cheops.security.signatures import Sign
from cheops.store.base import Store
from cheops.store.codec import MAX_DOCUMENT_BYTES, CodecError, is_shared, signed
from cheops.store.writes import Put, Write

_PAGE = 500  # documents


@dataclass(frozen=True, slots=True)
class Signing:
    """Who signs, and how."""

    origin: Origin
    sign: Sign

    def is_due(self, document: Document | None) -> bool:
        """Whether a document is ours to sign, and is not signed yet."""
        return (
            isinstance(document, Operation | Reply)
            and not document.signature
            and document.origin == self.origin
            and is_shared(document)
        )

    def signed(self, writes: Sequence[tuple[Document | None, Write]]) -> list[Write]:
        """What is written, with signatures where they are due; raises CodecError."""
        found = [write for _, write in writes]
        due = [
            (place, document, write)
            for place, (document, write) in enumerate(writes)
            if isinstance(write, Put) and self.is_due(document)
        ]
        if not due:
            return found
        signatures = self.sign([put.body for _, _, put in due])
        for (place, _, put), text in zip(due, signatures, strict=True):
            found[place] = _with_signature(put, text)
        for (_, document, _), text in zip(due, signatures, strict=True):
            object.__setattr__(document, "signature", text)  # only now: nothing can fail any more
        return found


def _with_signature(put: Put, text: str) -> Put:
    body = signed(put.body, text)
    if len(body) > MAX_DOCUMENT_BYTES:
        raise CodecError(f"{put.id} has {len(body):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are kept")
    # Field by field: `replace` takes three times as long.
    return Put(put.key, put.id, put.resource, body, put.is_shared, put.is_unsynced, put.sites)


def sign_what_is_kept(store: Store, signing: Signing) -> int:
    """Sign what was kept before this site had a key; gives how many. Blocks, for as long as it takes."""
    count = since = 0
    while changes := store.changes(since, _PAGE):
        documents = store.read(change.key for change in changes).values()
        if due := tuple(document for document in documents if signing.is_due(document)):
            store.commit([Save(due)])
            count += len(due)
        since = changes[-1].seq
    return count
