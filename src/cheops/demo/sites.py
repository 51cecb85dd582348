"""Three sites on this machine: one agent process each, minicloud (cloud.py) at each, and a Redis where installed.

Nothing is left behind, however the demo ends. Every process is tied to this one, and a guard process removes the
temporary folder (guard.py). Use `Sites` from the main thread: a child is tied to the thread that started it.
"""

import contextlib
import fcntl
import http.client
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from cheops.demo.cloud import Minicloud, sees_all_up
from cheops.demo.network import Network, NetworkControl
from cheops.errors import CheopsError

NAMES = ("site1", "site2", "site3")
_HERE = Path(__file__).parent
_HOST = "127.0.0.1"
_GUARD = _HERE / "guard.py"
_PREFIX = "cheops-demo-"
_START_S, _STOP_S = 30.0, 10.0
_POLL_S = 0.02


class DemoFolder:
    """A temporary directory that is removed however the demo ends. A context manager; `path` is the directory.

    A guard process removes it when this process ends. If the guard is killed too, the next demo removes it: a
    directory is locked while its demo runs. It gets its final name, by which other demos find it, only once it is
    locked, so several demos can run side by side.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_leftovers(parent)
        unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
        self._lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = unlocked.rename(parent / f"{_PREFIX}{secrets.token_hex(4)}")
        self._guard = subprocess.Popen(  # noqa: S603 - our own script  # nosec B603
            [sys.executable, "-I", "-S", str(_GUARD), "remove", str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the demo
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guard.communicate()
        os.close(self._lock)


def _remove_leftovers(parent: Path) -> None:
    """Remove directories whose demo and guard are both gone."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or already removed
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)


class DemoError(CheopsError):
    """The demo cannot start, or a check of the guided tour failed."""


class Sites:
    """A context manager: within it all agents are ready. `port` is that of the first agent; the others follow."""

    def __init__(self, port: int = 0) -> None:
        self._stack = contextlib.ExitStack()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.redis_server = shutil.which("redis-server") if shutil.which("redis-cli") else None
        try:
            self.path = self._stack.enter_context(DemoFolder()).path
            ports = {name: self._reserve(port and port + n) for n, name in enumerate(NAMES)}
            self.urls = {name: f"http://{_HOST}:{number}" for name, number in ports.items()}
            self.cloud = Minicloud(NAMES, lambda: self._reserve(0))
            self.network = Network(ports, self._pids, self.cloud.endpoints)
            self._stack.callback(self.network.close)
            self._stack.callback(NetworkControl(self.network, self.path / "network.sock").close)
            # Callbacks run in reverse order: first the processes stop, then the network, and last the folder goes.
            self._stack.callback(self._stop)
            self._write_files(ports)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        try:
            for name in NAMES:
                self._start_redis(name)
                for program, command in self.cloud.commands(name, self.files(name)).items():
                    log, environment = self.path / name / f"{program}.log", self.cloud.environment(name)
                    self._start(log, command, env=environment)
                config = str(self.path / name / "site.yaml")
                # -P: modules in the directory where the user starts the demo must not be imported.
                argv = [sys.executable, "-P", "-m", "cheops", "agent", "--config", config]
                self._agents[name] = self._start(self._log(name), argv)
            for condition in (self._answers, self._sees_the_others, self.cloud.answers):
                for name in NAMES:
                    self._wait_for(condition, name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def files(self, name: str) -> Path:
        """Where the applications of a site keep their files."""
        return self.path / name / "files"

    def state(self, name: str, *command: str) -> str:
        """The output of an application at a site, run directly and not through Cheops."""
        done = subprocess.run(  # noqa: S603 - the demo's own programs  # nosec B603
            [str(self._bin / command[0]), *command[1:]],
            cwd=self.files(name),
            env={"PATH": self._search_path},
            capture_output=True,
            text=True,
            check=False,
        )
        return (done.stdout + done.stderr).rstrip("\n")

    def _log(self, name: str) -> Path:
        return self.path / name / "log"

    # -- files -------------------------------------------------------------------------------------------

    @property
    def _bin(self) -> Path:
        return self.path / "bin"

    @property
    def _search_path(self) -> str:
        """PATH, for the commands of operations."""
        return f"{self._bin}:{os.defpath}"

    def _write_files(self, ports: Mapping[str, int]) -> None:
        self._bin.mkdir()
        for name in ("note", "stock"):
            self._write_program(name, "/bin/sh", str(_HERE / "apps" / name))
        if self.redis_server:
            self._write_program("redis-cli", shutil.which("redis-cli") or "", "-e", "-s", "redis.sock")
        peers = {name: self.network.urls[name] for name in NAMES}
        (self.path / "peers.yaml").write_text(yaml.safe_dump(peers))
        for name in NAMES:
            self.files(name).mkdir(parents=True)
            values = {"SITE": name, "PORT": str(ports[name]), "LINK": self.network.urls[name]}
            values["PATH"] = yaml.safe_dump(self._search_path, width=10_000).split("\n")[0]
            values |= self.cloud.placeholders(name, self.network.urls)
            (self.path / name / "site.yaml").write_text(self._config(values))

    def _config(self, values: Mapping[str, str]) -> str:
        text = (_HERE / "site.yaml").read_text()
        if self.redis_server:
            text += (_HERE / "redis.yaml").read_text()
        text += (_HERE / "cloud.yaml").read_text()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        return text

    def _write_program(self, name: str, *argv: str) -> None:
        path = self._bin / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        path.chmod(0o755)

    def _reserve(self, port: int) -> int:
        """Reserve a port: bound here without listening, so that only the agent can listen on it."""
        holder = self._stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((_HOST, port))
        except OSError as error:
            raise DemoError(f"port {port} cannot be used: {error.strerror}. Choose another with --port") from None
        reserved: int = holder.getsockname()[1]
        return reserved

    # -- processes ---------------------------------------------------------------------------------------

    def _pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._agents.items()}

    def _start(
        self, log: Path, argv: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        tied = [sys.executable, "-I", "-S", str(_GUARD), "tie", str(os.getpid()), *argv]
        with log.open("ab") as out:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            process = subprocess.Popen(tied, cwd=cwd, env=env, start_new_session=True, **options)  # noqa: S603 - likewise  # nosec B603
        self._processes.append(process)
        return process

    def _stop(self) -> None:
        for process in self._processes:  # all at once, so that they stop at the same time
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start_redis(self, site: str) -> None:
        if self.redis_server:
            # Only a Unix socket, which needs no free port, and no snapshots on disk.
            options = ["--port", "0", "--unixsocket", "redis.sock", "--save", ""]
            self._start(self.path / site / "redis.log", [self.redis_server, *options], self.files(site))

    def _wait_for(self, condition: Callable[[str], bool], name: str) -> None:
        deadline_s = time.monotonic() + _START_S
        while not condition(name):
            ended = self._agents[name].poll() is not None
            if ended or time.monotonic() > deadline_s:
                log = self._log(name).read_text(errors="replace")
                raise DemoError(f"the agent of {name} {'ended' if ended else 'is not ready'}:\n{log}")
            time.sleep(_POLL_S)

    def _sees_the_others(self, name: str) -> bool:
        return sees_all_up(self.urls[name])

    def _answers(self, name: str) -> bool:
        connection = http.client.HTTPConnection(self.urls[name].removeprefix("http://"), timeout=_START_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/db/")
            return connection.getresponse().status == 200
        return False
