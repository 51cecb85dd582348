"""Forwards a request to a site that is involved, and its response back to the client. At most one hop."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote, unquote

import aiohttp
import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.api import authenticator
from cheops.api.models import Problem, from_json
from cheops.api.permissions import principal_of
from cheops.api.submission import NotInvolvedError, RequestError
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.client import NoAddressError, read_response
from cheops.security.principal import Reach
from cheops.store.codec import MAX_MESSAGE_BYTES

HOP_HEADER = "Cheops-Forwarded-By"
_PATIENCE_S = 30.0  # beyond what the client asked for
_HANDED_ON = ("Cheops-Operation", "Location", "Preference-Applied")


class LostResponseError(RequestError):
    """Nobody can say whether the operation was taken."""

    status = 502
    definite = False


async def forward(  # noqa: PLR0913, PLR0917 - where from, where to, and what
    node: Node,
    request: Request,
    elsewhere: NotInvolvedError,
    path: str,
    content: FormData | bytes,
    timeout_s: float,
) -> Response:
    """Ask the first of the sites involved that can be reached; `path` is encoded, and may have a query."""
    if hop := request.headers.get(HOP_HEADER):
        raise RequestError(
            f"{unquote(hop)} forwarded this to {node.name}, which is not involved; "
            f"the resource is at {', '.join(elsewhere.sites)}"
        )
    for site in sorted(elsewhere.sites, key=lambda site: site not in node.mesh.up):
        if node.address_of(site) is None:
            continue
        if answer := await _send(node, request, site, path, content, timeout_s):
            kept = {name: answer.headers[name] for name in _HANDED_ON if name in answer.headers}
            headers = {"Cheops-Site": quote(site), **kept}
            media_type = answer.headers.get("Content-Type")
            return StreamingResponse(_body(answer), answer.status, headers, media_type=media_type)
    raise elsewhere


async def _send(  # noqa: PLR0913, PLR0917 - as above
    node: Node, request: Request, site: str, path: str, content: FormData | bytes, timeout_s: float
) -> aiohttp.ClientResponse | None:
    """Its answer; None where it was certainly not taken."""
    is_form = isinstance(content, FormData)
    headers = {HOP_HEADER: quote(node.name), "Accept": request.headers.get("Accept", "*/*")}
    headers |= authenticator.limits_header(principal_of(request).reach)
    if not is_form:
        headers["Content-Type"] = "application/json"
    try:
        return await node.peer_client.request(
            site,
            request.method,
            path,
            data=await _copy_form(content) if isinstance(content, FormData) else content,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=timeout_s + _PATIENCE_S),
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, NoAddressError):
        return None
    except (aiohttp.ClientError, OSError) as error:
        raise LostResponseError(f"{site} was asked and may have taken it, but its answer was lost: {error}") from None


async def _body(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    finally:
        answer.close()


async def _copy_form(form: FormData) -> aiohttp.FormData:
    copy = aiohttp.FormData()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            await value.seek(0)
            copy.add_field(name, value.file, filename=value.filename or name)
        else:
            copy.add_field(name, value)
    return copy


T = TypeVar("T")
_TIMEOUT_S = 30.0
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class UnreachableError(CheopsError):
    status = 503
    definite = False


class _RefusedThereError(CheopsError):
    def __init__(self, problem: Problem, status: int) -> None:
        super().__init__(problem.detail)
        self.status = status if status in set(HTTPStatus) else 502


async def post_to_site(  # noqa: PLR0913, PLR0917 - where, what, and on whose behalf
    node: Node, site: str, path: str, body: bytes, kind: type[T], reach: Reach
) -> T:
    if node.address_of(site) is None:
        raise UnreachableError(f"nobody knows the address of '{site}'")
    headers = {HOP_HEADER: quote(node.name), "Content-Type": "application/json"}
    headers |= authenticator.limits_header(reach)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5)
    asking = node.peer_client.request(site, "POST", path, data=body, headers=headers, timeout=timeout)
    try:
        async with asking as answer:
            found = await read_response(answer, MAX_MESSAGE_BYTES)
            if answer.status >= 400:
                raise _RefusedThereError(from_json(found, Problem), answer.status)
            return from_json(found, kind)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, NoAddressError) as error:
        raise UnreachableError(f"{site} cannot be reached: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError, *_UNREADABLE) as error:
        raise LostResponseError(f"the answer of {site} was lost: {error or type(error).__name__}") from None
