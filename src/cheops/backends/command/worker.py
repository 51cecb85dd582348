"""The processes that run commands: the spawner, one per agent, and its workers, of which each runs one command.

The spawner forks a worker for each request of the agent (a fork of so small a process is cheap, however large the
agent has grown) and gives it the socket that came with the request. It inherits the processes of a worker that is
killed, and kills them. It does not run commands, and agent and workers talk without it. When the agent is gone, which
the end of the control socket shows even after SIGKILL, it stays until the last worker has cleaned up.

A worker waits for four things at once: output, which it always takes so that the command never blocks, and of which
it keeps the first part; the end of the command's first process; the deadline; and a message from the agent. When the
first process has ended, the worker kills all its other descendants, and only then sends the report. So an idle worker
has no children, and it is always clear which process belongs to which command. At the deadline, or when
cancelled, the command's process group gets SIGTERM, and GRACE_S later everything SIGKILL. When the agent is gone,
everything gets SIGKILL at once.

Both are child subreapers: a subreaper is given the descendants whose parents died, even those that left their process
group and session. So whatever a command forks ends up below its worker, and can be killed until waitpid says that
nothing is left. Neither marks in the environment nor a search through all processes are needed.

Runs with `python -I -S`: nothing but the standard library, and little of that. Linux 5.3 or newer (pidfd).
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Container, Iterator
from time import monotonic, sleep

from cheops.backends.command import program
from cheops.backends.command.typing_names import NoReturn
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

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PAUSE_S = 0.001  # between two rounds of killing: a process may fork while it is killed


def inherit_orphans() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No program can gain rights by being setuid from now on; inherited by children, and irrevocable."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def children() -> list[int]:
    """The direct children of this process, including zombies."""
    me = os.getpid()
    try:
        return [int(pid) for pid in _content(f"/proc/self/task/{me}/children").split()]
    except FileNotFoundError:  # a kernel built without CONFIG_PROC_CHILDREN
        names = os.listdir("/proc")  # noqa: PTH208 - without the weight of pathlib
        return [pid for pid in map(int, filter(str.isdigit, names)) if _parent(pid) == me]


def _parent(pid: int) -> int:
    try:
        stat = _content(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat[stat.rindex(b")") + 1 :].split()[1])  # the name before it may hold anything


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return b"".join(_pieces(file))
    finally:
        os.close(file)


def _pieces(file: int) -> Iterator[bytes]:
    while piece := os.read(file, 65536):
        yield piece


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(leader: int, number: int) -> None:
    """Signal a process group; only before its leader is waited for, or the id could belong to another group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_children(spared: Container[int] = ()) -> bool:
    """Kill all children but these and reap the dead. True if there was any: its own children come here next."""
    strays = [pid for pid in children() if pid not in spared]
    for pid in strays:
        kill(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(strays)


def reap_orphans(leader: int) -> None:
    """Reap orphans that ended by themselves, so that a long command does not collect zombies."""
    for pid in children():
        if pid != leader:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class Sweep:
    """Kills until no process is left below this one; `killed` counts them."""

    def __init__(self) -> None:
        self.killed = 0

    def finish(self, within_s: float) -> bool:
        """False if a process could not be killed in time: the kernel holds it, for example on a failed disk."""
        deadline = monotonic() + within_s
        while self._anything_left():
            if monotonic() >= deadline:
                return False
            for pid in children():
                kill(pid)
            sleep(_PAUSE_S)
        return True

    def _anything_left(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self.killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return False


_PIECE_BYTES = 65536
_LAST_PIECES = 64  # more than a pipe can hold
_TICK_S = 1.0  # how often orphans that have ended are reaped
_FOREVER_S = 1e9


def serve_orders(agent: socket.socket) -> None:
    """Run commands until the agent closes the connection."""
    inherit_orphans()
    agent.sendall(frame(str(os.getpid()).encode()))
    while (body := read_frame(agent)) is not None:
        if not body:
            continue  # a CANCEL that came too late
        report = _run(unpack_order(body), agent)
        agent.sendall(frame(pack_report(report)))
        if not report.is_clean:
            Sweep().finish(_FOREVER_S)
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
    """Watches one command from its start to the end of everything that it started."""

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
        kill_group(self._pid, signal.SIGKILL)  # before waitpid: after it, the id may belong to another group
        _, status = os.waitpid(self._pid, 0)
        sweep = Sweep()
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
        """Wait until the first process has ended, but do not reap it: its id must not be reused yet."""
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
            reap_orphans(self._pid)
            self._next_tick = monotonic() + _TICK_S
        return False

    def _listen(self) -> bool:
        """Handle a message: CANCEL while a command runs, or the end of the agent."""
        if self._has_message():
            if self._status is CommandStatus.EXITED:
                self._stop(CommandStatus.CANCELLED)
            return True
        self._status = CommandStatus.CANCELLED
        self._stop(CommandStatus.CANCELLED)
        return False

    def _has_message(self) -> bool:
        try:
            return bool(self._agent.recv(64))
        except ConnectionError:
            return False

    def _stop(self, reason: CommandStatus) -> None:
        """SIGTERM the first time, SIGKILL after that."""
        if self._status is CommandStatus.EXITED:
            self._status = reason
            kill_group(self._pid, signal.SIGTERM)
        else:
            kill_group(self._pid, signal.SIGKILL)
        self._deadline = monotonic() + GRACE_S

    def _read(self) -> bool:
        """Read output; False at its end."""
        try:
            piece = os.read(self._output, _PIECE_BYTES)
        except BlockingIOError:
            return True
        left = self._most - len(self._kept)
        self._kept += piece[:left]
        self._dropped += max(0, len(piece) - left)
        return bool(piece)

    def _read_rest(self) -> None:
        """Read what is left in the pipe. A process outside may still have it open, so its end is not awaited."""
        for _ in range(_LAST_PIECES):
            if not select.select([self._output], [], [], 0)[0] or not self._read():
                return


NEW_WORKER = b"n"
NEW_UNPRIVILEGED_WORKER = b"u"
KILL_WORKER = b"k"  # and its process id
_STRAYS_MS = 10


def main() -> None:
    for number in program.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    inherit_orphans()
    _Spawner(socket.socket(fileno=int(sys.argv[2]))).serve()


class _Spawner:
    def __init__(self, control: socket.socket) -> None:
        control.set_inheritable(False)
        self._control = control
        self._workers: dict[int, int] = {}  # pidfd → process id
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._is_wanted = True

    def serve(self) -> None:
        strays = False
        while self._is_wanted or self._workers or strays:
            for file, _ in self._poller.poll(_STRAYS_MS if strays else None):
                if file in self._workers:
                    self._reap(file)
                else:
                    self._handle_message()
            strays = kill_children(spared=frozenset(self._workers.values()))

    def _handle_message(self) -> None:
        message, files, _, _ = socket.recv_fds(self._control, 64, 1)
        word, rest = message[:1], message[1:]
        if word == KILL_WORKER and int(rest) in self._workers.values():
            kill(int(rest))
        elif files:
            self._fork(socket.socket(fileno=files[0]), word == NEW_UNPRIVILEGED_WORKER)
        elif not message:
            self._poller.unregister(self._control)
            self._is_wanted = False

    def _fork(self, agent: socket.socket, without_new_privileges: bool) -> None:
        agent.set_inheritable(False)
        try:
            pid = os.fork()
        except OSError:  # the limit of processes is reached: an empty greeting reports that
            agent.sendall(frame(b""))
            agent.close()
            return
        if pid == 0:
            self._become_worker(agent, without_new_privileges)
        agent.close()
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = pid
        self._poller.register(pidfd, select.POLLIN)

    def _become_worker(self, agent: socket.socket, without_new_privileges: bool) -> NoReturn:
        try:
            self._control.close()
            for pidfd in self._workers:
                os.close(pidfd)
            if without_new_privileges:
                forbid_new_privileges()
            serve_orders(agent)
        except ConnectionError:  # the agent ended in the middle of a message
            pass
        except BaseException:  # a forked child must never return into the code of its parent
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.waitpid(self._workers.pop(pidfd), 0)
        os.close(pidfd)
