"""The backends of a running site: which one runs what, and what the agent does for all of them.

The resource type selects the backend (`types.NAME.backend`). Backends that are not built in are loaded when a
type of the configuration names them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cheops.backends.command.runner import CommandRunner
from cheops.backends.protocol import Backend, BackendContext, FileAccess, Finding, ReportRefusal
from cheops.config.services import service_of
from cheops.config.site import SiteConfig
from cheops.engine.documents import Key
from cheops.engine.events import Outcome, Result, Run, Save
from cheops.engine.replica import Replica
from cheops.engine.settings import Settings
from cheops.log.causality import NOTHING, contains, covers
from cheops.log.names import resource_problem
from cheops.log.operation import FileRef, Kind, Operation, OpId, Status, Verdict
from cheops.node.pump import Pump
from cheops.peers.files import FileFetcher
from cheops.plugins import BUILTIN_BACKENDS, PluginError, backend_named
from cheops.store.files import FileReferences, FileStore
from cheops.store.interface import Store

_MAINTAIN_S = 1.0
_MOST_DROPPED = 500  # resources that backends forget at a time
_log = logging.getLogger(__name__)
T = TypeVar("T")


class InThread(Protocol):
    """Calls something in a thread that may block."""

    async def __call__(self, call: Callable[..., T], *args: Any) -> T: ...


class Backends:
    """Belongs to one event loop. The pump and the file fetcher come with `start`."""

    def __init__(
        self,
        config: SiteConfig,
        files: FileStore,
        commands: CommandRunner,
        report_refusal: ReportRefusal,
        report_drift: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        self._config = config
        self._types = {**config.types, **config.http_types}
        self._files = files
        self._pump: Pump | None = None
        self._fetcher: FileFetcher | None = None
        self._references: FileReferences | None = None
        self._moved: set[str] = set()  # resources whose list of sites was changed
        self._is_first_look = True  # there may be files of operations that were settled before the start
        access = FileAccess(self._path, self._is_lost, self._fetch)
        # The built-in ones are always there: the API of HTTP resources works without a service, too.
        names = dict.fromkeys((*BUILTIN_BACKENDS, *(type_.backend for type_ in self._types.values())))
        self._by_name = {
            name: _create(
                name,
                BackendContext(
                    config,
                    {rtype: type_ for rtype, type_ in self._types.items() if type_.backend == name},
                    access,
                    commands,
                    self._replica,
                    report_refusal,
                    self._load,
                    report_drift,
                ),
            )
            for name in names
        }

    def named(self, name: str) -> Backend:
        return self._by_name[name]

    def of_type(self, rtype: str) -> Backend:
        """The backend of a type of this site's configuration; raises ClientError for any other type."""
        type_ = self._types.get(rtype) or self._config.type_named(rtype)
        return self._by_name[type_.backend]

    def resource_problem(self, rtype: str, resource: str) -> str | None:
        """Why this site takes no operation on a resource with this id; None if it does. The backend that would run the
        operation here decides, whatever other sites have under the name of the type."""
        if problem := resource_problem(resource):
            return problem
        return self.of_type(rtype).resource_problem(resource) if rtype in self._types else None

    def settings(self, settings: Settings) -> Settings:
        """The engine's settings, with the checkpoints that the backends offer."""
        types = {
            name: replace(type_, checkpoint=self.of_type(name).checkpoint(name), creates=service_of(name) is not None)
            for name, type_ in settings.types.items()
        }
        return replace(settings, types=types)

    async def start(self, pump: Pump, fetcher: FileFetcher, references: FileReferences) -> None:
        self._pump, self._fetcher, self._references = pump, fetcher, references
        for backend in self._by_name.values():
            await backend.start()

    async def close(self) -> None:
        for backend in self._by_name.values():
            await backend.close()

    async def run(self, run: Run) -> tuple[Outcome, ...]:
        if run.rtype not in self._types:
            # Not a failure: the type may be configured later, and until then the operation waits.
            text = f"the resource type '{run.rtype}' is not in this site's configuration"
            return (Outcome(Result.RETRY, text),)
        backend = self.of_type(run.rtype)
        try:
            return await backend.run(run)
        except Exception as error:  # it is unknown how far it got, and the engine must learn that
            steps = "; ".join(backend.describe(step.payload) for step in run.steps[:3])
            _log.exception("the run of %s on %s failed", steps, run.resource)
            text = (
                f"the backend '{self._types[run.rtype].backend}' failed, and it is unknown how far it got: {error!r}; "
                "the agent's log has the details"
            )
            return (Outcome(Result.MAYBE, text),)

    async def resolved(self, replica: Replica, id_: OpId, *, happened: bool) -> None:
        """The operator says whether an operation took effect here. Raises ClientError."""
        known = (op for op in (*replica.drafts, *replica.history.ops.values()) if op.id == id_)
        rtype = replica.type.name
        if rtype in self._types and (op := next(known, None)) is not None:
            await self.of_type(rtype).resolved(rtype, replica.resource, op.payload, happened=happened)

    async def doctor(self) -> list[Finding]:
        return [finding for backend in self._by_name.values() for finding in await backend.doctor()]

    # -- services for backends -----------------------------------------------------------------------------

    def _replica(self, resource: str) -> Replica | None:
        return self._pump.site.replicas.get(resource) if self._pump else None

    async def _load(self, resource: str) -> Replica:
        assert self._pump is not None  # noqa: S101 - `start` comes first
        return await self._pump.replica(resource)

    def _path(self, hash_: str) -> Path | None:
        return self._files.path(hash_) if self._files.has(hash_) else None

    def _sites(self, resource: str) -> tuple[str, ...]:
        """The other sites that may have a file of a resource: those of now, then those of before."""
        replica = self._replica(resource)
        if replica is None:
            return ()
        sites = (*replica.sites, *sorted(replica.history.ever_listed - replica.gone))
        return tuple(site for site in dict.fromkeys(sites) if site != self._config.name)

    def _is_lost(self, resource: str, hash_: str) -> bool:
        sites = self._sites(resource)
        return bool(sites and self._fetcher and self._fetcher.is_nowhere(hash_, sites))

    def _fetch(self, resource: str, file: FileRef) -> None:
        if self._fetcher:
            self._fetcher.want(file, self._sites(resource))

    # -- maintenance ---------------------------------------------------------------------------------------

    def releases_files(self, rtype: str) -> bool:
        """Whether files of operations of a type go once every site has run them; see `Backend.releases_files`."""
        return rtype in self._types and self.of_type(rtype).releases_files

    def committed(self, saves: Iterable[Save]) -> None:
        for save in saves:
            for document in save.documents:
                if not isinstance(document, Operation):
                    continue
                if document.kind is Kind.SITES:
                    self._moved.add(document.resource)
                if document.payload.files:
                    self._fetch_files(document)

    def _fetch_files(self, op: Operation) -> None:
        """Fetch the files of an operation of another site before it is run. Only now: the engine has accepted it, so
        its origin may operate on the resource. Before, any site could have filled the disk."""
        replica = self._replica(op.resource)
        is_run_here = replica is not None and replica.is_involved and op.rtype in self._types
        is_foreign = op.verdict is Verdict.OK and op.origin.site != self._config.name
        if self._fetcher and is_run_here and is_foreign:
            for file in op.payload.files:
                self._fetcher.want(file, (op.origin.site, *self._sites(op.resource)))

    async def maintain(self) -> None:
        """Report moved resources and release files that are no longer needed, until cancelled."""
        pump, references = self._pump, self._references
        assert pump is not None  # noqa: S101 - `start` comes first
        assert references is not None  # noqa: S101 - as above
        while True:
            await asyncio.sleep(_MAINTAIN_S)
            moved, self._moved = self._moved, set()
            for replica in await pump.readable(moved):
                await self._report_move(replica)
            if references.is_complete:
                for key, resource, id_ in references.releasable():
                    await self._release(pump, references, key, resource, id_)
                self._is_first_look = False

    async def forget_dropped(self, store: Store, in_thread: InThread) -> list[str]:
        """Have all backends forget the resources of which nothing is left, and give their names. After a failure they
        are named again."""
        forgotten: list[str] = []
        while dropped := await in_thread(store.dropped, _MOST_DROPPED):
            for backend in self._by_name.values():
                await backend.forget(dropped)
            await in_thread(store.clear_dropped, dropped)
            forgotten += dropped
        return forgotten

    async def _report_move(self, replica: Replica) -> None:
        if replica.type.name in self._types and (replica.is_involved or replica.history.site_list):
            backend = self.of_type(replica.type.name)
            await backend.resource_moved(replica.resource, is_here=replica.is_involved)

    async def _release(self, pump: Pump, references: FileReferences, key: Key, resource: str, id_: OpId) -> None:
        if self._is_first_look:
            await pump.readable((resource,))
        replica = pump.site.replicas.get(resource)  # a resource that is not in memory has not changed
        if replica is not None and is_settled_everywhere(replica, id_):
            for hash_ in references.release(key):
                self._files.forget(hash_)
                _log.info("removed the file %s… of %s: every site has run its operation", hash_[:12], resource)


def _create(name: str, context: BackendContext) -> Backend:
    try:
        backend = backend_named(name)(context)
    except PluginError:
        raise
    except Exception as error:  # a plugin may raise anything
        raise PluginError(f"the backend '{name}' cannot be created: {error!r}") from error
    if not isinstance(backend, Backend):
        raise PluginError(f"the backend '{name}' is a {type(backend).__name__}, not a cheops.backends.protocol.Backend")
    return backend


def is_settled_everywhere(replica: Replica, id_: OpId) -> bool:
    """Whether every site of a resource has settled an operation, and no other operation can make it run again here: it
    failed at no site, which may try it again, and whatever another site made without knowledge of it has arrived, and
    has been run."""
    if not replica.applied.is_settled:
        return False
    for site in replica.sites:
        view, reply = replica.peers.get(site), replica.replies.get(id_, site)
        if reply is not None and reply.status in (Status.KO, Status.PENDING) and id_ not in replica.history.fates:
            return False
        if view is not None and not covers(replica.history.known, view.known):
            return False
        settled = replica.applied.settled if site == replica.site else view.settled if view else NOTHING
        if not contains(settled, id_):
            return False
    return bool(replica.sites)
