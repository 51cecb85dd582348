"""Heartbeats over HTTP, as a link with small packets brings them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from cheops.engine.events import PeerUp
from cheops.log.causality import Clock
from cheops.peers.client import PeerClient
from cheops.peers.prober import Prober, RecordRefusals, now
from cheops.peers.probes import PeerEvent
from cheops.peers.watermark import StoreStarts, Watermarks
from tests.sync.mesh_world import World

REFUSALS = cast("RecordRefusals", None)  # there are none


class _Pieces:
    """The body of an answer as aiohttp has it: what has come so far, and more later."""

    def __init__(self, body: bytes) -> None:
        self._pieces = [body[at : at + 50] for at in range(0, len(body), 50)]

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def read(self, _most: int = -1) -> bytes:
        return self._pieces[0]


class _Asking:
    is_secure = False

    def __init__(self, asked: Prober) -> None:
        self._asked = asked

    @asynccontextmanager
    async def request(self, *_: Any, data: bytes, **__: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(status=200, content=_Pieces(self._asked.answer(data)))


def marks() -> Watermarks:
    return Watermarks(StoreStarts(b"key").with_start("tag", 0, "1"), lambda: (0, Clock()), lambda _peer, _mark: None)


def test_an_answer_may_come_in_pieces() -> None:
    world = World()
    world.add("a", ["b"])
    world.add("b")
    events: list[PeerEvent] = []
    b = Prober(world.nodes["b"].mesh, cast("PeerClient", None), lambda _event: None, REFUSALS, marks())
    a = Prober(world.nodes["a"].mesh, cast("PeerClient", _Asking(b)), events.append, REFUSALS, marks())
    probes, _ = a.mesh.tick(now(), lambda _most: 0)
    asyncio.run(a._probe(probes[0]))
    assert [event.peer for event in events if isinstance(event, PeerUp)] == ["b"]
