"""Routes for a new site that joins with an invitation: it has no certificate yet."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cheops.api.submission import RequestError
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.couchdb.requests import read_body
from cheops.text import shortened

AUTHORITY_PATH, JOIN_PATH = "/join/authority", "/join"
BAD_INVITATION = "unknown invitation"
_MOST_BYTES = 64 * 1024
_PEM = "application/x-pem-file"


def enrollment_routes(node: Node) -> list[BaseRoute]:
    async def authority(_request: Request) -> Response:
        return Response(node.enrollment.authorities(), media_type=_PEM)

    async def join(request: Request) -> Response:
        from cheops.security.certificate_requests import JoinRequest  # noqa: PLC0415 - rarely needed

        node.enrollment.authorities()  # before anything else: whether this can be done here at all
        try:
            sent = msgspec.json.decode(await read_body(request, _MOST_BYTES), type=JoinRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"not a request to join: {shortened(str(error))}") from None
        try:
            joined = await node.enrollment.join(sent)
            request.scope["state"]["act"].resource = joined.site  # what the audit log is to name
        except CheopsError as error:
            if error.status < 500:
                address = request.client.host if request.client else ""
                node.refusals.count(BAD_INVITATION, address, str(error))
            raise
        return _json(joined)

    return [
        Route(AUTHORITY_PATH, authority, methods=["GET"]),
        Route(JOIN_PATH, join, methods=["POST"]),
    ]


def _json(content: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
