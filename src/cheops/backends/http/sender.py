"""Sends the requests of operations to this site's instance of a service.

`backend` calls it for each step of a run, and says with whose credentials: `Sender`. On the way out, meta-ids become
local ids, and credentials and the scope for the application's own calls are added. On the way back, local ids become
meta-ids, and secrets are left out. An error says whether the request may have had an effect.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.credentials import CredentialProvider, CredentialsError
from cheops.backends.http.ids import Form, Local, LocalIdTranslator, text_to_local, to_local, to_meta
from cheops.backends.http.interpretation import id_at, rule_id, without_members
from cheops.backends.http.paths import ID, collection_of, filled, joined, last_segment, trimmed
from cheops.backends.http.payload import (
    KeptResponse,
    Request,
    id_in,
    is_json,
    is_passed_on,
    kept_response,
    without_sessions,
)
from cheops.backends.http.secrets import masked
from cheops.backends.http.signature import CONTENT_HASH, RequestSigner, is_refused_key
from cheops.backends.http.translation import READABLE_ENCODINGS, ResponseIds, decompressed, hosts_of
from cheops.config.gateway import GatewayConfig
from cheops.config.request_rules import SAFE_METHODS
from cheops.config.services import HOST_OF_CLIENT, HOST_OF_SERVICE, ServiceConfig
from cheops.errors import CheopsError
from cheops.gateway.connection import service_address, upstream_address
from cheops.gateway.headers import RequestHead, encode_header
from cheops.gateway.interfaces import Response
from cheops.gateway.upstream import (
    DisconnectWatch,
    PreparedBody,
    ResponseTimeout,
    UpstreamClient,
    UpstreamRequest,
    ignore_informational,
    streamed_response,
)

MAX_READ_BYTES = 4 * 1024 * 1024
_CHUNK = 1024 * 1024
_MAX_CONNECTIONS = 256
_IN_TARGET = "".join(map(chr, range(0x21, 0x7F)))  # what a request line may hold as it is
Header = tuple[str, str]


class ServiceReply(NamedTuple):
    """A response: the beginning of its body, and the size of the whole."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    size: int
    host: str = ""  # the Host of the request
    digest: str = ""  # SHA-256 of the whole body

    @property
    def is_whole(self) -> bool:
        return len(self.body) == self.size

    def header(self, name: str) -> str:
        return next((value for given, value in self.headers if given.lower() == name), "")


class FileSlice(NamedTuple):
    """A part of a file."""

    path: Path
    start: int
    size: int


class FileBody(NamedTuple):
    """A body on disk; `size` as it is sent."""

    pieces: AsyncIterator[bytes]
    size: int


async def _read_reply(response: Response) -> ServiceReply:
    beginning, size, digest = bytearray(), 0, hashlib.sha256()
    async for piece in decompressed(response):
        size += len(piece)
        digest.update(piece)
        beginning += piece[: max(MAX_READ_BYTES - len(beginning), 0)]
    return ServiceReply(response.status, response.headers, bytes(beginning), size, digest=digest.hexdigest())


def _as_bytes(text: str) -> str:
    """A header's text with one character per byte; what another site or a command wrote may have others."""
    return text if all(ord(character) < 256 for character in text) else encode_header(text)


