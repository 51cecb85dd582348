"""Reads, and all other requests that go to this site's own instance: local ids in, meta-ids out."""

import asyncio
import logging

from msgspec.structs import replace

from cheops.backends.http.backend import http_backend
from cheops.backends.http.ids import Form, LocalIdTranslator, LocalOf, MetaIdTranslator, meta_ids_in, text_to_local
from cheops.backends.http.locations import Locations, nearest_first
from cheops.backends.http.paths import filled, item_of, joined, split_target
from cheops.backends.http.payload import credentials_of, id_in
from cheops.backends.http.request import Target
from cheops.backends.http.sender import below_base
from cheops.backends.http.submission import is_deleted
from cheops.backends.http.translation import (
    BODY_HEADERS,
    ResponseIds,
    bad_response,
    buffer_if_small,
    decompressed,
    form_of,
    has_unknown_encoding,
    hosts_of,
    is_partial_json,
    is_translatable,
    iterate_body,
    length_of,
    translate_body,
    without_body_headers,
)
from cheops.config.request_rules import SAFE_METHODS
from cheops.errors import CheopsError, ClientError
from cheops.gateway.headers import CREDENTIALS, ForwardingInfo, RequestHead, first, without
from cheops.gateway.interfaces import Body, IncomingRequest, Response, UpstreamError, UpstreamServices, close_body
from cheops.node.node import Node
from cheops.text import in_words

_PATHS = ("location", "content-location", "link")
_CREATED = 201
_log = logging.getLogger(__name__)
_LEFT_ALONE = ("scope", "cookie", "authorization")
_NOT_FOUND = 404
_MAX_SEARCHES = 16  # at a time: each asks all other sites
_NO_REPLICA = 503  # from another site: it has no copy that can be read


