"""The base class of all backends, and what an agent gives to each.

A backend lives in the agent's event loop. The agent creates it with a `BackendContext`, calls `start` before the
first run and `close` after the last. Runs of one resource never overlap; runs of different resources do.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct
from msgspec.structs import replace

from cheops.config.site import SiteConfig
from cheops.config.types import TypeConfig
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.engine.replica import Replica
from cheops.engine.settings import Checkpoint
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import NO_TIME, Command, FileRef, Kind, Timing

if TYPE_CHECKING:
    from cheops.backends.command.runner import CommandRunner

_log = logging.getLogger(__name__)


class FilePath(Protocol):
    def __call__(self, file_hash: str, /) -> Path | None: ...


class IsFileLost(Protocol):
    def __call__(self, resource: str, file_hash: str, /) -> bool: ...


class FetchFile(Protocol):
    def __call__(self, resource: str, file: FileRef, /) -> None: ...


class KeepFile(Protocol):
    async def __call__(self, name: str, content: bytes, /) -> FileRef: ...


class ReportRefusal(Protocol):
    def __call__(self, site: str, reason: str, /) -> None: ...


class FileAccess(Struct, frozen=True):
    """The files of operations, each identified by the hash of its content."""

    path: FilePath  # None: the file is not at this site (yet)
    is_lost: IsFileLost  # whether no site has it any more
    fetch: FetchFile  # begins to fetch it from another site


class BackendContext(Struct, frozen=True):
    """What a backend may use of its agent."""

    config: SiteConfig
    types: Mapping[str, TypeConfig]  # those that name this backend
    files: FileAccess
    commands: "CommandRunner"  # runs programs with limits, and leaves no process behind
    replica: Callable[[str], Replica | None]  # the engine's state of a resource; None if it is not in memory
    report_refusal: ReportRefusal  # counts and audits an operation of another site that was refused here
    load: Callable[[str], Awaitable[Replica]]  # the engine's state of a resource, loaded from the store if need be
    # Reports resources in which the applications may differ, and why. It is durable when this returns, and their status
    # is DIVERGED until a comparison of all sites finds that they are equal.
    report_drift: Callable[[Mapping[str, str]], Awaitable[None]]


class Finding(Struct, frozen=True):
    """One result of `cheops check`. A `hint` says how to fix what is wrong; without one all is well."""

    name: str
    detail: str
    hint: str = ""
    is_warning: bool = False  # it works, and may not be intended
    group: str = "backends"
    anchor: str = ""  # the page and section to read, `docs/security.md#commands`; empty: that of the group


class Backend(ABC):
    """Runs the operations of the resource types that name it. Only `run_step` and `read` must be written."""

    # True: once every site of a resource has run an operation, its files are deleted, for a replay does not need
    # them. `run_step` then copes with a missing file itself; otherwise the files of a step are here when it is called.
    releases_files: ClassVar[bool] = False

    def __init__(self, context: BackendContext) -> None:
        self.context = context

    # ruff: noqa: B027 - the empty methods are what most backends need
    async def start(self) -> None:
        """Open what `run` needs. An exception here keeps the agent from starting."""

    async def close(self) -> None:
        """Release what `start` opened. Also called if `start` was not, or failed."""

    # -- running -------------------------------------------------------------------------------------------

    async def run(self, run: Run) -> tuple[Outcome, ...]:
        """Run the steps in order: one outcome each, up to the one at which the run ends.

        Any exception but a `CheopsError` counts as MAYBE: it is unknown how far the run got.
        """
        outcomes: list[Outcome] = []
        for step in run.steps:
            outcomes.append(await self._timed(run, step))
            result = outcomes[-1].result
            # After RETRY and MAYBE the next step would run in a state that it was not made for.
            if result in (Result.RETRY, Result.MAYBE) or (run.until_failure and result is Result.KO):
                break
        return tuple(outcomes)

    @abstractmethod
    async def run_step(self, run: Run, step: Step) -> Outcome:
        """Run one step. It may be the same step again: after a crash, and when a history is replayed.

        Raise `ClientError` for a payload that this site does not accept (KO, and reported to the site it came from),
        any other `CheopsError` if nothing happened and it may be tried again (RETRY). If the step may have had an
        effect and its result is unknown, return MAYBE; never guess.
        """

    @abstractmethod
    async def read(self, rtype: str, resource: str, request: str) -> Outcome:
        """The application's state of a resource, for `cheops show` and `cheops verify`.

        Sites are compared by this text, so equal states must give equal texts. `request` is the client's own way
        to read (a command, for example), or empty for the type's usual one. Raises `ClientError` if it cannot be read.
        """

    def checkpoint(self, rtype: str) -> Checkpoint | None:
        """How the engine replaces a long history by one state; None: it cannot. By default as configured."""
        return self.context.types[rtype].engine.checkpoint

    def check_capture(self, replica: Replica) -> None:
        """Raises `ClientError` if `capture` can take the state of no site, whatever that is."""
        if replica.type.checkpoint is None:
            raise ClientError(
                f"the type '{replica.type.name}' has no 'checkpoint', so the state of a site cannot be written "
                f"elsewhere. Write it yourself: cheops exec --force --id {replica.resource} …",
                status=409,
            )

    async def capture(self, replica: Replica, keep: KeepFile) -> Command:
        """The payload that writes this site's state of a resource at any site, for `cheops repair --from`. `keep` makes
        a file of the operation. Raises `ClientError` if the state cannot be taken. By default as the checkpoint of the
        type says."""
        del keep
        self.check_capture(replica)
        checkpoint, rtype = replica.type.checkpoint, replica.type.name
        assert checkpoint is not None  # noqa: S101 - as checked
        step = Step(None, checkpoint.read, of_type=True, reads=True)
        [outcome] = await self.run(Run(replica.resource, 0, (step,), rtype=rtype))
        if outcome.result is not Result.OK:
            raise ClientError(f"the state cannot be read: {outcome.output}", status=409)
        write = None if outcome.cut else checkpoint.write(outcome.output)
        if write is None:
            raise ClientError("the state is too large for a command, or is no text", status=409)
        return write

    def undo(self, rtype: str, payload: Command, before: str | None) -> Command:
        """The payload that takes `payload` back at this site. `before` is what `read` gave before it ran.

        Levels that need it (`atomic`) also call it at submission, with None, and refuse the operation if it raises
        `ClientError`. By default nothing can be undone.
        """
        del payload, before
        raise ClientError(f"operations of type '{rtype}' cannot be undone", status=501)

    # -- submission ----------------------------------------------------------------------------------------

    def resource_problem(self, resource: str) -> str | None:
        """Why this backend runs nothing on a resource with this id; None if it does. By default it takes every id that
        a resource may have (see cheops.log.names).

        An operation on such a resource is refused where it is submitted, and where it comes from another site.
        """
        del resource
        return None

    def check_payload(self, rtype: str, replica: Replica, kind: Kind, payload: Command) -> None:
        """Raise `ClientError` for what must not be submitted: malformed, or not allowed here. By default everything is
        accepted.

        Each site checks again when it runs the step, for other sites may allow more.
        """

    def deletion(self, replica: Replica) -> Command | None:
        """The payload that deletes a resource, for a client that gives none. By default the type's `reset`."""
        return replica.type.reset

    def describe(self, payload: Command) -> str:
        """A payload in one line, for logs."""
        return payload.line

    # -- operation -----------------------------------------------------------------------------------------

    async def resource_moved(self, resource: str, *, is_here: bool) -> None:
        """The list of sites of a resource has changed; `is_here`: this site is in it."""

    async def forget(self, resources: Collection[str]) -> None:
        """These resources were deleted at all their sites a while ago, and nothing of them is left in the log: whatever
        the backend keeps about them besides the application's own data can go. Called again after a crash, so it may
        name resources that are forgotten already, and at every backend, so it may name those of others.

        A resource may be created again under the same id: the agent calls this while nothing of it runs, and what
        `context.replica` knows to have operations is not to be forgotten.
        """

    async def resolved(self, rtype: str, resource: str, payload: Command, *, happened: bool) -> None:
        """The operator says whether an operation whose outcome was unknown took effect here. Raise `ClientError` if it
        must not be taken for one that did."""

    async def doctor(self) -> Sequence[Finding]:
        """What `cheops check` reports: whether all that runs need is there."""
        return ()

    # -- private -------------------------------------------------------------------------------------------

    async def _timed(self, run: Run, step: Step) -> Outcome:
        began_ms, began_s = time.time_ns() // 1_000_000, time.monotonic()
        outcome = await self._checked(run, step)
        if outcome.timing is not NO_TIME:  # the backend has measured the application alone
            return outcome
        return replace(outcome, timing=Timing(began_ms, round((time.monotonic() - began_s) * 1000)))

    async def _checked(self, run: Run, step: Step) -> Outcome:
        if not self.releases_files and (outcome := self._outcome_without_files(run.resource, step)):
            return outcome
        try:
            return await self.run_step(run, step)
        except ClientError as error:
            _log.info("refused: %s: %s", self.describe(step.payload), error)
            self.context.report_refusal(step.op.origin.site if step.op else "", str(error))
            return Outcome(Result.KO, str(error), refused=True)
        except CheopsError as error:
            return Outcome(Result.RETRY, str(error))

    def _outcome_without_files(self, resource: str, step: Step) -> Outcome | None:
        """The outcome of a step some of whose files are not here; None if all are. What no site has will not come: to
        wait for it would hold up every later operation on the resource for ever."""
        missing = [file for file in step.payload.files if self.context.files.path(file.hash) is None]
        if lost := [file.name for file in missing if self.context.files.is_lost(resource, file.hash)]:
            return Outcome(Result.KO, f"no site of the resource has its file: {', '.join(lost)}")
        for file in missing:
            self.context.files.fetch(resource, file)
        return Outcome(Result.RETRY, f"not here yet: {', '.join(file.name for file in missing)}") if missing else None
