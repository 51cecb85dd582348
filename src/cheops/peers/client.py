"""Requests to the agents of other sites: the only way by which this site sends them anything.

With security on, a request goes over TLS to the very site that it is for, wherever the address came from
(gossip may be wrong, or a lie): the other end must show that site's certificate. No redirect is followed.
"""

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from cheops.text import printable, shortened

if TYPE_CHECKING:
    from aiohttp.client import _RequestContextManager


T = TypeVar("T")


def decode_json(raw: bytes | str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


AddressOf = Callable[[str], str | None]


class Credentials(Protocol):
    """What this site shows, and how it knows the others; see security/keyring.py."""

    @property
    def client(self) -> ssl.SSLContext: ...

    def host_of(self, site: str) -> str: ...


class NoAddressError(aiohttp.ClientConnectionError):
    """There is no address at which a site could be asked."""


class InvalidResponseError(aiohttp.ClientPayloadError):
    """A site answered something that nobody would."""


async def read_response(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of an answer. Another site may be anybody's by now: it does not decide how much we keep."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > most_bytes:
            answer.close()
            raise InvalidResponseError(f"an answer of more than {most_bytes:,} bytes")
    return bytes(body)


async def read_json_response(answer: aiohttp.ClientResponse, most_bytes: int) -> dict[str, Any]:
    """The JSON object in an answer."""
    try:
        return decode_json(await read_response(answer, most_bytes), dict[str, Any])
    except ValueError as error:
        raise InvalidResponseError(f"an answer that is no JSON object: {error}") from None


class PeerClient:
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
            raise NoAddressError(f"nobody knows the address of '{printable(shortened(site))}'")
        if self._credentials:
            if not at.startswith("https://"):
                raise NoAddressError(f"{printable(at)} is not https://, so '{site}' cannot be known there")
            options |= {"ssl": self._credentials.client, "server_hostname": self._credentials.host_of(site)}
        try:
            url = URL(f"{at}{path}", encoded=True)
        except ValueError as error:
            raise NoAddressError(f"'{printable(shortened(at))}' is not an address: {error}") from None
        return self._session.request(method, url, allow_redirects=False, **options)
