"""Runs commands on this machine, and leaves no process of them behind.

`backend` and the notifications give it command lines (`line`); it gives each to a worker process (`spawner`).

A command that is NOT_STARTED had no effect for certain. LOST, TIMED_OUT and CANCELLED may have had one.
"""

import asyncio
import codecs
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from msgspec import Struct

from cheops.backends.command.line import CommandLineError, Invocation, invocation
from cheops.backends.command.spawner import Spawner, SpawnerError, Worker
from cheops.backends.command.wire import GRACE_S, SWEEP_S, CommandStatus, Order, Report
from cheops.config.command import CommandSettings
from cheops.text import code_point, printable, shortened

_INHERITED = ("PATH", "HOME", "LANG", "TZ")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(settings: CommandSettings) -> dict[str, str]:
    """The environment of the commands of a type."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if settings.user is not None:
        inherited.pop("HOME", None)  # the worker sets that user's
    return {"PATH": _DEFAULT_PATH} | inherited | dict(settings.env)


def where_is(program: str, settings: CommandSettings) -> Path | None:
    """The file that a command of the type would run under this name; None if there is none."""
    start = settings.cwd or Path("/")
    folders = [""] if "/" in program else filter(None, environment(settings)["PATH"].split(":"))
    candidates = (start / folder / program for folder in folders)
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


MAX_IDLE_WORKERS = 16  # kept for the next commands: to fork a worker takes longer than to run a short command
_IDLE_S = 5.0  # a worker without a command for so long ends: at rest only the spawner is left
_SLACK_S = 10.0  # so long after the command's timeout, a worker without a report counts as lost
_STOPPING = "the agent is stopping"
_NO_FILES: Mapping[str, Path] = MappingProxyType({})


class Completed(Struct, frozen=True):
    """How a command ended. `exit_code` is there if it EXITED; negative: killed by that signal.

    `output` is what it wrote on both streams, as it came, up to the type's limit; for a command that was
    not started, why. `left_behind` processes were still there when it ended, and were killed.
    """

    status: CommandStatus
    exit_code: int | None
    output: str
    duration_s: float
    left_behind: int = 0
    passing: bool = False  # it was not started for a temporary reason
    exact: bool = True  # the output is complete and was valid UTF-8


class CommandRunner:
    """Runs commands, at most `max_parallel` at a time; others wait in order. Reads of clients are counted separately
    (`max_reads`), so that slow ones cannot hold up operations."""

    def __init__(
        self,
        *,
        max_parallel: int = 64,
        max_reads: int = 32,
        slack_s: float = _SLACK_S,
        idle_s: float = _IDLE_S,
        private: Iterable[Path] = (),
    ) -> None:
        """`private`: files and folders of the agent, which no id may name."""
        self.private = tuple(os.path.realpath(path) for path in private)
        self._slots = asyncio.Semaphore(max_parallel)
        self._read_slots = asyncio.Semaphore(max_reads)
        self._slack_s = slack_s
        self._idle_s = idle_s
        self._starting = asyncio.Lock()
        self._spawner: Spawner | None = None
        self._idle: list[Worker] = []  # the one that was used last is at the end
        self._idle_timer: asyncio.TimerHandle | None = None
        self._busy: dict[Worker, asyncio.Event] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the spawner and a first worker, so that errors show at the agent's start."""
        self._give_back(await self._new_worker(without_new_privileges=True))

    async def close(self) -> None:
        """Cancel all commands, and return when no process of them is left."""
        self._is_closed = True
        ended = [event.wait() for event in self._busy.values()]
        for worker in self._busy:
            worker.cancel()
        await asyncio.gather(*ended)
        self._drop_idle()
        async with self._starting:  # a worker may be starting just now
            spawner, self._spawner = self._spawner, None
        if spawner is not None:
            await spawner.close(SWEEP_S + self._slack_s)

    async def run(  # noqa: PLR0913 - what a command has
        self,
        line: str,
        settings: CommandSettings,
        *,
        resource: str,
        files: Mapping[str, Path] = _NO_FILES,
        with_errors: bool = True,
        is_read: bool = False,
    ) -> Completed:
        """Run a command to its end. Without `with_errors` its standard error is dropped. `is_read`: a client wants to
        see the state, and no operation depends on it.

        Raises ClientError for a command that is malformed or not allowed.
        """
        order = _order(invocation(line, settings, resource=resource, files=files, private=self.private), settings)
        order = order._replace(with_errors=with_errors)
        async with self._read_slots if is_read else self._slots:
            try:
                worker = await self._worker(without_new_privileges=settings.no_new_privileges)
            except SpawnerError as error:
                return _not_started(str(error))
            return await self._run_with(worker, order)

    async def _run_with(self, worker: Worker, order: Order) -> Completed:
        began = asyncio.get_running_loop().time()
        self._busy[worker] = ended = asyncio.Event()
        try:
            report = await worker.run(order, order.timeout_s + GRACE_S + SWEEP_S + self._slack_s)
        finally:
            del self._busy[worker]
            self._give_back(worker)
            ended.set()
        return _completed(report) if report else _lost(asyncio.get_running_loop().time() - began)

    # -- workers -----------------------------------------------------------------------------------------

    async def _worker(self, *, without_new_privileges: bool) -> Worker:
        """An idle worker, or a new one."""
        if self._is_closed:
            raise SpawnerError(_STOPPING)
        if self._spawner is None or not self._spawner.is_alive:
            self._drop_idle()  # without their spawner, nothing cleans up if they are killed
        # `no_new_privileges` cannot be taken back, so a worker serves only types with its own setting.
        # The one that was used last: under little load the others stay idle, and end.
        for place in range(len(self._idle) - 1, -1, -1):
            if self._idle[place].without_new_privileges is without_new_privileges:
                worker = self._idle.pop(place)
                if worker.is_alive:
                    return worker
                worker.drop()
        return await self._new_worker(without_new_privileges=without_new_privileges)

    async def _new_worker(self, *, without_new_privileges: bool) -> Worker:
        async with self._starting:
            try:
                worker = await self._live_spawner().worker(without_new_privileges=without_new_privileges)
            except SpawnerError:
                if self._spawner is None or self._spawner.is_alive:
                    raise
                # The spawner died, perhaps killed for lack of memory. No command was sent: once more with a new one.
                worker = await self._live_spawner().worker(without_new_privileges=without_new_privileges)
        if self._is_closed:
            worker.drop()
            raise SpawnerError(_STOPPING)
        return worker

    def _live_spawner(self) -> Spawner:
        if self._is_closed:
            raise SpawnerError(_STOPPING)
        if self._spawner is None or not self._spawner.is_alive:
            if self._spawner is not None:
                self._spawner.abandon()
            self._spawner = Spawner()
        return self._spawner

    def _give_back(self, worker: Worker) -> None:
        is_wanted = len(self._idle) < MAX_IDLE_WORKERS and not self._is_closed
        if is_wanted and worker.is_open and worker.spawner is self._spawner:
            worker.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(worker)
            self._watch_idle()
        else:
            worker.drop()

    def _watch_idle(self) -> None:
        if self._idle and self._idle_timer is None:
            end_s = self._idle[0].idle_since_s + self._idle_s
            self._idle_timer = asyncio.get_running_loop().call_at(end_s, self._end_idle)

    def _end_idle(self) -> None:
        """End the workers that had no command for a while."""
        self._idle_timer = None
        before_s = asyncio.get_running_loop().time() - self._idle_s
        while self._idle and self._idle[0].idle_since_s <= before_s:
            self._idle.pop(0).drop()
        self._watch_idle()

    def _drop_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        for worker in self._idle:
            worker.drop()
        self._idle.clear()


