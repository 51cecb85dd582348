"""Errors of Cheops in the shape that the clients of a service expect (`services.NAME.errors`).

A client shows the message of an error only if it finds it: kubectl in a Status, the OpenStack clients in
`error.message`, S3 clients in XML. The status and the headers, such as `Cheops-Effect`, are the same in every shape.
What a service itself answers is never changed.
"""

from collections.abc import Callable
from html import escape
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec.structs import replace

from cheops.gateway.headers import without
from cheops.gateway.interfaces import Response

_KUBERNETES_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    409: "Conflict", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType", 422: "Invalid",
    429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
_S3_CODES = {
    401: "AccessDenied", 403: "AccessDenied", 404: "NoSuchKey", 405: "MethodNotAllowed", 409: "OperationAborted",
    411: "MissingContentLength", 412: "PreconditionFailed", 413: "EntityTooLarge", 500: "InternalError",
    501: "NotImplemented", 502: "ServiceUnavailable", 503: "ServiceUnavailable", 504: "ServiceUnavailable",
}  # fmt: skip
_JSON = "application/json"


def shaped(response: Response, shape: str) -> Response:
    """A problem document in another shape."""
    if shape not in _SHAPES or not isinstance(response.body, bytes):
        return response
    media_type, write = _SHAPES[shape]
    problem: dict[str, Any] = msgspec.json.decode(response.body)
    headers = (("Content-Type", media_type), *without(response.headers, "Content-Type"))
    return replace(response, headers=headers, body=write(response.status, problem))


def _openstack(status: int, problem: dict[str, Any]) -> bytes:
    error = {"code": status, "title": HTTPStatus(status).phrase, "message": problem["detail"]}
    return msgspec.json.encode({"error": error})


def _kubernetes(status: int, problem: dict[str, Any]) -> bytes:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": problem["detail"]}
    return msgspec.json.encode({**said, "reason": _KUBERNETES_REASONS.get(status, ""), "code": status})


def _s3(status: int, problem: dict[str, Any]) -> bytes:
    code = _S3_CODES.get(status, "InvalidRequest" if status < 500 else "InternalError")
    text = f"<Error><Code>{code}</Code><Message>{escape(problem['detail'])}</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _plain(_status: int, problem: dict[str, Any]) -> bytes:
    return f"{problem['detail']}\n".encode()


_SHAPES: dict[str, tuple[str, Callable[[int, dict[str, Any]], bytes]]] = {
    "openstack": (_JSON, _openstack),
    "kubernetes": (_JSON, _kubernetes),
    "s3": ("application/xml", _s3),
    "plain": ("text/plain; charset=utf-8", _plain),
}
