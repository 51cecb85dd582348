"""The channels of a site: who opens them, how many there are, and who loses them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from cheops.peers import channel_pool
from cheops.peers.channel import Channel
from cheops.peers.channel_pool import ChannelPool
from cheops.peers.client import NoAddressError, PeerClient
from cheops.peers.enrollment import Rejection
from cheops.peers.frames import Answer
from cheops.peers.requests import CHANNEL_PATH, Peer, PeerRefusedError
from cheops.peers.streams import ChannelError, IncomingRequest
from cheops.peers.upgrade import UpgradeRefusedError, WrongSiteError, names_in, response_head
from cheops.security.refusals import RefusalLog
from tests.support.ports import free_port


class Refused(RefusalLog):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def request(  # noqa: PLR0913, PLR0917 - as its base has it
        self, reason: str, site: str, address: str, detail: str = "", status: int = 403, what: str = "connection"
    ) -> None:
        self.reasons.append(f"{reason} {site}")
        del address, detail, status, what


@dataclass(frozen=True)
class Named:
    """An identity, as far as a pool needs it."""

    site: str


class Keys:
    """As a keyring, without TLS."""

    client = host_of = None

    def __init__(self, site: str) -> None:
        self.identity = Named(site)


class Site:
    """A site with a pool, and a listener that accepts channels as an agent does."""

    def __init__(self, name: str, ports: dict[str, int]) -> None:
        self.name = name
        self.refused = Refused()
        self.rejected: dict[str, Rejection] = {}
        self.decisions = 0
        self.status = 101
        self.ready: list[str] = []
        self.lost: list[str] = []
        self.taken: list[bytes] = []
        http = PeerClient(
            lambda site: f"http://127.0.0.1:{ports[site]}" if site in ports else None,
        )
        self.pool = ChannelPool(
            name,
            http,
            None,
            lambda identity, _now_s: self.rejected.get(identity.site),
            lambda: self.decisions,
            self.refused,
        )
        self.pool.on_ready = self.ready.append
        self.pool.on_lost = self.lost.append
        self.pool.serve(self)
        self._port = ports[name]
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Begin(self), "127.0.0.1", self._port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.pool.close()

    def with_keys(self) -> Keys:
        """From now on as with security on, for the channels that there are."""
        keys = Keys(self.name)
        self.pool._keys = cast(Any, keys)
        for channel in self.channels():
            channel.peer = Peer(channel.site, cast(Any, Named(channel.site)))
            self.pool._identities[channel] = keys.identity
        return keys

    def channels(self) -> list[Channel]:
        return list(self.pool._all())

    async def answer(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, f"{self.name} to {request.channel.site}".encode()))

    async def take(self, _channel: Channel, _kind: str, body: bytes) -> None:
        self.taken.append(body)


class _Begin(asyncio.Protocol):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" not in self._head:
            return
        site = self._site
        line, *rest = self._head.decode().split("\r\n")
        assert line.split(" ")[1] == CHANNEL_PATH
        if site.status != 101:
            self._transport.write(f"HTTP/1.1 {site.status} No\r\nContent-Length: 4\r\n\r\nwhy?".encode())
            return
        opener, _, _via = names_in(dict(one.split(": ", 1) for one in rest if ": " in one))
        channel = site.pool.accept(opener, Peer(), "127.0.0.1")
        self._transport.write(response_head(site.name))
        self._transport.set_protocol(channel)
        channel.connection_made(self._transport)
        site.pool.accepted(channel)


@asynccontextmanager
async def sites(*names: str) -> AsyncIterator[list[Site]]:
    ports = {name: free_port() for name in names}
    made = [Site(name, ports) for name in names]
    for one in made:
        await one.listen()
    try:
        yield made
    finally:
        for one in made:
            one.close()
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def play(scene: Callable[..., Coroutine[Any, Any, None]], *names: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), sites(*names) as made:
            await scene(*made)

    asyncio.run(run())


async def ask(site: Site, other: str) -> str:
    status, body = await site.pool.request(other, "show", timeout_s=30, most_bytes=1000)
    assert status == 200
    return body.decode()


def test_a_channel_is_opened_once_and_used_by_both() -> None:
    async def scene(a: Site, b: Site) -> None:
        answers = await asyncio.gather(*(ask(a, "b") for _ in range(20)))
        assert set(answers) == {"b to a"}
        assert len(a.pool) == len(b.pool) == 1
        assert (a.ready, b.ready) == (["b"], ["a"])

        def nowhere(site: str) -> str | None:
            del site
            return None

        b.pool._address_of = nowhere
        assert await ask(b, "a") == "a to b", "through the channel of a"
        assert [channel.is_opener for channel in (*a.channels(), *b.channels())] == [True, False]

    play(scene, "a", "b")


def test_of_two_that_are_opened_at_once_one_remains() -> None:
    async def scene(a: Site, b: Site) -> None:
        answers = await asyncio.gather(*(ask(one, other) for one, other in ((a, "b"), (b, "a")) for _ in range(10)))
        assert sorted(set(answers)) == ["a to b", "b to a"], "no request is lost by it"
        await until(lambda: len(a.pool) == len(b.pool) == 1)
        assert [channel.is_opener for channel in a.channels()] == [True], "that of the lesser name"
        assert await ask(a, "b") == "b to a"
        assert await ask(b, "a") == "a to b"
        assert not a.refused.reasons + b.refused.reasons

    play(scene, "a", "b")


def test_a_site_that_has_lost_its_channel_opens_another_and_is_heard() -> None:
    """The other side has not noticed: for it the old one is as good as before."""

    async def scene(a: Site, b: Site) -> None:
        await ask(a, "b")
        (old,) = b.channels()
        (lost,) = a.channels()
        a.pool._channels.clear()  # as after a restart without a word, or when NAT forgot the connection
        assert lost.is_open
        assert await ask(a, "b") == "b to a"
        assert b.pool.get("a") is not old
        assert not old.is_open
        assert await ask(b, "a") == "a to b"

    play(scene, "a", "b")


def test_a_channel_that_opens_while_relays_are_tried_for_too_long_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would know of it: it would not end with the certificate of its site."""
    monkeypatch.setattr(channel_pool, "_DIRECT_S", 0.0)
    monkeypatch.setattr(channel_pool, "_OPEN_S", 0.3)

    async def never(_site: str, _make: object) -> None:
        await asyncio.Event().wait()

    async def scene(a: Site, b: Site) -> None:
        monkeypatch.setattr(a.pool.relays, "open", never)
        with pytest.raises(TimeoutError):
            await a.pool.channel("b")
        assert len(a.pool) == 0
        await until(lambda: b.lost == ["a"])

    play(scene, "a", "b")


