"""Who a client is, for `replicate_as: mapped`: a short text such as the id of a project, which goes into the operation.

Only what the client proves with its own credentials counts:

ask     a URL is requested with exactly these credentials; its response names the client (keystone: whose token it is)
claim   a claim of the client's JSON Web Token. The service verifies the token itself when it runs the request, and an
        operation that it refuses runs nowhere. So that it cannot look at other credentials than these, there must be
        no others.

Nothing that could be read in two ways is accepted: no header twice, no control characters, no text without an end.
"""

import base64
import binascii
import hashlib
import time

import msgspec

from cheops.backends.http.payload import MAX_CLIENT_CHARACTERS, Header, id_in
from cheops.bounded import BoundedMap
from cheops.config.service_credentials import ClientConfig
from cheops.config.services import ServiceConfig
from cheops.errors import CheopsError, ClientError
from cheops.gateway.connection import upstream_address
from cheops.gateway.headers import RequestHead
from cheops.gateway.interfaces import UpstreamError
from cheops.gateway.upstream import (
    DisconnectWatch,
    PreparedBody,
    ResponseTimeout,
    UpstreamClient,
    UpstreamRequest,
    ignore_informational,
    streamed_response,
)
from cheops.text import printable, shortened

_KNOWN_FOR_S = 60.0
_MAX_KNOWN = 10_000
_MAX_BYTES = 1024 * 1024
_ASK_S = 10.0


class ClientIdentifier:
    """Finds out who the clients of this site are."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        # By a hash of the credentials: what they prove does not change, and the service itself checks them each time.
        self._known: BoundedMap[bytes, tuple[float, str]] = BoundedMap(_MAX_KNOWN)

    async def identify(self, service: ServiceConfig, credentials: tuple[Header, ...]) -> str:
        """Raises CheopsError: a change by an unknown client could not be replicated with its rights."""
        config = service.replication.client
        if config is None:
            return ""
        if not credentials:
            raise _unknown(service, "the request has no credentials")
        names = [name.lower().replace("_", "-") for name, _ in credentials]
        if len(set(names)) != len(names):
            raise _unknown(service, "the request has the same credentials twice")
        if config.claim:
            return _checked(service, claimed_client(service, config.claim, credentials))
        key = hashlib.sha256(msgspec.json.encode((service.name, credentials))).digest()
        until_s, found = self._known.get(key, (0.0, ""))
        if time.monotonic() >= until_s:
            found = _checked(service, await self._ask(service, config, credentials))
            self._known[key] = (time.monotonic() + _KNOWN_FOR_S, found)
        return found

    async def _ask(self, service: ServiceConfig, config: ClientConfig, credentials: tuple[Header, ...]) -> str:
        address = upstream_address(config.ask)
        by_name = {name.lower().replace("_", "-"): value for name, value in credentials}
        copied = {
            name.lower(): (name, by_name[of.lower()]) for name, of in config.with_headers if of.lower() in by_name
        }
        kept = (pair for pair in credentials if pair[0].lower().replace("_", "-") not in copied)
        headers = (
            ("Host", address.authority),
            *kept,
            *copied.values(),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
        )
        request = UpstreamRequest(
            RequestHead("GET", address.path or "/", headers),
            PreparedBody(b"", 0),
            ignore_informational,
            DisconnectWatch(),
        )
        try:
            upstream = await self._client.send(address, request, ResponseTimeout(_ASK_S))
            response = await streamed_response(upstream)
            body = await _read(response.body)
        except UpstreamError as error:
            where = f"services.{service.name}.client.ask"
            raise CheopsError(f"{where}: {error.why}; nothing was changed", status=503, definite=False) from None
        if not 200 <= response.status < 300:
            if response.status >= 500:
                where = f"services.{service.name}.client.ask"
                raise CheopsError(f"{where} answers {response.status}; nothing was changed", status=503, definite=False)
            raise _unknown(service, f"{address.authority} answers {response.status} to the client's credentials")
        if config.header:
            return next((value for name, value in response.headers if name.lower() == config.header.lower()), "")
        found = id_in(body, config.value)
        return "" if found is None else str(found)


async def _read(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    found = bytearray()
    async for piece in body:  # type: ignore[attr-defined]
        found += piece[: max(_MAX_BYTES - len(found), 0)]
    return bytes(found)


def claimed_client(service: ServiceConfig, claim: str, credentials: tuple[Header, ...]) -> str:
    """What a claim of a JSON Web Token says; empty if it has none. Raises ClientError."""
    name, value = credentials[0]
    kind, _, token = value.strip().partition(" ")
    if len(credentials) != 1 or name.lower() != "authorization" or kind.lower() != "bearer":
        raise _unknown(service, "its only credentials must be a JSON Web Token, Authorization: Bearer …")
    parts = token.strip().split(".")
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=dict[str, object])
    except (IndexError, binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        raise _unknown(service, "what Authorization holds is no JSON Web Token") from None
    found = claims.get(claim)
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def _checked(service: ServiceConfig, client: str) -> str:
    if not client:
        raise _unknown(service, "the response or the token does not name it")
    if len(client) > MAX_CLIENT_CHARACTERS or not client.isprintable() or client != client.strip():
        raise _unknown(service, f"'{printable(shortened(client))}' cannot be the name of one")
    return client


def _unknown(service: ServiceConfig, why: str) -> ClientError:
    return ClientError(
        f"it is not known who the client is (services.{service.name}.client): {why}. A replicated change runs with "
        "the client's rights at each site, so nothing was changed",
        status=401,
    )
