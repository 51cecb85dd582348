"""A client of an agent with little overhead: an open connection, prepared requests, no parsing.

Every response is checked: an operation that does not succeed at every site ends the benchmark.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, urlsplit

from cheops.client.agent import Form
from cheops.security.principal import Role
from tests.agent.rig import Rig
from tests.security.clients import token

_OK = b'"Status": "OK"'


class UnexpectedResponseError(Exception):
    """An operation that is measured must succeed."""


@dataclass(frozen=True, slots=True)
class Line:
    """The reply of one site, and the time it took."""

    after_s: float
    text: bytes


class Client:
    """One connection to the agent of a site."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exec(self, request: bytes, sites: int) -> list[Line]:
        """The replies of all sites, in the order of their arrival."""
        start = time.perf_counter()
        self._writer.write(request)
        lines = [
            Line(time.perf_counter() - start, chunk) async for chunk in self._chunks() if _OK in chunk or _refuse(chunk)
        ]
        if len(lines) != sites:
            raise UnexpectedResponseError(f"{len(lines)} of {sites} sites replied")
        return lines

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The lines of a response: the agent sends one chunk for each."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            body = await asyncio.wait_for(self._reader.read(4096), 5)
            raise UnexpectedResponseError((head + body).decode("utf-8", "replace"))
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def close(self) -> None:
        self._writer.close()


def _refuse(chunk: bytes) -> bool:
    raise UnexpectedResponseError(chunk.decode("utf-8", "replace"))


def exec_request(rig: Rig, resource: str, command: str = "true", sites: str = "") -> bytes:
    """The bytes of `exec`, as the command line would send them; at all sites unless some are named."""
    fields = {"command": command, "sites": sites or " & ".join(rig.names), "type": "inc"}
    form = Form(fields, {})
    authorization = f"Authorization: Bearer {_token(rig, rig.names[0])}\r\n" if rig.pki else ""
    head = (
        f"POST /exec/{quote(resource, safe='')} HTTP/1.1\r\nHost: localhost\r\n{authorization}"
        f"Content-Type: {form.content_type}\r\nContent-Length: {form.length}\r\n\r\n"
    )
    return head.encode() + b"".join(form)


@contextlib.asynccontextmanager
async def connected(rig: Rig, site: str, count: int = 1) -> AsyncIterator[list[Client]]:
    """Clients with a connection each, from the machine of the site itself."""
    with contextlib.ExitStack() as stack:
        clients = [await _client(rig, site) for _ in range(count)]
        for client in clients:
            stack.callback(client.close)
        yield clients


async def _client(rig: Rig, site: str) -> Client:
    address = urlsplit(rig.url(site))
    connection = rig.wan.hosts[site].socket() if rig.wan else socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (address.hostname, address.port))
    if rig.pki is None:
        return Client(*await asyncio.open_connection(sock=connection))
    context = ssl.create_default_context(cadata=rig.pki.pem)
    return Client(*await asyncio.open_connection(sock=connection, ssl=context, server_hostname=address.hostname))


@cache
def _token(rig: Rig, site: str) -> str:
    """One token for all requests to the agent of a site."""
    return token(rig, "bench", Role.ADMIN, site)