async def read_pieces(path: Path, start: int = 0, size: int | None = None) -> AsyncGenerator[bytes, None]:
    """A file, or a part of it, in pieces that are read outside of the event loop."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        file.seek(start)
        while piece := await asyncio.to_thread(file.read, _CHUNK if size is None else min(size, _CHUNK)):
            size = None if size is None else size - len(piece)
            yield piece
    finally:
        await asyncio.to_thread(file.close)


_UNAUTHORIZED = 401
_PATHS = ("location", "content-location", "link")

# Remembers the scope of a request to a service; gives its headers with a carrier, and a function to call at its end.
Carry: TypeAlias = Callable[[str, tuple[Header, ...], str], Awaitable[tuple[tuple[Header, ...], Callable[[], None]]]]
# Sends one request to this site's instance of a service, and reads the response. Raises UpstreamError.
Exchange: TypeAlias = Callable[[ServiceConfig, RequestHead, PreparedBody], Awaitable[ServiceReply]]


class OfClient(NamedTuple):
    """A request with exactly the credentials that its client sent, perhaps none."""

    headers: tuple[Header, ...]


class OfSite(NamedTuple):
    """A request with the credentials that this site has: for a client, or (empty) its own."""

    client: str = ""


Identity: TypeAlias = OfClient | OfSite


def of_site(service: ServiceConfig, client: str) -> OfSite:
    """With which credentials this site runs what was accepted for a client: as its own configuration says, whatever
    that of the other site is. Raises CredentialsError."""
    if service.replication.replicate_as != "mapped":
        return OfSite()
    if not client:  # a program that gives credentials by client must not be asked for nobody's
        raise CredentialsError(
            f"services.{service.name}.replicate_as is 'mapped', and the site that took the request does not say who "
            "its client is: it needs the same setting"
        )
    return OfSite(client)


class OperationSender:
    """Sends requests with local ids, credentials and the scope for the application's own calls."""

    def __init__(
        self,
        copies: Copies,
        providers: Mapping[str, CredentialProvider],
        settings: GatewayConfig,
        signers: Mapping[str, RequestSigner] = MappingProxyType({}),
        exchange: Exchange | None = None,
    ) -> None:
        self._copies = copies
        self._providers = providers
        self._signers = signers
        # No connection is kept open: one that the service closes while it is used again would leave it unknown whether
        # the request arrived.
        self.client = UpstreamClient(replace(settings, warm=0))
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._over_network = exchange or self._send_and_read
        self.carry: Carry | None = None  # the gateway's, where the site has one

    async def send(  # noqa: PLR0913 - a request's parts
        self,
        service: ServiceConfig,
        request: Request,
        path: str,
        body: bytes | Path | FileSlice,
        identity: Identity,
        *,
        method: str = "",
        more: tuple[Header, ...] = (),
    ) -> ServiceReply:
        """Send it to a local path; raises NoCopyError, CredentialsError, UpstreamError."""
        local_of = self._copies.index.local_of
        query = text_to_local(request.query, local_of, Form.URL)
        given = tuple((name, text_to_local(value, local_of, Form.PLAIN)) for name, value in request.headers)
        key = (("Idempotency-Key", request.key),) if request.key else ()
        credentials, provider = await self._credentials(service, identity)
        host = host_for(service, request, identity)
        signer = self._signers.get(service.name) if isinstance(identity, OfSite) else None
        async with self._carried(service, given, request.scope) as carried:

            async def exchange(credentials: tuple[Header, ...]) -> ServiceReply:
                headers = (("Host", host), *_without(carried, credentials), *key, *more, *credentials)
                ready = await self._ready(_of_any_site(body, service, request, identity), _form(request))
                verb, target = method or request.method, joined(path, query)
                if signer:
                    hash_ = await content_hash(headers, body if isinstance(ready, FileBody) else ready)
                    headers = await signer.signed(verb, sent_target(service, target), headers, hash_)
                return await self._exchange(service, verb, target, headers, ready)

            reply = await exchange(credentials)
            if reply.status == _UNAUTHORIZED and provider and isinstance(identity, OfSite):
                provider.forget(identity.client)  # they may have expired: once more, with new ones
                reply = await exchange(await provider.headers(identity.client))
                if reply.status == _UNAUTHORIZED:
                    provider.forget(identity.client)  # a later attempt must not wait for their time to end
            if signer and is_refused_key(reply.status, reply.body):
                signer.forget()
                reply = reply._replace(status=_UNAUTHORIZED)  # the key must change, not the request
            return reply._replace(host=host)

    async def _exchange(
        self,
        service: ServiceConfig,
        method: str,
        target: str,
        headers: tuple[Header, ...],
        body: bytes | FileBody,
    ) -> ServiceReply:
        upload = PreparedBody(body.pieces, body.size) if isinstance(body, FileBody) else PreparedBody(body, len(body))
        # Without a length, a server may take a request that usually has a body for one without an end.
        has_length = upload.size or not (method in SAFE_METHODS or method == "DELETE")
        sent = (
            *((name, _as_bytes(value)) for name, value in headers),
            ("Accept-Encoding", "identity"),
            *([("Content-Length", str(upload.size))] if has_length else ()),
        )
        head = RequestHead(method, sent_target(service, target), sent)
        async with self._slots:
            return await self._over_network(service, head, upload)

    async def _send_and_read(self, service: ServiceConfig, head: RequestHead, upload: PreparedBody) -> ServiceReply:
        request = UpstreamRequest(head, upload, ignore_informational, DisconnectWatch())
        timeout = ResponseTimeout(service.replication.timeout_s)
        response = await self.client.send(service_address(service), request, timeout)
        return await _read_reply(await streamed_response(response))

    @contextlib.asynccontextmanager
    async def _carried(
        self, service: ServiceConfig, headers: tuple[Header, ...], scope: str
    ) -> AsyncIterator[tuple[Header, ...]]:
        """Headers with the scope, and with a carrier that leads back to it; see gateway.carriers."""
        ended: Callable[[], None] | None = None
        if self.carry is not None:
            headers, ended = await self.carry(service.name, headers, scope)
        try:
            yield (*headers, *([("Scope", encode_header(scope))] if scope else ()))
        finally:
            if ended:
                ended()

    async def _credentials(
        self, service: ServiceConfig, identity: Identity
    ) -> tuple[tuple[Header, ...], CredentialProvider | None]:
        if isinstance(identity, OfClient):
            return identity.headers, None
        provider = self._providers.get(service.name)
        return (await provider.headers(identity.client), provider) if provider else ((), None)

    def local_of(self, meta_id: str) -> Local | None:
        return self._copies.index.local_of(meta_id)

    async def _ready(self, body: bytes | Path | FileSlice, form: Form | None) -> bytes | FileBody:
        local_of = self._copies.index.local_of
        if isinstance(body, FileSlice):
            return FileBody(read_pieces(*body), body.size)
        if isinstance(body, bytes):
            return to_local(body, local_of, form) if form else body
        if form is None:
            return FileBody(read_pieces(body), body.stat().st_size)
        size = 0
        async for piece in self._translated(body, form):  # first only to know how long it is
            size += len(piece)
        return FileBody(self._translated(body, form), size)

    async def _translated(self, path: Path, form: Form) -> AsyncIterator[bytes]:
        translating = LocalIdTranslator(self._copies.index.local_of, form)
        async with contextlib.aclosing(read_pieces(path)) as pieces:
            async for piece in pieces:
                yield translating.feed(piece)
        yield translating.finish()

    # -- responses ----------------------------------------------------------------------------------------

    def new_copy(
        self,
        service: ServiceConfig,
        meta_id: str,
        request: Request,
        reply: ServiceReply,
        body: bytes | Path = b"",
    ) -> Copy | None:
        """The copy that the response to a create names; None if it names no id."""
        if request.named:
            before = self._copies.index.copies.get(meta_id)
            item = trimmed(request.to or (before.item if before else request.item))
            return Copy(meta_id, service.name, item, last_segment(item), is_named=True, client=request.client)
        if place := rule_id(service.replication.rules, request, body):
            id_ = id_at(place, reply.headers, reply.body)
            is_number = isinstance(id_, int)
            return (
                Copy(meta_id, service.name, request.item, str(id_), is_number, client=request.client) if id_ else None
            )
        found = id_in(reply.body, service.replication.id) if service.replication.id else None
        if found is not None:
            is_number = isinstance(found, int)
            return Copy(meta_id, service.name, request.item, str(found), is_number, client=request.client)
        location = reply.header("location")
        if not location or not last_segment(location):
            return None
        item = self._item_at(service, location, request)
        return Copy(meta_id, service.name, item, last_segment(location), client=request.client)

    def _item_at(self, service: ServiceConfig, location: str, request: Request) -> str:
        collection = collection_of(trimmed(below_base(service, location)))
        usual = text_to_local(collection_of(request.item), self._copies.index.local_of, Form.URL)
        if collection == usual:
            return request.item
        return f"{self._copies.index.path_with_meta_ids(service.name, collection).rstrip('/')}/{ID}"

    def kept(self, service: ServiceConfig, path: str, reply: ServiceReply) -> KeptResponse:
        """The part of a response that the log keeps, with meta-ids and without secrets."""
        whole = self.public(service, path, reply)
        whole = msgspec.structs.replace(whole, headers=without_sessions(whole.headers, service.replication))
        if whole.cut_bytes:
            return whole
        body = masked(whole.body, reply.header("content-type"), service.replication.secret)
        if body == whole.body:
            return whole
        most_bytes = service.replication.keep_response_bytes
        size = reply.size if body is None else len(body)
        headers = tuple(pair for pair in whole.headers if is_passed_on(pair[0], is_same_body=False))
        kept = kept_response(whole.status, headers, body or b"", most_bytes, size)
        return msgspec.structs.replace(kept, cut_headers=whole.cut_headers)

    def public(self, service: ServiceConfig, path: str, reply: ServiceReply) -> KeptResponse:
        """A response with meta-ids, as its client gets it."""
        ids = self.response_ids(service, path, reply)
        body, size, headers = reply.body, reply.size, reply.headers
        if reply.header("content-encoding").lower() not in READABLE_ENCODINGS:
            body = b""  # what nobody can look into may have secrets in it
        elif is_json(reply.header("content-type")) and reply.is_whole:
            try:
                body = to_meta(body, ids)
                size = len(body)
            except CheopsError:  # nested too deeply: the service has done it, so this is no failure
                body = b""
        is_same_body = not is_json(reply.header("content-type"))
        headers = tuple(
            (name, _public(service, ids, name, value))
            for name, value in headers
            if is_passed_on(name, is_same_body=is_same_body)
        )
        return kept_response(reply.status, headers, body, service.replication.keep_response_bytes, size)

    def response_ids(self, service: ServiceConfig, path: str, reply: ServiceReply) -> ResponseIds:
        """The lookup of ids in a response to a request to a local path."""
        return ResponseIds(self._copies.index, service.name, service.replication, path, hosts_of(service, reply.host))

    def local_path(self, copy: Copy) -> str:
        item = copy.item if copy.is_named else filled(copy.item, copy.local_id)
        return text_to_local(item, self._copies.index.local_of, Form.URL)


