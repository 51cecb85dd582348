"""TCP connections with back-pressure, and the pool of idle connections to upstreams.

At most one window of unread bytes is buffered; then reading pauses, and the kernel slows down the sender. The end of
a connection is noticed when it happens, even while nothing reads from it (`on_end`). No task exists that only waits.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from cheops.config.address import address_of_url, parse_url
from cheops.config.gateway import GatewayConfig
from cheops.config.service_tls import UpstreamTls
from cheops.config.services import ServiceConfig
from cheops.gateway.interfaces import UpstreamError
from cheops.gateway.service_tls import CertificateFileError, tls_failure, upstream_files
from cheops.peers.client import Credentials

# A reader that is slow costs at most this much memory per connection, and the sender soon blocks.
MAX_UNREAD_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024


class Wire(asyncio.Protocol):
    """An incoming or outgoing connection."""

    __slots__ = (
        "_drained", "_ended", "_error", "_is_paused", "_loop", "_on_open", "_pieces", "_reader",
        "_waiting_bytes", "_writable", "on_end", "transport",
    )  # fmt: skip

    def __init__(self, on_open: "Callable[[Wire], None] | None" = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_open = on_open
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._writable = True
        self.on_end: Callable[[], None] | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # -- callbacks of the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_WRITE_BYTES)
        if self._on_open:
            on_open, self._on_open = self._on_open, None
            on_open(self)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= MAX_UNREAD_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self._end()
        # The other direction may stay open; TLS has no half-closed connections.
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        self._error = error or self._error or ConnectionResetError("the connection is closed")
        self._end()
        _wake(self._drained)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        _wake(self._drained)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            _wake(self._reader)
            if self.on_end:
                self.on_end()

    @property
    def is_handed(self) -> bool:
        """Whether it comes from HAProxy, which reports the client's address."""
        return False

    @property
    def peer(self) -> str:
        """The address of the other side."""
        address = self.transport.get_extra_info("peername")
        # A socket for IPv6 that also takes IPv4 shows an IPv4 address in this form.
        return str(address[0]).removeprefix("::ffff:") if address else ""

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the other side sends nothing more; bytes that it sent before may still be unread."""
        return self._ended

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    @property
    def tls_failure(self) -> str:
        """Why the other side ended TLS; empty if it did not. With TLS 1.3 a server refuses the certificate of a client
        only after the handshake."""
        return tls_failure(self._error) if isinstance(self._error, ssl.SSLError) else ""

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open and has no unread bytes."""
        return not (self._ended or self._pieces or self.transport.is_closing())

    async def read(self, timeout_s: float) -> bytes:
        """The next bytes, waiting if there are none; b"" at the end. Raises TimeoutError."""
        while not self._pieces:
            if self._ended:
                return b""
            await self._wait("_reader", timeout_s)
        return self.read_now()

    def read_now(self) -> bytes:
        """Bytes that have arrived already; b"" if there are none."""
        if not self._pieces:
            return b""
        data = self._pieces.popleft()
        self._waiting_bytes -= len(data)
        if self._is_paused and self._waiting_bytes < MAX_UNREAD_BYTES and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()
        return data

    # -- writing -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write without waiting; call `drain` after it."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self, timeout_s: float) -> None:
        """Wait until the other side has taken most of what was written. Raises TimeoutError, OSError."""
        while not self._writable and self._error is None:
            await self._wait("_drained", timeout_s)
        if self._error is not None or self.transport.is_closing():
            raise ConnectionResetError(str(self._error or "the connection is closed"))

    def write_end(self) -> None:
        """Close the sending direction."""
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """Close once everything written is sent."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    async def _wait(self, name: str, timeout_s: float) -> None:
        waiter = self._loop.create_future()
        setattr(self, name, waiter)
        timer = self._loop.call_later(timeout_s, _expire, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            setattr(self, name, None)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


SILENCE_S = 10  # of a connection to another site, while it should acknowledge something; at rest it is asked then
PROBE_S, PROBES = 3, 3  # how often it is asked
_RECENT_S = 1.0  # no server closes an idle connection so soon after its last use


class UpstreamAddress(Struct, frozen=True):
    """Where a service or a gateway is reached."""

    host: str
    port: int
    is_tls: bool = False
    path: str = ""  # the prefix of the path of every request
    site: str = ""  # the site that its certificate must name, for a gateway
    tls: UpstreamTls | None = None  # for a service: how its certificate is verified

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@lru_cache(maxsize=4_096)  # sites may announce one address after another
def upstream_address(url: str) -> UpstreamAddress:
    """Host and port of a URL, checked; raises AddressError. HAProxy's configuration contains them as they are."""
    normal = parse_url(url, with_path=True)
    address, is_tls = address_of_url(normal), normal.startswith("https://")
    return UpstreamAddress(address.host, address.port, is_tls, urlsplit(normal).path.rstrip("/"))


