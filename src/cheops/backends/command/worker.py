"""A keeper: a small process that runs one command at a time and owns whatever that command forks.

It waits for four things at once: output, which it always takes so that the command never blocks, and of
which it keeps the first part; the end of the command's first process; the deadline; and a word from the
agent. When the first process has ended, all that is left below the keeper is killed, and only then the
report is sent. So a keeper that is idle has no children, and what belongs to which command is never in
doubt.

At the deadline, or when cancelled, the command's process group gets SIGTERM, and GRACE_S later everything
SIGKILL. When the agent is gone everything gets SIGKILL at once.
"""

import os
import select
import signal
import socket
from time import monotonic

from cheops.backends.command import descendants, program
from cheops.backends.command.wire import (
    GRACE_S,
    SWEEP_S,
    CommandStatus,
    Order,
    Report,
    frame,
    pack_report,
    read_frame,
    unpack_order,
)

_PIECE_BYTES = 65536
_LAST_PIECES = 64  # what a pipe can hold at most when all who wrote to it are dead
_TICK_S = 1.0
_FOREVER_S = 1e9


def serve_orders(agent: socket.socket) -> None:
    """Carry out orders until the agent is gone."""
    descendants.inherit_orphans()
    agent.sendall(frame(str(os.getpid()).encode()))
    while (body := read_frame(agent)) is not None:
        if not body:
            continue  # a CANCEL that came when its command had just ended
        report = _run(unpack_order(body), agent)
        agent.sendall(frame(pack_report(report)))
        if not report.is_clean:
            descendants.Sweep().finish(_FOREVER_S)
            return


def _run(order: Order, agent: socket.socket) -> Report:
    output, theirs = os.pipe()
    try:
        try:
            pid = program.start(order, theirs)
        except program.NotStartedError as error:
            return Report(CommandStatus.NOT_STARTED, str(error).encode(errors="replace"))
        except OSError as error:  # no process, no memory
            return Report(CommandStatus.NOT_STARTED, f"it could not be started: {error}".encode())
        finally:
            os.close(theirs)
        return _Watch(order, agent, pid, output).report()
    finally:
        os.close(output)


class _Watch:
    """One command, from its start to the end of everything it started."""

    def __init__(self, order: Order, agent: socket.socket, pid: int, output: int) -> None:
        self._agent, self._pid, self._output = agent, pid, output
        self._began = monotonic()
        self._deadline = self._began + order.timeout_s
        self._next_tick = self._began + _TICK_S
        self._most = order.max_output_bytes
        self._kept = bytearray()
        self._dropped = 0
        self._status = CommandStatus.EXITED

    def report(self) -> Report:
        self._wait()
        descendants.kill_group(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        sweep = descendants.Sweep()
        is_clean = sweep.finish(SWEEP_S)
        self._read_rest()
        return Report(
            self._status,
            bytes(self._kept),
            os.waitstatus_to_exitcode(status),
            self._dropped,
            sweep.killed,
            is_clean,
            monotonic() - self._began,
        )

    def _wait(self) -> None:
        """Until the first process has ended, which is left to be waited for: so its id stays its own."""
        ended = os.pidfd_open(self._pid)
        try:
            poller = select.poll()
            for file in (ended, self._output, self._agent.fileno()):
                poller.register(file, select.POLLIN)
            os.set_blocking(self._output, False)
            while not self._turn(poller, ended):
                pass
        finally:
            os.close(ended)

    def _turn(self, poller: select.poll, ended: int) -> bool:
        left_s = max(0.0, self._deadline - monotonic())
        ready = {file for file, _ in poller.poll(min(left_s, _TICK_S) * 1000 + 1)}
        if self._output in ready and not self._read():
            poller.unregister(self._output)
        if self._agent.fileno() in ready and not self._listen():
            poller.unregister(self._agent.fileno())
        if ended in ready:
            return True
        if monotonic() >= self._deadline:
            self._stop(CommandStatus.TIMED_OUT)
        if monotonic() >= self._next_tick:
            descendants.forget_dead_orphans(self._pid)
            self._next_tick = monotonic() + _TICK_S
        return False

    def _listen(self) -> bool:
        """A word while a command runs means CANCEL; none means that there is nobody to report to."""
        if self._hears_word():
            if self._status is CommandStatus.EXITED:
                self._stop(CommandStatus.CANCELLED)
            return True
        self._status = CommandStatus.CANCELLED
        self._stop(CommandStatus.CANCELLED)
        return False

    def _hears_word(self) -> bool:
        try:
            return bool(self._agent.recv(64))
        except ConnectionError:
            return False

    def _stop(self, reason: CommandStatus) -> None:
        """First ask, then force."""
        if self._status is CommandStatus.EXITED:
            self._status = reason
            descendants.kill_group(self._pid, signal.SIGTERM)
        else:
            descendants.kill_group(self._pid, signal.SIGKILL)
        self._deadline = monotonic() + GRACE_S

    def _read(self) -> bool:
        """Take what has been written; False at the end of the stream."""
        try:
            piece = os.read(self._output, _PIECE_BYTES)
        except BlockingIOError:
            return True
        room = self._most - len(self._kept)
        self._kept += piece[:room]
        self._dropped += max(0, len(piece) - room)
        return bool(piece)

    def _read_rest(self) -> None:
        """All writers are dead; if one is not, the pipe was handed to a stranger, and is not waited for."""
        for _ in range(_LAST_PIECES):
            if not select.select([self._output], [], [], 0)[0] or not self._read():
                return
