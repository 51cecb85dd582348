"""A fork server for agents and commands: a process with everything imported, which forks for each of them.

Importing what an agent needs takes a second of one core, and what a command needs a third of that; the tests start
hundreds. A forked process is like any other, with its own signals, namespace and output. Only its start differs, so the
tests of the start itself (tests/agent/test_agent.py, the tutorial, the how-tos) start agents and commands as users do.

    process = start_agent(["--config", "site.yaml"], log_file, namespace)
    process = start_command(["get", "sites"], (stdin, stdout, stderr), environment, directory)

Run as a program, this file is the server: it reads requests from its standard input, a socket, forks, responds with the
child's pid, and later reports the exit code of each child. It ends when the test process closes the socket by its end.
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

Files = tuple[int, int, int]  # descriptors for standard input, output and error
_ROOT = Path(__file__).parents[2]
_MAX_BYTES = 65_536  # of a report; a request holds a whole environment, so it may have four times as many


class ForkedProcess:
    """A child of the fork server, with the methods of subprocess.Popen that tests use."""

    stdin = stdout = stderr = None

    def __init__(self, server: "_ForkServer", pid: int, handle: int) -> None:
        """`handle` is a pidfd: a signal must not reach another process that got the same number later."""
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._handle = handle

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], 0)[0]:
            self.returncode = self._server.exit_code(self.pid)
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


class _ForkServer:
    """The connection of this test process to its fork server."""

    def __init__(self) -> None:
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=server_end.fileno(), cwd=_ROOT, start_new_session=True)
        server_end.close()
        self._exit_codes: dict[int, int] = {}  # reported, and not yet read by `exit_code`

    def start(  # noqa: PLR0913, PLR0917 - what a process has
        self,
        argv: list[str],
        files: Files,
        environment: Mapping[str, str],
        cwd: Path,
        namespace: Path | None = None,
        hosts_file: Path | None = None,
    ) -> ForkedProcess:
        request = {
            "argv": argv,
            "namespace": str(namespace or ""),
            "hosts_file": str(hosts_file or ""),
            "cwd": str(cwd),
            "environment": dict(environment),
        }
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
        while True:
            report, handles = self._receive()
            if "started" in report:
                return ForkedProcess(self, report["started"], handles[0])
            self._record_end(report)  # another child has ended in the meantime

    def exit_code(self, pid: int) -> int:
        while pid not in self._exit_codes:
            self._record_end(self._receive()[0])
        return self._exit_codes.pop(pid)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        message, handles, _, _ = socket.recv_fds(self._socket, _MAX_BYTES, 1)
        return json.loads(message), handles

    def _record_end(self, report: dict[str, Any]) -> None:
        self._exit_codes[report["ended"]] = report["code"]


_servers: dict[int, _ForkServer] = {}  # by pid: a fork of the test process must not use the server of its parent


def start_agent(
    arguments: list[str], output: int, namespace: Path | None = None, hosts_file: Path | None = None
) -> ForkedProcess:
    """Start `cheops agent` with these arguments; its output goes to an open file, and it sees `hosts_file` as /etc/hosts."""
    with Path(os.devnull).open("rb") as null:
        files = (null.fileno(), output, output)
        return _server().start(["agent", *arguments], files, os.environ, Path.cwd(), namespace, hosts_file)


def start_command(argv: list[str], files: Files, environment: Mapping[str, str], cwd: Path) -> ForkedProcess:
    """Start `cheops` with these arguments."""
    return _server().start(argv, files, environment, cwd)


def _server() -> _ForkServer:
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _ForkServer()
        atexit.register(_servers[os.getpid()].close)
    return _servers[os.getpid()]


# -- the server ----------------------------------------------------------------------------------------------


def _main() -> None:
    _prepare()
    gc.freeze()  # a collection in a child would write to every page, and so copy the memory that they share
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # SIGCHLD writes a byte to this pipe, so that one `select` waits for requests and for the end of children.
    child_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([requests.fileno(), child_ended], [], [])
        if child_ended in ready:
            os.read(child_ended, 4_096)
            _report_ends(requests, children)
        if requests.fileno() in ready:
            message, files, _, _ = socket.recv_fds(requests, _MAX_BYTES * 4, 3)
            if not message:
                break
            if (pid := os.fork()) == 0:
                _run_child(json.loads(message), files)
            for file in files:
                os.close(file)
            children.add(pid)
            # Opened here, where the child is reaped: the test process might do so after its end.
            handle = os.pidfd_open(pid)
            socket.send_fds(requests, [json.dumps({"started": pid}).encode()], [handle])
            os.close(handle)
    for pid in children:  # the test process has ended, so no test can end them
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _prepare() -> None:
    """What every agent and command would do for itself: imports, and a quarter of an agent's start besides."""
    from starlette.routing import compile_path  # noqa: PLC0415 - the switch of tests/wan imports this file, without it

    import cheops.agent  # noqa: PLC0415
    import cheops.backends.command.backend  # noqa: F401, PLC0415
    from cheops.api.endpoints import ENDPOINTS  # noqa: PLC0415
    from cheops.cli.commands import COMMANDS  # noqa: PLC0415
    from cheops.plugins import scope_functions  # noqa: PLC0415

    for command in COMMANDS:
        command.load()
    scope_functions()  # which remembers what it finds in the metadata of all installed packages
    for endpoint in ENDPOINTS:
        compile_path(endpoint.path)  # `re` remembers the expressions


def _report_ends(requests: socket.socket, children: set[int]) -> None:
    for pid in sorted(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            with contextlib.suppress(OSError):
                requests.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _run_child(request: dict[str, Any], files: list[int]) -> None:
    code = 70  # EX_SOFTWARE: an exception that `main` does not catch
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 1_024)  # the socket of the server, and its pipes
        if request["namespace"]:
            from tests.wan.tun import enter, see_as_hosts  # noqa: PLC0415 - only the tests of tests/wan need it

            enter(Path(request["namespace"]))
            if request["hosts_file"]:
                see_as_hosts(Path(request["hosts_file"]))
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["cheops", *request["argv"]]
        time.tzset()
        from cheops.cli.main import main  # noqa: PLC0415 - imported long ago

        code = main()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # as at the end of any program
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, AttributeError):
                stream.flush()
        os._exit(code)  # not sys.exit: that would run the cleanup of the server


if __name__ == "__main__":
    _main()
