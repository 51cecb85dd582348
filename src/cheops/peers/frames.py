"""The frames of a channel: bytes in, frames out, and back. Sans-I/O.

A channel carries *streams* in both directions. A stream is a request with its response, or a request that gets none
(one-way). The site that opens the connection numbers its streams 1, 3, 5 …, the other one 2, 4, 6 …. So both sides use
one connection, and a number has one meaning.

    kind (1 byte) | flags (1) | number of the stream (4) | length of the payload (2) | payload

    REQUEST   begins a stream: a kind, its parameters, and the first bytes of the body, as MessagePack
    RESPONSE  of the stream with this number: a status, its parameters, and the first bytes of the body
    DATA      more of the body, of the request or of the response
    CANCEL    the sender wants no more of this stream; the payload says why
    CREDIT    so many more bytes of this stream may be sent; of stream 0: of one-way requests, once they are handled
    PING      answered by PONG at once: whether the other side is there
    CLOSE     the sender begins no more streams, and has sent the beginnings of all; the payload says why. Those that
              are open end as usual

The flag END says that the body of the sender is complete; ONE_WAY, that a request gets no response.

A body is cut into pieces of PIECE_BYTES, so that what is urgent never waits for a long frame. Bytes that follow no rule
of this page raise FrameError. After that nothing on the connection can be trusted, and it must be closed.
"""

import struct
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from cheops.errors import CheopsError, Fault
from cheops.text import printable, shortened

VERSION = 1  # of everything on this page; two agents with different ones do not talk
PIECE_BYTES = 16 * 1024
HEAD_BODY_BYTES = 12 * 1024  # of a body, in the first frame: most need no other
WINDOW_BYTES = 512 * 1024  # of the body of one stream that may be sent before the receiver has taken any
_HEAD = struct.Struct(">BBIH")
HEAD_BYTES = _HEAD.size
MOST_PAYLOAD_BYTES = 0xFFFF
_AMOUNT = struct.Struct(">I")
_MOST_REASON = 500  # characters
_MOST_HEADERS = 200


class FrameError(CheopsError):
    """The other side broke a rule of the channel."""

    fault = Fault.PEER
    status = 400
    reason = "broken channel"


class FrameKind(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3
    CANCEL = 4
    CREDIT = 5
    PING = 6
    PONG = 7
    CLOSE = 8


class Flag(IntEnum):  # not IntFlag, whose operators cost more than the frame
    END = 1
    ONE_WAY = 2


# Those that each kind may have, and whether it is about one stream; None: about one, or about all (stream 0).
_RULES: dict[int, tuple[int, bool | None]] = {
    FrameKind.REQUEST: (Flag.END | Flag.ONE_WAY, True),
    FrameKind.RESPONSE: (Flag.END, True),
    FrameKind.DATA: (Flag.END, True),
    FrameKind.CANCEL: (0, True),
    FrameKind.CREDIT: (0, None),
    FrameKind.PING: (0, False),
    FrameKind.PONG: (0, False),
    FrameKind.CLOSE: (0, False),
}


class Frame(NamedTuple):
    kind: int
    flags: int
    number: int
    payload: bytes


def encode_frame(kind: int, number: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Raises ValueError for a payload that is too long."""
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise ValueError(f"a frame has at most {MOST_PAYLOAD_BYTES:,} bytes, not {len(payload):,}")
    return _HEAD.pack(kind, flags, number, len(payload)) + payload


class FrameReader:
    """Cuts bytes, however they arrive, into frames. Holds less than one frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now; raises FrameError."""
        if self._rest:
            data = self._rest + data
        frames, at, size = [], 0, len(data)
        while size - at >= HEAD_BYTES:
            kind, flags, number, length = _HEAD.unpack_from(data, at)
            _check(kind, flags, number)
            end = at + HEAD_BYTES + length
            if end > size:
                break
            frames.append(Frame(kind, flags, number, data[at + HEAD_BYTES : end]))
            at = end
        self._rest = data[at:]
        return frames


def _check(kind: int, flags: int, number: int) -> None:
    rule = _RULES.get(kind)
    if rule is None:
        raise FrameError(f"there are no frames of kind {kind}")
    allowed, has_stream = rule
    if flags & ~allowed:
        raise FrameError(f"{FrameKind(kind).name} does not have the flags {flags}")
    if has_stream is not None and bool(number) != has_stream:
        raise FrameError(f"{FrameKind(kind).name} of stream {number}")


# -- payloads --------------------------------------------------------------------------------------------------


# As HTTP has them. Without line breaks, which would end up in the response to a client of another site.
_HeaderName = Annotated[str, msgspec.Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,1000}\Z")]
_HeaderValue = Annotated[str, msgspec.Meta(pattern=r"^[\t -~\x80-\xff]*\Z")]
_Headers = Annotated[tuple[tuple[_HeaderName, _HeaderValue], ...], msgspec.Meta(max_length=_MOST_HEADERS)]


class HttpHead(msgspec.Struct, frozen=True, array_like=True):
    """An HTTP request that one agent passes on to another."""

    method: Annotated[str, msgspec.Meta(pattern=r"^[A-Z]{1,20}\Z")]
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,16000}\Z")]  # encoded, with its query
    headers: _Headers = ()


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a REQUEST."""

    kind: Annotated[str, msgspec.Meta(max_length=32)]
    body: bytes = b""  # its beginning
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0  # of a file: send it from here on
    http: HttpHead | None = None
    target: Annotated[str, msgspec.Meta(max_length=1_000)] = ""  # of a tunnel: the site where it ends, if another one


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a RESPONSE."""

    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    body: bytes = b""
    size: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None  # of the whole file
    headers: _Headers = ()


_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_openings = msgspec.msgpack.Decoder(Opening)
_answers = msgspec.msgpack.Decoder(Answer)


def encode_payload(value: Opening | Answer) -> bytes:
    return _encoder.encode(value)


def decode_opening(payload: bytes) -> Opening:
    return _decode(payload, _openings)


def decode_answer(payload: bytes) -> Answer:
    return _decode(payload, _answers)


def _decode(payload: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a frame that cannot be read: {printable(shortened(str(error), 200))}") from None


def encode_amount(amount: int) -> bytes:
    return _AMOUNT.pack(amount)


def decode_amount(payload: bytes) -> int:
    """Of a CREDIT; raises FrameError."""
    if len(payload) != _AMOUNT.size:
        raise FrameError("a credit has four bytes")
    (amount,) = _AMOUNT.unpack(payload)
    return int(amount)


def encode_reason(text: str) -> bytes:
    return shortened(text, _MOST_REASON).encode()


def decode_reason(payload: bytes) -> str:
    return printable(shortened(payload.decode("utf-8", "replace"), _MOST_REASON))
