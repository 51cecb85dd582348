"""A relay: it carries connections for others, and stays a site with requests of its own."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from cheops.config.address import Address
from cheops.errors import CheopsError
from cheops.peers import tunnels
from cheops.peers.channel import Channel
from cheops.peers.frames import Answer, Opening
from cheops.peers.requests import AGENT_TUNNEL
from cheops.peers.streams import IncomingRequest, Response
from cheops.peers.tunnels import TunnelEnds, TunnelServer
from tests.sync.test_channel import End, pair


class Relay:
    """A relay `r` between sites that ask it, and the site `t`."""

    def __init__(self, to_target: Channel) -> None:
        to_target.site = "t"
        self._to_target = to_target
        self._server = TunnelServer("r", TunnelEnds(Address("127.0.0.1", 1), None), self)

    def get(self, site: str) -> Channel | None:
        return self._to_target if site == "t" else None

    async def answer(self, request: IncomingRequest) -> None:
        try:
            await self._server.answer(request)
        except CheopsError as error:
            request.respond(Answer(error.status))


async def take_tunnels(request: IncomingRequest) -> None:
    """As the site at the end does: a tunnel stays open."""
    if request.opening.kind == AGENT_TUNNEL:
        request.respond(Answer(200), end=False)
        await asyncio.Event().wait()
    request.respond(Answer(200, b"here"))


async def opened(stack: AsyncExitStack, asker: Channel) -> tuple[int, Response]:
    response = await stack.enter_async_context(asker.open(Opening(AGENT_TUNNEL, target="t")))
    return response.status, response


def play(scene: Callable[..., object], *askers: str) -> None:
    """`scene` gets what is to be closed at its end, the relay's channel to the target, and the askers' channels."""

    async def run() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as all_:
            to_target, _, _, target = await all_.enter_async_context(pair())
            target.on_request = take_tunnels
            relay = Relay(to_target)
            channels = []
            for name in askers:
                own, at_relay, _, end = await all_.enter_async_context(pair())
                assert isinstance(end, End)
                at_relay.site = name
                end.on_request = relay.answer
                channels.append(own)
            async with AsyncExitStack() as stack:
                await scene(stack, to_target, *channels)  # type: ignore[misc]

    asyncio.run(run())


def test_a_site_cannot_use_up_the_requests_of_its_relay() -> None:
    """At the target all tunnels are requests of the relay, of which it takes 128 at a time."""

    async def scene(stack: AsyncExitStack, to_target: Channel, asker: Channel) -> None:
        statuses = [(await opened(stack, asker))[0] for _ in range(20)]
        assert statuses == [200] * 4 + [429] * 16
        assert (await to_target.request("show", timeout_s=30, most_bytes=10))[0] == 200

    play(scene, "a")


def test_a_tunnel_that_has_ended_does_not_count() -> None:
    async def scene(_stack: AsyncExitStack, _to_target: Channel, asker: Channel) -> None:
        for _ in range(3):
            async with AsyncExitStack() as inner:
                assert [(await opened(inner, asker))[0] for _ in range(5)] == [200] * 4 + [429]
            while (await opened(stack_of_one := AsyncExitStack(), asker))[0] != 200:
                await stack_of_one.aclose()
            await stack_of_one.aclose()

    play(scene, "a")


def test_several_sites_together_cannot_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "_MOST_TO_SITE", 6)

    async def scene(stack: AsyncExitStack, _to_target: Channel, one: Channel, other: Channel) -> None:
        assert [(await opened(stack, one))[0] for _ in range(4)] == [200] * 4
        assert [(await opened(stack, other))[0] for _ in range(3)] == [200, 200, 429]

    play(scene, "a", "b")


def test_a_site_cannot_open_and_close_tunnels_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target counts the requests of the relay, however short they are."""
    monkeypatch.setattr(tunnels, "_RELAYS_EACH_S", 0.001)

    async def scene(_stack: AsyncExitStack, _to_target: Channel, asker: Channel) -> None:
        statuses = []
        for _ in range(60):
            async with AsyncExitStack() as inner:
                statuses.append((await opened(inner, asker))[0])
        assert statuses.count(200) <= 50
        assert statuses[-1] == 429

    play(scene, "a")
