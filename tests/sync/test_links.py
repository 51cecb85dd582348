"""Messages to a peer: a message that is too large is dropped alone, and what else waits for the peer arrives."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from typing import Any, Self, cast

import pytest

from cheops.engine.documents import Message
from cheops.log.operation import Origin
from cheops.peers import links
from cheops.peers.client import PeerClient
from cheops.peers.links import PeerLinks, unpack

_MOST_BYTES = 20_000  # that the peer takes


class _Content:
    async def iter_any(self) -> AsyncIterator[bytes]:
        yield b""


class _Response:
    def __init__(self, status: int) -> None:
        self.status = status
        self.content = _Content()

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


class _Peer:
    """Takes requests up to a size, as an agent does, and keeps what they hold."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.refused = 0

    def address_of(self, site: str) -> str:
        return f"https://{site}"

    def request(
        self, _site: str, _method: str, _path: str, *, data: bytes, headers: dict[str, str], **_: Any
    ) -> _Response:
        body = gzip.decompress(data) if "Content-Encoding" in headers else data
        if len(body) > _MOST_BYTES:
            self.refused += 1
            return _Response(413)
        self.taken += [message.resource for message in unpack(body).messages]
        return _Response(201)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def _large(resource: str) -> Message:
    return Message(resource, "1", known={Origin(f"site{number}", "1"): 1 for number in range(2_000)})


@pytest.mark.parametrize("limit", ["of the peer", "of this site"])
def test_a_message_that_is_too_large_is_dropped_alone(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit == "of this site":
        monkeypatch.setattr(links, "MAX_MESSAGE_BYTES", _MOST_BYTES)
    unreachable: list[str] = []

    async def play() -> tuple[_Peer, links.LinkCounts]:
        peer = _Peer()
        sender = PeerLinks("a", cast(PeerClient, peer), unreachable.append)
        for number in range(10):
            sender.send("b", _large("large") if number == 4 else Message(f"n{number}", "1"))
        await _until(lambda: len(peer.taken) == 9)
        sender.close()
        return peer, sender.counts()["b"]

    peer, counts = asyncio.run(play())
    assert sorted(peer.taken) == [f"n{number}" for number in range(10) if number != 4]
    assert (counts.dropped, counts.failures, unreachable) == (1, 0, [])
    assert (peer.refused > 0) == (limit == "of the peer")
