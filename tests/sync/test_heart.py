"""Heartbeats through a channel."""

import asyncio
from typing import Any, cast

from cheops.engine.events import PeerUp
from cheops.log.causality import Clock
from cheops.peers.channel_pool import ChannelPool
from cheops.peers.prober import Prober, RecordRefusals, now
from cheops.peers.probes import PeerEvent
from cheops.peers.watermark import StoreStarts, Watermarks
from tests.sync.mesh_world import World

REFUSALS = cast("RecordRefusals", None)  # there are none


class _Asking:
    """A channel to one site."""

    is_secure = False

    def __init__(self, asked: Prober) -> None:
        self._asked = asked

    async def request(self, _site: str, _kind: str, body: bytes, **_: Any) -> tuple[int, bytes]:
        return 200, self._asked.answer(body)


def marks() -> Watermarks:
    return Watermarks(StoreStarts(b"key").with_start("tag", 0, "1"), lambda: (0, Clock()), lambda _peer, _mark: None)


def test_a_site_that_answers_is_up() -> None:
    world = World()
    world.add("a", ["b"])
    world.add("b")
    events: list[PeerEvent] = []
    b = Prober(world.nodes["b"].mesh, cast("ChannelPool", None), lambda _event: None, REFUSALS, marks())
    a = Prober(world.nodes["a"].mesh, cast("ChannelPool", _Asking(b)), events.append, REFUSALS, marks())
    probes, _ = a.mesh.tick(now(), lambda _most: 0)
    asyncio.run(a._probe(probes[0]))
    assert [event.peer for event in events if isinstance(event, PeerUp)] == ["b"]
