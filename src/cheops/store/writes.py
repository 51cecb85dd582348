"""What a commit writes, worked out before anything is touched: so a document beyond a limit does no harm."""

from collections.abc import Iterator, Sequence
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


def writes_of(saves: Sequence[Save]) -> list[Write]:
    """In their order; raises CodecError."""
    return [write for save in saves for write in _writes_of(save)]


def _writes_of(save: Save) -> Iterator[Write]:
    for key in save.forget:
        yield Forget(key, id_of(key), resource_of(key))
    for document in save.documents:
        yield _put(document)


def _put(document: Document) -> Put:
    body = encode(document)  # first: it refuses what is no document
    key = key_of(document)
    return Put(
        key,
        id_of(key),
        resource_of(key),
        body,
        is_shared(document),
        isinstance(document, Ledger) and document.unsynced,
        (document.sites or ()) if isinstance(document, Operation) else (),
    )
