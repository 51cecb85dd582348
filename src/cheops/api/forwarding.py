"""An operation that belongs to other sites: handed to the first of them that can be reached, and its answer
handed back. Once only: a site that is not involved either says so.
"""

from collections.abc import AsyncIterator
from urllib.parse import quote, unquote

import aiohttp
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.api import handed_reach
from cheops.api.operations import ElsewhereError, RequestError
from cheops.api.reach import principal_of
from cheops.node.node import Node
from cheops.sync.asking import NoWayError

HOP_HEADER = "Cheops-Forwarded-By"
_PATIENCE_S = 30.0  # beyond what the client asked for
_HANDED_ON = ("Cheops-Operation", "Location", "Preference-Applied")


class LostError(RequestError):
    """Nobody can say whether the operation was taken."""

    status = 502
    definite = False


async def forwarded(  # noqa: PLR0913, PLR0917 - where from, where to, and what
    node: Node,
    request: Request,
    elsewhere: ElsewhereError,
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
        if answer := await _asked(node, request, site, path, content, timeout_s):
            kept = {name: answer.headers[name] for name in _HANDED_ON if name in answer.headers}
            headers = {"Cheops-Site": quote(site), **kept}
            media_type = answer.headers.get("Content-Type")
            return StreamingResponse(_handed_on(answer), answer.status, headers, media_type=media_type)
    raise elsewhere


async def _asked(  # noqa: PLR0913, PLR0917 - as above
    node: Node, request: Request, site: str, path: str, content: FormData | bytes, timeout_s: float
) -> aiohttp.ClientResponse | None:
    """Its answer; None where it was certainly not taken."""
    is_form = isinstance(content, FormData)
    headers = {HOP_HEADER: quote(node.name), "Accept": request.headers.get("Accept", "*/*")}
    headers |= handed_reach.written(principal_of(request).reach)
    if not is_form:
        headers["Content-Type"] = "application/json"
    try:
        return await node.asking.request(
            site,
            request.method,
            path,
            data=await _copied(content) if isinstance(content, FormData) else content,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=timeout_s + _PATIENCE_S),
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, NoWayError):
        return None
    except (aiohttp.ClientError, OSError) as error:
        raise LostError(f"{site} was asked and may have taken it, but its answer was lost: {error}") from None


async def _handed_on(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    finally:
        answer.close()


async def _copied(form: FormData) -> aiohttp.FormData:
    copy = aiohttp.FormData()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            await value.seek(0)
            copy.add_field(name, value.file, filename=value.filename or name)
        else:
            copy.add_field(name, value)
    return copy
