"""The processes below this one: how to inherit the orphans among them, list them and kill them.

A child subreaper is given the descendants whose parents died, also those that left their process group
and session. So whatever a command forks ends up below its keeper, and can be killed until waitpid says
that there is nothing more. Neither marks in the environment nor a search through all processes are
needed.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Container, Iterator
from time import monotonic, sleep

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PAUSE_S = 0.001


def inherit_orphans() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def renounce_privileges() -> None:
    """From now on no program gains rights by being setuid; cannot be undone, and children inherit it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def children() -> list[int]:
    """The direct children of this process, the dead that nobody waited for among them."""
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
    """Signal a process group at once; only while its leader has not been waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_children(spared: Container[int] = ()) -> bool:
    """Kill all but these and forget the dead; whether any was there (its children come to us next)."""
    strays = [pid for pid in children() if pid not in spared]
    for pid in strays:
        kill(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(strays)


def forget_dead_orphans(leader: int) -> None:
    """Wait for orphans that ended by themselves, so that a long run does not collect zombies."""
    for pid in children():
        if pid != leader:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class Sweep:
    """Kill until nothing is left below this process; `killed` counts what had to be killed."""

    def __init__(self) -> None:
        self.killed = 0

    def finish(self, within_s: float) -> bool:
        """False if something could not be killed in time: the kernel holds it, as on a dead disk."""
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
