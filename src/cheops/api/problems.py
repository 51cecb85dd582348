"""Errors as responses: problem documents (RFC 9457), with who can fix it and whether a retry may help."""

import logging
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cheops.errors import CheopsError
from cheops.security.refusals import reason_of

MEDIA_TYPE = "application/problem+json"
_log = logging.getLogger(__name__)


def problem(status: int, detail: str, **members: object) -> JSONResponse:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **members}
    return JSONResponse(body, status, media_type=MEDIA_TYPE)


def of_error(error: CheopsError) -> JSONResponse:
    response = problem(error.status, str(error), fault=error.fault.value, definite=error.definite)
    response.headers.update(getattr(error, "headers", {}))
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="cheops"'
    return response


async def on_cheops_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CheopsError)  # noqa: S101 - it is registered for these
    if act := request.scope.get("state", {}).get("act"):
        act.reason = act.reason or reason_of(error)
        act.is_counted = getattr(error, "is_counted", False)
    return of_error(error)


async def on_any_error(request: Request, error: Exception) -> Response:
    # The client gets no details: they may contain what another client sent.
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "this is a bug in Cheops; the agent's log has the details")
