"""What waits to be written to a channel: in the order of its urgency, cut into pieces, within credit. Sans-I/O.

Control frames go first, then heartbeats, then messages and requests, then bulk (files). Within a class the streams take
turns, a piece each. One-way requests keep their order: the next begins when the one before is written.

So a heartbeat waits for what the socket already has, and for nothing else, however much there is to send.
"""

from collections import deque
from enum import IntEnum

from cheops.peers.frames import PIECE_BYTES, WINDOW_BYTES, Flag, FrameError, FrameKind, encode_frame

_MOST_CREDIT = 2**31


class Priority(IntEnum):
    HEARTBEAT = 0
    NORMAL = 1
    BULK = 2


class _OutgoingBody:
    """The frames of one stream that are still to be written."""

    __slots__ = ("credit", "head", "is_complete", "is_one_way", "number", "pieces", "priority", "waiting")

    def __init__(self, number: int, priority: Priority, *, is_one_way: bool) -> None:
        self.number = number
        self.priority = priority
        self.is_one_way = is_one_way
        self.head: bytes | None = None  # the first frame: REQUEST or RESPONSE
        self.pieces: deque[memoryview] = deque()
        self.waiting = 0  # bytes in `pieces`
        self.credit = WINDOW_BYTES
        self.is_complete = False  # nothing is added any more

    @property
    def can_send(self) -> bool:
        # An empty piece only ends the body, and needs no credit.
        return self.head is not None or (bool(self.pieces) and (self.credit > 0 or not self.pieces[0]))

    @property
    def is_done(self) -> bool:
        return self.is_complete and self.head is None and not self.pieces

    def next_frame(self, most_bytes: int = PIECE_BYTES) -> bytes:
        if self.head is not None:
            frame, self.head = self.head, None
            return frame
        piece = self.pieces.popleft()
        size = min(len(piece), PIECE_BYTES, self.credit, most_bytes)
        if size < len(piece):
            self.pieces.appendleft(piece[size:])
            piece = piece[:size]
        self.waiting -= size
        self.credit -= size
        is_last = self.is_complete and not self.pieces
        return encode_frame(FrameKind.DATA, self.number, bytes(piece), Flag.END if is_last else 0)


class Outbox:
    """Belongs to one channel. `take` gives the next bytes to write."""

    def __init__(self) -> None:
        self._control: deque[bytes] = deque()
        self._bodies: dict[int, _OutgoingBody] = {}
        self._ready: tuple[dict[int, None], ...] = tuple({} for _ in Priority)
        self._one_way: dict[int, None] = {}  # those that are not written yet, in order

    # -- what is to be sent ------------------------------------------------------------------------------------

    def put_control(self, kind: FrameKind, number: int, payload: bytes = b"") -> None:
        self._control.append(encode_frame(kind, number, payload))

    @property
    def control_frames(self) -> int:
        """How many wait: the other side causes them, so a channel must stop reading when there are too many."""
        return len(self._control)

    def unwritten(self, parity: int) -> list[int]:
        """The streams with odd or even numbers of which something is still to be written."""
        return [number for number in self._bodies if number % 2 == parity]

    def put_head(  # noqa: PLR0913 - a frame and how it goes
        self, kind: FrameKind, number: int, payload: bytes, priority: Priority, *, end: bool, one_way: bool = False
    ) -> None:
        """Begin to send on a stream. The frame holds the first bytes of the body; `put_data` adds the others."""
        flags = (Flag.END if end else 0) | (Flag.ONE_WAY if one_way else 0)
        body = self._bodies[number] = _OutgoingBody(number, priority, is_one_way=one_way)
        body.head = encode_frame(kind, number, payload, flags)
        body.is_complete = end
        if one_way:
            self._one_way[number] = None
        self._update(body)

    def put_data(self, number: int, data: bytes | memoryview, *, end: bool) -> None:
        """More of a body; ignored if the stream was cancelled. An empty piece may only end one."""
        body = self._bodies.get(number)
        if body is None or body.is_complete:
            return
        body.is_complete = end
        if data or end:
            body.pieces.append(memoryview(data))
            body.waiting += len(data)
        self._update(body)

    def has(self, number: int) -> bool:
        """Whether something of a stream is still to be written."""
        return number in self._bodies

    def waiting(self, number: int) -> int:
        """The bytes of a body that are not taken yet."""
        body = self._bodies.get(number)
        return body.waiting if body is not None else 0

    @property
    def has_one_way(self) -> bool:
        """Whether a one-way request is not written yet."""
        return bool(self._one_way)

    @property
    def has_bodies(self) -> bool:
        """Whether something of a stream is still to be written, now or once there is credit for it."""
        return bool(self._bodies)

    def has_heads(self, parity: int) -> bool:
        """Whether the first frame of a stream with an odd or even number is still to be written."""
        return any(body.head is not None for number, body in self._bodies.items() if number % 2 == parity)

    # -- what the other side says ------------------------------------------------------------------------------

    def add_credit(self, number: int, amount: int) -> None:
        """Raises FrameError for more than any receiver can mean."""
        body = self._bodies.get(number)
        if body is None:
            return  # it is over
        body.credit += amount
        if body.credit > _MOST_CREDIT:
            raise FrameError(f"more credit for stream {number} than a body can have")
        self._update(body)

    def cancel(self, number: int) -> None:
        """Send no more of a stream."""
        body = self._bodies.pop(number, None)
        if body is not None:
            self._ready[body.priority].pop(number, None)
            self._drop_one_way(number)

    # -- what is written ---------------------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        return bool(self._control) or any(self._ready)

    def can_send_in(self, room_bytes: int) -> bool:
        """The same, while so many bytes may be sent that are not urgent."""
        return bool(self._control) or bool(self._ready[Priority.HEARTBEAT]) or (room_bytes > 0 and any(self._ready))

    def take(self, most_bytes: int, room_bytes: int) -> tuple[bytes, int]:
        """The next frames, up to about this size, with up to about `room_bytes` that are not urgent; and how many are
        not. Empty if none may be sent now."""
        frames: list[bytes] = []
        size = paced = 0
        while self._control and size < most_bytes:
            frames.append(self._control.popleft())
            size += len(frames[-1])
        for priority, ready in enumerate(self._ready):
            is_paced = priority != Priority.HEARTBEAT
            while ready and size < most_bytes and (not is_paced or paced < room_bytes):
                number = next(iter(ready))
                body = self._bodies[number]
                frames.append(body.next_frame(room_bytes - paced) if is_paced else body.next_frame())
                size += len(frames[-1])
                paced += len(frames[-1]) if is_paced else 0
                del ready[number]  # and to the end of the row, if there is more
                self._update(body)
        return frames[0] if len(frames) == 1 else b"".join(frames), paced

    def _update(self, body: _OutgoingBody) -> None:
        if body.is_done:
            self._bodies.pop(body.number, None)
            self._ready[body.priority].pop(body.number, None)
            if body.is_one_way:
                self._drop_one_way(body.number)
            return
        may_send = body.can_send and (not body.is_one_way or next(iter(self._one_way)) == body.number)
        if may_send:
            self._ready[body.priority][body.number] = None
        else:
            self._ready[body.priority].pop(body.number, None)

    def _drop_one_way(self, number: int) -> None:
        if number in self._one_way:
            del self._one_way[number]
            if following := next(iter(self._one_way), None):
                self._update(self._bodies[following])
