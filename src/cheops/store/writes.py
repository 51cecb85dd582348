"""What a commit writes, worked out before anything is touched: so a document beyond a limit does no harm."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cheops.engine.documents import Document, Key, Ledger, key_of
from cheops.engine.events import Save
from cheops.log.operation import Operation
from cheops.store.codec import encode, id_of, is_shared
from cheops.store.ids import resource_of


@dataclass(frozen=True, slots=True)
class Put:
    key: Key
    id: str
    resource: str  # empty: of the site itself
    body: bytes
    is_shared: bool
    is_unsynced: bool
    sites: tuple[str, ...]  # that become involved, if they are not


@dataclass(frozen=True, slots=True)
class Forget:
    key: Key
    id: str
    resource: str


Write: TypeAlias = Put | Forget
# Writes and the documents that they are of, with signatures where those are due.
AddSignatures: TypeAlias = Callable[[Sequence[tuple[Document | None, Write]]], list[Write]]


def writes_of(saves: Sequence[Save], add_signatures: AddSignatures | None = None) -> list[Write]:
    """In their order; raises CodecError. Of what is written several times only the last is."""
    last: dict[Key, Document | None] = {}
    forgotten: set[Key] = set()
    for save in saves:
        for key in save.forget:
            _set_last(last, key, None)
            forgotten.add(key)
        for document in save.documents:
            _set_last(last, key_of(document), document)
    writes = [
        (document, write) for key, document in last.items() for write in _writes(key, document, forgotten)
    ]
    return add_signatures(writes) if add_signatures else [write for _, write in writes]


def _set_last(last: dict[Key, Document | None], key: Key, document: Document | None) -> None:
    last.pop(key, None)  # its place is that of the last: what was shared after others comes after them
    last[key] = document


def _writes(key: Key, document: Document | None, forgotten: set[Key]) -> Iterator[Write]:
    if document is None:
        yield _forget(key)
        return
    put = _put(key, document)
    if put.is_shared and key in forgotten:
        yield _forget(key)  # so that it gets a new number: others may have read beyond its old one
    yield put


def _forget(key: Key) -> Forget:
    return Forget(key, id_of(key), resource_of(key))


def _put(key: Key, document: Document) -> Put:
    body = encode(document)  # first: it refuses what is no document
    return Put(
        key,
        id_of(key),
        resource_of(key),
        body,
        is_shared(document),
        isinstance(document, Ledger) and document.unsynced,
        (document.sites or ()) if isinstance(document, Operation) else (),
    )
