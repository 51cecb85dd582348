"""Sessions of browsers: signed in with a token, from then on known by a cookie that scripts cannot read."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.authenticator import COOKIE, Authenticator
from cheops.api.guard import request_info
from cheops.api.models import Session, SignIn
from cheops.api.openapi import body, responses
from cheops.api.permissions import principal_of
from cheops.api.request import NodeOf, decode_body, json_response, read_body
from cheops.security.principal import Principal
from cheops.security.tokens import LASTS_S, BadTokenError

router = APIRouter(tags=["access"])


@router.post(
    "/session",
    operation_id="signIn",
    summary="Sign in with a token; a cookie stands for it from then on",
    description=(
        "The cookie holds the id of a session and not the token. Changes that are asked for with it need "
        "the header `Cheops-Session: 1`, and must come from a page of this agent."
    ),
    responses=responses(Session, "Who that is.", 400, 413),
    openapi_extra=body(SignIn),
)
async def sign_in(node: NodeOf, request: Request) -> Response:
    doorkeeper: Authenticator = request.state.doorkeeper
    asked = request_info(request.scope)
    doorkeeper.check_origin(asked, must_be_told=False)
    shown = decode_body(await read_body(request), SignIn)
    try:
        token = doorkeeper.shown(shown.token, asked.address)
    except BadTokenError as error:
        request.state.act.reason = error.reason
        raise
    request.state.act.who = token.principal
    found = json_response(_session(token.principal), headers={"Cache-Control": "no-store"})
    found.set_cookie(
        COOKIE,
        node.accounts.sessions.begun(token),
        max_age=LASTS_S,
        path="/",
        secure=True,
        httponly=True,
        samesite="strict",
    )
    return found


@router.get(
    "/session",
    operation_id="whoAmI",
    summary="Who asks, and what that one may",
    responses=responses(Session, "Who it is."),
)
async def who_am_i(request: Request) -> Response:
    return json_response(_session(principal_of(request)))


@router.delete(
    "/session",
    operation_id="signOut",
    summary="End the session of this cookie",
    responses=responses(Session, "Who that was."),
)
async def sign_out(node: NodeOf, request: Request) -> Response:
    if id_ := request.cookies.get(COOKIE):
        node.accounts.sessions.end(id_)
    found = json_response(_session(principal_of(request)))
    found.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return found


def _session(who: Principal) -> Session:
    limits = (who.reach.types, who.reach.services, who.reach.sites)
    types, services, sites = (None if one is None else tuple(sorted(one)) for one in limits)
    return Session(kind=who.kind.value, name=who.name, role=who.role, types=types, services=services, sites=sites)
