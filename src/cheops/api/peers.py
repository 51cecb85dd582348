"""Requests of other agents that need the API's look-ups, and of new sites that join with an invitation.

All other requests between agents are in cheops/peers/endpoint.py. CouchDB's protocol, below /db, is for administrators.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Scope

from cheops.api.authenticator import Authenticator
from cheops.api.drift_detector import record
from cheops.api.forms import show_here
from cheops.api.guard import request_info
from cheops.api.permissions import SITES_ONLY_METHODS, SITES_ONLY_PATH, ForbiddenError, check_involved
from cheops.api.request import json_response, read_body
from cheops.api.submission import RequestError, check_names
from cheops.api.views.operations import sites_of
from cheops.backends.http.backend import http_backend
from cheops.backends.http.ids import is_meta_id
from cheops.backends.http.locations import Locations
from cheops.engine.events import Verified
from cheops.errors import CheopsError
from cheops.node.document_fetcher import MOST_BYTES, MOST_DOCUMENTS, DocumentRequest
from cheops.node.node import Node
from cheops.peers.channel_requests import ChannelRequests
from cheops.peers.client import decode_json
from cheops.peers.couchdb.server import couch_routes
from cheops.peers.endpoint import PeerEndpoint
from cheops.peers.requests import Peer, PeerResponse, RequestKind
from cheops.peers.service import PeerService, json_body
from cheops.peers.tunnels import TunnelEnds, TunnelServer
from cheops.security.principal import OPEN
from cheops.security.principal import peer as principal_of_site
from cheops.text import printable, shortened


class _Verified(msgspec.Struct, frozen=True):
    resource: str
    by: str
    differs: str


def peer_endpoint(node: Node, web: ASGIApp) -> PeerEndpoint:
    """Serves the requests of other agents; `web` serves everything else."""

    async def show(peer: Peer, body: bytes) -> PeerResponse:
        return await _show(node, peer, body)

    async def replicant(peer: Peer, body: bytes) -> PeerResponse:
        return await _replicant(node, peer, body)

    async def verified(peer: Peer, body: bytes) -> PeerResponse:
        return await _verified(node, peer, body)

    async def documents(peer: Peer, body: bytes) -> PeerResponse:
        return await _documents(node, peer, body)

    authenticator = Authenticator(node)

    def check_open(scope: Scope) -> None:
        authenticator.check_browser(request_info(scope))

    others = {
        RequestKind.SHOW: show,
        RequestKind.REPLICANT: replicant,
        RequestKind.VERIFIED: verified,
        RequestKind.DOCUMENTS: documents,
    }
    service = PeerService(node, others)
    ends = TunnelEnds(node.config.listen, node.config.gateway.listen)
    tunnels = TunnelServer(node.name, ends, node.channels)
    node.channels.serve(ChannelRequests(service, tunnels, node.refusal_log, web))
    return PeerEndpoint(node, service, None if node.keyring else check_open, web)


async def _show(node: Node, peer: Peer, body: bytes) -> PeerResponse:
    try:
        wanted = decode_json(body, dict[str, object])
    except ValueError as error:
        raise RequestError(f"the request body is not a JSON object: {error}") from None
    resource, command = wanted.get("resource"), wanted.get("command")
    if not isinstance(resource, str) or not isinstance(command, str):
        raise RequestError("expected an object with 'resource' and 'command'")
    check_names(resource)
    who = OPEN if peer.site is None else principal_of_site(peer.site)
    if peer.site is not None:
        check_involved(node, who, await node.pump.replica(resource))
    return json_body(await show_here(node, who, resource, command))


async def _verified(node: Node, peer: Peer, body: bytes) -> PeerResponse:
    """What another site of a resource has found. A site speaks for itself alone."""
    try:
        found = decode_json(body, _Verified)
    except ValueError as error:
        raise RequestError(f"not the result of a comparison: {error}") from None
    check_names(found.resource)
    by = found.by if peer.site is None else peer.site
    if by not in sites_of(await node.pump.replica(found.resource)):
        raise ForbiddenError(f"{printable(by)} is not involved in this resource", "site not involved")
    await record(node, Verified(found.resource, by, printable(shortened(found.differs, 1_000)), node.now_ms()))
    return json_body({})


async def _documents(node: Node, peer: Peer, body: bytes) -> PeerResponse:
    """For a site of a resource: those that are here, of one resource, in the form in which databases exchange them."""
    try:
        wanted = decode_json(body, DocumentRequest)
    except ValueError as error:
        raise RequestError(f"not a request for documents: {error}") from None
    check_names(wanted.resource)
    replica = await node.pump.replica(wanted.resource)
    # Only those that got them once: a policy that lets others pass operations on does not let them read.
    if peer.site is not None and peer.site not in {*sites_of(replica), *replica.history.ever_listed}:
        raise ForbiddenError(f"{peer.site} is not one of the sites of this resource", "site not involved")
    most_bytes = MOST_BYTES - 100  # without the rest of the response
    found = await node.databases.shared_documents(wanted.resource, wanted.ids[:MOST_DOCUMENTS], most_bytes)
    return json_body({"documents": found})


async def _replicant(node: Node, peer: Peer, body: bytes) -> PeerResponse:
    meta_id = body.decode().lower()
    sites = await Locations(node).known_here(meta_id) if is_meta_id(meta_id) else ()
    reply: dict[str, object] = {"sites": sites}
    if peer.site is None or peer.site in sites:  # only the sites of a replicant learn its local id
        copy = http_backend(node).copies.index.copies.get(meta_id)
        reply["local_id"] = copy.local_id if copy else None
    return json_body(reply, 200 if sites else 404)


def sites_only_route() -> Route:
    """What clients get below /peer/. The guard refuses them, so only a program without certificates comes here."""

    async def refuse(_request: Request) -> Response:
        raise ForbiddenError("this is for the agents of other sites", "not a site")

    return Route(SITES_ONLY_PATH, refuse, methods=list(SITES_ONLY_METHODS))


def database_routes(node: Node) -> Mount:
    """CouchDB's protocol, for administrators: agents do not use it among themselves."""
    return Mount("/db", routes=couch_routes(node.databases))


# -- new sites, which have no certificate yet ------------------------------------------------------------------


AUTHORITY_PATH, JOIN_PATH = "/join/authority", "/join"
BAD_INVITATION = "unknown invitation"
_MAX_JOIN_BYTES = 64 * 1024
_PEM = "application/x-pem-file"


def enrollment_routes(node: Node) -> list[BaseRoute]:
    async def authority(_request: Request) -> Response:
        return Response(node.enrollment.authorities(), media_type=_PEM)

    async def join(request: Request) -> Response:
        from cheops.security.certificate_requests import JoinRequest  # noqa: PLC0415 - rarely needed

        node.enrollment.authorities()  # raises if this site cannot admit others, before the secret is read
        try:
            sent = msgspec.json.decode(await read_body(request, _MAX_JOIN_BYTES), type=JoinRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"not a request to join: {shortened(str(error))}") from None
        try:
            joined = await node.enrollment.join(sent)
            request.scope["state"]["audit_record"].resource = joined.site
        except CheopsError as error:
            if error.status < 500:
                address = request.client.host if request.client else ""
                node.refusals.count(BAD_INVITATION, address, str(error))
            raise
        return json_response(joined)

    return [
        Route(AUTHORITY_PATH, authority, methods=["GET"]),
        Route(JOIN_PATH, join, methods=["POST"]),
    ]
