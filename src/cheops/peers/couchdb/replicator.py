"""The replicator: copies documents to and from a remote database, once or continuously.

It finds out which documents the other side is missing, sends those, and records its position at both ends; after any
break it continues from there. A continuous replication never gives up: a failure is reported, and tried again after a
delay.

**Checkpoints**, as CouchDB has them. Each run is a *session*. A log (`_local/<replication id>`) at each end lists the
sessions, the newest first, with the position in the source where each began and the one that it reached. To continue,
the replicator compares the logs: the newest session that both list counts. If the two logs give different positions
for it (a crash between the two writes, or one end was restored from an older copy), it counts only up to where it
began. Without such a session, everything is compared again from 0. That costs time but sends nothing twice, because
`_revs_diff` comes first.
"""

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import aiohttp
import msgspec

from cheops.backoff import Backoff
from cheops.errors import CheopsError
from cheops.peers.couchdb.client import (
    CouchClient,
    RemoteError,
    ReplicatorSettings,
    ResponseTooLargeError,
    Row,
    Seq,
    Written,
    database_url,
)
from cheops.peers.couchdb.database import Database
from cheops.peers.couchdb.documents import REVISION_PREFIX, CouchDocument, RefusedError, shared_key

Report = Callable[[Exception], None]

# -- checkpoints -------------------------------------------------------------------------------------------------

_KEPT_SESSIONS = 20  # one that both ends list is enough, and both list the latest ones
START: Seq = 0


class Session(msgspec.Struct, frozen=True):
    """One run of a replication, with CouchDB's names, so that its tools can read it."""

    session_id: str
    start_last_seq: Seq
    recorded_seq: Seq
    end_last_seq: Seq
    docs_read: int = 0
    docs_written: int = 0
    doc_write_failures: int = 0


@dataclass(slots=True)
class ReplicationStats:
    """Counts of one replication run."""

    read: int = 0  # changes of the source
    written: int = 0  # documents that were missing at the target
    foreign: int = 0  # not ours: `_design/…`, deleted or edited ones, documents of other applications
    refused: int = 0  # documents that either end refused; each was reported
    gone: int = 0  # in the feed, but forgotten before they were read


class CheckpointStore(Protocol):
    """An end of a replication, which stores notes."""

    async def note(self, id_: str) -> dict[str, Any] | None: ...

    async def put_note(self, id_: str, content: dict[str, Any]) -> str: ...