class ReadHandler:
    """Reads replicas, here or at another site, and sends other requests to this site's own instance."""

    def __init__(self, node: Node, services: UpstreamServices, locations: Locations) -> None:
        self._node = node
        self._services = services
        self._locations = locations
        self._copies = http_backend(node).copies
        self._searches = asyncio.Semaphore(_MAX_SEARCHES)

    # -- replicas ------------------------------------------------------------------------------------------

    async def read(self, service: str, incoming: IncomingRequest, target: Target) -> Response:
        """Read the replica here, or the nearest one that can be reached."""
        has_copy = target.meta_id in self._copies.index.copies
        if has_copy or incoming.is_forwarded:
            try:
                return await self._here(service, incoming, target)
            except UpstreamError:
                others = await self._others(target)
                if incoming.is_forwarded or not others:
                    raise
        await self.refuse_deleted(target)
        return await self.at_nearest(service, incoming, await self._others(target), target.meta_id)

    async def refuse_deleted(self, target: Target) -> None:
        """Raises ClientError (404) if the resource, or what it is part of, was deleted."""
        for meta_id in dict.fromkeys((target.meta_id, *reversed(meta_ids_in(target.path)))):
            if is_deleted(await self._node.pump.replica(meta_id)):
                whole = "" if meta_id == target.meta_id else f", with {meta_id} of which it was a part"
                raise ClientError(f"{target.meta_id} was deleted{whole}", status=404)

    async def _here(self, service: str, incoming: IncomingRequest, target: Target) -> Response:
        if target.meta_id not in self._copies.index.copies:
            if not await self._locations.known_here(target.meta_id):
                raise ClientError(f"{target.meta_id} is not known at {self._node.name}", status=404)
            await self.refuse_deleted(target)
            raise CheopsError(
                f"{self._node.name} has no copy of {target.meta_id} yet, or not any more", status=503, definite=False
            )
        _, query = split_target(incoming.head.target)
        head = RequestHead(incoming.head.method, joined(target.path, query), incoming.head.headers)
        return await self.local(service, head, incoming)

    async def local_or_elsewhere(self, service: str, incoming: IncomingRequest, target: Target) -> Response:
        """Read here; if it is not here, where a client has named it, by the same path (`services.NAME.search`)."""
        response = await self.local(service, incoming.head, incoming)
        if response.status != _NOT_FOUND or incoming.size != 0:
            return response
        try:
            async with self._searches:
                others = await self._others(target)
        except CheopsError as error:
            _log.info("%s is not here, and perhaps at another site: %s", target.path, error)
            return response
        if not others:
            return response
        await close_body(response.body)
        return await self.at_nearest(service, incoming, others, target.meta_id)

    async def _others(self, target: Target) -> tuple[str, ...]:
        sites = await self._locations.sites_of(target.meta_id, is_named=target.is_named)
        return tuple(site for site in sites if site != self._node.name)

    async def at_nearest(self, service: str, incoming: IncomingRequest, sites: tuple[str, ...], what: str) -> Response:
        """Read at the first of these sites that can be reached."""
        if not sites:
            raise ClientError(f"no reachable site knows {what}", status=404)
        head = self.for_peers(service, incoming.head)
        failed: list[str] = []
        for site in nearest_first(self._node, sites):
            try:
                body = incoming.body() if incoming.size != 0 else None  # REPORT and the like have one
                response = await self._services.at(site, service, head, body, incoming.forwarding)
            except UpstreamError as error:
                failed.append(f"{site} ({error.why})")
                continue
            if response.status != _NO_REPLICA:
                return self.from_peer(incoming, head, response)
            await close_body(response.body)
            failed.append(f"{site} (503)")
        self._locations.forget(what)
        raise CheopsError(f"no replica of {what} can be read now: {in_words(failed)}", status=503, definite=False)

    def for_peers(self, service: str, head: RequestHead) -> RequestHead:
        """A request for another site: without the client's credentials, if they are not forwarded."""
        config = self._node.config.services[service].replication
        if config.forward == "client":
            return head
        secret = (name for name, _ in credentials_of(head.headers, config))
        return replace(head, headers=without(head.headers, *secret))

    @staticmethod
    def from_peer(incoming: IncomingRequest, sent: RequestHead, response: Response) -> Response:
        """The response of another site, marked if the client's credentials were dropped."""
        if len(sent.headers) == len(incoming.head.headers):
            return response
        return replace(response, headers=(*response.headers, (CREDENTIALS, "dropped")))

    # -- this site's own instance --------------------------------------------------------------------------

    async def local(
        self, service: str, head: RequestHead, incoming: IncomingRequest, *, with_body: bool = True
    ) -> Response:
        """Send a client's request to this site's instance, with local ids. Raises NoCopyError."""
        form = form_of(head)
        # A compressed body would have to be unpacked before its ids can be translated.
        kept = without(head.headers, "Accept-Encoding", *(BODY_HEADERS if form else ()))
        sent = self.with_local_ids(replace(head, headers=(*kept, ("Accept-Encoding", "identity"))))
        body: Body | None = incoming.body() if with_body and incoming.size != 0 else None
        if form and body is not None:
            translating = LocalIdTranslator(self._copies.index.local_of, form)
            body = await buffer_if_small(translate_body(iterate_body(body), translating), incoming.size)
        response = await self._send_local(service, sent, body, incoming.forwarding)
        try:
            if (sent.method, response.status) == ("POST", _CREATED):
                response = await self._forget_reused_id(service, sent, response)
            return await self._with_meta_ids(service, sent, response)
        except BaseException:
            await close_body(response.body)
            raise

    def with_local_ids(self, head: RequestHead) -> RequestHead:
        """A head with local ids; raises NoCopyError."""
        local_of = self._copies.index.local_of
        path, query = (text_to_local(part, local_of, Form.URL) for part in split_target(head.target))
        headers = tuple((name, _header_to_local(name, value, local_of)) for name, value in head.headers)
        return RequestHead(head.method, joined(path, query), headers)

    async def _send_local(
        self, service: str, head: RequestHead, body: Body | None, forwarding: ForwardingInfo
    ) -> Response:
        """The service's response. A part of a document (`Range`) cannot be translated, so the whole is requested
        instead: HTTP allows a server to ignore `Range`."""
        timeout_s = self._node.config.services[service].replication.timeout_s
        response = await self._services.local(service, head, body, timeout_s, forwarding)
        if not is_partial_json(response):
            return response
        await close_body(response.body)
        if head.method in SAFE_METHODS:  # anything else must not run twice
            whole = replace(head, headers=without(head.headers, "Range", "If-Range"))
            response = await self._services.local(service, whole, None, timeout_s, forwarding)
            if not is_partial_json(response):
                return response
            await close_body(response.body)
        raise bad_response("the service sends a part of its response without a request for one")

    async def _forget_reused_id(self, service: str, sent: RequestHead, response: Response) -> Response:
        """A resource was just created without replication. If a copy had its path or id, that copy was deleted in the
        service, without the gateway: forget it."""
        config, index = self._node.config.services[service], self._copies.index
        if location := first(RequestHead("", "", response.headers), "Location"):
            gone = index.whose_path(service, below_base(config, location))
        else:
            whole = await buffer_if_small(iterate_body(response.body), length_of(response.headers))
            response = replace(response, body=whole)
            id_ = id_in(whole, config.replication.id) if isinstance(whole, bytes) else None
            path = item_of(split_target(sent.target)[0], config.replication.items)
            gone = index.whose_path(service, filled(path, str(id_))) if id_ is not None else None
        if gone and not index.copies[gone].is_named:
            _log.warning("%s has used the id of %s again: its copy here is gone", service, gone)
            await self._copies.unbind(gone)
        return response

    async def _with_meta_ids(self, service: str, sent: RequestHead, response: Response) -> Response:
        """A response of this site's instance, with meta-ids."""
        ids = self.response_ids(service, sent)
        headers = tuple(
            (name, ids.in_header(value) if name.lower() in _PATHS else value) for name, value in response.headers
        )
        response = replace(response, headers=headers)
        if not is_translatable(response):
            return response
        if has_unknown_encoding(response):
            raise bad_response(
                "the service compressed its response, without a request for that, in a way that Cheops cannot read"
            )
        headers = without_body_headers(headers)
        if sent.method == "HEAD":
            return replace(response, headers=headers)
        body = translate_body(decompressed(response), MetaIdTranslator(ids))
        return Response(response.status, headers, await buffer_if_small(body, length_of(response.headers)))

    def response_ids(self, service: str, sent: RequestHead) -> ResponseIds:
        """The lookup of ids in a request and its response."""
        config = self._node.config.services[service]
        hosts = hosts_of(config, first(sent, "Host") or "")
        path, _ = split_target(sent.target)
        return ResponseIds(self._copies.index, service, config.replication, path, hosts)


def _header_to_local(name: str, value: str, local_of: LocalOf) -> str:
    return value if name.lower() in _LEFT_ALONE else text_to_local(value, local_of, Form.PLAIN)
