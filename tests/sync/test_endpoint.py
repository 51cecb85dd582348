"""Requests of sites by HTTP: few at a time are read, and answered."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from cheops.peers.endpoint import PeerEndpoint
from cheops.peers.requests import Peer, PeerResponse, RequestKind
from cheops.peers.service import LocalSite, PeerService


class Service:
    """Answers at once. The site that asks reads nothing of it."""

    def __init__(self) -> None:
        self.made = 0

    def take_turn(self, _site: str) -> None:
        pass

    def record_refusal(self, *_about: object) -> None:
        pass

    async def handle(self, _peer: Peer, _kind: RequestKind, _body: bytes) -> PeerResponse:
        self.made += 1
        return PeerResponse(b"x" * 1_000)


async def unused(*_all: object) -> None:
    raise AssertionError("these are for the web side")


def test_a_site_that_reads_no_responses_gets_few() -> None:
    """A channel bounds that by itself; connections of its own would let it take a gigabyte."""

    async def scene() -> None:
        service, statuses, may_read = Service(), list[int](), asyncio.Event()
        endpoint = PeerEndpoint(cast(LocalSite, SimpleNamespace(mesh=None)), cast(PeerService, service), None, unused)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            elif statuses[-1] == 200:
                await may_read.wait()

        def ask(site: str, path: str) -> asyncio.Task[None]:
            scope = {"type": "http", "method": "POST", "path": path, "headers": [], "state": {"peer": site}}
            return asyncio.create_task(endpoint(scope, receive, send))

        asked = [ask("thief", "/peer/documents") for _ in range(20)]
        await asyncio.wait(asked, timeout=0.05)
        assert (service.made, sorted(statuses)) == (4, [200] * 4 + [429] * 16)
        asked += [ask("thief", "/peer/heartbeat"), ask("site2", "/peer/documents")]
        await asyncio.wait(asked, timeout=0.05)
        assert service.made == 6
        may_read.set()
        await asyncio.gather(*asked)
        assert not endpoint._open

    asyncio.run(scene())