def service_address(service: ServiceConfig) -> UpstreamAddress:
    """Where this site's own instance of a service is reached."""
    address = upstream_address(service.url)
    return replace(address, tls=service.upstream_tls) if address.is_tls else address


class ConnectionPool:
    """Idle connections, by address."""

    def __init__(self, settings: GatewayConfig, credentials: Credentials | None = None) -> None:
        self._settings = settings
        self._credentials = credentials
        self._idle: dict[UpstreamAddress, deque[tuple[float, Wire]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> int:
        return sum(map(len, self._idle.values()))

    def take_idle(self, address: UpstreamAddress, *, recent_only: bool) -> Wire | None:
        """An idle connection, if there is one; with `recent_only` one that was in use until just now."""
        waiting = self._idle.get(address)
        least_s = asyncio.get_running_loop().time() - (_RECENT_S if recent_only else self._settings.warm_for_s)
        # The most recently used first: the others become idle for long enough to be closed.
        while waiting and waiting[-1][0] >= least_s:
            _, wire = waiting.pop()
            wire.on_end = None
            if wire.is_quiet:
                return wire
            wire.abort()
        return None

    async def connect(self, address: UpstreamAddress) -> Wire:
        """Open a new connection. Raises UpstreamError without effect: nothing was sent."""
        loop, limit_s = asyncio.get_running_loop(), self._settings.connect_timeout_s
        try:
            tls, name = self._verified_by(address)
            async with asyncio.timeout(limit_s):
                _, wire = await loop.create_connection(Wire, address.host, address.port, ssl=tls, server_hostname=name)
                if address.site:
                    notice_silence(wire.transport)
        except TimeoutError:
            why = f"no connection within {limit_s:g} s"
            raise UpstreamError(_unreached(address, why), why, may_have_had_effect=False, status=504) from None
        except (OSError, CertificateFileError) as error:
            why = _why(error, shows_certificate=bool(address.tls and address.tls.client_cert))
            raise UpstreamError(_unreached(address, why), why, may_have_had_effect=False) from None
        return wire

    def _verified_by(self, address: UpstreamAddress) -> tuple[ssl.SSLContext | None, str | None]:
        """How the certificate is verified: a gateway's by its site, a service's by its host name."""
        if address.site and self._credentials:
            return self._credentials.client, self._credentials.host_of(address.site)
        if address.tls:
            return upstream_files(address.tls).current().context, address.tls.server_name or address.host
        return (_tls(), address.host) if address.is_tls else (None, None)

    def release(self, address: UpstreamAddress, wire: Wire) -> None:
        """Keep a connection without a request in progress for the next one."""
        waiting = self._idle.setdefault(address, deque())
        if not wire.is_quiet or len(waiting) >= self._settings.warm:
            wire.close()
            return
        wire.on_end = lambda: self._ended(address, wire)
        loop = asyncio.get_running_loop()
        waiting.append((loop.time(), wire))
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._settings.warm_for_s, self._sweep)

    def close(self) -> None:
        if self._sweeping:
            self._sweeping.cancel()
        for waiting in self._idle.values():
            for _, wire in waiting:
                wire.on_end = None
                wire.close()
        self._idle.clear()

    def _ended(self, address: UpstreamAddress, wire: Wire) -> None:
        kept = [entry for entry in self._idle.get(address, ()) if entry[1] is not wire]
        self._idle[address] = deque(kept)
        wire.close()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._settings.warm_for_s
        for address, waiting in list(self._idle.items()):
            while waiting and waiting[0][0] <= oldest_s:
                _, wire = waiting.popleft()
                wire.on_end = None
                wire.close()
            if not waiting:
                del self._idle[address]
        pause_s = max(self._settings.warm_for_s / 4, 0.01)
        self._sweeping = loop.call_later(pause_s, self._sweep) if self._idle else None


def notice_silence(transport: asyncio.Transport) -> None:
    """Have TCP end a connection to another site that a cut or a firewall has ended without a word. The site itself may
    be up, and reached in another way."""
    sock = transport.get_extra_info("socket")
    for option, value in (
        (socket.TCP_USER_TIMEOUT, SILENCE_S * 1_000),
        (socket.TCP_KEEPIDLE, SILENCE_S),
        (socket.TCP_KEEPINTVL, PROBE_S),
        (socket.TCP_KEEPCNT, PROBES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _unreached(address: UpstreamAddress, why: str) -> str:
    return f"{address.authority} cannot be reached: {why}"


def _why(error: OSError | CertificateFileError, *, shows_certificate: bool = False) -> str:
    """A reason without a comma: it becomes an item of the header Cheops-Fallback."""
    if isinstance(error, CertificateFileError):
        return str(error).replace(",", "")
    # If a host has several addresses, asyncio puts the errors of all into one text, without their classes.
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if isinstance(error, ssl.SSLError):
        return tls_failure(error, shows_certificate=shows_certificate).replace(",", "")
    return (error.strerror or "no connection").lower().replace(",", "")


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
