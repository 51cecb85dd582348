"""Summaries: what became of an operation of this site at every site, reported once all of them have finished it.

A site has finished an operation when its reply says so, or when it says that it has settled it and we know all
replies it had made by then: it skipped the operation, because something had superseded it, or it took the effect
with a checkpoint.

Pending summaries are kept in the journal. An operation is pending from the moment that the journal has its event
until its summary is in the journal, in one transaction each. So there is exactly one summary for each operation.

An operation that no other site runs is finished with its verdict. While earlier operations of its resource are pending,
its summary waits until this site has settled them: otherwise it would overtake theirs, which may be complete as well.
"""

import sqlite3
from collections.abc import Iterable, Mapping

import msgspec

from cheops.engine.replica import Replica
from cheops.log.operation import OpId, Origin, Status
from cheops.notify.event import Event, SiteResult, decoded, encoded, shown_time
from cheops.notify.journal import Journal

_FINAL = (Status.OK, Status.KO)
_LOST_EFFECT, _HAD_NONE = 1, 2  # in the column without_effect


class DeliveryState(msgspec.Struct, frozen=True):
    """Per site of the resource: up to which number it has settled the operations of this site."""

    settled: Mapping[str, int]
    has_left: bool  # this site no longer has the resource, and may never learn the rest


def delivery_state(replica: Replica) -> DeliveryState:
    settled = {site: _settled(replica, site) for site in replica.sites}
    return DeliveryState(settled, bool(replica.history.site_list) and not replica.is_involved)


def _settled(replica: Replica, site: str) -> int:
    if site == replica.site:
        return replica.applied.settled.get(replica.origin, 0)
    view = replica.peers.get(site)
    if view is None or not view.incarnation:
        return 0
    theirs = Origin(site, view.incarnation)
    # A site sends what it has settled and its replies separately. Without its replies "settled" could hide a failure.
    knows_replies = replica.replies.known.get(theirs, 0) >= view.known_replies.get(theirs, 0)
    return view.settled.get(replica.origin, 0) if knows_replies else 0


class PendingSummary(msgspec.Struct, frozen=True):
    """An operation of this site whose summary is still to come."""

    seq: int
    summary: Event
    results: Mapping[str, SiteResult]
    without_effect: bool


def complete_summary(awaited: PendingSummary, state: DeliveryState, at_ms: int) -> Event | None:
    """The summary, if every site has finished the operation, or if this site will not learn more of it."""
    if awaited.summary.results:  # it was complete from the beginning
        return msgspec.structs.replace(awaited.summary, time=shown_time(at_ms))
    results = tuple(_result(awaited, state, site) for site in sorted(state.settled))
    complete = bool(results) and all(result.status is not Status.PENDING for result in results)
    if not complete and not state.has_left:
        return None
    return msgspec.structs.replace(
        awaited.summary,
        time=shown_time(at_ms),
        status=_overall(awaited, results),
        results=results,
        complete=complete,
    )


def _result(awaited: PendingSummary, state: DeliveryState, site: str) -> SiteResult:
    reported = awaited.results.get(site)
    if reported is not None and reported.status in _FINAL:
        return reported
    if state.settled[site] >= awaited.seq:
        return SiteResult(site, Status.SUPERSEDED if awaited.without_effect else Status.OK)
    return SiteResult(site, Status.PENDING)


def _overall(awaited: PendingSummary, results: Iterable[SiteResult]) -> Status:
    statuses = {result.status for result in results}
    if Status.KO in statuses:
        return Status.KO
    if Status.PENDING in statuses:
        return Status.PENDING
    return Status.SUPERSEDED if awaited.without_effect else Status.OK


_AT_A_TIME = 500  # in one transaction, so that commits of the store do not wait for long
_NO_BOUND = 2**62
_result_decoder = msgspec.json.Decoder(SiteResult)


