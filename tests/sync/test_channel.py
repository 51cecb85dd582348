"""One channel, both ends in one event loop: requests of either side, back-pressure, priorities, cuts and hostile peers."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cheops.errors import CheopsError
from cheops.peers import channel as channels
from cheops.peers import frames
from cheops.peers.channel import Channel
from cheops.peers.frames import WINDOW_BYTES, Answer, Flag, Frame, FrameKind, FrameReader, HttpHead, Opening
from cheops.peers.requests import HTTP, Peer
from cheops.peers.streams import ChannelError, IncomingRequest, TooLargeError, Write

MIB = 1024 * 1024


class End:
    """One end of a channel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.taken: list[bytes] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.posts = 0
        self.problems: list[str] = []
        self.closings: list[str] = []
        self.is_closed = asyncio.Event()
        self.on_request: Callable[[IncomingRequest], Awaitable[None]] = self.echo

    async def echo(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, self.name.encode() + b":" + await request.body.read(100 * MIB)))

    async def answer(self, request: IncomingRequest) -> None:
        await self.on_request(request)

    async def take(self, _channel: Channel, _kind: str, body: bytes) -> None:
        await self.may_take.wait()
        self.taken.append(body)

    def may_post(self, _channel: Channel) -> None:
        self.posts += 1

    def refused(self, _channel: Channel, error: CheopsError) -> None:
        self.problems.append(str(error))

    def closing(self, _channel: Channel, why: str) -> None:
        self.closings.append(why)

    def closed(self, _channel: Channel) -> None:
        self.is_closed.set()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Channel, Channel, End, End]]:
    loop = asyncio.get_running_loop()
    ends = (End("a"), End("b"))
    made = [Channel(("b", "a")[at], Peer(), ends[at], is_opener=at == 0) for at in (0, 1)]
    for one, sock in zip(made, socket.socketpair(), strict=True):
        sock.setblocking(False)
        await loop.create_connection(lambda one=one: one, sock=sock)  # type: ignore[misc]
    try:
        yield made[0], made[1], *ends
    finally:
        for one in made:
            one.abort("the test is over")
        await asyncio.sleep(0)


