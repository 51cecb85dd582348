"""Inviting new sites, where the authority's key is."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import Invitation, InviteRequest
from cheops.api.openapi import body, responses
from cheops.api.request import NodeOf, decode_body, json_response, read_body
from cheops.scope.names import normal

router = APIRouter(tags=["sites"])


@router.post(
    "/invitations",
    operation_id="inviteSite",
    summary="Invite a new site: gives a code with which it gets its certificate, once",
    description="Only at a site that has the authority's key (security.ca_key).",
    responses=responses(Invitation, "The invitation.", 400, 409, 503),
    openapi_extra=body(InviteRequest),
)
async def invite(node: NodeOf, request: Request) -> Response:
    wish = decode_body(await read_body(request), InviteRequest)
    code, expires_ms = await node.enrollment.invite(normal(wish.site), tuple(wish.addresses), wish.valid_for_s)
    return json_response(Invitation(site=code.site, code=str(code), expires_ms=expires_ms))