# -- orders and reports ----------------------------------------------------------------------------------


def _order(command: Invocation, settings: CommandSettings) -> Order:
    env = environment(settings) | dict(command.env)
    limits = settings.limits
    return Order(
        argv=tuple(map(_encoded, command.argv)),
        environment=tuple(_encoded(f"{name}={value}") for name, value in env.items()),
        cwd=_encoded(str(settings.cwd or "/")),
        user=_encoded(settings.user or ""),
        timeout_s=settings.timeout_s,
        max_output_bytes=settings.max_output_bytes,
        cpu_s=limits.cpu_s,
        memory_bytes=limits.memory_bytes,
        open_files=limits.open_files,
        processes=limits.processes,
    )


def _encoded(word: str) -> bytes:
    try:
        raw = word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        character = code_point(word[error.start])
        raise CommandLineError(f"{character} in '{printable(shortened(word))}' cannot be encoded") from None
    if b"\0" in raw:
        raise CommandLineError(f"'{printable(shortened(word))}' holds a NUL character, which no program takes")
    return raw


def _completed(report: Report) -> Completed:
    exit_code = report.exit_code if report.status is CommandStatus.EXITED else None
    return Completed(
        report.status,
        exit_code,
        _text(report),
        report.duration_s,
        report.left_behind,
        exact=_is_exact(report),
    )


def _is_exact(report: Report) -> bool:
    try:
        report.text.decode()
    except UnicodeDecodeError:
        return False
    return not report.dropped_bytes


def _text(report: Report) -> str:
    """The output. If it was cut, without an incomplete character at its end, and with a line that says so."""
    cut = report.dropped_bytes > 0
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(report.text, final=not cut)
    if not cut:
        return text
    newline = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{newline}[cheops: {report.dropped_bytes} more bytes of output were dropped]\n"


def _not_started(why: str) -> Completed:
    return Completed(CommandStatus.NOT_STARTED, None, why, 0.0, passing=True)


def _lost(lasted_s: float) -> Completed:
    why = "the process that ran it was lost; it may have had an effect"
    return Completed(CommandStatus.LOST, None, why, lasted_s)
