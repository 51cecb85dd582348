"""Handlers of the agent itself: checks and health, tokens, sessions of browsers, and the audit log."""

import asyncio

from starlette.responses import Response

from cheops import __version__
from cheops.api.authenticator import COOKIE, Authenticator
from cheops.api.checks import checks
from cheops.api.endpoints.declaration import NoParameters
from cheops.api.endpoints.site import (
    CHECK,
    CREATE_TOKEN,
    CURE_CLOCK,
    GET_CLOCK,
    HEALTH,
    LIST_TOKENS,
    READ_AUDIT,
    READINESS,
    REVOKE_TOKEN,
    SIGN_IN,
    SIGN_OUT,
    WHO_AM_I,
    AuditFilter,
)
from cheops.api.guard import request_info
from cheops.api.models.site import (
    AuditLog,
    Checks,
    Clocks,
    Health,
    HeldStamps,
    MadeToken,
    NewToken,
    PeerClock,
    Session,
    SignIn,
    TokenList,
    TokenView,
)
from cheops.api.request import ApiRequest, handles, json_response
from cheops.api.views.operations import time_text
from cheops.engine.intake import FUTURE_STAMP
from cheops.errors import ClientError
from cheops.node.node import Node
from cheops.peers.liveness import SiteState
from cheops.peers.prober import now
from cheops.security.audit_query import AuditQuery, read_log
from cheops.security.principal import Kind, Principal, Reach
from cheops.security.tokens import LASTS_S, BadTokenError, Token


@handles(CHECK)
async def check(request: ApiRequest) -> Checks:
    return await checks(request.node, request.gateway)


@handles(GET_CLOCK)
async def get_clock(request: ApiRequest) -> Clocks:
    return _clocks(request.node)


@handles(CURE_CLOCK)
async def cure_clock(request: ApiRequest) -> Clocks:
    found = _clocks(request.node)
    if not found.is_held_back:
        raise ClientError(
            f"the stamps of {request.node.name} are not ahead of its clock, so there is nothing to cure; is the clock "
            "right? 'cheops clock' shows it beside those of the other sites",
            status=409,
        )
    request.node.clock_check.cure(request.node.pump, f"{request.principal} has asked for it")
    return found


def _clocks(node: Node) -> Clocks:
    at = now()
    ahead_ms = node.clock_check.ahead_ms(node.pump) if node.verifier else 0.0  # without security all stamps are taken
    allowed_ms = node.config.security.clock_skew_s * 1000
    peers = [site for site in node.mesh.sites(at) if site.name != node.name and site.state is not SiteState.FORGOTTEN]
    refused = [one for one in node.refusals.all() if one.reason == FUTURE_STAMP]
    return Clocks(
        site=node.name,
        time=time_text(int(at.wall_ms)),
        majority_offset_ms=node.mesh.common_clock.offset_ms,
        stamps_ahead_ms=ahead_ms,
        allowed_ms=allowed_ms,
        is_held_back=ahead_ms > allowed_ms,
        clocks=tuple(
            PeerClock(site=peer.name, up=peer.is_up, offset_ms=peer.clock.offset_ms if peer.clock else None)
            for peer in peers
        ),
        refused=tuple(HeldStamps(site=one.who, times=one.times, detail=one.detail) for one in refused),
    )


@handles(HEALTH)
async def health(request: ApiRequest) -> Response:
    return health_response(request.node, request.principal)


@handles(READINESS)
async def readiness(request: ApiRequest) -> Response:
    return readiness_response(request.node, request.principal)


def health_response(node: Node, by: Principal) -> Response:
    """Whether the agent works: any response shows that its event loop runs."""
    return _response(node, "", by)


def readiness_response(node: Node, by: Principal) -> Response:
    """Whether the agent accepts operations: not while nothing can be saved, nor while the store is full."""
    return _response(node, node.problem or "", by)