def play(scene: Callable[..., Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), pair() as all_:
            await scene(*all_)

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_both_sides_ask_at_the_same_time_and_get_their_own_answers() -> None:
    async def scene(a: Channel, b: Channel, _one: End, _other: End) -> None:
        async def ask(channel: Channel, text: str) -> str:
            _, body = await channel.request("show", text.encode(), timeout_s=30, most_bytes=1000)
            return body.decode()

        asked = [ask(a, f"{n}") for n in range(50)] + [ask(b, f"{n}") for n in range(50)]
        assert await asyncio.gather(*asked) == [f"b:{n}" for n in range(50)] + [f"a:{n}" for n in range(50)]
        assert a.is_idle
        assert b.is_idle

    play(scene)


@pytest.mark.parametrize("size", [0, 1, frames.HEAD_BODY_BYTES, frames.HEAD_BODY_BYTES + 1, 3 * MIB])
def test_bodies_of_any_size_arrive_in_both_directions(size: int) -> None:
    async def scene(a: Channel, _b: Channel, _one: End, other: End) -> None:
        body = bytes(n % 251 for n in range(1000)) * (size // 1000 + 1)
        body = body[:size]
        assert await a.request("show", body, timeout_s=30, most_bytes=10 * MIB) == (200, b"b:" + body)
        a.post("messages", body)
        await until(lambda: other.taken == [body])

    play(scene)


def test_a_heartbeat_does_not_wait_for_a_large_body() -> None:
    """It arrives while the body that was sent before it is still on its way."""

    async def scene(a: Channel, b: Channel, one: End, other: End) -> None:
        async def answer(request: IncomingRequest) -> None:
            if request.opening.kind == "files":
                request.respond(Answer(200, b"x" * (60 * MIB)))
            else:
                await other.echo(request)

        other.on_request = answer
        got = 0
        async with a.open(Opening("files")) as response:
            a.post("messages", b"m" * (60 * MIB))
            async for piece in response.body:
                got += len(piece)
                if got < MIB // 8:
                    for channel in (a, b):
                        await channel.request("heartbeat", b"beat", timeout_s=30, most_bytes=100)
                    assert not other.taken
                    assert got < 60 * MIB
        assert got == 60 * MIB
        await until(lambda: other.taken)
        assert len(other.taken[0]) == 60 * MIB
        assert not one.problems + other.problems

    play(scene)


def test_a_reader_that_stops_stops_its_sender_and_nobody_else() -> None:
    async def scene(a: Channel, _b: Channel, _one: End, other: End) -> None:
        sent = 0

        async def answer(request: IncomingRequest) -> None:
            nonlocal sent
            if request.opening.kind != "files":
                await other.echo(request)
                return
            request.respond(Answer(200), end=False)
            while True:
                await request.write(b"x" * 65_536)
                sent += 65_536

        other.on_request = answer
        async with a.open(Opening("files")):
            await until(lambda: sent >= WINDOW_BYTES)
            for number in range(20):
                assert (await a.request("show", b"%d" % number, timeout_s=30, most_bytes=100))[0] == 200
            assert sent <= WINDOW_BYTES + 4 * 65_536
        # Left: the sender is told, and its handler ends.
        await until(lambda: a.is_idle and not a._outbox.can_send)

    play(scene)


def test_messages_wait_for_a_receiver_that_is_behind() -> None:
    async def scene(a: Channel, b: Channel, one: End, other: End) -> None:
        other.may_take.clear()
        posted = 0
        while a._unhandled < channels._MOST_UNHANDLED:
            await until(lambda: a.can_post)  # the one before is written
            a.post("messages", b"%d" % posted + b"x" * 500_000)
            posted += 1
        assert not a.can_post
        assert posted < 20
        assert (await b.request("heartbeat", b"", timeout_s=30, most_bytes=100))[0] == 200
        before = one.posts
        other.may_take.set()
        await until(lambda: a.can_post)
        assert one.posts > before, "the owner learns that it can go on"
        await until(lambda: len(other.taken) == posted)
        assert [body[:1] for body in other.taken[:5]] == [b"0", b"1", b"2", b"3", b"4"]

    play(scene)


def test_a_response_that_is_too_large_is_not_collected() -> None:
    async def scene(a: Channel, _b: Channel, _one: End, _other: End) -> None:
        with pytest.raises(TooLargeError):
            await a.request("show", b"x" * MIB, timeout_s=30, most_bytes=1000)
        assert (await a.request("show", b"x", timeout_s=30, most_bytes=1000))[1] == b"b:x"

    play(scene)


def test_a_cut_in_the_middle_ends_everything_that_waits() -> None:
    async def scene(a: Channel, b: Channel, one: End, other: End) -> None:
        cancelled = asyncio.Event()

        async def never(request: IncomingRequest) -> None:
            try:
                if request.opening.kind == "files":
                    request.respond(Answer(200), end=False)
                    await request.write(b"x" * (10 * MIB))
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        other.on_request = never
        asking = asyncio.create_task(a.request("show", b"", timeout_s=30, most_bytes=100))
        async with a.open(Opening("files")) as response:
            await anext(aiter(response.body))
            a.post("messages", b"m" * (10 * MIB))
            b.abort("cut")
            with pytest.raises(ChannelError):
                async for _ in response.body:
                    pass
        with pytest.raises(ChannelError, match="lost"):
            await asking
        await one.is_closed.wait()
        await cancelled.wait()
        assert not other.taken, "half a message is none"
        with pytest.raises(ChannelError):
            await a.request("show", b"", timeout_s=30, most_bytes=100)

    play(scene)


def test_a_caller_that_gives_up_ends_the_work_on_the_other_side() -> None:
    async def scene(a: Channel, b: Channel, _one: End, other: End) -> None:
        cancelled = asyncio.Event()

        async def never(_request: IncomingRequest) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        other.on_request = never
        with pytest.raises(TimeoutError):
            await a.request("show", b"", timeout_s=0.05, most_bytes=100)
        await cancelled.wait()
        await until(lambda: b.is_idle)

    play(scene)


def test_a_request_that_is_cancelled_before_it_is_looked_at_takes_no_place() -> None:
    """As after a moment in which this side stood still: it reads both at once."""

    async def scene() -> None:
        end = End("honest")
        answered = asyncio.Event()

        async def answer(request: IncomingRequest) -> None:
            request.respond(Answer(200))
            answered.set()

        end.on_request = answer
        async with raw_peer(end) as (channel, send):
            for number in range(1, 2 * (channels._MOST_STREAMS + channels._MOST_URGENT) + 1, 2):
                await send(request_frame(number) + frames.encode_frame(FrameKind.CANCEL, number))
            await send(request_frame(999, kind="heartbeat"))
            await answered.wait()
            await until(lambda: channel.is_idle)

    asyncio.run(scene())


def test_closing_lets_open_requests_end() -> None:
    async def scene(a: Channel, b: Channel, one: End, other: End) -> None:
        go_on = asyncio.Event()

        async def later(request: IncomingRequest) -> None:
            await go_on.wait()
            request.respond(Answer(200, b"late"))

        other.on_request = later
        asking = asyncio.create_task(a.request("show", b"", timeout_s=30, most_bytes=100))
        await until(lambda: not b.is_idle)
        b.close("there are two")
        await until(lambda: other.closings)
        assert not a.is_open
        assert one.closings == ["there are two"]
        assert not one.is_closed.is_set()
        go_on.set()
        assert await asking == (200, b"late")
        await one.is_closed.wait()
        await other.is_closed.wait()
        with pytest.raises(ChannelError, match="there are two"):
            await a.request("show", b"", timeout_s=30, most_bytes=100)

    play(scene)


def test_closing_lets_a_response_end_that_waits_for_credit() -> None:
    """Its handler is done, and the other side takes it slowly."""

    async def scene(a: Channel, b: Channel, one: End, _other: End) -> None:
        size = WINDOW_BYTES + 60_000

        async def answer(request: IncomingRequest) -> None:
            request.respond(Answer(200), end=False)
            await request.write(b"x" * size, end=True)

        one.on_request = answer
        async with b.open(Opening("files")) as response:
            await until(lambda: not a._handlers and not a._outbox.can_send)
            assert not a.is_idle
            a.close("at rest")
            await until(lambda: not b.is_open)
            assert len(await response.body.read(MIB)) == size
        await one.is_closed.wait()

    play(scene)


def test_closing_lets_what_is_under_way_go_on_as_long_as_something_comes() -> None:
    """Such as a download through a tunnel, when a certificate is renewed or a direct way is found."""

    async def scene(a: Channel, b: Channel, one: End, other: End) -> None:
        more = asyncio.Semaphore(0)

        async def drip(request: IncomingRequest) -> None:
            request.respond(Answer(200), end=False)
            for _ in range(4):
                await more.acquire()
                await request.write(b"x")
            await asyncio.Event().wait()

        def tick(times: int) -> None:
            for _ in range(times):
                for channel in (a, b):
                    channel.tick()
                    channel._silent_ticks = 0  # each PING is answered

        other.on_request = drip
        async with a.open(Opening("gateway")) as response:
            b.close("a new certificate")
            pieces = aiter(response.body)
            for _ in range(4):
                more.release()
                assert await anext(pieces) == b"x"
                tick(channels._CLOSE_TICKS - 1)
            assert not one.is_closed.is_set()
            tick(channels._CLOSE_TICKS)
            with pytest.raises(ChannelError):
                await anext(pieces)

    play(scene)


def said_close(channel: Channel) -> bool:
    return channel._has_said_close


def test_closing_comes_after_the_beginnings_of_what_waits_to_be_sent() -> None:
    """Otherwise the other side sees nothing open, and ends the connection."""

    async def scene() -> None:
        end = End("honest")
        async with raw_peer(end) as (channel, send):
            channel.post("messages", b"m" * 50_000)
            channel.post("messages", b"the next one")
            asking = asyncio.create_task(channel.request("show", b"", timeout_s=30, most_bytes=100))
            await asyncio.sleep(0.01)
            channel.close("at rest")
            assert channel._outbox.has_heads(0), "nothing more may be written before the echo"
            assert not said_close(channel)
            while channel._outbox.has_heads(0):
                await send(frames.encode_frame(FrameKind.PONG, 0) + credit_frame(2, 10_000))
                await asyncio.sleep(0.01)
            assert said_close(channel)
            await send(frames.encode_frame(FrameKind.RESPONSE, 6, frames.encode_payload(Answer(200)), Flag.END))
            assert await asking == (200, b"")

    asyncio.run(scene())


def test_a_silent_connection_is_given_up_only_while_something_waits() -> None:
    async def scene(a: Channel, b: Channel, one: End, _other: End) -> None:
        assert b._transport is not None
        for _ in range(100):
            a.tick()
        assert a.is_open, "at rest nobody needs an answer"
        b._transport.pause_reading()  # as a firewall that drops everything
        asking = asyncio.create_task(a.request("show", b"", timeout_s=60, most_bytes=100))
        await asyncio.sleep(0)
        for _ in range(channels._DEAD_TICKS):
            a.tick()
        with pytest.raises(ChannelError, match="has not answered"):
            await asking
        assert one.is_closed.is_set()

    play(scene)


def test_a_slow_answer_is_not_silence() -> None:
    async def scene(a: Channel, b: Channel, _one: End, other: End) -> None:
        go_on = asyncio.Event()

        async def later(request: IncomingRequest) -> None:
            await go_on.wait()
            request.respond(Answer(200))

        other.on_request = later
        asking = asyncio.create_task(a.request("show", b"", timeout_s=60, most_bytes=100))
        for _ in range(4 * channels._DEAD_TICKS):
            a.tick()
            await until(lambda: a._silent_ticks < channels._PING_TICKS or a._silent_ticks > channels._PING_TICKS)
        assert a.is_open, "it answers a PING"
        go_on.set()
        assert (await asking)[0] == 200
        del b

    play(scene)


def test_a_body_that_its_sender_cannot_finish_fails_the_request() -> None:
    async def scene(a: Channel, _b: Channel, _one: End, _other: End) -> None:
        async def send(write: Write) -> None:
            await write(b"half")
            raise OSError("the client is gone")

        with pytest.raises(ChannelError, match="not sent completely"):
            async with a.open(Opening(HTTP, http=HttpHead("POST", "/")), send):
                pass
        assert (await a.request("show", b"x", timeout_s=30, most_bytes=1000))[1] == b"b:x"

    play(scene)


# -- a hostile peer ----------------------------------------------------------------------------------------------


def request_frame(number: int, body: bytes = b"", flags: int = Flag.END, kind: str = "show") -> bytes:
    return frames.encode_frame(FrameKind.REQUEST, number, frames.encode_payload(Opening(kind, body)), flags)


def credit_frame(number: int, amount: int) -> bytes:
    return frames.encode_frame(FrameKind.CREDIT, number, frames.encode_amount(amount))


def data_frame(number: int, size: int) -> bytes:
    return frames.encode_frame(FrameKind.DATA, number, b"x" * size)


HOSTILE = {
    "not a frame": b"GET / HTTP/1.1\r\n\r\n",
    "an even number": request_frame(2),
    "a number twice": request_frame(3) * 2,
    "a request that is none": frames.encode_frame(FrameKind.REQUEST, 1, b"\xc1", Flag.END),
    "a one-way request in another": request_frame(1, flags=Flag.ONE_WAY, kind="messages") * 1
    + request_frame(3, flags=Flag.ONE_WAY, kind="messages"),
    "an unknown one-way request": request_frame(1, flags=Flag.ONE_WAY | Flag.END, kind="nothing"),
    "more than there is credit for": request_frame(1, flags=0) + data_frame(1, 60_000) * 10,
    "a body after its end": request_frame(1, flags=0) + frames.encode_frame(FrameKind.DATA, 1, b"x", Flag.END) * 2,
    "credit for nothing": frames.encode_frame(FrameKind.CREDIT, 0, frames.encode_amount(1)),
    "half a credit": frames.encode_frame(FrameKind.CREDIT, 0, b"x"),
    "an endless one-way request": request_frame(1, flags=Flag.ONE_WAY, kind="renewal") + data_frame(1, 60_000),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_peer_that_breaks_the_rules_loses_the_channel(how: str) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        end = End("honest")

        async def never(_request: IncomingRequest) -> None:
            await asyncio.Event().wait()

        end.on_request = never
        own, peer = socket.socketpair()
        for sock in (own, peer):
            sock.setblocking(False)
        await loop.create_connection(lambda: Channel("b", Peer(), end, is_opener=False), sock=own)
        with peer:
            await loop.sock_sendall(peer, HOSTILE[how])
            async with asyncio.timeout(30):
                await end.is_closed.wait()
        assert len(end.problems) == 1

    asyncio.run(scene())


def test_a_peer_that_only_asks_and_never_reads_costs_little() -> None:
    """Pings and requests without end: this side stops to read, instead of keeping answers without end."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        end = End("honest")
        own, peer = socket.socketpair()
        for sock in (own, peer):
            sock.setblocking(False)
        _, channel = await loop.create_connection(lambda: Channel("b", Peer(), end, is_opener=False), sock=own)
        ping = frames.encode_frame(FrameKind.PING, 0)

        async def ask_without_end() -> None:
            while True:
                await loop.sock_sendall(peer, ping * 8_000)

        with peer:
            asking = asyncio.create_task(ask_without_end())
            async with asyncio.timeout(60):
                await until(lambda: channel._is_deaf and channel._is_paused)
            assert channel._outbox.control_frames < 50_000
            for _ in range(channels._STALLED_TICKS + 1):
                channel.tick()
            assert not channel.is_open
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(scene())


def test_too_many_requests_at_a_time_are_refused() -> None:
    async def scene(a: Channel, b: Channel, _one: End, other: End) -> None:
        go_on = asyncio.Event()

        async def later(request: IncomingRequest) -> None:
            await go_on.wait()
            request.respond(Answer(200))

        other.on_request = later
        asking = [
            asyncio.create_task(a.request("show", b"", timeout_s=30, most_bytes=100))
            for _ in range(channels._MOST_STREAMS + 5)
        ]
        await until(lambda: sum(task.done() for task in asking) == 5)
        go_on.set()
        statuses = [status for status, _ in await asyncio.gather(*asking)]
        assert statuses.count(429) == 5
        assert statuses.count(200) == channels._MOST_STREAMS
        assert b.is_open

    play(scene)


def test_frames_on_the_wire_are_few() -> None:
    """A small request is one frame, its answer another, and a message is never acknowledged."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        end = End("honest")
        own, peer = socket.socketpair()
        for sock in (own, peer):
            sock.setblocking(False)
        _, channel = await loop.create_connection(lambda: Channel("b", Peer(), end, is_opener=True), sock=own)
        with peer:
            for number in range(3):
                channel.post("messages", b"m%d" % number)
            asking = asyncio.create_task(channel.request("heartbeat", b"beat", timeout_s=30, most_bytes=100))
            reader = FrameReader()
            found: list[Frame] = []
            while len(found) < 4:
                found += reader.feed(await loop.sock_recv(peer, 65_536))
            assert [frame.kind for frame in found] == [FrameKind.REQUEST] * 4
            beat = next(frame for frame in found if not frame.flags & Flag.ONE_WAY)
            answer = frames.encode_payload(Answer(200, b"beat too"))
            await loop.sock_sendall(peer, frames.encode_frame(FrameKind.RESPONSE, beat.number, answer, Flag.END))
            assert await asking == (200, b"beat too")
            message = request_frame(2, b"m", Flag.ONE_WAY | Flag.END, "messages")
            await loop.sock_sendall(peer, message)
            async with asyncio.timeout(30):
                await until(lambda: end.taken)
            await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                peer.recv(1)
            channel.abort("over")

    asyncio.run(scene())


@asynccontextmanager
async def raw_peer(end: End) -> AsyncIterator[tuple[Channel, Callable[[bytes], Awaitable[None]]]]:
    """A channel whose other side is a socket: it reads everything, and answers nothing but by the test."""
    loop = asyncio.get_running_loop()
    own, peer = socket.socketpair()
    for sock in (own, peer):
        sock.setblocking(False)
    _, channel = await loop.create_connection(lambda: Channel("b", Peer(), end, is_opener=False), sock=own)

    async def read_all() -> None:
        while await loop.sock_recv(peer, 1024 * 1024):
            pass

    reading = asyncio.create_task(read_all())

    async def send(data: bytes) -> None:
        await loop.sock_sendall(peer, data)

    try:
        async with asyncio.timeout(60):
            yield channel, send
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        channel.abort("the test is over")
        peer.close()
        await asyncio.sleep(0)


def test_responses_that_the_other_side_does_not_let_go_do_not_pile_up() -> None:
    """It reads, and answers no PING: so nothing that is not urgent may be written. It asks on and on."""

    async def scene() -> None:
        end = End("honest")

        async def answer(request: IncomingRequest) -> None:
            request.respond(Answer(200, b"x" * 50_000))

        end.on_request = answer
        async with raw_peer(end) as (channel, send):
            for start in range(1, 40_001, 2_000):
                await send(b"".join(request_frame(number) for number in range(start, start + 2_000, 2)))
                await asyncio.sleep(0.001)
            await send(request_frame(40_001, kind="heartbeat"))
            await until(lambda: 40_001 in channel._outbox._bodies or not channel._handlers)
            most = channels._MOST_STREAMS + channels._MOST_URGENT + channels._MOST_REFUSED
            assert len(channel._outbox._bodies) <= most

    asyncio.run(scene())


def test_a_heartbeat_is_answered_while_there_are_too_many_other_requests() -> None:
    """Or a site would count as down because others use it as a relay, or its gateway is busy."""

    async def scene(a: Channel, _b: Channel, _one: End, other: End) -> None:
        async def answer(request: IncomingRequest) -> None:
            if request.opening.kind != "heartbeat":
                await asyncio.Event().wait()
            request.respond(Answer(200, b"alive"))

        other.on_request = answer
        asking = [
            asyncio.create_task(a.request("show", b"", timeout_s=60, most_bytes=100))
            for _ in range(channels._MOST_STREAMS + 1)
        ]
        await until(lambda: any(task.done() for task in asking))
        assert await a.request("heartbeat", b"", timeout_s=30, most_bytes=100) == (200, b"alive")
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    play(scene)


@pytest.mark.parametrize("kind", ["http", "gateway", "agent"])
def test_clients_leave_room_for_the_requests_of_their_site(kind: str) -> None:
    """Otherwise many slow requests for a gateway behind a channel would keep files and documents from its site."""

    async def scene(a: Channel, b: Channel, _one: End, other: End) -> None:
        async def answer(request: IncomingRequest) -> None:
            if request.opening.kind == kind:
                await asyncio.Event().wait()
            request.respond(Answer(200, b"a file"))

        other.on_request = answer
        asking = [
            asyncio.create_task(a.request(kind, b"", timeout_s=60, most_bytes=100))
            for _ in range(channels._MOST_STREAMS + 1)
        ]
        await until(lambda: sum(task.done() for task in asking) == channels._MOST_STREAMS + 1 - 96)
        assert await a.request("files", b"", timeout_s=30, most_bytes=100) == (200, b"a file")
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        async with asyncio.timeout(30):
            await until(lambda: not b._for_clients)

    play(scene)


def test_one_way_requests_without_bytes_do_not_pile_up() -> None:
    async def scene() -> None:
        end = End("honest")
        end.may_take.clear()
        empty = [request_frame(n, b"", Flag.ONE_WAY | Flag.END, "messages") for n in range(1, 40_001, 2)]
        async with raw_peer(end) as (channel, send):
            with contextlib.suppress(ConnectionError):  # it is closed while the rest is sent
                while channel.is_open:
                    await send(b"".join(empty))
                    await asyncio.sleep(0)
                    assert len(channel._inbox._arrived) <= 50_000
            assert end.problems == ["more one-way requests than there was credit for"]

    asyncio.run(scene())


def test_a_body_in_single_bytes_takes_no_more_memory_than_its_bytes() -> None:
    async def scene() -> None:
        end = End("honest")
        bodies: list[Any] = []

        async def hold(request: IncomingRequest) -> None:
            bodies.append(request.body)
            await asyncio.Event().wait()

        end.on_request = hold
        async with raw_peer(end) as (channel, send):
            await send(request_frame(1, flags=0) + data_frame(1, 1) * 20_000)
            await send(request_frame(3, flags=Flag.ONE_WAY, kind="messages") + data_frame(3, 1) * 20_000)
            await until(lambda: bodies and bodies[0]._unread == 20_000 and channel._inbox._collected == 20_000)
            assert len(bodies[0]._pieces) <= 2

    asyncio.run(scene())
