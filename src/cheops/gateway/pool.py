"""Connections to services and to other gateways, kept warm while they may be needed again.

Bounded per place; one that was not used for a while is closed, and one that the other side closes is gone at
once. The last one used is used first, so that those that are not needed get old.
"""

import asyncio
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from cheops.config.gateway import GatewayConfig
from cheops.gateway.errors import UpstreamError
from cheops.gateway.wire import Wire
from cheops.sync.asking import Credentials

_SURE_S = 1.0  # how long a connection is trusted with what must not be sent twice: servers close idle ones


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service or a gateway is reached, and how it is called in messages."""

    host: str
    port: int
    is_tls: bool = False
    path: str = ""  # what stands before the path of every request
    site: str = ""  # whose gateway it must be; it shows so by its certificate

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@cache
def place_of_url(url: str) -> Place:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return Place(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"))


class Pool:
    """All connections that wait, by place."""

    def __init__(self, settings: GatewayConfig, credentials: Credentials | None = None) -> None:
        self._settings = settings
        self._credentials = credentials
        self._idle: dict[Place, deque[tuple[float, Wire]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> int:
        return sum(map(len, self._idle.values()))

    def warm(self, place: Place, *, sure: bool) -> Wire | None:
        """A connection that waits; with `sure` only one that was used a moment ago."""
        waiting = self._idle.get(place)
        least_s = asyncio.get_running_loop().time() - (_SURE_S if sure else self._settings.warm_for_s)
        while waiting and waiting[-1][0] >= least_s:
            _, wire = waiting.pop()
            wire.on_end = None
            if wire.is_quiet:
                return wire
            wire.abort()
        return None

    async def fresh(self, place: Place) -> Wire:
        """A new connection. Raises UpstreamError: nothing was sent."""
        loop, limit_s = asyncio.get_running_loop(), self._settings.connect_timeout_s
        tls, name = self._verified_by(place)
        try:
            async with asyncio.timeout(limit_s):
                _, wire = await loop.create_connection(
                    Wire, place.host, place.port, ssl=tls, server_hostname=name
                )
        except TimeoutError:
            why = f"no connection within {limit_s:g} s"
            raise UpstreamError(_unreached(place, why), why, may_have_had_effect=False, status=504) from None
        except OSError as error:
            why = _why(error)
            raise UpstreamError(_unreached(place, why), why, may_have_had_effect=False) from None
        return wire

    def _verified_by(self, place: Place) -> tuple[ssl.SSLContext | None, str | None]:
        """Another gateway as a site of the mesh, a service as its host."""
        if place.site and self._credentials:
            return self._credentials.client, self._credentials.host_of(place.site)
        return (_tls(), place.host) if place.is_tls else (None, None)

    def give_back(self, place: Place, wire: Wire) -> None:
        """Keep a connection on which nothing is under way."""
        waiting = self._idle.setdefault(place, deque())
        if not wire.is_quiet or len(waiting) >= self._settings.warm:
            wire.close()
            return
        wire.on_end = lambda: self._ended(place, wire)
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

    def _ended(self, place: Place, wire: Wire) -> None:
        kept = [entry for entry in self._idle.get(place, ()) if entry[1] is not wire]
        self._idle[place] = deque(kept)
        wire.close()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._settings.warm_for_s
        for place, waiting in list(self._idle.items()):
            while waiting and waiting[0][0] <= oldest_s:
                _, wire = waiting.popleft()
                wire.on_end = None
                wire.close()
            if not waiting:
                del self._idle[place]
        pause_s = max(self._settings.warm_for_s / 4, 0.01)
        self._sweeping = loop.call_later(pause_s, self._sweep) if self._idle else None


def _unreached(place: Place, why: str) -> str:
    return f"{place.authority} cannot be reached: {why}"


def _why(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    return (error.strerror or "no connection").lower().replace(",", "")


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
