"""The HTTP client of an agent, over aiohttp. It is imported when it is first needed: few agents ever send a request by
HTTP, and aiohttp with all that it imports takes 5 MB."""

from typing import Any

import aiohttp
from yarl import URL

from cheops.peers.client import CLOSED, UNKNOWN_HOST, HttpError, InvalidResponseError, connection_problem


class HttpClient:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, limit_per_host=16))

    async def request(
        self, method: str, url: str, body: bytes | None, *, timeout_s: float, most_bytes: int, **tls: Any
    ) -> tuple[int, bytes]:
        """The status and the body of the response. The URL is encoded. Raises OSError, and ValueError for a bad URL."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        target = URL(url, encoded=True)
        try:
            async with self._session.request(
                method, target, data=body, timeout=timeout, allow_redirects=False, **tls
            ) as response:
                return response.status, await _read(response, most_bytes)
        except aiohttp.ClientError as error:
            raise HttpError(http_problem(error)) from error

    async def close(self) -> None:
        await self._session.close()


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of a response. The other site may be compromised: it must not decide how much memory it takes here."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most_bytes:
            _abort(response)
            raise InvalidResponseError(f"a response of more than {most_bytes:,} bytes")
    return bytes(body)


def _abort(response: aiohttp.ClientResponse) -> None:
    """End a connection at once, without the rest of its response. An orderly end of TLS would wait for the other side,
    and read for half a minute whatever it sends."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def http_problem(error: BaseException) -> str:
    """As `connection_problem`; it knows aiohttp's errors, too."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return UNKNOWN_HOST
        case aiohttp.ServerDisconnectedError():
            return CLOSED
    return connection_problem(error)
