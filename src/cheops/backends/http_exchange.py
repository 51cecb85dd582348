"""One request to this site's instance of a service, and its answer.

Tells apart what certainly never reached the service from what may have. Answers are read up to a limit: what
is larger is no more than counted. As everywhere in the gateway, headers have one character per byte.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from cheops.errors import CheopsError, Fault

MOST_READ_BYTES = 4 * 1024 * 1024
_CHUNK = 1024 * 1024
_CONNECT_S = 5.0
Header = tuple[str, str]


class NotSentError(CheopsError):
    """Nothing of the request reached the service."""

    fault = Fault.APPLICATION
    definite = False
    status = 503


class InDoubtError(CheopsError):
    """The request went out, and its answer was lost."""

    fault = Fault.APPLICATION
    definite = False
    status = 502


class Reply(NamedTuple):
    """An answer: the beginning of its body, and how large that is as a whole."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    size: int

    @property
    def is_whole(self) -> bool:
        return len(self.body) == self.size

    def header(self, name: str) -> str:
        return next((value for given, value in self.headers if given.lower() == name), "")


class FileBody(NamedTuple):
    """A body on disk; `size` as it is sent."""

    pieces: AsyncIterator[bytes]
    size: int


class Exchange:
    """Requests to all services of this site. Each has a connection of its own: one that was kept open may be
    gone by the time it is used, and then nobody could tell whether a request arrived."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=256, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(  # noqa: PLR0913, PLR0917 - a request's parts
        self,
        base: str,
        method: str,
        target: str,
        headers: Iterable[Header],
        body: bytes | FileBody,
        timeout_s: float,
    ) -> Reply:
        """Raises NotSentError or InDoubtError."""
        assert self._session is not None  # noqa: S101 - it is started with the node
        sent: list[Header] = [*_as_text(headers), ("Accept-Encoding", "identity")]
        if isinstance(body, FileBody):
            sent.append(("Content-Length", str(body.size)))
        data = body.pieces if isinstance(body, FileBody) else body or None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=timeout_s)
        url = URL(f"{base}{target}", encoded=True)
        where = urlsplit(base).netloc
        try:
            async with self._session.request(
                method, url, data=data, headers=sent, timeout=timeout, allow_redirects=False
            ) as answer:
                return await _read(answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSentError(f"the service at {where} cannot be reached: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = str(error) or type(error).__name__
            raise InDoubtError(f"the service at {where} was asked, and did not answer: {said}") from None


async def _read(answer: aiohttp.ClientResponse) -> Reply:
    found, size = bytearray(), 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        found += piece[: max(MOST_READ_BYTES - len(found), 0)]
    raw = answer.raw_headers
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in raw)
    return Reply(answer.status, headers, bytes(found), size)


def as_header(text: str) -> str:
    """A text as a header holds it: its UTF-8 bytes, one character each."""
    return text.encode().decode("latin-1")


def _as_text(headers: Iterable[Header]) -> Iterator[Header]:
    """Headers as aiohttp, which sends text as UTF-8, must have them. Bytes that are none become others: it
    has no way to send them."""
    for name, value in headers:
        try:
            yield name, value.encode("latin-1").decode()
        except UnicodeError:
            yield name, value


async def pieces_of(path: Path) -> AsyncGenerator[bytes, None]:
    """A file, in pieces that are read outside of the event loop."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            yield piece
    finally:
        await asyncio.to_thread(file.close)
