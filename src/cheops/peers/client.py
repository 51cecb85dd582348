"""Requests to the agents of other sites by HTTP, where there is no channel; and why a site is not reached.

Nearly everything goes through channels (channel_pool.py). By HTTP goes what is about an address rather than a site
(`cheops site ping`, a heartbeat where another site answers), and the renewal of a certificate that has ended.

With security on, a request goes over TLS to the very site that it is for, wherever the address came from (gossip may be
wrong or forged): the other end must show that site's certificate. Redirects are not followed.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from cheops.peers.probes import NO_RESPONSE
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from cheops.peers.http_client import HttpClient


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


class HttpError(ConnectionError):
    """A request by HTTP got no response; the text says why."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a response; raises InvalidResponseError."""
    try:
        return decode_json(body, dict[str, Any])
    except ValueError as error:
        raise InvalidResponseError(f"a response that is not a JSON object: {error}") from None


REFUSED_CONNECTION = "the connection is refused: nothing listens at its address"

CLOSED = "the connection was closed without a response"
UNKNOWN_HOST = "its host name cannot be resolved"
_PROBLEMS = {errno.ECONNREFUSED: REFUSED_CONNECTION, errno.ECONNRESET: CLOSED, errno.EPIPE: CLOSED}


def connection_problem(error: BaseException) -> str:  # noqa: PLR0911 - one per problem
    """Why a request to another site got no response, in plain words: the library's own text names its classes."""
    match error:
        case NoAddressError() | InvalidResponseError() | HttpError():
            return str(error)
        case socket.gaierror():
            return UNKNOWN_HOST
        case ssl.SSLCertVerificationError():
            why = getattr(getattr(error, "certificate_error", error), "verify_message", "")
            return f"its certificate is not accepted{f': {why}' if why else ''}"
        case ssl.SSLError():
            return "no secure connection can be made"
        case TimeoutError():
            return NO_RESPONSE
        case OSError(errno=int(number)) if number in _PROBLEMS:
            return _PROBLEMS[number]
        case OSError(errno=int(number)) if number > 0:
            return f"no connection can be made: {os.strerror(number).lower()}"
    return printable(shortened(str(error) or type(error).__name__, 300))


class PeerClient:
    """Sends requests to other sites. Belongs to one event loop."""

    def __init__(self, address_of: AddressOf, credentials: Credentials | None = None) -> None:
        self._address_of = address_of
        self._credentials = credentials
        self._http: HttpClient | None = None

    def address_of(self, site: str) -> str | None:
        """The address of a site; None if it is unknown."""
        return self._address_of(site)

    async def request(  # noqa: PLR0913 - what a request has
        self,
        site: str,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        most_bytes: int,
        address: str = "",
    ) -> tuple[int, bytes]:
        """The status and the body of the response. The path starts with a slash and is encoded. Raises OSError."""
        at = address or self._address_of(site)
        if not at:
            raise NoAddressError(f"there is no known address of '{printable(shortened(site))}'")
        tls: dict[str, Any] = {}
        if self._credentials:
            # Gossip may announce any address. One without TLS would skip the check of the certificate.
            if not at.startswith("https://"):
                raise NoAddressError(f"{printable(at)} is not https://, so '{site}' cannot be verified there")
            tls = {"ssl": self._credentials.client, "server_hostname": self._credentials.host_of(site)}
        create = await asyncio.to_thread(_import_http_client) if self._http is None else None
        if self._http is None and create:  # another request may have come meanwhile
            self._http = create()
        assert self._http is not None  # noqa: S101 - as above
        try:
            return await self._http.request(
                method, f"{at}{path}", body, timeout_s=timeout_s, most_bytes=most_bytes, **tls
            )
        except ValueError as error:
            raise NoAddressError(f"'{printable(shortened(at))}' is not an address: {error}") from None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


def _import_http_client() -> "type[HttpClient]":
    """In a thread: it takes a while, and heartbeats must go on."""
    from cheops.peers.http_client import HttpClient  # noqa: PLC0415

    return HttpClient
