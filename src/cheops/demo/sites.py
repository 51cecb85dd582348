"""Three sites on this machine: agents as processes of their own, minicloud (cloud.py) at each, and a Redis
where it is installed.

Everything is tied to this process: see tied.py and folder.py. Use it from the main thread: a child's tie is
to the thread that started it.
"""

import contextlib
import http.client
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from cheops.demo.cloud import Minicloud, sees_all_up
from cheops.demo.folder import DemoFolder
from cheops.demo.wires import WireControl, Wires
from cheops.errors import CheopsError

NAMES = ("site1", "site2", "site3")
_HERE = Path(__file__).parent
_HOST = "127.0.0.1"
_START_S, _STOP_S = 30.0, 10.0
_PAUSE_S = 0.02


class DemoError(CheopsError):
    """The demo cannot start, or did not go as it should."""


class Sites:
    """A context manager: within it the agents answer. `port`: of the first agent, the others follow."""

    def __init__(self, port: int = 0) -> None:
        self._stack = contextlib.ExitStack()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.redis_server = shutil.which("redis-server") if shutil.which("redis-cli") else None
        try:
            self.path = self._stack.enter_context(DemoFolder()).path
            ports = {name: self._reserved(port and port + n) for n, name in enumerate(NAMES)}
            self.urls = {name: f"http://{_HOST}:{number}" for name, number in ports.items()}
            self.cloud = Minicloud(NAMES, lambda: self._reserved(0))
            self.wires = Wires(ports, self._pids, self.cloud.lines)
            self._stack.callback(self.wires.close)
            self._stack.callback(WireControl(self.wires, self.path / "wires.sock").close)
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
                argv = [sys.executable, "-P", "-m", "cheops", "agent", "--config", config]
                self._agents[name] = self._start(self._log(name), argv)
            for wanted in (self._answers, self._sees_the_others, self.cloud.answers):
                for name in NAMES:
                    self._wait_for(wanted, name)
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
        """What an application of a site says, asked past Cheops."""
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
        peers = {name: self.wires.urls[name] for name in NAMES}
        (self.path / "peers.yaml").write_text(yaml.safe_dump(peers))
        for name in NAMES:
            self.files(name).mkdir(parents=True)
            words = {"SITE": name, "PORT": str(ports[name]), "WIRE": self.wires.urls[name]}
            words["PATH"] = yaml.safe_dump(self._search_path, width=10_000).split("\n")[0]
            words |= self.cloud.words(name, self.wires.urls)
            (self.path / name / "site.yaml").write_text(self._config(words))

    def _config(self, words: Mapping[str, str]) -> str:
        text = (_HERE / "site.yaml").read_text()
        if self.redis_server:
            text += (_HERE / "redis.yaml").read_text()
        text += (_HERE / "cloud.yaml").read_text()
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        return text

    def _write_program(self, name: str, *argv: str) -> None:
        path = self._bin / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        path.chmod(0o755)

    def _reserved(self, port: int) -> int:
        """A port that nobody else is given: bound here, without listening, which lets the agent listen."""
        holder = self._stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((_HOST, port))
        except OSError as error:
            raise DemoError(f"port {port} cannot be used: {error.strerror}. --port takes another") from None
        found: int = holder.getsockname()[1]
        return found

    # -- processes ---------------------------------------------------------------------------------------

    def _pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._agents.items()}

    def _start(
        self, log: Path, argv: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        tied = [sys.executable, "-I", "-S", str(_HERE / "tied.py"), str(os.getpid()), *argv]
        with log.open("ab") as out:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            process = subprocess.Popen(tied, cwd=cwd, env=env, start_new_session=True, **options)  # noqa: S603 - likewise  # nosec B603
        self._processes.append(process)
        return process

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start_redis(self, site: str) -> None:
        if self.redis_server:
            options = ["--port", "0", "--unixsocket", "redis.sock", "--save", ""]
            self._start(self.path / site / "redis.log", [self.redis_server, *options], self.files(site))

    def _wait_for(self, wanted: Callable[[str], bool], name: str) -> None:
        deadline_s = time.monotonic() + _START_S
        while not wanted(name):
            ended = self._agents[name].poll() is not None
            if ended or time.monotonic() > deadline_s:
                log = self._log(name).read_text(errors="replace")
                raise DemoError(f"the agent of {name} {'ended' if ended else 'is not ready'}:\n{log}")
            time.sleep(_PAUSE_S)

    def _sees_the_others(self, name: str) -> bool:
        return sees_all_up(self.urls[name])

    def _answers(self, name: str) -> bool:
        connection = http.client.HTTPConnection(self.urls[name].removeprefix("http://"), timeout=_START_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/db/")
            return connection.getresponse().status == 200
        return False
