"""One question to the agent of another site, and its answer, refusals included."""

from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from cheops.api.forwarding import HOP_HEADER, LostError
from cheops.api.models import Problem, from_json
from cheops.errors import CheopsError
from cheops.node.node import Node

T = TypeVar("T")
_PATIENCE_S = 30.0


class UnreachableError(CheopsError):
    status = 503
    definite = False


class _RefusedThereError(CheopsError):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.status = problem.status  # type: ignore[misc]  # as the other site has it


async def asked_of(node: Node, site: str, path: str, body: bytes, kind: type[T]) -> T:
    address = node.address_of(site)
    if address is None:
        raise UnreachableError(f"nobody knows the address of '{site}'")
    headers = {HOP_HEADER: quote(node.name), "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S, sock_connect=5)
    url = URL(f"{address}{path}", encoded=True)
    try:
        async with node.session.post(url, data=body, headers=headers, timeout=timeout) as answer:
            found = await answer.read()
            if answer.status >= 400:
                raise _RefusedThereError(from_json(found, Problem))
            return from_json(found, kind)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UnreachableError(f"{site} cannot be reached: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
        raise LostError(f"the answer of {site} was lost: {error or type(error).__name__}") from None
