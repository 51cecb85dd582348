"""What the handlers of the API share: parameters, bodies, responses, and a resource as it is now."""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, TypeVar
from urllib.parse import unquote

import msgspec
from fastapi import Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import Wait, to_json
from cheops.api.models.operations import MAX_TIMEOUT_S
from cheops.api.operations import RequestError, check_names
from cheops.api.views.status import is_here, not_here_text
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.node.node import Node
from cheops.node.pump import wall_ms
from cheops.text import printable, shortened

T = TypeVar("T")
MAX_BODY_BYTES = 1024 * 1024
MAX_FRESH_S = 10.0
DEFAULT_TIMEOUT_S = 30.0
_LOOK_S = 0.01
_PREFERRED_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*(\d{1,6})\s*(?:$|[,;])")


class NoSuchResourceError(ClientError):
    status = 404


class TooLargeError(ClientError):
    status = 413


class InvalidError(ClientError):
    """A body that is not what the OpenAPI document says."""

    status = 422


def _node(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


def decode_segment(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise RequestError(f"'{shortened(text)}' in the path is not UTF-8") from None


def _resource_id(
    id_: Annotated[str, Path(alias="id", description="The resource, percent-encoded.", examples=["counter"])],
) -> str:
    id_ = decode_segment(id_)
    check_names(id_)
    return id_


def _operation_name(
    op: Annotated[str, Path(description="An operation: site and number.", examples=["site1:3"], min_length=1)],
) -> str:
    return decode_segment(op)


def _site_name(
    name: Annotated[str, Path(description="A site, percent-encoded.", examples=["site2"], min_length=1)],
) -> str:
    return decode_segment(name)


def _type_name(
    name: Annotated[str, Path(description="A resource type.", examples=["counter"], min_length=1)],
) -> str:
    return decode_segment(name)


def _patience(
    timeout: Annotated[
        float | None,
        Query(ge=0, le=MAX_TIMEOUT_S, description="How long to wait for answers, in seconds; 30."),
    ] = None,
    prefer: Annotated[
        str | None, Header(description="`wait=10` is the same as `timeout=10`.", examples=["wait=10"])
    ] = None,
) -> float:
    if timeout is not None:
        return timeout
    preferred = _PREFERRED_WAIT.search(prefer or "")
    return min(float(preferred[1]), MAX_TIMEOUT_S) if preferred else DEFAULT_TIMEOUT_S


def _waiting(
    wait: Annotated[
        Wait | None,
        Query(description="For whom: none, first (the site that takes it), quorum, or all (the default)."),
    ] = None,
    cheops_wait: Annotated[Wait | None, Header(description="The same, as a header.")] = None,
) -> Wait:
    return wait or cheops_wait or Wait.ALL


NodeOf = Annotated[Node, Depends(_node)]
ResourceId = Annotated[str, Depends(_resource_id)]
OperationName = Annotated[str, Depends(_operation_name)]
SiteName = Annotated[str, Depends(_site_name)]
TypeName = Annotated[str, Depends(_type_name)]
Patience = Annotated[float, Depends(_patience)]
Waiting = Annotated[Wait, Depends(_waiting)]
Fresh = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_FRESH_S,
        description="How many seconds to wait for what other sites say now; after that it is as last heard.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]
Cursor = Annotated[str, Query(max_length=600, description="`next` of the page before.")]


# -- bodies ----------------------------------------------------------------------------------------------


async def read_body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise TooLargeError(f"the body has more than {most} bytes")
    return bytes(found)


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
    return Response(to_json(model), status, headers, media_type="application/json")


# -- resources -------------------------------------------------------------------------------------------


async def load_resource(node: Node, id_: str, fresh_s: float = 0.0) -> Replica:
    """A resource as this site knows it, after it has asked the others how things stand there."""
    replica = await node.pump.replica(id_)
    if not is_here(replica):
        raise NoSuchResourceError(not_here_text(replica, _others(node), node.address_of))
    await refresh_from_peers(node, [id_], fresh_s)
    return await node.pump.replica(id_)


async def page_of_ids(node: Node, prefix: str, cursor: str, limit: int) -> tuple[list[str], bool]:
    """The ids of a page, and whether there are more. The store gives those greater than a text: the prefix
    itself is not."""
    own: list[str] = []
    if prefix and not cursor:
        documents = await asyncio.to_thread(node.store.load, prefix)
        own = [prefix] if documents else []
    rest = await asyncio.to_thread(node.store.resources, max(cursor, prefix), limit + 1)
    found = [*own, *(id_ for id_ in rest if id_.startswith(prefix))]
    return found[:limit], len(found) > limit


async def refresh_from_peers(node: Node, ids: Sequence[str], fresh_s: float) -> None:
    """Have the sites of these resources say how things stand there; wait for that, but not for ever."""
    if not fresh_s:
        return
    asked_ms, end_s = wall_ms(), asyncio.get_running_loop().time() + fresh_s
    replicas = [await node.pump.replica(id_, refresh=True) for id_ in ids]
    while any(_is_awaited(node, replica, asked_ms) for replica in replicas):
        if asyncio.get_running_loop().time() >= end_s:
            return
        await asyncio.sleep(_LOOK_S)


def _others(node: Node) -> list[str]:
    """The other sites that are known, those that can be reached first."""
    others = set(node.snapshot().sites) - {node.name}
    return sorted(others, key=lambda name: (name not in node.mesh.up, name))


def _is_awaited(node: Node, replica: Replica, since_ms: int) -> bool:
    """Whether a site that can be reached has not answered yet."""
    for site in replica.history.site_list:
        if site != node.name and site in node.mesh.up:
            view = replica.peers.get(site)
            if view is None or (view.last_contact_ms or 0) < since_ms:
                return True
    return False


def sites_up(node: Node) -> set[str]:
    return set(node.mesh.up)
