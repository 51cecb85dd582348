"""The agent's side of the helper processes: the spawner and its workers.

There is one spawner per agent. A new worker is requested when all others are busy, one at a time, so that the control
socket never holds more than one message. A worker that does not report in time, or whose stream ends, counts as lost:
its command may or may not have run. The spawner then kills it and what it leaves.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

import cheops
from cheops.backends.command.wire import CANCEL, CommandStatus, Order, Report, frame, pack_order, unframe, unpack_report
from cheops.backends.command.worker import KILL_WORKER, NEW_UNPRIVILEGED_WORKER, NEW_WORKER
from cheops.errors import CheopsError

_START_S = 10.0
_POLL_S = 0.005
_NEEDED_BY_PYTHON = ("LD_LIBRARY_PATH",)
# `-I -S`: no user's and no installed module can get in. The package comes last, behind the standard library.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from cheops.backends.command.worker import main; main()"


class SpawnerError(CheopsError):
    """A helper process cannot be started, or does not respond."""

    definite = False


class Worker(asyncio.Protocol):
    """The connection to one worker process, which runs one command at a time."""

    def __init__(self, spawner: "Spawner", without_new_privileges: bool, stream: socket.socket) -> None:
        self.spawner = spawner
        self.without_new_privileges = without_new_privileges
        self.pid = 0
        self.idle_since_s = 0.0  # the event loop's time at which its last command ended
        self._stream = stream
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray()
        self._message: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if (body := unframe(self._buffer)) is not None:
            self._settle(body)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - lost is lost
        self._settle(None)

    def _settle(self, body: bytes | None) -> None:
        if not self._message.done():
            self._message.set_result(body)

    @property
    def is_alive(self) -> bool:
        """Checks the socket itself: the event loop may not have seen the end of the stream yet."""
        if not self.is_open:
            return False
        try:
            return bool(self._stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def greeting(self) -> bytes | None:
        """The first message of a new worker: its process id."""
        body = await self._message
        self.pid = int(body or 0)
        return body

    async def run(self, order: Order, within_s: float) -> Report | None:
        """How the command ended; None if the worker was lost or did not report in time.

        When this is cancelled, the command is ended first. When it is cancelled again, at once.
        """
        if not self.is_open:
            return Report(CommandStatus.NOT_STARTED, b"the process that should run it died before")
        loop = asyncio.get_running_loop()
        self._message = loop.create_future()
        self._write(frame(pack_order(order)))
        backstop = loop.call_later(within_s, self.give_up)
        try:
            return await self._report()
        except asyncio.CancelledError:
            self.cancel()
            backstop.cancel()
            # The worker ends the command within GRACE_S and SWEEP_S. Without this wait, its slot would be free while
            # its processes still run.
            backstop = loop.call_later(within_s - order.timeout_s, self.give_up)
            await self._end()
            raise
        finally:
            backstop.cancel()

    async def _report(self) -> Report | None:
        try:
            body = await self._message
        except asyncio.CancelledError:
            # It is cancelled with its waiter, unless it had just come; `_end` waits for it again. (A shield would do
            # the same, for two futures per command.)
            if self._message.cancelled():
                self._message = asyncio.get_running_loop().create_future()
            raise
        report = unpack_report(body) if body else None
        if report is None or not report.is_clean:
            self.drop()  # it still has processes to kill, and must not get another command
        return report

    async def _end(self) -> None:
        try:
            await self._report()
        except asyncio.CancelledError:
            self.drop()
            raise

    def cancel(self) -> None:
        self._write(CANCEL)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def give_up(self) -> None:
        """The worker hangs: kill it, so that its command ends, too."""
        self.spawner.kill(self.pid)
        self.drop()

    def drop(self) -> None:
        """Close the connection; the worker kills what it still runs, and ends."""
        if self._transport is not None:
            self._transport.abort()
        self._settle(None)


class Spawner:
    """The helper process that forks all workers."""

    def __init__(self) -> None:
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SpawnerError(f"the agent cannot open a further socket: {error}") from error
        self._control.setblocking(False)
        package = Path(cheops.__file__).parents[1]
        command = [sys.executable, "-I", "-S", "-c", _BOOT, str(package), str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program  # nosec B603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _NEEDED_BY_PYTHON if name in os.environ},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C reaches the agent only
            )
        except OSError as error:
            self._control.close()
            raise SpawnerError(f"the helper that starts commands cannot be started: {error}") from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def worker(self, *, without_new_privileges: bool) -> Worker:
        """Start a new worker; one call at a time."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SpawnerError(f"the agent cannot open a further socket: {error}") from error
        word = NEW_UNPRIVILEGED_WORKER if without_new_privileges else NEW_WORKER
        try:
            with theirs:
                socket.send_fds(self._control, [word], [theirs.fileno()])
        except OSError as error:
            ours.close()
            self.abandon()
            raise SpawnerError(f"the helper that starts commands is gone: {error}") from error
        worker = Worker(self, without_new_privileges, ours)
        await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
        try:
            await self._await_greeting(worker)
        except BaseException:
            worker.drop()
            raise
        return worker

    async def _await_greeting(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(_START_S):
                greeting = await worker.greeting()
        except TimeoutError:
            self.abandon()
            raise SpawnerError(f"the helper that starts commands did not respond within {_START_S:g} s") from None
        if greeting is None:
            self.abandon()
            raise SpawnerError("the helper that starts commands died")
        if not greeting:
            raise SpawnerError("no further process can be started on this machine")

    def kill(self, worker: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(KILL_WORKER + str(worker).encode())

    def abandon(self) -> None:
        """Kill a spawner that is dead or does not respond. Its workers end when the agent drops them."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    async def close(self, within_s: float) -> bool:
        """Wait until the last worker has ended; False if one of its processes cannot be killed in time."""
        self._control.close()
        deadline = asyncio.get_running_loop().time() + within_s
        while self.is_alive:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True
