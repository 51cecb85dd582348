"""A fork server for agents and commands: a process with everything imported, which forks for each of them.

Importing what an agent needs takes a second of one core, and what a command needs a third of that; the tests start
hundreds. A forked process is like any other, with its own signals, namespace and output. Only its start differs, so the
tests of the start itself (tests/agent/test_agent.py, the tutorial) start agents and commands as users do, and the
how-tos their agents.

    process = start_agent(["--config", "site.yaml"], log_file, namespace)
    process = start_command(["get", "sites"], (stdin, stdout, stderr), environment, directory)
    path.write_text(command_script())  # a program that shells can run as `cheops`

Run as a program, this file is the server: it reads requests from its standard input, a socket, forks, responds with the
child's pid, and later reports the exit code of each child. It ends when the test process closes the socket by its end.
Programs connect to a second socket, one connection for each command (forked_command.py).
"""

import atexit
import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
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
        self._folder = tempfile.TemporaryDirectory(prefix="cheops-fork-")  # short: the path of a socket has 107 bytes
        self.address = Path(self._folder.name) / "s"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(self.address))
        listening.listen(64)
        command = [sys.executable, "-m", __name__, str(listening.fileno())]
        self._process = subprocess.Popen(
            command, stdin=server_end.fileno(), cwd=_ROOT, start_new_session=True, pass_fds=[listening.fileno()]
        )
        server_end.close()
        listening.close()
        self._exit_codes: dict[int, int] = {}  # reported, and not yet read by `exit_code`

    def start(
        self, argv: list[str], files: Files, environment: Mapping[str, str], cwd: Path, namespace: Path | None
    ) -> ForkedProcess:
        request = {
            "argv": argv,
            "namespace": str(namespace or ""),
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
        self._folder.cleanup()

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        message, handles, _, _ = socket.recv_fds(self._socket, _MAX_BYTES, 1)
        return json.loads(message), handles

    def _record_end(self, report: dict[str, Any]) -> None:
        self._exit_codes[report["ended"]] = report["code"]


_servers: dict[int, _ForkServer] = {}  # by pid: a fork of the test process must not use the server of its parent


def start_agent(arguments: list[str], output: int, namespace: Path | None = None) -> ForkedProcess:
    """Start `cheops agent` with these arguments; its output goes to an open file."""
    with Path(os.devnull).open("rb") as null:
        files = (null.fileno(), output, output)
        return _server().start(["agent", *arguments], files, os.environ, Path.cwd(), namespace)


def start_command(argv: list[str], files: Files, environment: Mapping[str, str], cwd: Path) -> ForkedProcess:
    """Start `cheops` with these arguments."""
    return _server().start(argv, files, environment, cwd, None)


def command_script() -> str:
    """A shell script that is `cheops`. Agents it starts as users do: signals are sent to the process of the script."""
    python = shlex.quote(sys.executable)
    program, address = (shlex.quote(str(path)) for path in (Path(__file__).with_name("forked_command.py"), _address()))
    real, forked = f'exec {python} -P -m cheops "$@"', f'exec {python} -I -S {program} {address} "$@"'
    return f'#!/bin/sh\ncase "$1" in agent) {real};; esac\n{forked}\n'


def _address() -> Path:
    return _server().address


def _server() -> _ForkServer:
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _ForkServer()
        atexit.register(_servers[os.getpid()].close)
    return _servers[os.getpid()]


# -- the server ----------------------------------------------------------------------------------------------


def _main() -> None:
    import cheops.api.app  # noqa: F401, PLC0415 - so that children need not
    from cheops.cli.commands import COMMANDS  # noqa: PLC0415

    for command in COMMANDS:
        command.load()
    gc.freeze()  # a collection in a child would write to every page, and so copy the memory that they share
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # SIGCHLD writes a byte to this pipe, so that one `select` waits for requests and for the end of children.
    child_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    children: dict[int, socket.socket] = {}  # by pid: where its end is reported
    listening = socket.socket(fileno=int(sys.argv[1]))
    clients: dict[socket.socket, int] = {}  # the pid of each program's command; 0: it has not asked for one yet
    while True:
        sources: list[Any] = [requests, child_ended, listening, *clients]
        ready, _, _ = select.select(sources, [], [])
        if child_ended in ready:
            os.read(child_ended, 4_096)
            _report_ends(requests, children, clients)
        if listening in ready:
            clients[listening.accept()[0]] = 0
        for client in clients.keys() & set(ready):
            _serve_client(client, children, clients)
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, _MAX_BYTES * 4, 3)
            if not message:
                break
            pid = _fork(message, files)
            children[pid] = requests
            # Opened here, where the child is reaped: the test process might do so after its end.
            handle = os.pidfd_open(pid)
            socket.send_fds(requests, [json.dumps({"started": pid}).encode()], [handle])
            os.close(handle)
    for pid in children:  # the test process has ended, so no test can end them
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _fork(message: bytes, files: list[int]) -> int:
    if (pid := os.fork()) == 0:
        _run_child(json.loads(message), files)
    for file in files:
        os.close(file)
    return pid


def _serve_client(client: socket.socket, children: dict[int, socket.socket], clients: dict[socket.socket, int]) -> None:
    """A program asks for its command, or has ended."""
    message, files, _, _ = socket.recv_fds(client, _MAX_BYTES * 4, 3)
    if message:
        clients[client] = pid = _fork(message, files)
        children[pid] = client
        return
    if pid := clients.pop(client):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    client.close()


def _report_ends(
    requests: socket.socket, children: dict[int, socket.socket], clients: dict[socket.socket, int]
) -> None:
    for pid in sorted(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            continue
        code, whose = os.waitstatus_to_exitcode(status), children.pop(pid)
        with contextlib.suppress(OSError):
            whose.send(json.dumps({"ended": pid, "code": code}).encode() if whose is requests else str(code).encode())
        if clients.pop(whose, None):
            whose.close()


def _run_child(request: dict[str, Any], files: list[int]) -> None:
    code = 70  # EX_SOFTWARE: an exception that `main` does not catch
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 1_024)  # the socket of the server, and its pipes
        if request["namespace"]:
            from tests.wan.tun import enter  # noqa: PLC0415 - only the tests of tests/wan need it

            enter(Path(request["namespace"]))
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["cheops", *request["argv"]]
        _open_streams()
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


def _open_streams() -> None:
    """As Python does when it starts: those of the server know whether *its* files have positions or are terminals."""
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115 - descriptors
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, sys.stderr.encoding, "backslashreplace", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    _main()
