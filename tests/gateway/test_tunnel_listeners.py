"""Addresses of this machine that lead to the gateways of sites out of reach: when they begin and end."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cheops.gateway import tunnels
from cheops.gateway.tunnels import GatewayTunnels
from cheops.node.node import Node
from cheops.peers.tunnels import TunnelListener
from tests.support.ports import free_port


class Mesh:
    """Sites whose gateways nobody reaches."""

    def __init__(self, *sites: str) -> None:
        self.up = set(sites)
        self.forgotten: set[str] = set()
        self._url = f"https://127.0.0.1:{free_port()}"

    def entry_of(self, _site: str) -> Any:
        return SimpleNamespace(services=(("image", self._url),))

    def is_site_forgotten(self, site: str) -> bool:
        return site in self.forgotten


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_without_descriptors_it_goes_on_and_a_forgotten_site_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "_TICK_S", 0.01)
    monkeypatch.setattr(tunnels, "_AGAIN_S", 0.02)
    start, failures = TunnelListener.start, iter([True, False])

    async def start_or_fail(listener: TunnelListener) -> None:
        if next(failures, False):
            raise OSError(24, "Too many open files")
        await start(listener)

    monkeypatch.setattr(TunnelListener, "start", start_or_fail)

    async def scene() -> None:
        mesh = Mesh("site2")
        channel = SimpleNamespace(is_opener=False, via="")
        node = SimpleNamespace(mesh=mesh, channels=SimpleNamespace(get=lambda _site: channel))
        ways = GatewayTunnels(cast(Node, node))
        running = asyncio.create_task(ways.run())
        await until(lambda: running.done() or ways.port_to("site2"))
        assert not running.done(), "the agent would end with it"
        mesh.up.clear()
        mesh.forgotten.add("site2")
        await until(lambda: ways.port_to("site2") is None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
