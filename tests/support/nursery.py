"""Agents and commands that are born with everything imported: a process that has done that forks for each one.

To import all that an agent needs takes a second of one core, what a command needs a third, and the tests start
hundreds. What is born here is a process like any other, with its own signals, namespace and output; only its birth
differs, and the tests of starting itself (tests/agent/test_agent.py, the tutorial, the how-tos) start agents and
commands as users do.

    process = agent(["--config", "site.yaml"], log_file, namespace)
    process = command(["get", "sites"], (stdin, stdout, stderr), environment, directory)

Run as a program, this file is the parent: it takes a request from its standard input, a socket, forks, says the
child's number, and later how each child ended. It ends with the test process, whose end closes the socket.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Files = tuple[int, int, int]  # open ones, for standard input, output and error
_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 65_536


class Child:
    """A child of the nursery, with what subprocess.Popen has of it."""

    stdin = stdout = stderr = None

    def __init__(self, nursery: "_Nursery", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], 0)[0]:
            self.returncode = self._nursery.end_of(self.pid)
            os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Nursery:
    """The parent of this test process's agents."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__]
        self._parent = subprocess.Popen(command, stdin=theirs.fileno(), cwd=_ROOT, start_new_session=True)
        theirs.close()
        self._ended: dict[int, int] = {}

    def bear(
        self, argv: list[str], files: Files, environment: Mapping[str, str], cwd: Path, namespace: Path | None
    ) -> Child:
        wish = {
            "argv": argv,
            "namespace": str(namespace or ""),
            "cwd": str(cwd),
            "environment": dict(environment),
        }
        socket.send_fds(self._socket, [json.dumps(wish).encode()], list(files))
        while "born" not in (said := self._hear()):
            self._note(said)
        return Child(self, said["born"])

    def end_of(self, pid: int) -> int:
        while pid not in self._ended:
            self._note(self._hear())
        return self._ended.pop(pid)

    def close(self) -> None:
        self._socket.close()
        self._parent.wait()

    def _hear(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._socket.recv(_MOST_BYTES))
        return said

    def _note(self, said: dict[str, Any]) -> None:
        self._ended[said["ended"]] = said["code"]


_nurseries: dict[int, _Nursery] = {}  # by process: what is inherited by a fork is not its own


def agent(arguments: list[str], output: int, namespace: Path | None = None) -> Child:
    """`cheops agent` with these arguments, its output going to an open file."""
    with Path(os.devnull).open("rb") as nothing:
        files = (nothing.fileno(), output, output)
        return _nursery().bear(["agent", *arguments], files, os.environ, Path.cwd(), namespace)


def command(argv: list[str], files: Files, environment: Mapping[str, str], cwd: Path) -> Child:
    """`cheops` with these arguments."""
    return _nursery().bear(argv, files, environment, cwd, None)


def _nursery() -> _Nursery:
    if os.getpid() not in _nurseries:
        _nurseries[os.getpid()] = _Nursery()
        atexit.register(_nurseries[os.getpid()].close)
    return _nurseries[os.getpid()]


# -- the parent ----------------------------------------------------------------------------------------------


def _main() -> None:
    import cheops.api.router  # noqa: F401, PLC0415 - so that children need not
    from cheops.cli.commands import COMMANDS  # noqa: PLC0415

    for place in COMMANDS:
        place.load()
    gc.freeze()
    wishes = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([wishes.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4_096)
            _tell_ends(wishes, children)
        if wishes.fileno() in ready:
            message, files, _, _ = socket.recv_fds(wishes, _MOST_BYTES * 4, 3)
            if not message:
                break
            if (pid := os.fork()) == 0:
                _become(json.loads(message), files)
            for file in files:
                os.close(file)
            children.add(pid)
            wishes.send(json.dumps({"born": pid}).encode())
    for pid in children:  # whoever wanted them is gone
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tell_ends(wishes: socket.socket, children: set[int]) -> None:
    for pid in sorted(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            with contextlib.suppress(OSError):
                wishes.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(wish: dict[str, Any], files: list[int]) -> None:
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 1_024)
        if wish["namespace"]:
            from tests.wan.tun import enter  # noqa: PLC0415 - few need it

            enter(Path(wish["namespace"]))
        os.chdir(wish["cwd"])
        os.environ.clear()
        os.environ.update(wish["environment"])
        sys.argv = ["cheops", *wish["argv"]]
        time.tzset()
        from cheops.cli.main import main  # noqa: PLC0415 - imported long ago

        code = main()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # as at the end of any program
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, AttributeError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _main()
