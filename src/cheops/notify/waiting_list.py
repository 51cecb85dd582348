"""Operations of this site whose summaries are still to come, and what sites have said of them.

Kept in the journal. An operation is on the list from the moment that the journal hears of it until its
summary is in the journal, in one transaction each. So there is one summary for each, whatever happens.
"""

import sqlite3
from collections.abc import Iterable

import msgspec

from cheops.log.operation import OpId, Origin, Status
from cheops.notify.events import Event, SiteResult, decoded, encoded
from cheops.notify.journal import Journal
from cheops.notify.standing import Awaited, Standing, finished

_AT_A_TIME = 500
_LAST_WORDS = (Status.OK, Status.KO)
_result = msgspec.json.Decoder(SiteResult)


class WaitingList:
    """Of the operations that `origin` made."""

    def __init__(self, journal: Journal, origin: Origin) -> None:
        self._journal = journal
        self._origin = origin
        with journal.writing() as db:
            self.resources = {str(row[0]) for row in db.execute("SELECT DISTINCT resource FROM awaited")}

    # -- within the transactions of those who follow the store -----------------------------------------------

    def add(self, db: sqlite3.Connection, resource: str, seq: int, summary: Event) -> None:
        db.execute("INSERT OR IGNORE INTO awaited VALUES (?, ?, 0, ?)", (resource, seq, encoded(summary)))
        self.resources.add(resource)

    def hear(self, db: sqlite3.Connection, resource: str, words: Iterable[tuple[OpId, SiteResult]]) -> None:
        """What a site says. A last word is not taken back by one that is less, such as of a replay."""
        if resource not in self.resources:
            return
        rows = [
            (
                resource,
                op.seq,
                word.site,
                word.status in _LAST_WORDS,
                msgspec.json.encode(word),
                resource,
                op.seq,
            )
            for op, word in words
            if op.origin == self._origin
        ]
        db.executemany(
            "INSERT INTO words SELECT ?, ?, ?, ?, ?"
            " WHERE EXISTS (SELECT 1 FROM awaited WHERE resource = ? AND seq = ?)"
            " ON CONFLICT DO UPDATE SET is_last = excluded.is_last, body = excluded.body"
            " WHERE NOT words.is_last OR excluded.is_last",
            rows,
        )

    def lose_effect(self, db: sqlite3.Connection, resource: str, op: OpId) -> None:
        if op.origin == self._origin:
            db.execute(
                "UPDATE awaited SET without_effect = 1 WHERE resource = ? AND seq = ?", (resource, op.seq)
            )

    # -- finishing -------------------------------------------------------------------------------------------

    def settle(self, resource: str, standing: Standing, at_ms: int) -> int:
        """Put the summaries that are due into the journal, in order; gives how many."""
        count = 0
        with self._journal.writing() as db:
            for awaited in self._awaited(db, resource, self._bound(db, resource, standing)):
                if event := finished(awaited, standing, at_ms):
                    self._finish(db, resource, awaited.seq, event)
                    count += 1
            if not db.execute("SELECT 1 FROM awaited WHERE resource = ? LIMIT 1", (resource,)).fetchone():
                self.resources.discard(resource)
        return count

    def _bound(self, db: sqlite3.Connection, resource: str, standing: Standing) -> int:
        """Beyond this number nothing can be due: a site that is far behind costs no search."""
        if standing.has_left:
            return 2**62
        heard = "SELECT coalesce(max(seq), 0) FROM words WHERE resource = ? AND site = ? AND is_last"
        return min(
            (
                max(settled, int(db.execute(heard, (resource, site)).fetchone()[0]))
                for site, settled in standing.settled.items()
            ),
            default=0,
        )

    def _awaited(self, db: sqlite3.Connection, resource: str, bound: int) -> list[Awaited]:
        rows = db.execute(
            "SELECT seq, without_effect, body FROM awaited WHERE resource = ? AND seq <= ?"
            " ORDER BY seq LIMIT ?",
            (resource, bound, _AT_A_TIME),
        ).fetchall()
        return [
            Awaited(seq, decoded(body), self._words(db, resource, seq), bool(without_effect))
            for seq, without_effect, body in rows
        ]

    def _words(self, db: sqlite3.Connection, resource: str, seq: int) -> dict[str, SiteResult]:
        rows = db.execute("SELECT site, body FROM words WHERE resource = ? AND seq = ?", (resource, seq))
        return {site: _result.decode(body) for site, body in rows}

    def _finish(self, db: sqlite3.Connection, resource: str, seq: int, event: Event) -> None:
        self._journal.append_within(db, [event])
        db.execute("DELETE FROM awaited WHERE resource = ? AND seq = ?", (resource, seq))
        db.execute("DELETE FROM words WHERE resource = ? AND seq = ?", (resource, seq))
