"""Messages to a peer: together with what is ready, in order, bounded; one that is too large is dropped alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cheops.engine.documents import Message
from cheops.log.operation import Origin
from cheops.peers import links
from cheops.peers.client import NoAddressError
from cheops.peers.links import PeerLinks, pack, unpack
from cheops.peers.origin_tables import OriginTables


class _Channel:
    """Takes one envelope at a time, as a channel does, and keeps what they hold."""

    def __init__(self) -> None:
        self.can_post = True
        self.envelopes: list[list[str]] = []

    def post(self, _kind: str, body: bytes) -> None:
        self.envelopes.append([message.resource for message in unpack(body).messages])

    @property
    def taken(self) -> list[str]:
        return [resource for some in self.envelopes for resource in some]


class _Channels:
    def __init__(self, channel: _Channel | None) -> None:
        self.open = channel
        self.later: _Channel | None = None
        self.tries = 0

    def get(self, _site: str) -> _Channel | None:
        return self.open

    async def channel(self, _site: str) -> _Channel:
        self.tries += 1
        await asyncio.sleep(0)
        if self.later is None:
            raise NoAddressError("nobody is there")
        self.open = self.later
        return self.later

    def can_reach(self, _site: str) -> bool:
        return True


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def _large(resource: str) -> Message:
    return Message(resource, "1", known={Origin(f"site{number}", "1"): 1 for number in range(2_000)})


def test_a_message_that_is_too_large_is_dropped_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_MESSAGE_BYTES", 20_000)
    unreachable: list[str] = []

    async def play() -> tuple[_Channel, links.LinkCounts]:
        channel = _Channel()
        sender = PeerLinks("a", _Channels(channel), unreachable.append)
        for number in range(10):
            sender.send("b", _large("large") if number == 4 else Message(f"n{number}", "1"))
        await _until(lambda: len(channel.taken) == 9)
        sender.close()
        return channel, sender.counts()["b"]

    channel, counts = asyncio.run(play())
    assert channel.taken == [f"n{number}" for number in range(10) if number != 4]
    assert (counts.dropped, counts.failures, unreachable) == (1, 0, [])


def test_what_is_ready_goes_together_and_what_waits_for_the_channel_too() -> None:
    async def play() -> None:
        channel = _Channel()
        sender = PeerLinks("a", _Channels(channel), lambda _peer: None)
        for number in range(3):
            sender.send("b", Message(f"n{number}", "1"))
        assert channel.envelopes == []
        await asyncio.sleep(0)
        assert channel.envelopes == [["n0", "n1", "n2"]]
        channel.can_post = False
        for number in range(3, 6):
            sender.send("b", Message(f"n{number}", "1"))
            await asyncio.sleep(0)
        assert sender.waiting("b") == 3
        channel.can_post = True
        sender.flush("b")
        assert channel.envelopes[1:] == [["n3", "n4", "n5"]]

    asyncio.run(play())


def test_without_a_channel_messages_are_dropped_and_the_peer_is_probed() -> None:
    unreachable: list[str] = []

    async def play() -> None:
        channels = _Channels(None)
        sender = PeerLinks("a", channels, unreachable.append)
        sender.send("b", Message("lost", "1"))
        await _until(lambda: unreachable)
        sender.send("b", Message("lost too", "1"))  # no second attempt right after the first
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (channels.tries, sender.waiting("b"), sender.counts()["b"].dropped) == (1, 0, 2)
        channels.open = _Channel()
        sender.send("b", Message("n", "1"))
        await _until(lambda: channels.open and channels.open.taken == ["n"])

    asyncio.run(play())
    assert unreachable == ["b"]


def test_a_full_queue_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_MOST_WAITING", 5)

    async def play() -> None:
        channel = _Channel()
        channel.can_post = False
        sender = PeerLinks("a", _Channels(channel), lambda _peer: None)
        for number in range(8):
            sender.send("b", Message(f"n{number}", "1"))
        channel.can_post = True
        sender.flush("b")
        assert channel.taken == ["n3", "n4", "n5", "n6", "n7"]
        assert sender.counts()["b"].dropped == 3

    asyncio.run(play())


class _RawChannel:
    def __init__(self) -> None:
        self.can_post = True
        self.bodies: list[bytes] = []

    def post(self, _kind: str, body: bytes) -> None:
        self.bodies.append(body)


def test_a_list_of_origins_is_written_once_per_channel_and_again_when_it_is_unknown() -> None:
    message = Message("n", "1", known={Origin(f"site{number}", "0123456789ab"): 1 for number in range(20)})

    async def play() -> None:
        channels: Any = _Channels(None)
        channels.open = channel = _RawChannel()
        ours = PeerLinks("a", channels, lambda _peer: None)
        theirs = OriginTables()

        async def is_written(links_: PeerLinks, at: _RawChannel) -> bool:
            links_.send("b", message)
            await asyncio.sleep(0)
            found = unpack(at.bodies[-1], lambda _sender: theirs)
            return not found.is_unknown and len(unpack(at.bodies[-1]).messages) == 1

        assert await is_written(ours, channel)
        answer = pack("b", [message], "a", theirs)
        assert unpack(answer, ours.tables).messages == [message]
        assert not await is_written(ours, channel), "the peer has used it"
        channels.open = channel = _RawChannel()
        assert await is_written(ours, channel), "the peer may have restarted"
        unpack(answer, ours.tables)
        assert not await is_written(ours, channel)
        unpack(pack("b", []), ours.tables)
        assert await is_written(ours, channel), "the peer has said that it does not know it"
        ours.report_unknown("b")
        assert unpack(channel.bodies[-1], lambda _sender: theirs).messages == []

    asyncio.run(play())
