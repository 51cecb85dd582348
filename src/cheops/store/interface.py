"""What a store must do, and the errors it raises.

A store holds the engine's documents by their key (`engine.documents.key_of`). Its methods block and may be
called from any thread. `commit` is the only one that changes documents.

Documents that sites exchange (decided operations, replies, matrices) are *shared*: each gets the next
number of the store's *feed* when it is first committed. CouchDB's replication reads the feed. A draft is
not shared; the operation that it becomes is, under the same key. A forgotten document disappears from the feed,
and its number is not used again.

The feed of one *site* holds the documents of the resources that involve it, and every matrix. A document
has the same number there as in the whole feed, with one exception: when a resource begins to involve a site,
its documents that were shared before get new numbers in the feed of that site alone, because the site may have
read beyond the old ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from cheops.engine.documents import NO_DROPS, NO_LINEAGE, Document, Drops, Key, Lineage, Peers, SiteClock
from cheops.engine.events import Recovered, Save
from cheops.errors import CheopsError, Fault
from cheops.log.causality import Clock
from cheops.log.matrix import Matrix
from cheops.store.space import Space
from cheops.text import printable, shortened

BEGIN_AGAIN = "put it aside and start with an empty one: the site gets back what other sites have"
_MOST_NAMED = 5


class Change(Struct, frozen=True):
    """A shared document and its number in the feed."""

    seq: int
    key: Key


class Store(Protocol):
    """The documents of one site."""

    @property
    def incarnation(self) -> str:
        """A random text, chosen when the store is created: a site that restarts with an empty disk has another one."""

    def begin_incarnation(self) -> None:
        """Choose another incarnation, durably. Documents stay."""

    def commit(self, saves: Sequence[Save]) -> int:
        """Write all of these, in order, in one transaction; gives the feed's last number afterwards.

        Within one save, `forget` comes before `documents`. Raises StoreError, or CodecError for a document
        beyond a limit; then nothing was written.
        """

    @property
    def damaged(self) -> Mapping[str, frozenset[str]]:
        """The ids of documents that were found damaged, by resource, until they are written again."""

    def load(self, resource: str) -> tuple[Document, ...]:
        """Every document of a resource, in no particular order. Raises DamagedError: without one of them the others may
        mean something else."""

    def recovered(self) -> Recovered:
        """What the engine needs to start on this store."""

    def involving(self, site: str) -> tuple[str, ...]:
        """The resources that have documents, and have or had this site on their list; sorted."""

    def resources(self, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """The resources that have documents, sorted, from the first one greater than `after`."""

    def search(self, text: str, site: str | None = None, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """The resources, as `resources` gives them, whose id contains a text (ASCII letters in either case), and that
        have or had this site on their list."""

    def states(self) -> dict[str, int]:
        """How many resources are in each state (see cheops.engine.health), without those of which there are none. The
        cost does not grow with the number of resources."""

    def in_states(
        self, states: Sequence[str], text: str = "", site: str | None = None, after: str = "", limit: int = 1000
    ) -> tuple[str, ...]:
        """The resources in one of these states; otherwise as `search`. The cost does not grow with the number of
        resources in other states."""

    def due(self, by_ms: int, limit: int = 1000) -> tuple[str, ...]:
        """Resources whose ledger says that they may be dropped by this time, the earliest first."""

    def rewrite(self, documents: Sequence[Document]) -> None:
        """Write documents again that were found damaged. They are not new: no event follows from them."""

    def set_unknown(self, resource: str) -> None:
        """Count a resource that cannot be loaded as one whose state is not known."""

    def sites_of(self, resource: str) -> tuple[str, ...]:
        """The sites that a resource has or had on its list."""

    def shares(self) -> dict[str, int]:
        """For each site, the number of resources that have or had it on their list."""

    def read(self, keys: Iterable[Key]) -> dict[Key, Document]:
        """Those of these documents that exist and are not damaged."""

    def last_seq(self) -> int:
        """The highest number in any feed so far; 0 if nothing was ever shared."""

    def changes(self, since: int, limit: int, site: str | None = None) -> tuple[Change, ...]:
        """Shared documents with a greater number, in order; with `site` those of its feed. The cost does not grow
        with the feeds of other sites."""

    def note(self, name: str) -> dict[str, Any] | None:
        """A small JSON object that is never shared, such as how far a replication got."""

    def put_note(self, name: str, note: dict[str, Any] | None) -> None:
        """Write a note durably, or with None delete it."""

    def dropped(self, limit: int = 1000) -> tuple[str, ...]:
        """Resources of which the last document was forgotten, until `clear_dropped` says that everybody else has
        forgotten them, too. Without those that have documents again."""

    def clear_dropped(self, resources: Iterable[str]) -> None:
        """Everybody has forgotten these resources; durable when this returns."""

    @property
    def free_bytes(self) -> int:
        """Bytes of the store that are used again before it grows. Never waits."""

    def space(self, *, is_brief: bool = False) -> Space:
        """How large the store is; with `is_brief` without the numbers of documents."""

    def shrink(self) -> bool:
        """Give some free space back to the file system, in some milliseconds. To be called at rest, again while it
        returns True."""

    def close(self) -> None:
        """Release everything; from then on the other methods raise StoreError. May be called twice."""


def recovered_from(documents: Iterable[Document], unsynced: Iterable[str]) -> Recovered:
    """The event with which the engine starts, from the documents that belong to no resource."""
    documents = tuple(documents)
    return Recovered(
        next((document.clock for document in documents if isinstance(document, SiteClock)), Clock()),
        tuple(document for document in documents if isinstance(document, Matrix)),
        tuple(unsynced),
        next((document.incarnations for document in documents if isinstance(document, Peers)), {}),
        next((document for document in documents if isinstance(document, Lineage)), NO_LINEAGE),
        next((document for document in documents if isinstance(document, Drops)), NO_DROPS),
    )


class StoreError(CheopsError):
    """The store failed, and changed nothing. The text says why, and what to do."""

    status = 503
    definite = False
    reason = "store"


class DamagedError(StoreError):
    """Stored documents of a resource are not as they were written: the disk has changed them."""

    def __init__(self, path: object, resource: str, ids: Sequence[str]) -> None:
        shown = ", ".join(ids[:_MOST_NAMED]) + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else "")
        what = f"of '{printable(shortened(resource))}' are damaged" if resource else "of the site itself are damaged"
        advice = "the agent fetches them from other sites" if resource else BEGIN_AGAIN
        super().__init__(f"{path}: documents {what} ({shown}): {advice}")
        self.resource, self.ids = resource, tuple(ids)


class CodecError(CheopsError):
    """Not a document, a message or an id as Cheops writes them, or one beyond a limit."""

    fault = Fault.PEER
    status = 400
    reason = "codec"
