"""Replicants at this site: what the engine wants run on them, and what must be looked after beside it.

A body too large for the log is a file. Once every site of a replicant has dealt with the operation that
brought it, nobody needs it any more, although the operation stays: to run a create again does nothing, and
what is replayed after it leads to the same state. So it goes.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from cheops.backends.command.runner import CommandRunner
from cheops.backends.http.backend import FileAccess, HttpBackend
from cheops.backends.http.copies import Copies
from cheops.config.services import service_of
from cheops.config.site import SiteConfig
from cheops.engine.documents import Key
from cheops.engine.events import Outcome, Run, Save
from cheops.engine.replica import Replica
from cheops.log.causality import NOTHING, contains
from cheops.log.operation import Kind, Operation, OpId
from cheops.node.pump import Pump
from cheops.peers.file_fetcher import FileFetcher
from cheops.store.files import FileReferences, FileStore

FILE = "replicas.db"
_LOOK_S = 1.0
_log = logging.getLogger(__name__)


class Guard(Protocol):
    """Who must know before something is replicated at this site."""

    async def before_run(self, service: str) -> None: ...

    def after_run(self, service: str) -> None: ...


class Replicants:
    """Belongs to one event loop. The pump and the fetching come with `start`."""

    guard: Guard | None = None

    def __init__(
        self, config: SiteConfig, files: FileStore, file_references: FileReferences, runner: CommandRunner
    ) -> None:
        self.runner = HttpBackend(
            config.services,
            Copies(config.data / FILE),
            FileAccess(self._path, self._is_gone, self._fetch),
            runner,
        )
        self._name = config.name
        self._files = files
        self._file_references = file_references
        self._pump: Pump | None = None
        self._fetching: FileFetcher | None = None
        self._moved: set[str] = set()  # resources whose list of sites was changed
        self._is_first_look = True  # there may be files of operations that were settled before the start

    async def start(self, pump: Pump, fetching: FileFetcher) -> None:
        self._pump, self._fetching = pump, fetching
        await self.runner.start()

    async def close(self) -> None:
        await self.runner.close()

    async def run(self, run: Run) -> tuple[Outcome, ...]:
        service, guard = service_of(run.rtype), self.guard
        if service is None or guard is None:
            return await self._run(run)
        await guard.before_run(service)
        try:
            return await self._run(run)
        finally:
            guard.after_run(service)

    async def _run(self, run: Run) -> tuple[Outcome, ...]:
        replica = self._started().site.replicas.get(run.resource)
        return await self.runner.run(run, {op.id for op in replica.drafts} if replica else ())

    # -- files ---------------------------------------------------------------------------------------------

    def _path(self, hash_: str) -> Path | None:
        return self._files.path(hash_) if self._files.has(hash_) else None

    def _sites(self, resource: str) -> tuple[str, ...]:
        replica = self._pump.site.replicas.get(resource) if self._pump else None
        if replica is None:
            return ()
        sites = (*replica.sites, *sorted(replica.history.ever_listed - replica.gone))
        return tuple(site for site in dict.fromkeys(sites) if site != self._name)

    def _is_gone(self, resource: str, hash_: str) -> bool:
        sites = self._sites(resource)
        return bool(sites and self._fetching and self._fetching.is_nowhere(hash_, sites))

    def _fetch(self, resource: str, hash_: str) -> None:
        if self._fetching:
            self._fetching.want(hash_, self._sites(resource))

    # -- looking after -------------------------------------------------------------------------------------

    def committed(self, saves: Iterable[Save]) -> None:
        for save in saves:
            for document in save.documents:
                if isinstance(document, Operation) and document.kind is Kind.SITES:
                    self._moved.add(document.resource)

    async def look_after(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._follow_moves()
            if not self._file_references.is_needed:
                for key, resource, id_ in self._file_references.bodies():
                    await self._release(key, resource, id_)
                self._is_first_look = False

    async def _follow_moves(self) -> None:
        """What is no longer at this site is an ordinary resource of its service, until it is back."""
        while self._moved:
            replica = await self._started().replica(self._moved.pop())
            if replica.is_involved:
                await self.runner.copies.welcome(replica.resource)
            elif replica.history.site_list:
                await self.runner.copies.send_away(replica.resource)

    async def _release(self, key: Key, resource: str, id_: OpId) -> None:
        pump = self._started()
        if self._is_first_look:
            await pump.replica(resource)
        replica = pump.site.replicas.get(resource)  # to what is not in memory nothing has happened
        if replica is not None and is_settled_everywhere(replica, id_):
            for hash_ in self._file_references.release(key):
                self._files.forget(hash_)
                _log.info("the body %s… of %s was removed: every site has it", hash_[:12], resource)

    def _started(self) -> Pump:
        assert self._pump is not None  # noqa: S101 - nothing is looked after before
        return self._pump


def is_settled_everywhere(replica: Replica, id_: OpId) -> bool:
    """Whether every site of a resource has settled an operation."""
    for site in replica.sites:
        view = replica.peers.get(site)
        settled = replica.applied.settled if site == replica.site else view.settled if view else NOTHING
        if not contains(settled, id_):
            return False
    return bool(replica.sites)