def _of_any_site(
    body: bytes | Path | FileSlice, service: ServiceConfig, request: Request, identity: Identity
) -> bytes | Path | FileSlice:
    """A body without members that belong to the site where its client sent it."""
    local = service.replication.local_members
    if not local or not request.is_json or isinstance(identity, OfClient) or isinstance(body, FileSlice):
        return body
    return without_members(body if isinstance(body, bytes) else body.read_bytes(), local)


def sent_target(service: ServiceConfig, target: str) -> str:
    """The target of a request, as it goes out."""
    return service_address(service).path + quote(target, safe=_IN_TARGET)


async def content_hash(headers: tuple[Header, ...], body: bytes | Path | FileSlice) -> str:
    """What is signed of a body: the hash that the client gave, or else its own. The service compares it."""
    given = next((value for name, value in headers if name.lower() == CONTENT_HASH), "")
    if given or isinstance(body, bytes):
        return given or hashlib.sha256(body if isinstance(body, bytes) else b"").hexdigest()
    digest = hashlib.sha256()
    async for piece in read_pieces(body) if isinstance(body, Path) else read_pieces(*body):
        digest.update(piece)
    return digest.hexdigest()


def host_for(service: ServiceConfig, request: Request, identity: Identity) -> str:
    """The Host of a request. A client may have signed its own (S3's signatures cover it), so with the client's
    credentials it stays, unless the configuration says otherwise."""
    own = upstream_address(service.url).authority
    wanted = service.replication.host or (HOST_OF_CLIENT if isinstance(identity, OfClient) else HOST_OF_SERVICE)
    if wanted == HOST_OF_CLIENT:
        return request.host or own
    return own if wanted == HOST_OF_SERVICE else wanted


def below_base(service: ServiceConfig, location: str) -> str:
    """The path of a service's URL as clients see it: without the host and without the service's base path."""
    path, base = urlsplit(location).path, urlsplit(service.url).path
    return path[len(base) :] if base and path.startswith(f"{base}/") else path


def _public(service: ServiceConfig, ids: ResponseIds, name: str, value: str) -> str:
    if name.lower() not in _PATHS:
        return value
    if name.lower() == "location":
        parts = urlsplit(value)
        more = f"?{parts.query}" if parts.query else ""
        value = below_base(service, value) + more + (f"#{parts.fragment}" if parts.fragment else "")
    return ids.in_header(value)


def _without(headers: tuple[Header, ...], others: tuple[Header, ...]) -> tuple[Header, ...]:
    names = {name.lower().replace("_", "-") for name, _ in others}
    return tuple(pair for pair in headers if pair[0].lower().replace("_", "-") not in names)


def _form(request: Request) -> Form | None:
    if request.session:  # what is uploaded in a session stays as it is, whatever it looks like
        return None
    if request.is_json:
        return Form.JSON
    return Form.URL if request.is_form else None
