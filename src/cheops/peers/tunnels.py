"""Connections through channels: to the gateway of a site that cannot be reached, and to a site by way of a third one.

A tunnel is a stream whose two bodies are the two directions of a connection. What goes through it is opaque: the TLS of
two gateways, or of two agents, ends at these two and nowhere in between. So a tunnel gives nobody any right, and a
relay neither reads nor changes what it passes on.

    gateway of site1 -> 127.0.0.1:p -> agent of site1 ~~channel~~> agent of site3 -> gateway of site3
    agent of site1 ~~channel~~> agent of site2 ~~channel~~> agent of site3 -> its own address

A relay passes on to a site only through a channel of its own that is direct: at most one hop. There its tunnels are
requests of the relay, which are limited; so it lets no site open so many that its own requests would be refused.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from cheops.config.address import Address
from cheops.errors import ClientError
from cheops.peers.channel import Channel
from cheops.peers.frames import Answer, Opening
from cheops.peers.requests import AGENT_TUNNEL, GATEWAY_TUNNEL, PeerRefusedError
from cheops.peers.streams import IncomingBody, IncomingRequest, Write
from cheops.security.refusals import RateLimiter
from cheops.text import printable, shortened

_READ_BYTES = 64 * 1024
_CONNECT_S = 3.0
_BEGIN_S, _LINGER_S = 10.0, 30.0  # until a tunnel is open, and until it ends after one of its ends was closed
_MOST_OF_PAIR = 4  # tunnels that one site has relayed to another one: it needs one, and one that takes its place
_MOST_TO_SITE = 64  # tunnels to one site, of all others: half of the requests that it takes of this one
_RELAYS_EACH_S, _RELAYS_AT_ONCE = 5.0, 50.0  # that one site may begin
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # nosec B104 - where to connect, not to listen
_log = logging.getLogger(__name__)


class Channels(Protocol):
    """The channels of this site; see channel_pool.py."""

    def get(self, site: str) -> Channel | None: ...


class TunnelEnds(Struct, frozen=True):
    """Where tunnels to this site end: its own addresses."""

    agent: Address
    gateway: Address | None

    def address_of(self, kind: str) -> tuple[str, int]:
        address = self.agent if kind == AGENT_TUNNEL else self.gateway
        if address is None:
            raise ClientError("this site has no gateway for other sites: 'gateway.listen' is not set", status=404)
        return _WILDCARDS.get(address.host, address.host), address.port


class TunnelServer:
    """Answers the requests of other sites for tunnels."""

    def __init__(self, own: str, ends: TunnelEnds, channels: Channels) -> None:
        self._own = own
        self._ends = ends
        self._channels = channels
        self._relayed: Counter[tuple[str, str]] = Counter()  # tunnels, by the site that asked and the one at the end
        self._limiter = RateLimiter(_RELAYS_EACH_S, _RELAYS_AT_ONCE, time.monotonic)

    async def answer(self, request: IncomingRequest) -> None:
        """Raises ClientError, and ChannelError if the other side is gone."""
        kind, target = request.opening.kind, request.opening.target
        if target in ("", self._own):
            await self._connect(request, kind)
        elif kind == AGENT_TUNNEL:
            await self._relay(request, target)
        else:
            raise ClientError("only connections of agents are relayed", status=404)

    async def _connect(self, request: IncomingRequest, kind: str) -> None:
        host, port = self._ends.address_of(kind)
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise ClientError(f"the {kind} of {self._own} cannot be reached: {error}", status=503) from None
        request.respond(Answer(200), end=False)
        sending = asyncio.get_running_loop().create_task(copy_to(writer, request.body))
        try:
            await copy_from(reader, request.write)
            await request.write(b"", end=True)
        finally:
            sending.cancel()
            writer.close()

    async def _relay(self, request: IncomingRequest, target: str) -> None:
        channel = self._channels.get(target)
        if channel is None or channel.via or target == request.channel.site:
            about = printable(shortened(target))
            raise ClientError(f"{self._own} has no channel of its own to '{about}'", status=503)
        with self._counted(request.channel.site, target):
            await self._carry(request, channel)

    @contextlib.contextmanager
    def _counted(self, asker: str, target: str) -> Iterator[None]:
        """Count a tunnel that is relayed while it lasts; raises PeerRefusedError if there are too many."""
        pair = (asker, target)
        to_target = sum(count for (_, end), count in self._relayed.items() if end == target)
        if self._relayed[pair] >= _MOST_OF_PAIR or to_target >= _MOST_TO_SITE:
            raise PeerRefusedError("too many relayed connections", "too many relayed connections", 429, 1.0)
        if wait_s := self._limiter.take(asker):
            raise PeerRefusedError("too many relayed connections", "too many relayed connections", 429, wait_s)
        self._relayed[pair] += 1
        try:
            yield
        finally:
            self._relayed[pair] -= 1
            if not self._relayed[pair]:
                del self._relayed[pair]

    @staticmethod
    async def _carry(request: IncomingRequest, channel: Channel) -> None:
        async def send(write: Write) -> None:
            async for piece in request.body:
                await write(piece)

        async with channel.open(Opening(AGENT_TUNNEL), send) as response:
            if response.status != 200:
                raise ClientError(f"{channel.site} takes no relayed connection", status=503)
            request.respond(Answer(200), end=False)
            async for piece in response.body:
                await request.write(piece)
            await request.write(b"", end=True)


async def copy_to(writer: asyncio.StreamWriter, body: IncomingBody) -> None:
    """What comes through a tunnel, to a connection of this machine."""
    try:
        async for piece in body:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    except OSError:  # also ChannelError: one end is gone, so the other must go
        writer.close()


async def copy_from(reader: asyncio.StreamReader, write: Write) -> None:
    """The other direction."""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(_READ_BYTES):
            await write(piece)


async def carry(channel: Channel, opening: Opening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry a connection of this machine through a channel, until one end closes it. Whether the other side answers, or
    closes its end, is its own decision; so that it cannot keep connections here, both have a time."""
    loop, is_ended = asyncio.get_running_loop(), False

    async def send(write: Write) -> None:
        nonlocal is_ended
        await copy_from(reader, write)
        is_ended = True
        limit.reschedule(loop.time() + _LINGER_S)

    try:
        async with asyncio.timeout(_BEGIN_S) as limit, channel.open(opening, send) as response:
            if response.status == 200:
                if not is_ended:
                    limit.reschedule(None)
                async for piece in response.body:
                    writer.write(piece)
                    await writer.drain()
    except OSError as error:
        _log.debug("a tunnel to %s has ended: %s", channel.site, error)
    finally:
        writer.close()


class TunnelListener:
    """An address of this machine that leads to the gateway of another site, through its channel."""

    def __init__(self, site: str, channels: Channels) -> None:
        self._site = site
        self._channels = channels
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    @property
    def port(self) -> int:
        assert self._server is not None  # noqa: S101 - `start` comes first
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = self._channels.get(self._site)
        if channel is None:
            writer.close()
        else:
            await carry(channel, Opening(GATEWAY_TUNNEL), reader, writer)