def test_a_relayed_channel_stays_while_there_is_no_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one by the same relay would take its place every half a minute, and cut off what it carries."""
    monkeypatch.setattr(channel_pool, "_DIRECT_S", 0.0)
    tried: list[str] = []

    async def relay(site: str, _make: object) -> None:
        tried.append(site)

    async def scene(a: Site, b: Site) -> None:
        await ask(a, "b")
        (channel,) = a.channels()
        channel.via = "relay"
        monkeypatch.setattr(a.pool.relays, "open", relay)
        assert b._server is not None
        b._server.close()
        a.pool._try_direct()
        (attempt,) = a.pool._opening.values()
        await asyncio.wait([attempt])
        assert isinstance(attempt.exception(), OSError)
        assert not tried
        assert a.pool.get("b") is channel

    play(scene, "a", "b")


def test_many_channels_of_one_site_are_not_kept() -> None:
    async def scene(a: Site, b: Site) -> None:
        for _ in range(20):
            await ask(a, "b")
            a.pool._channels.clear()
        await until(lambda: len(b.pool) <= channel_pool._MOST_OF_ONE)
        assert await ask(a, "b") == "b to a"

    play(scene, "a", "b")


def test_a_forgotten_site_loses_its_channel_with_the_decision() -> None:
    async def scene(a: Site, b: Site, c: Site) -> None:
        await ask(a, "b")
        await ask(c, "b")
        b.with_keys()
        b.rejected["a"], b.decisions = Rejection("forgotten site", "it was forgotten", "a"), 1
        with pytest.raises(ChannelError):
            await ask(a, "b")
        await until(lambda: b.pool.get("a") is None)
        assert b.refused.reasons == ["forgotten site a"]
        assert b.lost == ["a"]
        assert await ask(c, "b") == "b to c"

    play(scene, "a", "b", "c")


def test_messages_of_a_forgotten_site_are_not_taken() -> None:
    async def scene(a: Site, b: Site) -> None:
        await ask(a, "b")
        b.with_keys()
        b.rejected["a"], b.decisions = Rejection("forgotten site", "it was forgotten", "a"), 1
        (channel,) = a.channels()
        channel.post("messages", b"late")
        await until(lambda: b.pool.get("a") is None)
        assert b.taken == []

    play(scene, "a", "b")


def test_a_certificate_that_ends_ends_the_channel_without_a_request() -> None:
    async def scene(a: Site, b: Site) -> None:
        await ask(a, "b")
        b.with_keys()
        b.rejected["a"] = Rejection("expired certificate", "it ended", "a")
        b.pool.check_certificates()  # each second
        await until(lambda: not a.channels())

    play(scene, "a", "b")


def test_with_a_new_certificate_of_its_own_a_site_lets_requests_end_and_uses_another_channel() -> None:
    async def scene(a: Site, b: Site) -> None:
        go_on = asyncio.Event()

        async def later(request: IncomingRequest) -> None:
            await go_on.wait()
            request.respond(Answer(200, b"late"))

        b.answer = later  # type: ignore[method-assign]
        asking = asyncio.create_task(ask(a, "b"))
        await until(b.channels)
        await until(lambda: not b.channels()[0].is_idle)
        keys = b.with_keys()
        (old,) = a.channels()
        keys.identity = Named("b")  # equal, and another one
        b.pool.check_certificates()
        await until(lambda: (found := a.pool.get("b")) is not None and found is not old)
        go_on.set()
        assert await asking == "late"
        await until(lambda: len(a.pool) == 1)

    play(scene, "a", "b")


def test_few_channels_stay_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_pool, "_MOST_RESTING", 2)

    async def scene(a: Site, *others: Site) -> None:
        for one in others:
            await ask(a, one.name)
        for channel in a.channels():
            channel.used_s -= channel_pool._REST_S
        await ask(a, "e")  # the only one that is used since
        a.pool._close_surplus()
        await until(lambda: len(a.pool) == 2)
        assert a.pool.get("e") is not None
        assert await ask(a, "b") == "b to a", "it is opened again when it is needed"

    play(scene, "a", "b", "c", "d", "e")


def test_a_new_channel_closes_the_one_that_was_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_pool, "_MOST_RESTING", 1)
    monkeypatch.setattr(channel_pool, "_MOST_OPEN", 2)

    async def scene(a: Site, *others: Site) -> None:
        for one in others[:2]:
            await ask(a, one.name)
        for channel, age_s in zip(a.channels(), (0.5, 0.2), strict=True):
            channel.used_s -= age_s
        assert await ask(a, "d") == "d to a"
        await until(lambda: {channel.site for channel in a.channels()} == {"c", "d"})
        assert await ask(a, "b") == "b to a"
        assert a.pool.get("d") is not None, "used just now: an answer may be on its way"

    play(scene, "a", "b", "c", "d")


def test_why_there_is_no_channel() -> None:
    async def scene(a: Site, b: Site, c: Site) -> None:
        with pytest.raises(NoAddressError):
            await ask(a, "nobody")
        c.status = 403
        with pytest.raises(UpgradeRefusedError) as caught:
            await ask(a, "c")
        assert (caught.value.status, caught.value.body) == (403, b"why?")
        c.status, c.name = 101, "another"
        with pytest.raises(WrongSiteError, match="'another' responds at the address of c"):
            await ask(a, "c")
        b.close()
        with pytest.raises(ConnectionRefusedError):
            await ask(a, "b")
        assert not a.channels()

    play(scene, "a", "b", "c")


def test_too_many_channels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_pool, "_MOST", 1)

    async def scene(a: Site, b: Site) -> None:
        await ask(a, "b")
        with pytest.raises(PeerRefusedError):
            b.pool.accept("c", Peer(), "127.0.0.1")

    play(scene, "a", "b")


def test_the_kernel_keeps_a_channel_alive_and_little_of_it_unsent() -> None:
    """A firewall that forgets connections after a minute without a word must not forget this one."""
    import socket  # noqa: PLC0415 - for this test only

    async def scene(a: Site, b: Site) -> None:
        await ask(a, "b")
        for channel in (*a.channels(), *b.channels()):
            assert channel._transport is not None
            sock = channel._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    play(scene, "a", "b")
