"""Real agents for tests: each a process, on loopback or on its own host of a test bed (tests/wan).

On loopback they speak plain HTTP (`security: none`), unless the rig is `secure`; on a test bed always TLS.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.client.agent import Form
from tests.security.pki import Pki
from tests.support import fork_server
from tests.support.ports import free_port
from tests.wan import Host, Wan

PATIENCE_S = 60.0  # the machine that runs the tests may be slow and busy
_PORT = 8079
Line = dict[str, Any]


def until(what: Callable[[], object], why: str = "", patience_s: float = PATIENCE_S) -> Any:
    """Wait until a condition is true; gives its first true result."""
    end_s = time.monotonic() + patience_s
    while True:
        began_s = time.monotonic()
        if result := what():
            return result
        if (now_s := time.monotonic()) > end_s:
            raise AssertionError(f"waited {patience_s:.0f} s in vain {why}")
        # Checking takes at most a quarter of the time: it uses the agents, and would slow down what we wait for.
        time.sleep(min(max(0.02, 3 * (now_s - began_s)), 0.2))


class RefusedByAgentError(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        try:
            self.detail = str(json.loads(body)["detail"])
        except (ValueError, KeyError, TypeError):
            self.detail = body.decode("utf-8", "replace")
        super().__init__(f"{status}: {self.detail}")


class Rig:
    """Sites that share a list of peers, and the types given. Each site's files are below `folder(site)`."""

    def __init__(
        self,
        base: Path,
        types: dict[str, Any],
        names: Iterable[str],
        wan: Wan | None = None,
        *,
        secure: bool = False,
    ) -> None:
        self.base = base
        self.pki = Pki() if wan or secure else None
        self.names = tuple(names)
        self.wan = wan
        self.hosts_file: Path | None = None  # that agents see as /etc/hosts, on a test bed
        self.processes: dict[str, fork_server.ForkedProcess] = {}
        self.side_processes: list[subprocess.Popen[Any]] = []
        self._addresses = {name: self._address(name) for name in self.names}
        for name in self.names:
            self._configure(name, types)

    # -- sites -----------------------------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        return self.base / name

    def url(self, name: str) -> str:
        return f"{'https' if self.pki else 'http'}://{self._advertised(name)}"

    def _advertised(self, name: str) -> str:
        host, port = self._addresses[name]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self, *names: str) -> None:
        """Start agents, and wait until each answers."""
        for name in names or self.names:
            arguments = ["--config", str(self.folder(name) / "site.yaml")]
            host = self._host(name)
            with (self.folder(name) / "log").open("ab") as log:
                if host:
                    self.processes[name] = host.agent(arguments, log.fileno(), self.hosts_file)
                else:
                    self.processes[name] = fork_server.start_agent(arguments, log.fileno())
        for name in names or self.names:
            until(lambda n=name: self._answers(n), f"for {name} to start:\n{self.log(name)}")  # type: ignore[misc]

    def kill(self, name: str) -> None:
        """End a site as a power cut does."""
        self.kill_agent(name)
        self.end_haproxy(name)

    def kill_agent(self, name: str) -> None:
        """Kill the agent alone; its HAProxy continues."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=PATIENCE_S)

    def start_beside(self, name: str, argv: list[str]) -> subprocess.Popen[Any]:
        """Start another process on the machine of a site, such as its Redis."""
        process = self._popen(name, argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.side_processes.append(process)
        return process

    def log(self, name: str) -> str:
        path = self.folder(name) / "log"
        return path.read_text()[-4000:] if path.exists() else ""

    def close(self) -> None:
        started: list[fork_server.ForkedProcess | subprocess.Popen[Any]] = [
            *self.processes.values(),
            *self.side_processes,
        ]
        for process in started:
            process.kill()
            process.wait()
        for name in self.names:
            self.end_haproxy(name)

    def haproxy(self, name: str) -> int | None:
        """The pid of a site's HAProxy, which outlives an agent that is killed."""
        folder = self.folder(name) / "data" / "gateway"
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((folder / "haproxy.pid").read_text().split()[0])
            # The pid may belong to another process by now: HAProxy runs in this folder.
            if Path(f"/proc/{pid}/cwd").readlink() == folder.resolve():
                return pid
        return None

    def end_haproxy(self, name: str) -> None:
        """End HAProxy's master; its workers end with it."""
        if pid := self.haproxy(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            until(lambda: self.haproxy(name) is None, "for HAProxy to end")

    def _host(self, name: str) -> Host | None:
        return self.wan.hosts[name] if self.wan else None

    def _popen(self, name: str, argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        host = self._host(name)
        return host.popen(argv, **options) if host else subprocess.Popen(argv, **options)

    def _address(self, name: str) -> tuple[str, int]:
        host = self._host(name)
        return (host.address, _PORT) if host else ("127.0.0.1", free_port())

    def _configure(self, name: str, types: dict[str, Any]) -> None:
        self.folder(name).mkdir(parents=True)
        host = self._addresses[name][0]
        text = json.dumps(types).replace("@FOLDER@", str(self.folder(name)))
        config = {
            "site": name,
            "listen": self._advertised(name),
            "data": "data",
            "security": self._security(name, host),
            "peers": {other: self.url(other) for other in self.names},
            "types": json.loads(text),
            "heartbeat": {"every": "300ms", "down_after": "1500ms"},
        }
        (self.folder(name) / "site.yaml").write_text(yaml.safe_dump(config))

    def _security(self, name: str, host: str) -> str | dict[str, str]:
        if self.pki is None:
            return "none"
        self.pki.site(self.folder(name) / "tls", name, host)
        if name != self.names[0] or len(self.names) == 1:
            return {"folder": "tls"}
        # The first of several sites has the authority's key, so it decides which of them are forgotten.
        return {"folder": "tls", "ca_key": str(self.pki.write(self.folder(name) / "ca"))}

    def _answers(self, name: str) -> bool:
        if name in self.processes and self.processes[name].poll() is not None:
            raise AssertionError(f"{name} ended:\n{self.log(name)}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.request(name, "GET", "/db/")
            return True
        return False

    # -- requests --------------------------------------------------------------------------------------

    def request(
        self, name: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> bytes:
        with self._connected(name) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
        if response.status >= 400:
            raise RefusedByAgentError(response.status, content)
        return content

    def post(self, name: str, path: str, fields: dict[str, str], files: dict[str, Path] | None = None) -> bytes:
        form = Form(fields, files or {})
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        return self.request(name, "POST", path, iter(form), headers)

    def exec(  # noqa: PLR0913 - what a form has
        self,
        name: str,
        id_: str,
        type_: str,
        command: str,
        *,
        sites: str = "",
        timeout: float = 30,
        **more: Any,
    ) -> list[Line]:
        """The replies of the sites that arrive before the timeout."""
        fields = {"command": command, "sites": sites or " & ".join(self.names), "type": type_}
        fields |= {"timeout": str(timeout)} | {key: value for key, value in more.items() if key != "files"}
        lines = self.post(name, f"/exec/{id_}", fields, more.get("files")).splitlines()
        return [json.loads(line) for line in lines]

    def exec_here(self, name: str, id_: str, type_: str, command: str) -> Line:
        """Run an operation while other sites may be unreachable: the reply of the site itself, as soon as it has one."""
        form = Form({"command": command, "sites": " & ".join(self.names), "type": type_}, {})
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        with self._connected(name) as connection:
            connection.request("POST", f"/exec/{id_}", iter(form), headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise RefusedByAgentError(response.status, response.read())
            lines: Iterable[Line] = map(json.loads, response)
            return next(line for line in lines if line["Site"] == name)

    def show(self, name: str, id_: str, command: str = "", sites: str = "") -> dict[str, Line]:
        states: dict[str, Line] = json.loads(self.post(name, f"/show/{id_}", {"command": command, "sites": sites}))
        return states

    @contextlib.contextmanager
    def _connected(self, name: str) -> Iterator[http.client.HTTPConnection]:
        address = self._addresses[name]
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
            if self.pki:  # the local socket: an administrator needs no token there
                connection.sock = self._local_socket(name)
            yield connection

    def _local_socket(self, name: str) -> socket.socket:
        folder = os.open(self.folder(name) / "data", os.O_PATH)
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(PATIENCE_S)
        try:
            # By the folder's descriptor: the path of a Unix socket has at most 107 bytes, and pytest's folders have more.
            connected.connect(f"/proc/self/fd/{folder}/agent.sock")
        except OSError:
            connected.close()
            raise
        finally:
            os.close(folder)
        return connected

    @contextlib.contextmanager
    def tls(self, name: str, context: ssl.SSLContext, host: str = "") -> Iterator[http.client.HTTPConnection]:
        """A connection over TLS, as any client makes it. `host`: the name that the certificate must have."""
        address = self._addresses[name]
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
            plain = self._host(name).socket() if self.wan else socket.socket()  # type: ignore[union-attr]
            plain.settimeout(PATIENCE_S)
            try:
                plain.connect(address)
                connection.sock = context.wrap_socket(plain, server_hostname=host or address[0])
            except OSError:
                plain.close()
                raise
            yield connection


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """Makes rigs: `make_rig(types, "a", "b", wan=wan)`. Their agents end with the test."""
    rigs: list[Rig] = []

    def make(types: dict[str, Any], *names: str, wan: Wan | None = None, secure: bool = False) -> Rig:
        base = tmp_path / f"rig{len(rigs)}"
        rig = Rig(base, types, names or ("site1", "site2", "site3"), wan, secure=secure)
        rigs.append(rig)
        return rig

    try:
        yield make
    finally:
        for rig in rigs:
            rig.close()
