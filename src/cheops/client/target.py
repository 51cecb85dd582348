"""Which agent to talk to, with which credentials, and what can go wrong on the way."""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cheops.errors import CheopsError, Fault

DEFAULT_URL = "http://127.0.0.1:8079"
UNIX = "unix://"
USUAL_SOCKET = Path("/var/lib/cheops/agent.sock")
_CONFIG = Path("cheops.yaml")
_SOCKET = "agent.sock"
_MAX_CONFIG_BYTES = 1024 * 1024
_MAX_TOKEN_CHARACTERS = 4096


class AgentError(CheopsError):
    """The agent refuses a request, in its own words. `http_status` is that of its response; 0: nothing was sent."""

    fault = Fault.CLIENT

    def __init__(self, message: str, http_status: int = 0) -> None:
        super().__init__(message)
        self.http_status = http_status


class UnreachableError(CheopsError):
    """The agent is unreachable, or its response was cut off."""

    fault = Fault.PEER
    definite = False


@dataclass(frozen=True, slots=True)
class Target:
    """An agent: its address (`http://…`, `https://…` or `unix:///path`), and the credentials for it."""

    url: str = DEFAULT_URL
    token: str = ""
    ca: str = ""  # a file with the authority's certificate, for https
    origin: str = ""  # why this agent was chosen, if the user named none

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.token and urlsplit(self.url).scheme == "http" and not _is_here(self.url):
            raise AgentError(
                f"a token must not be sent to {self.url} in plain text: everybody on the way could read it. Use https"
            )

    @property
    def socket(self) -> str:
        """The path of its Unix socket; empty: it has an address."""
        return self.url[len(UNIX) :] if self.url.startswith(UNIX) else ""

    @property
    def base(self) -> str:
        """The address that paths are added to."""
        return "http://localhost" if self.socket else self.url

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ssl_context(self) -> ssl.SSLContext | None:
        if urlsplit(self.url).scheme != "https":
            return None
        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise AgentError(f"the certificate {self.ca} (CHEOPS_CA) cannot be read: {error}") from error


def target_of(url: str | None = None, token_file: Path | None = None) -> Target:
    """The agent to use: `url`, else CHEOPS_URL, else the one of this machine. The token comes from the file, else from
    CHEOPS_TOKEN."""
    token = _token(token_file) if token_file else os.environ.get("CHEOPS_TOKEN", "").strip()
    ca = os.environ.get("CHEOPS_CA", "")
    if named := url or os.environ.get("CHEOPS_URL"):
        return Target(named.rstrip("/"), token, ca)
    if socket := _socket_here():
        return Target(f"{UNIX}{socket}", token, ca, "the socket of the agent of this machine")
    usual = DEFAULT_URL.replace("http:", "https:") if ca else DEFAULT_URL
    why = f"the usual address; there is no socket of an agent for {_CONFIG} here, nor {USUAL_SOCKET}"
    return Target(usual, token, ca, why)


def agent_url(url: str | None = None) -> str:
    """The address of the agent to use: `url`, else CHEOPS_URL, else that of this machine."""
    return target_of(url).url


def check_url(url: str) -> None:
    parts = urlsplit(url)
    if url.startswith(f"{UNIX}/"):
        return
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AgentError(f"'{url}' is not the address of an agent, such as {DEFAULT_URL} or {UNIX}{USUAL_SOCKET}")


def _socket_here() -> Path | None:
    candidates = (*_socket_of_config(), USUAL_SOCKET)
    return next((path for path in candidates if os.access(path, os.W_OK)), None)


def _socket_of_config() -> tuple[Path, ...]:
    """The socket in the data directory of this directory's configuration file, if there is one. Errors in the file are
    reported by the commands that use it."""
    try:
        if not _CONFIG.exists() or _CONFIG.stat().st_size > _MAX_CONFIG_BYTES:
            return ()
        import yaml  # noqa: PLC0415 - slow to import, and rarely needed

        content = yaml.safe_load(_CONFIG.read_text(encoding="utf-8"))
    except Exception:  # a file that cannot be read names no socket
        return ()
    data = content.get("data", "data") if isinstance(content, dict) else None
    return ((Path.cwd() / Path(data).expanduser() / _SOCKET),) if isinstance(data, str) else ()


def _token(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            token = file.read(_MAX_TOKEN_CHARACTERS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AgentError(f"the token in {path} cannot be read: {error}") from error
    if not token or len(token.split()) != 1:
        raise AgentError(f"{path} holds no token: one line is expected, as 'cheops token create' prints it")
    return token


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(status: int, body: bytes) -> AgentError:
    """The error in a response with a status of 400 or above."""
    try:
        return AgentError(str(json.loads(body)["detail"]), status)
    except (ValueError, KeyError, TypeError):
        text = body[:300].decode("utf-8", "replace")
        return AgentError(f"the response has status {status} and is not that of a Cheops agent: {text}", status)


def unreachable(target: Target, error: BaseException) -> UnreachableError:
    why = f" ({target.origin})" if target.origin else ""
    return UnreachableError(
        f"no response from the agent at {target.url}{why}: {error or type(error).__name__}\n  {_hint(target, error)}"
    )


def _hint(target: Target, error: BaseException) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "CHEOPS_CA must name the file with the mesh's authority (ca.pem), and --url an address of it."
    if isinstance(error, PermissionError):
        return "Only root and the agent's own user may use its socket; others take CHEOPS_URL and CHEOPS_TOKEN."
    if target.url.startswith("http:") and not isinstance(error, ConnectionRefusedError):
        return "Is it running ('cheops agent')? Where it has certificates, its address begins with https://."
    return "Is it running ('cheops agent')? CHEOPS_URL or --url says where it is."


_MAX_SOCKET_PATH = 100  # bytes; Linux accepts 107 (`sun_path`)


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A path to the same socket that is short enough, valid inside the context."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            with short_path(self._path) as name:
                self.sock.connect(name)
        except OSError:
            self.sock.close()
            raise
