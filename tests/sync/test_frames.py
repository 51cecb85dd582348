"""The bytes of a channel: what is written is read, however it is cut; anything else is refused, and costs little."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.peers import frames
from cheops.peers.frames import (
    HEAD_BYTES,
    MOST_PAYLOAD_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    Answer,
    Flag,
    Frame,
    FrameError,
    FrameKind,
    FrameReader,
    HttpHead,
    Opening,
)
from cheops.peers.outbox import Outbox, Priority

NUMBERS = st.integers(1, 2**32 - 1)
VALID = st.one_of(
    st.tuples(st.just(FrameKind.REQUEST), NUMBERS, st.binary(max_size=300), st.sampled_from([0, 1, 2, 3])),
    st.tuples(st.just(FrameKind.RESPONSE), NUMBERS, st.binary(max_size=300), st.sampled_from([0, 1])),
    st.tuples(st.just(FrameKind.DATA), NUMBERS, st.binary(max_size=300), st.sampled_from([0, 1])),
    st.tuples(st.just(FrameKind.CANCEL), NUMBERS, st.binary(max_size=50), st.just(0)),
    st.tuples(st.just(FrameKind.CREDIT), st.integers(0, 2**32 - 1), st.binary(max_size=8), st.just(0)),
    st.tuples(st.sampled_from([FrameKind.PING, FrameKind.PONG, FrameKind.CLOSE]), st.just(0), st.binary(max_size=50), st.just(0)),
)  # fmt: skip


def read(data: bytes, cuts: list[int]) -> list[Frame]:
    reader, found, at = FrameReader(), [], 0
    for cut in sorted(cut % (len(data) + 1) for cut in cuts):
        found += reader.feed(data[at:cut])
        at = cut
    return found + reader.feed(data[at:])


@given(st.lists(VALID, max_size=10), st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_are_read_as_they_were_written_however_they_arrive(some: list[tuple], cuts: list[int]) -> None:  # type: ignore[type-arg]
    data = b"".join(frames.encode_frame(*one) for one in some)
    assert read(data, cuts) == [Frame(kind, flags, number, payload) for kind, number, payload, flags in some]


@given(st.binary(max_size=2_000), st.lists(st.integers(0, 2_000), max_size=5))
def test_any_bytes_are_frames_or_refused(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader()
    at = 0
    try:
        for cut in sorted({*(cut % (len(data) + 1) for cut in cuts), len(data)}):
            for frame in reader.feed(data[at:cut]):
                assert frame.kind in set(FrameKind)
            at = cut
    except FrameError:
        return
    assert len(reader._rest) < HEAD_BYTES + MOST_PAYLOAD_BYTES


@pytest.mark.parametrize(
    ("kind", "flags", "number"),
    [
        (0, 0, 1),
        (9, 0, 1),
        (FrameKind.REQUEST, 4, 1),
        (FrameKind.RESPONSE, Flag.ONE_WAY, 1),
        (FrameKind.DATA, 0, 0),
        (FrameKind.PING, 0, 1),
        (FrameKind.PING, Flag.END, 0),
    ],
)
def test_a_frame_against_the_rules_is_refused_before_its_payload_arrives(kind: int, flags: int, number: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(frames.encode_frame(kind, number, b"x" * 100, flags)[:HEAD_BYTES])


def test_a_frame_has_a_limit() -> None:
    with pytest.raises(ValueError, match="at most"):
        frames.encode_frame(FrameKind.DATA, 1, b"x" * (MOST_PAYLOAD_BYTES + 1))


@given(st.binary(max_size=500))
def test_any_payload_is_a_request_or_refused(data: bytes) -> None:
    for decode in (frames.decode_opening, frames.decode_answer, frames.decode_amount):
        with suppress(FrameError):
            decode(data)
    assert "\x1b" not in frames.decode_reason(data)


@pytest.mark.parametrize("payload", [b"\x91" * 60_000, b"\x94\xa1x\xc4\x01x\x00" + b"\x93" * 60_000])
def test_a_deep_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        frames.decode_opening(payload)


@pytest.mark.parametrize("path", ["x", "", "/a b", "/\r\n", "/\x7f", "/é", "/" + "x" * 20_000])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(FrameError):
        frames.decode_opening(frames.encode_payload(Opening("http", http=HttpHead("GET", path))))


def test_requests_and_responses_come_back() -> None:
    opening = Opening("http", b"body", 7, HttpHead("POST", "/exec/n?x=%20", (("Accept", "*/*"),)))
    assert frames.decode_opening(frames.encode_payload(opening)) == opening
    answer = Answer(200, b"body", 12, (("content-type", "text/plain"),))
    assert frames.decode_answer(frames.encode_payload(answer)) == answer


# -- what is sent, and when ------------------------------------------------------------------------------------


def numbers(data: bytes) -> list[tuple[int, int]]:
    return [(frame.kind, frame.number) for frame in FrameReader().feed(data)]


def taken(outbox: Outbox, most_bytes: int) -> bytes:
    return outbox.take(most_bytes, 10**9)[0]


def begin(outbox: Outbox, number: int, body: bytes, priority: Priority = Priority.NORMAL, **more: bool) -> None:
    outbox.put_head(FrameKind.REQUEST, number, b"", priority, end=not body, **more)
    if body:
        outbox.put_data(number, body, end=True)


def test_a_heartbeat_overtakes_everything_but_what_is_written() -> None:
    outbox = Outbox()
    begin(outbox, 1, b"x" * 200_000, Priority.BULK)
    begin(outbox, 3, b"x" * 200_000)
    assert numbers(taken(outbox, 1)) == [(FrameKind.REQUEST, 3)]
    begin(outbox, 5, b"", Priority.HEARTBEAT)
    outbox.put_control(FrameKind.PONG, 0)
    assert numbers(taken(outbox, 20)) == [(FrameKind.PONG, 0), (FrameKind.REQUEST, 5), (FrameKind.DATA, 3)]


def test_streams_of_one_class_take_turns() -> None:
    outbox = Outbox()
    for number in (1, 3):
        begin(outbox, number, b"x" * (3 * PIECE_BYTES))
    sent = [number for _, number in numbers(taken(outbox, 10**9))]
    assert sent == [1, 3] * 4


def test_one_way_requests_keep_their_order() -> None:
    outbox = Outbox()
    for number in (1, 3, 5):
        begin(outbox, number, b"x" * (2 * PIECE_BYTES), one_way=True)
    assert [number for _, number in numbers(taken(outbox, 10**9))] == [1] * 3 + [3] * 3 + [5] * 3
    assert not outbox.has_one_way


def test_nothing_is_sent_beyond_the_credit_and_others_go_on() -> None:
    outbox = Outbox()
    begin(outbox, 1, b"x" * (2 * WINDOW_BYTES))
    sent = sum(len(frame.payload) for frame in FrameReader().feed(taken(outbox, 10**9)))
    assert sent == WINDOW_BYTES
    assert not outbox.can_send
    begin(outbox, 3, b"y")
    assert [number for _, number in numbers(taken(outbox, 10**9))] == [3, 3]
    outbox.add_credit(1, 10)
    assert [frame.payload for frame in FrameReader().feed(taken(outbox, 10**9))] == [b"x" * 10]
    outbox.cancel(1)
    outbox.add_credit(1, 10**6)
    assert not outbox.can_send
    assert outbox.waiting(1) == 0


def test_too_much_credit_is_refused() -> None:
    outbox = Outbox()
    begin(outbox, 1, b"x" * (2 * WINDOW_BYTES))
    with pytest.raises(FrameError):
        outbox.add_credit(1, 2**32 - 1)


@given(st.lists(st.tuples(st.sampled_from(list(Priority)), st.integers(0, 100_000), st.booleans()), max_size=8))
def test_every_body_arrives_whole_and_once(some: list[tuple[Priority, int, bool]]) -> None:
    outbox, ended = Outbox(), []
    arrived: dict[int, bytes] = {}
    sizes = {}
    for at, (priority, size, one_way) in enumerate(some):
        number = 2 * at + 1
        sizes[number] = size
        begin(outbox, number, bytes([at]) * size, priority, one_way=one_way)
    while outbox.can_send:
        for frame in FrameReader().feed(taken(outbox, 50_000)):
            arrived[frame.number] = arrived.get(frame.number, b"") + frame.payload
            if frame.flags & Flag.END:
                ended.append(frame.number)
    assert {number: len(body) for number, body in arrived.items()} == sizes
    assert sorted(ended) == sorted(sizes)
    assert all(set(body) <= {(number - 1) // 2} for number, body in arrived.items())
