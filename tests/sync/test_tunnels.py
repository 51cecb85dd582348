"""A relay: it carries connections for others, and stays a site with requests of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from cheops.config.address import Address
from cheops.errors import CheopsError
from cheops.peers import relays, tunnels
from cheops.peers.channel import Channel
from cheops.peers.frames import Answer, Opening
from cheops.peers.relays import Relays
from cheops.peers.requests import AGENT_TUNNEL
from cheops.peers.streams import IncomingRequest, Response
from cheops.peers.tunnels import TunnelEnds, TunnelListener, TunnelServer
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


# -- a hostile site at the other side -----------------------------------------------------------------------------


async def never(_request: IncomingRequest) -> None:
    await asyncio.Event().wait()


async def never_end(request: IncomingRequest) -> None:
    request.respond(Answer(200), end=False)
    await asyncio.Event().wait()


@pytest.mark.parametrize("answer", [never, never_end])
def test_a_site_that_ends_no_tunnel_keeps_no_connections_here(
    answer: Callable[[IncomingRequest], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request for its gateway would leave a connection behind."""
    monkeypatch.setattr(tunnels, "_LINGER_S", 0.05)

    async def run() -> None:
        async with asyncio.timeout(60), pair() as (own, _theirs, _one, other):
            other.on_request = answer

            class Channels:
                def get(self, _site: str) -> Channel:
                    return own

            listener = TunnelListener("b", Channels())
            await listener.start()
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                while not own._responses:
                    await asyncio.sleep(0.001)
                writer.close()
                assert await reader.read() == b""
                while own._responses:
                    await asyncio.sleep(0.001)
            listener.close()

    asyncio.run(run())


def test_a_relay_that_does_not_answer_keeps_no_connections_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_OPEN_S", 0.05)

    async def run() -> None:
        async with asyncio.timeout(60), pair() as (own, _theirs, _one, other):
            other.on_request = never
            ways = Relays("a", None, lambda site: own if site == "r" else None)
            ways.candidates = lambda _site: ("r",)
            assert await ways.open("t", lambda _transport, _via: own) is None
            await asyncio.sleep(0.01)
            assert not ways._tunnels
            assert not own._responses

    asyncio.run(run())


def test_relays_that_do_not_answer_are_not_tried_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hostile sites nearby would keep a site from all the others."""
    monkeypatch.setattr(relays, "_EVERY_S", 0.0)
    tried: list[str] = []

    async def open_by(relay: str, _site: str, make: relays.MakeRelayed) -> Channel:
        tried.append(relay)
        if relay in {"r1", "r2"}:
            raise TimeoutError
        return make(asyncio.Transport(), relay)

    async def run() -> None:
        async with pair() as (own, _theirs, _one, _other):
            ways = Relays("a", None, lambda _site: own)
            ways.candidates = lambda _site: ("r1", "r2", "r3")
            monkeypatch.setattr(ways, "_open_by", open_by)
            assert await ways.open("t", lambda _transport, _via: own) is None
            assert await ways.open("t", lambda _transport, _via: own) is own
            assert tried == ["r1", "r2", "r3"]

    asyncio.run(run())
