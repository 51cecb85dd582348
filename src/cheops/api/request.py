"""Requests to endpoints as handlers get them, and the responses to them: models as JSON, errors as problem documents.

Path, parameters and body are checked against the declaration of the endpoint. An error becomes a problem document
(RFC 9457) that says who can fix it, and whether a retry may help.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from cheops.api.endpoints.declaration import JSON, PROBLEM_JSON, B, Endpoint, P, R, parameters_of
from cheops.api.models import to_json
from cheops.api.permissions import principal_of
from cheops.api.submission import RequestError, check_names
from cheops.errors import CheopsError, ClientError
from cheops.gateway.server import Gateway
from cheops.node.node import Node
from cheops.security.principal import Principal
from cheops.security.refusals import reason_of
from cheops.text import printable, shortened

T = TypeVar("T")
MAX_BODY_BYTES = 1024 * 1024
_MAX_COMPLAINTS = 5
# Beside what msgspec reads as a boolean, which is what the OpenAPI document says: true, false, 1 and 0.
_BOOLEANS = dict.fromkeys(("yes", "on", "t", "y"), True) | dict.fromkeys(("no", "off", "f", "n"), False)


class InvalidError(ClientError):
    """A parameter or a body that is not what the OpenAPI document says."""

    status = 422
    reason = "invalid"


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[P, B]):
    """One request to one endpoint."""

    node: Node
    gateway: Gateway | None
    http: Request
    endpoint: Endpoint[Any, P, B]
    parameters: P

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _kinds):
            """Handlers name only the types that they use, as `ApiRequest[PageParameters]`. Before Python 3.13 defaults
            of type variables exist for type checkers alone."""
            return cls

    @property
    def principal(self) -> Principal:
        return principal_of(self.http)

    @property
    def id(self) -> str:
        """The resource that the path names; raises RequestError."""
        id_ = self.segment("id")
        check_names(id_)
        return id_

    def segment(self, name: str) -> str:
        """A parameter of the path, decoded; raises RequestError."""
        text = self.http.path_params[name]
        try:
            return unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise RequestError(f"'{shortened(text)}' in the path is not UTF-8") from None

    async def body(self) -> B:
        """The body as the endpoint declares it. Not read before a handler wants it: it may also be a form."""
        if self.endpoint.body is None:
            raise TypeError(f"{self.endpoint.name} takes no body")
        return decode_body(await read_body(self.http), self.endpoint.body)


HANDLERS: dict[Endpoint[Any, Any, Any], Callable[[ApiRequest[Any, Any]], Awaitable[Any]]] = {}


def handles(
    endpoint: Endpoint[R, P, B],
) -> Callable[
    [Callable[[ApiRequest[P, B]], Awaitable[R | Response]]], Callable[[ApiRequest[P, B]], Awaitable[R | Response]]
]:
    """Registers the handler of an endpoint. It returns the model that the endpoint declares, or a whole response where
    it needs another status, headers, or a stream."""

    def register(
        handler: Callable[[ApiRequest[P, B]], Awaitable[R | Response]],
    ) -> Callable[[ApiRequest[P, B]], Awaitable[R | Response]]:
        HANDLERS[endpoint] = handler
        return handler

    return register


# -- parameters -------------------------------------------------------------------------------------------------


def read_parameters(kind: type[P], http: Request) -> P:
    """The query parameters and headers of a request; raises InvalidError, with the name of each that is wrong."""
    values: dict[str, Any] = {}
    complaints = []
    for one in parameters_of(kind):
        text = (http.headers if one.is_header else http.query_params).get(one.name)
        where = f"{'header' if one.is_header else 'query parameter'} '{one.name}'"
        if text is None:
            if one.is_required:
                complaints.append(f"the {where} is missing")
            continue
        try:
            value = _BOOLEANS.get(text.lower(), text) if one.is_boolean else text
            # Not strict: numbers and booleans arrive as text.
            values[one.field] = msgspec.convert(value, one.type, strict=False)
        except msgspec.ValidationError as error:
            complaints.append(f"the {where} is not valid: {printable(shortened(str(error)))}")
            continue
        if values[one.field] is None:  # msgspec takes the text "null" for a missing value; in a query it is none
            complaints.append(f"the {where} is not valid: '{printable(shortened(text))}'")
    if complaints:
        raise InvalidError("; ".join(complaints[:_MAX_COMPLAINTS]))
    return kind(**values)


# -- bodies -----------------------------------------------------------------------------------------------------


async def read_body(http: Request, most: int = MAX_BODY_BYTES) -> bytes:
    content = bytearray()
    async for chunk in http.stream():
        content += chunk
        if len(content) > most:
            raise ClientError(f"the body has more than {most} bytes", status=413, reason="too large")
    return bytes(content)


def decode_body(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the body is not a {kind.__name__}: {printable(str(error))}") from None
    except RecursionError:
        raise InvalidError("the body is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {printable(str(error))}") from None


def json_response(model: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(model), status, headers, media_type=JSON)


# -- problems --------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


def problem(status: int, detail: str, **members: object) -> JSONResponse:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **members}
    return JSONResponse(body, status, media_type=PROBLEM_JSON)


def error_response(error: CheopsError) -> JSONResponse:
    response = problem(error.status, str(error), fault=error.fault.value, definite=error.definite)
    response.headers.update(getattr(error, "headers", {}))
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="cheops"'
    return response


async def on_cheops_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CheopsError)  # noqa: S101 - it is registered for these
    if record := request.scope.get("state", {}).get("audit_record"):
        record.reason = record.reason or reason_of(error)
        record.is_counted = getattr(error, "is_counted", False)
    return error_response(error)


async def on_any_error(request: Request, error: Exception) -> Response:
    # The client gets no details: they may contain what another client sent.
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "this is a bug in Cheops; the agent's log has the details")


async def _on_http_error(_http: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    response = problem(error.status_code, str(error.detail), fault="client", definite=True)
    response.headers.update(error.headers or {})
    return response


async def _on_disconnect(_http: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client has gone and does not read it


EXCEPTION_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    CheopsError: on_cheops_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_disconnect,
    Exception: on_any_error,
}
