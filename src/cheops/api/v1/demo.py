"""In demo mode only: sites are cut from the others, and joined again. Whoever holds the wires is asked, by
the Unix socket that the configuration names: one line there, one line back.
"""

import asyncio
from pathlib import Path

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from cheops.api.models import Wiring
from cheops.api.openapi import responses
from cheops.api.request import NodeOf, SiteName, json_response
from cheops.api.server import short_socket_path
from cheops.errors import ClientError
from cheops.node.node import Node

router = APIRouter(tags=["demo"])
_PATIENCE_S = 5.0
_MOST_BYTES = 65_536


class NoDemoError(ClientError):
    """This agent is not in demo mode."""

    status = 404


class WireTroubleError(ClientError):
    status = 503
    definite = False


class _Told(msgspec.Struct):
    """What whoever holds the wires says: see demo/wire_desk.py."""

    cut: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@router.get(
    "/demo/wires",
    operation_id="getWires",
    summary="Whether sites can be cut off here, and which are",
    responses=responses(Wiring, "The wires.", 503),
)
async def get_wires(node: NodeOf) -> Response:
    if node.config.wires is None:
        return json_response(Wiring(on=False, cut=()))
    return await _asked(node, {"do": "look"})


@router.put(
    "/demo/wires/{name}",
    operation_id="joinSite",
    summary="Join a site of the demo to all others again",
    responses=responses(Wiring, "The wires.", 400, 404, 503),
)
async def join_site(node: NodeOf, name: SiteName) -> Response:
    return await _asked(node, {"do": "join", "site": name})


@router.delete(
    "/demo/wires/{name}",
    operation_id="cutSite",
    summary="Cut a site of the demo from all others",
    responses=responses(Wiring, "The wires.", 400, 404, 503),
)
async def cut_site(node: NodeOf, name: SiteName) -> Response:
    return await _asked(node, {"do": "cut", "site": name})


async def _asked(node: Node, wish: dict[str, str]) -> Response:
    path = node.config.wires
    if path is None:
        raise NoDemoError("this agent is not in demo mode: nothing is cut by asking it")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            told = msgspec.json.decode(await _answer(path, msgspec.json.encode(wish)), type=_Told)
    except (OSError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
        raise WireTroubleError(f"whoever holds the wires does not answer: {error}") from None
    if told.problem:
        raise ClientError(told.problem)
    return json_response(Wiring(on=True, cut=told.cut))


async def _answer(path: Path, wish: bytes) -> bytes:
    with short_socket_path(path) as name:
        reader, writer = await asyncio.open_unix_connection(name, limit=_MOST_BYTES)
    try:
        writer.write(wish + b"\n")
        return await reader.readline()
    finally:
        writer.close()