def replication_id(*parts: str) -> str:
    """The id of a replication, from its two ends and its direction."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def common_sequence(source: Mapping[str, Any] | None, target: Mapping[str, Any] | None) -> Seq:
    """The last position that both ends agree on."""
    of_target = {session.session_id: session for session in sessions(target)}
    for mine in sessions(source):
        other = of_target.get(mine.session_id)
        if other is not None and other.recorded_seq == mine.recorded_seq:
            return mine.recorded_seq
        if other is not None and other.start_last_seq == mine.start_last_seq:
            return mine.start_last_seq
    return START


def sessions(log: Mapping[str, Any] | None) -> list[Session]:
    """The sessions of a log; none if the log is malformed."""
    try:
        return msgspec.convert((log or {}).get("history", []), list[Session])
    except msgspec.ValidationError:
        return []


class Checkpoints:
    """The position of one session of one replication, and its logs at both ends."""

    def __init__(
        self, id_: str, session: str, source: CheckpointStore, target: CheckpointStore, settings: ReplicatorSettings
    ) -> None:
        self._id, self._session = id_, session
        self._ends = (target, source)  # in this order: the target must never be behind what the source has on record
        self._settings = settings
        self._clock = asyncio.get_running_loop().time
        self._written_at, self._unwritten = self._clock(), 0
        self._start: Seq = START
        self._recorded: Seq = START
        self._position: Seq = START
        self._history: list[Session] = []

    async def start(self) -> Seq:
        """Compare both logs; gives the position to continue from."""
        target, source = [await end.note(self._id) for end in self._ends]
        self._start = self._recorded = self._position = common_sequence(source, target)
        self._history = sessions(source)
        return self._start

    def advance(self, position: Seq, changes: int) -> bool:
        """Move to a position up to which everything is durable at the target. Returns whether to write it now."""
        self._position = position
        self._unwritten += changes
        return self._unwritten >= self._settings.checkpoint_changes or self.due_s <= 0

    @property
    def due_s(self) -> float:
        """In how many seconds the position should be written."""
        return self._written_at + self._settings.checkpoint_s - self._clock()

    @property
    def is_behind(self) -> bool:
        return self._position != self._recorded

    async def write(self, stats: ReplicationStats) -> None:
        """Write the position at both ends, if it changed."""
        self._written_at, self._unwritten = self._clock(), 0
        if not self.is_behind:
            return
        log = self._log(stats)
        for end in self._ends:
            await end.put_note(self._id, log)
        self._recorded = self._position

    def _log(self, stats: ReplicationStats) -> dict[str, Any]:
        now = Session(
            self._session,
            start_last_seq=self._start,
            recorded_seq=self._position,
            end_last_seq=self._position,
            docs_read=stats.read,
            docs_written=stats.written,
            doc_write_failures=stats.refused,
        )
        history = [now, *self._history][:_KEPT_SESSIONS]
        return {
            "session_id": self._session,
            "source_last_seq": self._position,
            "replication_id_version": 4,
            "replicator": "cheops",
            "history": [msgspec.to_builtins(session) for session in history],
        }


# -- one run in one direction ----------------------------------------------------------------------------------


class ReplicationRun(ABC):
    """One run in one direction."""

    def __init__(
        self,
        local: Database,
        remote: CouchClient,
        checkpoints: Checkpoints,
        settings: ReplicatorSettings,
        report: Report,
    ) -> None:
        self.stats = ReplicationStats()
        self._local, self._remote, self._checkpoints = local, remote, checkpoints
        self._settings, self._report = settings, report

    @abstractmethod
    async def run(self, *, live: bool) -> None:
        """Copy what exists; with `live`, then whatever comes, until the local end is closed."""

    def _skip(self, error: RefusedError) -> None:
        """Count and report a document that is not accepted; the rest goes on."""
        self.stats.refused += 1
        self._report(error)


class Pull(ReplicationRun):
    """One run that fetches from the remote database."""

    async def run(self, *, live: bool) -> None:
        since, wait_s = await self._checkpoints.start(), None
        while not self._local.signal.closed:
            changes = await self._remote.changes(since, self._settings.batch, wait_s)
            # A feed that stands still would be read for ever, without a pause.
            if changes.results and changes.last_seq == since:
                raise RemoteError(f"{self._remote.name}: _changes does not advance beyond {since}")
            await self._fetch(changes.results)
            since = changes.last_seq
            is_due = self._checkpoints.advance(since, len(changes.results))
            if is_due or (not changes.results and wait_s is not None):
                await self._checkpoints.write(self.stats)
            if not changes.results:
                if not live:
                    break
                wait_s = await self._next_wait_s(wait_s)
        await self._checkpoints.write(self.stats)

    async def _next_wait_s(self, before_s: float | None) -> float:
        """How long to wait for changes: without end (0), or until the checkpoint is due."""
        if before_s == 0:  # a wait without end has ended: the other side stops, or does not support it
            await asyncio.sleep(self._settings.first_delay_s)
        return max(0.001, self._checkpoints.due_s) if self._checkpoints.is_behind else 0

    async def _fetch(self, rows: Iterable[Row]) -> None:
        revs = self._ours(rows)
        here = await self._local.revisions(revs)
        missing = {id_: rev for id_, rev in revs.items() if id_ not in here}
        for id_ in (id_ for id_, rev in here.items() if rev != revs[id_]):
            self._skip(RefusedError(id_, revs[id_], f"{self._remote.name} has another content"))
        if missing:
            await self._take(missing)

    def _ours(self, rows: Iterable[Row]) -> dict[str, str]:
        """The ids that can be ours, with their revision. A deleted or edited document is not ours either."""
        revs = {}
        for row in rows:
            self.stats.read += 1
            firsts = [change.rev for change in row.changes if change.rev.startswith(REVISION_PREFIX)]
            if row.deleted or not firsts or shared_key(row.id) is None:
                self.stats.foreign += 1
            else:
                revs[row.id] = firsts[0]
        return revs

    async def _take(self, missing: Mapping[str, str]) -> None:
        try:
            documents = await self._remote.documents(missing)
        except ResponseTooLargeError as error:
            await self._take_less(missing, error)
            return
        wanted = _only(documents, missing)
        result = await self._local.take(wanted)
        for refused in result.refused:
            self._skip(refused)
        self.stats.written += result.new
        self.stats.gone += len(missing) - len(wanted)

    async def _take_less(self, missing: Mapping[str, str], error: ResponseTooLargeError) -> None:
        """The response was too large: fetch two halves; skip a single document."""
        pairs = list(missing.items())
        half = len(pairs) // 2
        if half:
            await self._take(dict(pairs[:half]))
            await self._take(dict(pairs[half:]))
            return
        self._skip(RefusedError(*pairs[0], str(error)))


def _only(documents: Iterable[Any], wanted: Mapping[str, str]) -> list[Any]:
    """Each wanted document once, and nothing else: the other side decides what it sends."""
    by_id = {one["_id"]: one for one in documents if isinstance(one, dict) and one.get("_id") in wanted}
    return list(by_id.values())


# The errors for a document that a database will never accept. Any other may not happen again.
_DEFINITE = frozenset({"forbidden", "unauthorized", "bad_request", "doc_validation", "too_large", "document_too_large"})


class Push(ReplicationRun):
    """One run that sends to the remote database."""

    async def run(self, *, live: bool) -> None:
        position = await self._checkpoints.start()
        since = self._local.positions.parse(str(position), await self._local.last_seq()) or 0
        while True:
            page = await self._local.page(since, self._settings.batch)
            await self._send([one for _, one in page.rows])
            since = page.reached
            if self._checkpoints.advance(self._local.positions.format(since), len(page.rows)):
                await self._write_checkpoint()
            if page.is_last and not (live and await self._has_more(since)):
                break
        await self._write_checkpoint()

    async def _has_more(self, since: int) -> bool:
        """Wait for more; False when the local end is closed."""
        wait_s = max(0.0, self._checkpoints.due_s) if self._checkpoints.is_behind else None
        if not await self._local.signal.wait_beyond(since, wait_s) and not self._local.signal.closed:
            await self._write_checkpoint()
            await self._local.signal.wait_beyond(since, None)
        return not self._local.signal.closed

    async def _write_checkpoint(self) -> None:
        if self._checkpoints.is_behind:
            # A checkpoint must not be ahead of what is durable there: after a crash, documents would be missing.
            await self._remote.ensure_full_commit()
            await self._checkpoints.write(self.stats)

    async def _send(self, documents: Sequence[CouchDocument]) -> None:
        if not documents:
            return
        diff = await self._remote.revs_diff({one.id: [one.rev] for one in documents})
        missing = [one for one in documents if one.id in diff and one.rev in diff[one.id].missing]
        for some in in_pieces(missing, self._settings.send_bytes):
            await self._write(some)
        self.stats.read += len(documents)

    async def _write(self, documents: Sequence[CouchDocument]) -> None:
        try:
            results = await self._remote.bulk_docs(documents)
        except RemoteError as error:
            if error.response_status != 413:
                raise
            await self._write_less(documents)
            return
        refused = [result for result in results if result.error]
        for result in refused:
            self._refused(result)
        self.stats.written += len(documents) - len(refused)

    async def _write_less(self, documents: Sequence[CouchDocument]) -> None:
        """The request was too large: send two halves; skip a single document."""
        if len(documents) > 1:
            half = len(documents) // 2
            await self._write(documents[:half])
            await self._write(documents[half:])
            return
        self._refused(Written(documents[0].id, "too_large", "the document is larger than its limit"))

    def _refused(self, result: Written) -> None:
        reason = f"{self._remote.name} refuses it: {result.error}: {result.reason}"
        if result.error not in _DEFINITE:
            raise RemoteError(f"document '{result.id}': {reason}")
        self._skip(RefusedError(result.id, "", reason))


def in_pieces(documents: Sequence[CouchDocument], most_bytes: int) -> list[list[CouchDocument]]:
    """The documents in lists of at most so many bytes; a larger document is alone in its list."""
    pieces: list[list[CouchDocument]] = []
    size = 0
    for one in documents:
        if not pieces or size + len(one.raw) > most_bytes:
            pieces.append([])
            size = 0
        pieces[-1].append(one)
        size += len(one.raw)
    return pieces


# -- the replicator ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replicator:
    """Replicates between one of our databases and one at a URL (`https://user:password@host:5984/name`)."""

    local: Database
    url: str
    session: aiohttp.ClientSession
    random: Random  # for jitter, and for the ids of sessions, which must differ after a restart
    report: Report
    settings: ReplicatorSettings = field(default_factory=ReplicatorSettings)

    def __post_init__(self) -> None:
        database_url(self.url)

    async def push_once(self) -> ReplicationStats:
        """Send the documents that are missing there; raises RemoteError, StoreError."""
        push = self._push()
        await push.run(live=False)
        return push.stats

    async def pull_once(self) -> ReplicationStats:
        """Fetch the documents that are missing here; raises RemoteError, StoreError, or what `accept` raises."""
        pull = self._pull()
        await pull.run(live=False)
        return pull.stats

    async def push_forever(self) -> None:
        """Until it is cancelled, or the local databases are closed."""
        await self._forever(self._push)

    async def pull_forever(self) -> None:
        """Until it is cancelled, or the local databases are closed."""
        await self._forever(self._pull)

    async def _forever(self, begin: Callable[[], ReplicationRun]) -> None:
        backoff = self._backoff()
        while not self.local.signal.closed:
            run = begin()
            try:
                await run.run(live=True)
            except CheopsError as error:
                if run.stats.read:  # it made progress, so this is a new failure
                    backoff.reset()
                self.report(error)
                await asyncio.sleep(backoff.next_s())

    def _backoff(self) -> Backoff:
        settings = self.settings
        return Backoff(settings.first_delay_s, settings.longest_delay_s, share=0.5, uniform=self.random.uniform)

    def _push(self) -> Push:
        remote = self._remote()
        checkpoints = self._checkpoints("push", remote)
        return Push(self.local, remote, checkpoints, self.settings, self.report)

    def _pull(self) -> Pull:
        remote = self._remote()
        checkpoints = self._checkpoints("pull", remote)
        return Pull(self.local, remote, checkpoints, self.settings, self.report)

    def _remote(self) -> CouchClient:
        return CouchClient(self.url, self.session, self.settings)

    def _checkpoints(self, direction: str, remote: CouchClient) -> Checkpoints:
        """With a new session. The id includes our store's incarnation: an empty store starts from 0."""
        id_ = replication_id(direction, self.local.positions.uuid, self.local.name, remote.name)
        session = f"{self.random.getrandbits(128):032x}"
        source, target = (self.local, remote) if direction == "push" else (remote, self.local)
        return Checkpoints(f"cheops-{id_}", session, source, target, self.settings)
