"""Requests to the agents of other sites by HTTP, where there is no channel; and why a site is not reached.

Nearly everything goes through channels (channel_pool.py). By HTTP goes what is about an address rather than a site
(`cheops site ping`, a heartbeat where another site answers), and the renewal of a certificate that has ended.

With security on, a request goes over TLS to the very site that it is for, wherever the address came from (gossip may be
wrong or forged): the other end must show that site's certificate. Redirects are not followed.
"""

import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from cheops.peers.probes import NO_RESPONSE
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from aiohttp.client import _RequestContextManager


T = TypeVar("T")


def decode_json(raw: bytes | str, kind: type[T]) -> T:
    """Decode JSON from outside; raises ValueError."""
    # msgspec has no error of its own for these two: deep nesting ends in RecursionError.
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
    """The certificate of this site, and how it verifies other sites; see security/keyring.py."""

    @property
    def client(self) -> ssl.SSLContext: ...

    def host_of(self, site: str) -> str: ...


class NoAddressError(ConnectionError):
    """The address of a site is unknown, or cannot be used."""


class InvalidResponseError(ConnectionError):
    """The response of a site is too large, or malformed."""


def abort(response: aiohttp.ClientResponse) -> None:
    """End a connection at once, without the rest of its response. An orderly end of TLS would wait for the other side,
    and read for half a minute whatever it sends."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


async def read_response(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of a response. The other site may be compromised: it must not decide how much memory it takes here."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most_bytes:
            abort(response)
            raise InvalidResponseError(f"a response of more than {most_bytes:,} bytes")
    return bytes(body)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a response; raises InvalidResponseError."""
    try:
        return decode_json(body, dict[str, Any])
    except ValueError as error:
        raise InvalidResponseError(f"a response that is not a JSON object: {error}") from None


REFUSED_CONNECTION = "the connection is refused: nothing listens at its address"

_CLOSED = "the connection was closed without a response"
_PROBLEMS = {errno.ECONNREFUSED: REFUSED_CONNECTION, errno.ECONNRESET: _CLOSED, errno.EPIPE: _CLOSED}


def connection_problem(error: BaseException) -> str:  # noqa: PLR0911 - one per problem
    """Why a request to another site got no response, in plain words: the library's own text names its classes."""
    match error:
        case NoAddressError() | InvalidResponseError():
            return str(error)
        case socket.gaierror() | aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case ssl.SSLCertVerificationError():
            why = getattr(getattr(error, "certificate_error", error), "verify_message", "")
            return f"its certificate is not accepted{f': {why}' if why else ''}"
        case ssl.SSLError():
            return "no secure connection can be made"
        case TimeoutError():
            return NO_RESPONSE
        case aiohttp.ServerDisconnectedError():
            return _CLOSED
        case OSError(errno=int(number)) if number in _PROBLEMS:
            return _PROBLEMS[number]
        case OSError(errno=int(number)) if number > 0:
            return f"no connection can be made: {os.strerror(number).lower()}"
    return printable(shortened(str(error) or type(error).__name__, 300))


class PeerClient:
    """Sends requests to other sites."""

    def __init__(
        self, session: aiohttp.ClientSession, address_of: AddressOf, credentials: Credentials | None = None
    ) -> None:
        self._session = session
        self._address_of = address_of
        self._credentials = credentials

    def address_of(self, site: str) -> str | None:
        """The address of a site; None if it is unknown."""
        return self._address_of(site)

    def request(
        self, site: str, method: str, path: str, *, address: str = "", **options: Any
    ) -> "_RequestContextManager":
        """As aiohttp's `request`. The path starts with a slash and is encoded; raises NoAddressError."""
        at = address or self._address_of(site)
        if not at:
            raise NoAddressError(f"there is no known address of '{printable(shortened(site))}'")
        if self._credentials:
            # Gossip may announce any address. One without TLS would skip the check of the certificate.
            if not at.startswith("https://"):
                raise NoAddressError(f"{printable(at)} is not https://, so '{site}' cannot be verified there")
            options |= {"ssl": self._credentials.client, "server_hostname": self._credentials.host_of(site)}
        try:
            url = URL(f"{at}{path}", encoded=True)
        except ValueError as error:
            raise NoAddressError(f"'{printable(shortened(at))}' is not an address: {error}") from None
        return self._session.request(method, url, allow_redirects=False, **options)
