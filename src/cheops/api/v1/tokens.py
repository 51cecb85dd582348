"""Tokens: who may ask at this site."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import MadeToken, NewToken, TokenList, TokenView
from cheops.api.openapi import body, responses
from cheops.api.permissions import principal_of
from cheops.api.request import NodeOf, decode_body, decode_segment, json_response, read_body
from cheops.api.views.operations import time_text
from cheops.node.node import Node
from cheops.security.principal import Reach
from cheops.security.tokens import Token

router = APIRouter(tags=["access"])


@router.get(
    "/tokens",
    operation_id="listTokens",
    summary="The tokens of this site",
    responses=responses(TokenList, "All of them, also those that have expired."),
)
async def list_tokens(node: NodeOf) -> Response:
    return json_response(TokenList(tokens=tuple(token_view(node, token) for token in node.accounts.tokens)))


@router.post(
    "/tokens",
    operation_id="createToken",
    summary="Make a token; its secret is told this once",
    responses=responses(MadeToken, "The token.", 400, 409, 413, 503),
    openapi_extra=body(NewToken),
)
async def create_token(node: NodeOf, request: Request) -> Response:
    asked = decode_body(await read_body(request), NewToken)
    reach = Reach(*(None if one is None else frozenset(one) for one in (asked.types, asked.services, asked.sites)))
    lasts_ms = None if asked.lasts_s is None else round(asked.lasts_s * 1000)
    by = str(principal_of(request))
    token, secret = await node.accounts.create(asked.name, asked.role, reach, lasts_ms, by)
    made = MadeToken(token=token_view(node, token), secret=secret)
    return json_response(made, headers={"Cache-Control": "no-store"})


@router.delete(
    "/tokens/{token}",
    operation_id="revokeToken",
    summary="Revoke a token, at once",
    responses=responses(TokenView, "It was this one.", 404, 503),
)
async def revoke_token(
    node: NodeOf,
    token: Annotated[str, Path(description="Its id or its name.", examples=["ci"], min_length=1)],
) -> Response:
    return json_response(token_view(node, await node.accounts.revoke(decode_segment(token))))


def token_view(node: Node, token: Token) -> TokenView:
    limits = (token.reach.types, token.reach.services, token.reach.sites)
    types, services, sites = (None if one is None else tuple(sorted(one)) for one in limits)
    return TokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        types=types,
        services=services,
        sites=sites,
        made_at=time_text(token.made_ms),
        made_by=token.made_by,
        ends_at=None if token.ends_ms is None else time_text(token.ends_ms),
        good=node.accounts.is_good(token.id),
    )
