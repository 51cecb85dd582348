"""Inviting new sites, where the authority's key is."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import Invitation, InviteRequest
from cheops.api.v1.asking import NodeOf, answered, model_of, read_bytes
from cheops.api.v1.documenting import answer, body
from cheops.scope.names import normal

router = APIRouter(tags=["sites"])


@router.post(
    "/invitations",
    operation_id="inviteSite",
    summary="Invite a new site: gives a code with which it gets its certificate, once",
    description="Only at a site that has the authority's key (security.ca_key).",
    responses=answer(Invitation, "The invitation.", 400, 409, 503),
    openapi_extra=body(InviteRequest),
)
async def invite(node: NodeOf, request: Request) -> Response:
    wish = model_of(await read_bytes(request), InviteRequest)
    code, expires_ms = await node.admitting.invite(normal(wish.site), tuple(wish.addresses), wish.valid_for_s)
    return answered(Invitation(site=code.site, code=str(code), expires_ms=expires_ms))
