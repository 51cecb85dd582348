"""How a channel begins: an HTTP request to the address of an agent, which becomes the channel.

    GET /peer/channel HTTP/1.1                 HTTP/1.1 101 Switching Protocols
    Upgrade: cheops/1                          Upgrade: cheops/1
    Cheops-Site: site1                         Cheops-Site: site2
    Cheops-For: site2
    Cheops-Via: site3                          the relay, if there is one

So it needs no other port, and passes the checks of every request of a site (endpoint.py). With security on the opener
verifies, too, that the other end is the site that it is for. What refuses it is an ordinary HTTP response.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import quote, unquote, urlsplit

from cheops.peers.channel import Channel
from cheops.peers.client import Credentials, NoAddressError
from cheops.peers.frames import VERSION
from cheops.peers.requests import CHANNEL_PATH
from cheops.peers.streams import ChannelError
from cheops.text import printable, shortened

PROTOCOL = f"cheops/{VERSION}"
SITE_HEADER, FOR_HEADER, VIA_HEADER = "Cheops-Site", "Cheops-For", "Cheops-Via"
_MOST_HEAD_BYTES = 16 * 1024
_MOST_BODY_BYTES = 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r)")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*([0-9]{1,9})\r\n")
_SITE = re.compile(rb"(?i)\r\ncheops-site:[ \t]*([^\r\n]{1,4000})\r\n")


class UpgradeRefusedError(ChannelError):
    """The agent at an address opens no channel."""

    def __init__(self, site: str, status: int, body: bytes) -> None:
        super().__init__(f"{site} responded with {status}")
        self.status = status
        self.body = body


class WrongSiteError(ChannelError):
    """Another site answers at an address."""


def request_head(host: str, path: str, own: str, site: str, via: str = "") -> bytes:
    relay = f"{VIA_HEADER}: {quote(via, safe='')}\r\n" if via else ""
    return (
        f"GET {path}{CHANNEL_PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
        f"{SITE_HEADER}: {quote(own, safe='')}\r\n{FOR_HEADER}: {quote(site, safe='')}\r\n{relay}\r\n"
    ).encode()


def response_head(own: str) -> bytes:
    return (
        f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
        f"{SITE_HEADER}: {quote(own, safe='')}\r\n\r\n"
    ).encode()


def names_in(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """The opener, the site that it looks for, and the site that relays it; empty if they are not given."""
    opener, wanted, via = (unquote(headers.get(name, "")) for name in (SITE_HEADER, FOR_HEADER, VIA_HEADER))
    return opener, wanted, via


MakeChannel = Callable[[asyncio.BaseTransport], Channel]


async def open_channel(
    address: str, own: str, site: str, credentials: Credentials | None, make: MakeChannel
) -> Channel:
    """A channel to a site; raises ChannelError and OSError. `make` verifies the other end of the connection."""
    url = urlsplit(address)
    if credentials and url.scheme != "https":
        # Gossip may announce any address. One without TLS would skip the check of the certificate.
        raise NoAddressError(f"{printable(address)} is not https://, so '{site}' cannot be verified there")
    try:
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        raise NoAddressError(f"'{printable(shortened(address))}' is not an address: {error}") from None
    head = request_head(url.netloc, url.path.rstrip("/"), own, site)
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Channel] = loop.create_future()
    try:
        transport, _ = await loop.create_connection(
            lambda: _Opening(site, head, make, opened),
            host,
            port,
            ssl=credentials.client if credentials else None,
            server_hostname=credentials.host_of(site) if credentials else None,
        )
    except UnicodeError:
        raise NoAddressError(f"'{printable(shortened(address))}' is not an address") from None
    return await _result(opened, transport)


async def open_channel_on(  # noqa: PLR0913, PLR0917 - as `open_channel`, and the relay
    sock: socket.socket, own: str, site: str, via: str, credentials: Credentials | None, make: MakeChannel
) -> Channel:
    """The same on a connection that leads to the site already, by way of `via`."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Channel] = loop.create_future()
    head = request_head("relayed", "", own, site, via)
    transport, _ = await loop.create_connection(
        lambda: _Opening(site, head, make, opened),
        sock=sock,
        ssl=credentials.client if credentials else None,
        server_hostname=credentials.host_of(site) if credentials else None,
    )
    return await _result(opened, transport)


async def _result(opened: "asyncio.Future[Channel]", transport: asyncio.Transport) -> Channel:
    try:
        return await opened
    except BaseException:
        transport.abort()
        raise


class _Opening(asyncio.Protocol):
    """Reads the response to the request, and makes way for the channel."""

    def __init__(self, site: str, head: bytes, make: MakeChannel, opened: "asyncio.Future[Channel]") -> None:
        self._site = site
        self._head = head
        self._make = make
        self._opened = opened
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        if self._opened.done() or self._transport is None:
            return
        self._received += data
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        if not separator:
            if len(head) > _MOST_HEAD_BYTES:
                self._fail(ChannelError("a response that is not HTTP"))
            return
        head += b"\r\n"
        found = _STATUS.match(head)
        if found is None:
            self._fail(ChannelError("a response that is not HTTP"))
        elif (status := int(found[1])) == 101:
            self._switch(head, rest)
        else:
            length = _LENGTH.search(head)
            if not length or len(rest) >= min(int(length[1]), _MOST_BODY_BYTES):
                self._fail(UpgradeRefusedError(self._site, status, rest[:_MOST_BODY_BYTES]))

    def _switch(self, head: bytes, rest: bytes) -> None:
        named = _SITE.search(head)
        name = unquote(named[1].decode("latin-1").strip()) if named else ""
        if name != self._site:
            self._fail(WrongSiteError(f"'{printable(shortened(name))}' responds at the address of {self._site}"))
            return
        assert self._transport is not None  # noqa: S101 - the caller has checked
        try:
            channel = self._make(self._transport)
        except (OSError, ValueError) as error:
            self._fail(error)
            return
        self._transport.set_protocol(channel)
        channel.connection_made(self._transport)
        self._opened.set_result(channel)
        if rest:
            channel.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the connection was closed without a response"))

    def _fail(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # the caller may have given up
        if self._transport is not None:
            self._transport.abort()
