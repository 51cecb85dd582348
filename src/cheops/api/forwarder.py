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
from cheops.errors import CheopsError, ClientError
from cheops.node.node import Node
from cheops.peers.client import NoAddressError, read_response
from cheops.security.principal import Reach
from cheops.store.codec import MAX_MESSAGE_BYTES

HOP_HEADER = "Cheops-Forwarded-By"
_EXTRA_TIMEOUT_S = 30.0  # beyond the client's own timeout
_FORWARDED_HEADERS = ("Cheops-Operation", "Location", "Preference-Applied")


async def forward(  # noqa: PLR0913, PLR0917 - where from, where to, and what
    node: Node,
    request: Request,
    elsewhere: NotInvolvedError,
    path: str,
    content: FormData | bytes,
    timeout_s: float,
) -> Response:
    """Send the request to the first involved site that is reachable. `path` is encoded, and may have a query."""
    if hop := request.headers.get(HOP_HEADER):
        raise RequestError(
            f"{unquote(hop)} forwarded this to {node.name}, which is not involved; "
            f"the resource is at {', '.join(elsewhere.sites)}"
        )
    # Sites that are up first; one that seems down may be back, and is better than none.
    for site in sorted(elsewhere.sites, key=lambda site: site not in node.mesh.up):
        if node.address_of(site) is None:
            continue
        if response := await _send(node, request, site, path, content, timeout_s):
            kept = {name: response.headers[name] for name in _FORWARDED_HEADERS if name in response.headers}
            headers = {"Cheops-Site": quote(site), **kept}
            media_type = response.headers.get("Content-Type")
            return StreamingResponse(_body(response), response.status, headers, media_type=media_type)
    raise elsewhere


async def _send(  # noqa: PLR0913, PLR0917 - as above
    node: Node, request: Request, site: str, path: str, content: FormData | bytes, timeout_s: float
) -> aiohttp.ClientResponse | None:
    """The response of a site; None if the site certainly did not get the request, so that another one can be tried."""
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
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=timeout_s + _EXTRA_TIMEOUT_S),
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, NoAddressError):
        return None
    except (aiohttp.ClientError, OSError) as error:
        raise _lost(f"{site} got the request, but its response was lost: {error}. It may have taken effect") from None


async def _body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    finally:
        response.close()


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


def _lost(text: str) -> CheopsError:
    """Not definite: the other site may have taken the operation."""
    return ClientError(text, status=502, definite=False)


def _unreachable(text: str) -> CheopsError:
    return CheopsError(text, status=503, definite=False)


async def post_to_site(  # noqa: PLR0913, PLR0917 - where, what, and on whose behalf
    node: Node, site: str, path: str, body: bytes, kind: type[T], reach: Reach
) -> T:
    if node.address_of(site) is None:
        raise _unreachable(f"the address of '{site}' is not known")
    headers = {HOP_HEADER: quote(node.name), "Content-Type": "application/json"}
    headers |= authenticator.limits_header(reach)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5)
    sent = node.peer_client.request(site, "POST", path, data=body, headers=headers, timeout=timeout)
    try:
        async with sent as response:
            content = await read_response(response, MAX_MESSAGE_BYTES)
            if response.status >= 400:
                status = response.status if response.status in set(HTTPStatus) else 502
                raise CheopsError(from_json(content, Problem).detail, status=status)
            return from_json(content, kind)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, NoAddressError) as error:
        raise _unreachable(f"{site} is unreachable: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError, *_UNREADABLE) as error:
        raise _lost(f"the response of {site} was lost: {error or type(error).__name__}") from None
