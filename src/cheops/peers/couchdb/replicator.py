"""The client end: copies documents to and from a foreign database, once or for ever.

A replicator asks what the other side lacks and sends that, notes at both ends how far it got, and after any
break goes on from there. For ever means that it does not give up: what fails is reported, and tried again
after a delay that doubles up to a limit, with jitter so that many sites do not come back at the same moment.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from cheops.errors import CheopsError
from cheops.peers.couchdb.checkpoints import Checkpoints, ReplicationStats, replication_id
from cheops.peers.couchdb.client import CouchClient, ReplicatorSettings, Row, Written, database_url
from cheops.peers.couchdb.database import Database
from cheops.peers.couchdb.documents import FIRST, StoredDocument, shared_key
from cheops.peers.couchdb.errors import RefusedError, RemoteError, TooLargeAnswerError

Report = Callable[[Exception], None]


class ReplicationRun(ABC):
    def __init__(
        self,
        local: Database,
        remote: CouchClient,
        checkpoints: Checkpoints,
        settings: ReplicatorSettings,
        report: Report,
    ) -> None:
        self.tally = ReplicationStats()
        self._local, self._remote, self._checkpoints = local, remote, checkpoints
        self._settings, self._report = settings, report

    @abstractmethod
    async def run(self, *, live: bool) -> None:
        """Copy what there is; with `live`, then what comes, until the local end is closed."""

    def _passed_over(self, error: RefusedError) -> None:
        """One document that is not taken: counted and told, and the rest goes on."""
        self.tally.refused += 1
        self._report(error)


class Pull(ReplicationRun):
    """One run of fetching."""

    async def run(self, *, live: bool) -> None:
        """Fetch what there is; with `live`, then what comes, until the local end is closed."""
        since, wait_s = await self._checkpoints.start(), None
        while not self._local.pulse.closed:
            changes = await self._remote.changes(since, self._settings.batch, wait_s)
            if changes.results and changes.last_seq == since:
                raise RemoteError(f"{self._remote.name}: _changes gives the same place for ever: {since}")
            await self._fetch(changes.results)
            since = changes.last_seq
            is_due = self._checkpoints.reached(since, len(changes.results))
            if is_due or (not changes.results and wait_s is not None):
                await self._checkpoints.write(self.tally)
            if not changes.results:
                if not live:
                    break
                wait_s = await self._patience(wait_s)
        await self._checkpoints.write(self.tally)

    async def _patience(self, before_s: float | None) -> float:
        """How long to wait for changes: for ever (0), or until the place should be noted."""
        if before_s == 0:  # that was for ever, and yet it is over: the other end stops, or cannot wait
            await asyncio.sleep(self._settings.first_delay_s)
        return max(0.001, self._checkpoints.due_s) if self._checkpoints.is_behind else 0

    async def _fetch(self, rows: Iterable[Row]) -> None:
        revs = self._ours(rows)
        here = await self._local.revisions(revs)
        lacking = {id_: rev for id_, rev in revs.items() if id_ not in here}
        for id_ in (id_ for id_, rev in here.items() if rev != revs[id_]):
            self._passed_over(RefusedError(id_, revs[id_], f"{self._remote.name} has another content than we"))
        if lacking:
            await self._take(lacking)

    def _ours(self, rows: Iterable[Row]) -> dict[str, str]:
        """The ids that can be ours, with their revision. One that was deleted or edited is foreign, too."""
        revs = {}
        for row in rows:
            self.tally.read += 1
            firsts = [change.rev for change in row.changes if change.rev.startswith(FIRST)]
            if row.deleted or not firsts or shared_key(row.id) is None:
                self.tally.foreign += 1
            else:
                revs[row.id] = firsts[0]
        return revs

    async def _take(self, lacking: Mapping[str, str]) -> None:
        try:
            documents = await self._remote.documents(lacking)
        except TooLargeAnswerError as error:
            await self._take_less(lacking, error)
            return
        got = _each_once(documents, lacking)
        taken = await self._local.take(got)
        for refused in taken.refused:
            self._passed_over(refused)
        self.tally.written += taken.new
        self.tally.gone += len(lacking) - len(got)

    async def _take_less(self, lacking: Mapping[str, str], error: TooLargeAnswerError) -> None:
        """The answer was too large: in two halves, and if it is a single one, not at all."""
        pairs = list(lacking.items())
        half = len(pairs) // 2
        if half:
            await self._take(dict(pairs[:half]))
            await self._take(dict(pairs[half:]))
            return
        self._passed_over(RefusedError(*pairs[0], str(error)))


def _each_once(documents: Iterable[Any], wanted: Mapping[str, str]) -> list[Any]:
    """And nothing that nobody asked for."""
    by_id = {one["_id"]: one for one in documents if isinstance(one, dict) and one.get("_id") in wanted}
    return list(by_id.values())


# What a database says of a document that it will never take. Anything else may be otherwise the next time.
_DEFINITE = frozenset({"forbidden", "unauthorized", "bad_request", "doc_validation", "too_large", "document_too_large"})


class Push(ReplicationRun):
    """One run of sending."""

    async def run(self, *, live: bool) -> None:
        """Send what there is; with `live`, then what comes, until the local end is closed."""
        place = await self._checkpoints.start()
        since = self._local.places.number(str(place), await self._local.last_seq()) or 0
        while True:
            page = await self._local.page(since, self._settings.batch)
            await self._send([one for _, one in page.rows])
            since = page.reached
            if self._checkpoints.reached(self._local.places.written(since), len(page.rows)):
                await self._write_checkpoint()
            if page.is_last and not (live and await self._has_more(since)):
                break
        await self._write_checkpoint()

    async def _has_more(self, since: int) -> bool:
        """Wait for more; False when the local end is closed."""
        wait_s = max(0.0, self._checkpoints.due_s) if self._checkpoints.is_behind else None
        if not await self._local.pulse.beyond(since, wait_s) and not self._local.pulse.closed:
            await self._write_checkpoint()
            await self._local.pulse.beyond(since, None)
        return not self._local.pulse.closed

    async def _write_checkpoint(self) -> None:
        if self._checkpoints.is_behind:
            await self._remote.ensure_full_commit()
            await self._checkpoints.write(self.tally)

    async def _send(self, documents: Sequence[StoredDocument]) -> None:
        if not documents:
            return
        lacking = await self._remote.revs_diff({one.id: [one.rev] for one in documents})
        missing = [one for one in documents if one.id in lacking and one.rev in lacking[one.id].missing]
        for some in in_pieces(missing, self._settings.send_bytes):
            await self._write(some)
        self.tally.read += len(documents)

    async def _write(self, documents: Sequence[StoredDocument]) -> None:
        try:
            results = await self._remote.bulk_docs(documents)
        except RemoteError as error:
            if error.answered != 413:
                raise
            await self._write_less(documents)
            return
        refused = [result for result in results if result.error]
        for result in refused:
            self._refused(result)
        self.tally.written += len(documents) - len(refused)

    async def _write_less(self, documents: Sequence[StoredDocument]) -> None:
        """They were too large: in two halves, and if it is a single one, not at all."""
        if len(documents) > 1:
            half = len(documents) // 2
            await self._write(documents[:half])
            await self._write(documents[half:])
            return
        self._refused(Written(documents[0].id, "too_large", "the document is larger than what is taken there"))

    def _refused(self, result: Written) -> None:
        reason = f"{self._remote.name} does not take it: {result.error}: {result.reason}"
        if result.error not in _DEFINITE:
            raise RemoteError(f"document '{result.id}': {reason}")
        self._passed_over(RefusedError(result.id, "", reason))


def in_pieces(documents: Sequence[StoredDocument], most_bytes: int) -> list[list[StoredDocument]]:
    """Each no larger than that, unless it is a single document."""
    pieces: list[list[StoredDocument]] = []
    size = 0
    for one in documents:
        if not pieces or size + len(one.raw) > most_bytes:
            pieces.append([])
            size = 0
        pieces[-1].append(one)
        size += len(one.raw)
    return pieces


@dataclass(frozen=True, slots=True)
class Replicator:
    """Between one of our databases and one at a URL (`https://user:password@host:5984/name`)."""

    local: Database
    url: str
    session: aiohttp.ClientSession
    random: Random  # for jitter, and for the names of sessions, which must differ over restarts
    report: Report
    settings: ReplicatorSettings = field(default_factory=ReplicatorSettings)

    def __post_init__(self) -> None:
        database_url(self.url)

    async def push_once(self) -> ReplicationStats:
        """Send what the other database lacks; raises RemoteError, StoreError."""
        push = self._push()
        await push.run(live=False)
        return push.tally

    async def pull_once(self) -> ReplicationStats:
        """Fetch what we lack; raises RemoteError, StoreError, or what `accept` raises."""
        pull = self._pull()
        await pull.run(live=False)
        return pull.tally

    async def push_forever(self) -> None:
        """Until it is cancelled, or the local databases are closed."""
        await self._forever(self._push)

    async def pull_forever(self) -> None:
        """Until it is cancelled, or the local databases are closed."""
        await self._forever(self._pull)

    async def _forever(self, begin: Callable[[], ReplicationRun]) -> None:
        failures = 0
        while not self.local.pulse.closed:
            run = begin()
            try:
                await run.run(live=True)
            except CheopsError as error:
                failures = 1 if run.tally.read else failures + 1
                self.report(error)
                await asyncio.sleep(self._delay_s(failures))

    def _delay_s(self, failures: int) -> float:
        delay_s = self.settings.first_delay_s * 2.0 ** min(failures - 1, 30)
        return min(self.settings.longest_delay_s, delay_s) * self.random.uniform(0.5, 1.0)

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
        """Of a session of its own. The uuid is that of this life of our store: a new life begins anew."""
        id_ = replication_id(direction, self.local.places.uuid, self.local.name, remote.name)
        session = f"{self.random.getrandbits(128):032x}"
        source, target = (self.local, remote) if direction == "push" else (remote, self.local)
        return Checkpoints(f"cheops-{id_}", session, source, target, self.settings)
