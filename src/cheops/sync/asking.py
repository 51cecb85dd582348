"""Requests to the agents of other sites: the one way by which anything is asked of them.

With security on, a request goes over TLS to the very site that it is for, wherever the address came from
(gossip may be wrong, or a lie): the other end must show that site's certificate. No redirect is followed.
"""

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
from yarl import URL

from cheops.sync.couch_json import decoded
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from aiohttp.client import _RequestContextManager

AddressOf = Callable[[str], str | None]


class Credentials(Protocol):
    """What this site shows, and how it knows the others; see security/keyring.py."""

    @property
    def client(self) -> ssl.SSLContext: ...

    def host_of(self, site: str) -> str: ...


class NoWayError(aiohttp.ClientConnectionError):
    """There is no address at which a site could be asked."""


class OddAnswerError(aiohttp.ClientPayloadError):
    """A site answered something that nobody would."""


async def read_answer(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of an answer. Another site may be anybody's by now: it does not decide how much we keep."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > most_bytes:
            answer.close()
            raise OddAnswerError(f"an answer of more than {most_bytes:,} bytes")
    return bytes(body)


async def read_answered_object(answer: aiohttp.ClientResponse, most_bytes: int) -> dict[str, Any]:
    """The JSON object in an answer."""
    try:
        return decoded(await read_answer(answer, most_bytes), dict[str, Any])
    except ValueError as error:
        raise OddAnswerError(f"an answer that is no JSON object: {error}") from None


class Asking:
    """Used by all parts of a site that ask something of another."""

    def __init__(
        self, session: aiohttp.ClientSession, address_of: AddressOf, credentials: Credentials | None = None
    ) -> None:
        self._session = session
        self._address_of = address_of
        self._credentials = credentials

    @property
    def is_secure(self) -> bool:
        return self._credentials is not None

    def address_of(self, site: str) -> str | None:
        """Where a site is; None where nobody knows."""
        return self._address_of(site)

    def request(
        self, site: str, method: str, path: str, *, address: str = "", **options: Any
    ) -> "_RequestContextManager":
        """As aiohttp's `request`. The path starts with a slash and is encoded; raises NoWayError."""
        at = address or self._address_of(site)
        if not at:
            raise NoWayError(f"nobody knows the address of '{printable(shortened(site))}'")
        if self._credentials:
            if not at.startswith("https://"):
                raise NoWayError(f"{printable(at)} is not https://, so '{site}' cannot be known there")
            options |= {"ssl": self._credentials.client, "server_hostname": self._credentials.host_of(site)}
        try:
            url = URL(f"{at}{path}", encoded=True)
        except ValueError as error:
            raise NoWayError(f"'{printable(shortened(at))}' is not an address: {error}") from None
        return self._session.request(method, url, allow_redirects=False, **options)
