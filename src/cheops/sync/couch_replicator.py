"""The client end: copies documents to and from a foreign database, once or for ever.

A replicator asks what the other side lacks and sends that, notes at both ends how far it got, and after any
break goes on from there. For ever means that it does not give up: what fails is reported, and tried again
after a delay that doubles up to a limit, with jitter so that many sites do not come back at the same moment.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import aiohttp

from cheops.errors import CheopsError
from cheops.sync.couch_checkpoint import Checkpoints, Tally, replication_id
from cheops.sync.couch_database import Database
from cheops.sync.couch_limits import ReplicatorSettings
from cheops.sync.couch_pull import Pull
from cheops.sync.couch_push import Push
from cheops.sync.couch_remote import Remote, database_url
from cheops.sync.couch_run import Report, Run


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

    async def push_once(self) -> Tally:
        """Send what the other database lacks; raises RemoteError, StoreError."""
        push = self._push()
        await push.run(live=False)
        return push.tally

    async def pull_once(self) -> Tally:
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

    async def _forever(self, begin: Callable[[], Run]) -> None:
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

    def _remote(self) -> Remote:
        return Remote(self.url, self.session, self.settings)

    def _checkpoints(self, direction: str, remote: Remote) -> Checkpoints:
        """Of a session of its own. The uuid is that of this life of our store: a new life begins anew."""
        id_ = replication_id(direction, self.local.places.uuid, self.local.name, remote.name)
        session = f"{self.random.getrandbits(128):032x}"
        source, target = (self.local, remote) if direction == "push" else (remote, self.local)
        return Checkpoints(f"cheops-{id_}", session, source, target, self.settings)