class PendingSummaries:
    """The pending summaries of the operations of `origin`."""

    def __init__(self, journal: Journal, origin: Origin) -> None:
        self._journal = journal
        self._origin = origin
        with journal.writing() as db:
            self.resources = {str(row[0]) for row in db.execute("SELECT DISTINCT resource FROM pending_summaries")}

    # -- within the transactions of the follower and the observer--------------------------------------------

    def add(self, db: sqlite3.Connection, resource: str, seq: int, summary: Event) -> None:
        """A summary with results is complete, and only waits for its turn."""
        row = (resource, seq, _HAD_NONE if summary.results else 0, encoded(summary))
        db.execute("INSERT OR IGNORE INTO pending_summaries VALUES (?, ?, ?, ?)", row)
        self.resources.add(resource)

    def add_results(self, db: sqlite3.Connection, resource: str, results: Iterable[tuple[OpId, SiteResult]]) -> None:
        """What a site reports. A final result is not replaced by one that is not, such as of a replay."""
        if resource not in self.resources:
            return
        rows = [
            (
                resource,
                op.seq,
                result.site,
                result.status in _FINAL,
                msgspec.json.encode(result),
                resource,
                op.seq,
            )
            for op, result in results
            if op.origin.shares_store(self._origin)
        ]
        db.executemany(
            "INSERT INTO results SELECT ?, ?, ?, ?, ?"
            " WHERE EXISTS (SELECT 1 FROM pending_summaries WHERE resource = ? AND seq = ?)"
            " ON CONFLICT DO UPDATE SET is_final = excluded.is_final, body = excluded.body"
            " WHERE NOT results.is_final OR excluded.is_final",
            rows,
        )

    def lose_effect(self, db: sqlite3.Connection, resource: str, op: OpId) -> None:
        if op.origin.shares_store(self._origin):
            db.execute(
                "UPDATE pending_summaries SET without_effect = ? WHERE resource = ? AND seq = ? AND without_effect = 0",
                (_LOST_EFFECT, resource, op.seq),
            )

    # -- finishing -------------------------------------------------------------------------------------------

    def settle(self, resource: str, state: DeliveryState, at_ms: int) -> int:
        """Journal the summaries that are complete, in order. Returns how many."""
        count = 0
        with self._journal.writing() as db:
            own = state.settled.get(self._origin.site, _NO_BOUND)
            for awaited in self._awaited(db, resource, self._bound(db, resource, state), own):
                if event := complete_summary(awaited, state, at_ms):
                    self._finish(db, resource, awaited.seq, event)
                    count += 1
            if not db.execute("SELECT 1 FROM pending_summaries WHERE resource = ? LIMIT 1", (resource,)).fetchone():
                self.resources.discard(resource)
        return count

    def _bound(self, db: sqlite3.Connection, resource: str, state: DeliveryState) -> int:
        """No summary beyond this number can be complete: a site that is far behind costs no search."""
        if state.has_left:
            return _NO_BOUND
        newest = "SELECT coalesce(max(seq), 0) FROM results WHERE resource = ? AND site = ? AND is_final"
        return min(
            (
                max(settled, int(db.execute(newest, (resource, site)).fetchone()[0]))
                for site, settled in state.settled.items()
            ),
            default=0,
        )

    def _awaited(self, db: sqlite3.Connection, resource: str, bound: int, own: int) -> list[PendingSummary]:
        """Those that may be complete: of operations that other sites run up to `bound`, of others up to `own`."""
        rows = db.execute(
            "SELECT seq, without_effect, body FROM pending_summaries"
            " WHERE resource = ? AND seq <= ? AND without_effect < 2"
            " UNION ALL SELECT seq, without_effect, body FROM pending_summaries"
            " WHERE resource = ? AND seq <= ? AND without_effect = 2 ORDER BY seq LIMIT ?",
            (resource, bound, resource, own, _AT_A_TIME),
        ).fetchall()
        return [
            PendingSummary(seq, decoded(body), self._results(db, resource, seq), bool(without_effect))
            for seq, without_effect, body in rows
        ]

    def _results(self, db: sqlite3.Connection, resource: str, seq: int) -> dict[str, SiteResult]:
        rows = db.execute("SELECT site, body FROM results WHERE resource = ? AND seq = ?", (resource, seq))
        return {site: _result_decoder.decode(body) for site, body in rows}

    def _finish(self, db: sqlite3.Connection, resource: str, seq: int, event: Event) -> None:
        self._journal.append_within(db, [event])
        db.execute("DELETE FROM pending_summaries WHERE resource = ? AND seq = ?", (resource, seq))
        db.execute("DELETE FROM results WHERE resource = ? AND seq = ?", (resource, seq))
