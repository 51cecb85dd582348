"""What a store of a site must do, and the errors it raises. One acceptance suite (tests/store) holds for every
implementation.

A store keeps the engine's documents by their key (`engine.documents.key_of`). Its methods block and may be
called from any thread. `commit` is the only one that changes documents, and it is all or nothing: what it was
given is durable when it returns, even after a power loss.

Documents that sites exchange (decided operations, replies, matrices) are *shared*: each gets the next
number of the store's *feed* when it is first committed, from which CouchDB's replication reads. A draft is
not shared; the operation that it becomes is, under the same key. A forgotten document leaves the feed without
a trace, and its number is not used again.

The feed of one *site* holds the documents of the resources that involve it, and every matrix. A document
has the same number there as in the whole feed, with one exception: when a resource comes to involve a site,
what was shared of it before gets new numbers in the feed of that site alone, because the site may have read
beyond the old ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cheops.engine.documents import Document, Key, Peers, SiteClock
from cheops.engine.events import Recovered, Save
from cheops.errors import CheopsError, Fault
from cheops.log.causality import Clock
from cheops.log.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Change:
    """A shared document at its place in the feed."""

    seq: int
    key: Key


class Store(Protocol):
    """The documents of one site."""

    @property
    def incarnation(self) -> str:
        """Drawn at random when the store was made; a site reborn with an empty disk has another one."""

    def commit(self, saves: Sequence[Save]) -> int:
        """Make all of these durable, in order, in one go; gives the feed's last number afterwards.

        Within one save, what is to be forgotten goes first. Raises StoreError, or CodecError for a document
        beyond a limit; then nothing of it was done.
        """

    def load(self, resource: str) -> tuple[Document, ...]:
        """Every document of a resource, in no particular order."""

    def recovered(self) -> Recovered:
        """What a site needs to begin on this store."""

    def involving(self, site: str) -> tuple[str, ...]:
        """The resources that have documents, and have or ever had this site on their list; sorted."""

    def resources(self, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """The resources that have documents, sorted, from the first one greater than `after`."""

    def search(self, text: str, site: str | None = None, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Of those resources the ones whose id holds a text, in capitals or not (letters of ASCII), and that
        have or ever had this site on their list."""

    def shares(self) -> dict[str, int]:
        """For each site, of how many resources it is or ever was on the list."""

    def read(self, keys: Iterable[Key]) -> dict[Key, Document]:
        """Those of these documents that are there."""

    def last_seq(self) -> int:
        """The last number that was given in any feed; 0 if nothing was ever shared."""

    def changes(self, since: int, limit: int, site: str | None = None) -> tuple[Change, ...]:
        """Shared documents with a greater number, in order; with `site` those of its feed (from an index of
        that site: the cost does not grow with what others have)."""

    def local(self, name: str) -> dict[str, Any] | None:
        """A small note that is never shared, such as how far a replication got."""

    def put_note(self, name: str, note: dict[str, Any] | None) -> None:
        """Keep a note durably, or forget it."""

    def close(self) -> None:
        """Give everything back; from then on the other methods raise StoreError. Twice does no harm."""


def recovered_from(documents: Iterable[Document], unsynced: Iterable[str]) -> Recovered:
    """What a site begins with, from the documents that belong to no resource."""
    documents = tuple(documents)
    return Recovered(
        next((document.clock for document in documents if isinstance(document, SiteClock)), Clock()),
        tuple(document for document in documents if isinstance(document, Matrix)),
        tuple(unsynced),
        next((document.incarnations for document in documents if isinstance(document, Peers)), {}),
    )


class StoreError(CheopsError):
    """The store cannot do what it was asked; nothing of it was done. The text says why, and what to do."""

    status = 503
    definite = False


class CodecError(CheopsError):
    """This is not a document, a message or an id as Cheops writes them, or it is beyond a limit."""

    fault = Fault.PEER
    status = 400
