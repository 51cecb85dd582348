"""One question to the agent of another site, and its answer, refusals included."""

from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from cheops.api import handed_reach
from cheops.api.forwarding import HOP_HEADER, LostError
from cheops.api.models import Problem, from_json
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.security.principal import Reach
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.sync.asking import NoWayError, read_answer

T = TypeVar("T")
_PATIENCE_S = 30.0
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class UnreachableError(CheopsError):
    status = 503
    definite = False


class _RefusedThereError(CheopsError):
    def __init__(self, problem: Problem, status: int) -> None:
        super().__init__(problem.detail)
        self.status = status if status in set(HTTPStatus) else 502  # type: ignore[misc]  # as there


async def asked_of(  # noqa: PLR0913, PLR0917 - where, what, and on whose behalf
    node: Node, site: str, path: str, body: bytes, kind: type[T], reach: Reach
) -> T:
    if node.address_of(site) is None:
        raise UnreachableError(f"nobody knows the address of '{site}'")
    headers = {HOP_HEADER: quote(node.name), "Content-Type": "application/json"}
    headers |= handed_reach.written(reach)
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S, sock_connect=5)
    asking = node.asking.request(site, "POST", path, data=body, headers=headers, timeout=timeout)
    try:
        async with asking as answer:
            found = await read_answer(answer, MAX_MESSAGE_BYTES)
            if answer.status >= 400:
                raise _RefusedThereError(from_json(found, Problem), answer.status)
            return from_json(found, kind)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, NoWayError) as error:
        raise UnreachableError(f"{site} cannot be reached: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError, *_UNREADABLE) as error:
        raise LostError(f"the answer of {site} was lost: {error or type(error).__name__}") from None
