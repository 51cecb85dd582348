"""The one who writes documents and feeds into the SQLite file, one transaction at a time.

Invariants: a shared document has a row in the whole feed, and one in the feed of each site that its
resource involves (a matrix: one for everybody). Its number is the same in all of them, unless `late` has
another for a site. No number is given twice, also when the document that had it is forgotten.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import count

from cheops.store.connection import transaction
from cheops.store.schema import EVERYBODY, EVERYTHING
from cheops.store.writes import Forget, Put, Write

_MAX_REMEMBERED = 10_000  # resources whose sites are kept in memory

_UPSERT = (
    "INSERT INTO documents (resource, id, unsynced, seq, body) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (resource, id)"
    " DO UPDATE SET body = excluded.body, unsynced = excluded.unsynced, seq = coalesce(seq, excluded.seq)"
)
_UPSERT_SHARED = _UPSERT + " RETURNING doc, seq"


class Writer:
    """Knows the last number, and who is involved in what was written lately."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sites: dict[str, int] = {}
        self._involved: dict[str, tuple[int, ...]] = {}
        self._feed_rows: list[tuple[int, int, int]] = []  # site, seq, doc: written together
        self._must_note_seq = False
        self._next = self._last = self._kept_last()

    @property
    def last_seq(self) -> int:
        """The last number that is durable."""
        return self._last

    def commit(self, writes: Sequence[Write]) -> None:
        try:
            with transaction(self._connection):
                self._apply(writes)
        except BaseException:
            self._sites.clear()  # they may hold what was not written
            self._involved.clear()
            self._next = self._last
            raise
        finally:
            self._feed_rows.clear()
            self._must_note_seq = False
        self._last = self._next

    def _apply(self, writes: Sequence[Write]) -> None:
        own: list[tuple[str, str, bool, None, bytes]] = []  # what is not shared has no number to be found out
        for write in writes:
            if isinstance(write, Forget):
                self._forget(write)
            elif write.is_shared:
                self._put_shared(write)
            else:
                self._involve(write.sites, write.resource)
                own.append((write.resource, write.id, write.is_unsynced, None, write.body))
        self._connection.executemany(_UPSERT, own)
        self._flush()
        forgotten = {write.resource for write in writes if isinstance(write, Forget)}
        self._drop_empty(forgotten.difference(write.resource for write in writes if isinstance(write, Put)))
        if self._must_note_seq:
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('last_seq', ?)", (self._next,))

    def _put_shared(self, put: Put) -> None:
        self._involve(put.sites, put.resource)
        row = (put.resource, put.id, put.is_unsynced, self._next + 1, put.body)
        ((doc, seq),) = self._connection.execute(_UPSERT_SHARED, row).fetchall()
        if seq == self._next + 1:  # else it was there before
            self._next = seq
            feeds = (EVERYTHING, *(self._sites_of(put.resource) if put.resource else (EVERYBODY,)))
            self._feed_rows.extend((feed, seq, doc) for feed in feeds)

    def _forget(self, forget: Forget) -> None:
        statement = "DELETE FROM documents WHERE resource = ? AND id = ? RETURNING doc, seq"
        for doc, seq in self._all(statement, forget.resource, forget.id):
            if seq is not None:
                self._leave_feeds(doc, seq, forget.resource)

    def _leave_feeds(self, doc: int, seq: int, resource: str) -> None:
        self._flush()
        late = self._all("SELECT site, seq FROM late WHERE doc = ?", doc)
        own = [(feed, seq) for feed in (EVERYTHING, EVERYBODY, *self._sites_of(resource))]
        self._connection.executemany("DELETE FROM feeds WHERE site = ? AND seq = ?", [*own, *late])
        if late:
            self._connection.execute("DELETE FROM late WHERE doc = ?", (doc,))
        self._must_note_seq = True

    # -- who is involved ---------------------------------------------------------------------------

    def _involve(self, names: Iterable[str], resource: str) -> None:
        if not names:
            return
        known = self._sites_of(resource)
        new = [site for site in dict.fromkeys(map(self._site, names)) if site not in known]
        if not new:
            return
        self._connection.executemany("INSERT INTO involved VALUES (?, ?)", [(site, resource) for site in new])
        self._involved[resource] = (*known, *new)
        earlier = self._all(
            "SELECT doc FROM documents WHERE resource = ? AND seq IS NOT NULL ORDER BY seq", resource
        )
        for site in new:
            self._give_new_numbers(site, [doc for (doc,) in earlier])

    def _give_new_numbers(self, site: int, docs: Sequence[int]) -> None:
        """At the end of the feed of one site: it may have read beyond the numbers that others know."""
        if docs:
            rows = [(doc, site, seq) for doc, seq in zip(docs, count(self._next + 1), strict=False)]
            self._connection.executemany("INSERT INTO late VALUES (?, ?, ?)", rows)
            self._feed_rows.extend((site, seq, doc) for doc, site, seq in rows)
            self._next += len(docs)
            self._must_note_seq = True

    def _sites_of(self, resource: str) -> tuple[int, ...]:
        if resource not in self._involved:
            if len(self._involved) >= _MAX_REMEMBERED:
                self._involved.clear()
            rows = self._all("SELECT site FROM involved WHERE resource = ?", resource)
            self._involved[resource] = tuple(site for (site,) in rows)
        return self._involved[resource]

    def _site(self, name: str) -> int:
        if name not in self._sites:
            self._connection.execute("INSERT OR IGNORE INTO sites (name) VALUES (?)", (name,))
            ((self._sites[name],),) = self._all("SELECT site FROM sites WHERE name = ?", name)
        return self._sites[name]

    def _drop_empty(self, resources: Iterable[str]) -> None:
        """Nothing is left of a resource without documents."""
        for resource in resources:
            if not self._all("SELECT 1 FROM documents WHERE resource = ? LIMIT 1", resource):
                self._connection.execute("DELETE FROM involved WHERE resource = ?", (resource,))
                self._involved.pop(resource, None)

    # -- small things ------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._feed_rows:
            self._connection.executemany("INSERT INTO feeds VALUES (?, ?, ?)", sorted(self._feed_rows))
            self._feed_rows.clear()

    def _kept_last(self) -> int:
        ((kept,),) = self._all("SELECT coalesce(max(value), 0) FROM meta WHERE name = 'last_seq'")
        ((given,),) = self._all("SELECT coalesce(max(seq), 0) FROM feeds WHERE site = ?", EVERYTHING)
        return max(int(kept), int(given))

    def _all(self, statement: str, *values: object) -> list[tuple[int, ...]]:
        return self._connection.execute(statement, values).fetchall()