def _response(node: Node, trouble: str, by: Principal) -> Response:
    # A client without credentials learns yes or no, but not which site or version this is.
    if by.kind is Kind.NOBODY:
        body = Health(ok=not trouble, site="", version="", detail="")
    else:
        body = Health(ok=not trouble, site=node.name, version=__version__, detail=trouble)
    return json_response(body, 503 if trouble else 200)


_MAX_BROKEN = 100
_NOT_STORED = {"Cache-Control": "no-store"}

# -- tokens -----------------------------------------------------------------------------------------------------


@handles(LIST_TOKENS)
async def list_tokens(request: ApiRequest) -> TokenList:
    node = request.node
    return TokenList(tokens=tuple(_token_view(node, token) for token in node.accounts.tokens))


@handles(CREATE_TOKEN)
async def create_token(request: ApiRequest[NoParameters, NewToken]) -> Response:
    node, wanted = request.node, await request.body()
    limits = (wanted.types, wanted.services, wanted.sites)
    reach = Reach(*(None if names is None else frozenset(names) for names in limits))
    lasts_ms = None if wanted.lasts_s is None else round(wanted.lasts_s * 1000)
    token, secret = await node.accounts.create(wanted.name, wanted.role, reach, lasts_ms, str(request.principal))
    return json_response(MadeToken(token=_token_view(node, token), secret=secret), headers=_NOT_STORED)


@handles(REVOKE_TOKEN)
async def revoke_token(request: ApiRequest) -> TokenView:
    return _token_view(request.node, await request.node.accounts.revoke(request.segment("token")))


def _token_view(node: Node, token: Token) -> TokenView:
    types, services, sites = _limits(token.reach)
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


def _limits(reach: Reach) -> tuple[tuple[str, ...] | None, ...]:
    limits = (reach.types, reach.services, reach.sites)
    return tuple(None if names is None else tuple(sorted(names)) for names in limits)


# -- sessions ---------------------------------------------------------------------------------------------------


@handles(SIGN_IN)
async def sign_in(request: ApiRequest[NoParameters, SignIn]) -> Response:
    """A browser sends a token once, and gets a cookie that replaces it and that scripts cannot read."""
    state = request.http.state
    authenticator: Authenticator = state.authenticator
    info = request_info(request.http.scope)
    authenticator.check_origin(info, is_required=False)
    credentials = await request.body()
    try:
        token = authenticator.check_token(credentials.token, info.address)
    except BadTokenError as error:
        state.audit_record.reason = error.reason
        raise
    state.audit_record.who = token.principal
    response = json_response(_session(token.principal), headers=_NOT_STORED)
    response.set_cookie(
        COOKIE,
        request.node.accounts.sessions.start(token),
        max_age=LASTS_S,
        path="/",
        secure=True,
        httponly=True,
        samesite="strict",
    )
    return response


@handles(WHO_AM_I)
async def who_am_i(request: ApiRequest) -> Session:
    return _session(request.principal)


@handles(SIGN_OUT)
async def sign_out(request: ApiRequest) -> Response:
    if id_ := request.http.cookies.get(COOKIE):
        request.node.accounts.sessions.end(id_)
    response = json_response(_session(request.principal))
    response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return response


def _session(principal: Principal) -> Session:
    types, services, sites = _limits(principal.reach)
    return Session(
        kind=principal.kind.value,
        name=principal.name,
        role=principal.role,
        types=types,
        services=services,
        sites=sites,
    )


# -- the audit log ----------------------------------------------------------------------------------------------


@handles(READ_AUDIT)
async def read_audit(request: ApiRequest[AuditFilter]) -> AuditLog:
    node, wanted = request.node, request.parameters
    query = AuditQuery(wanted.since, wanted.who, wanted.outcome, wanted.limit)
    page = await asyncio.to_thread(read_log, node.audit, query)  # it reads whole files
    return AuditLog(entries=tuple(page.entries), broken=tuple(page.broken[:_MAX_BROKEN]), trouble=node.audit.trouble)
