"""Wires between agents that write down all that passes."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from cheops.peers import envelope
from cheops.peers.frames import Flag, FrameKind, FrameReader, decode_answer, decode_opening
from cheops.peers.requests import RequestKind
from cheops.peers.upgrade import PROTOCOL

_FILE_PIECE_BYTES = 16384  # what is read at once of a large file is longer


class Cut:
    """Breaks a connection of several wires once: the one on which so many bytes have passed in one direction. Which
    of two agents opens the channel between them, and so which direction a file takes, is their affair."""

    def __init__(self) -> None:
        self._after: int | None = None
        self._lock = threading.Lock()
        self.cuts = 0

    def after(self, passed: int) -> None:
        """From now on, count each direction of each connection from the bytes that come next."""
        self._after = passed

    @property
    def is_armed(self) -> bool:
        return self._after is not None

    def breaks(self, passed: int) -> bool:
        with self._lock:
            if self._after is None or passed < self._after:
                return False
            self._after, self.cuts = None, self.cuts + 1
            return True


class Tap:
    """A wire to an address: listens at `address`, and passes on in both directions. With a `cut` large files pass, and
    their content is not kept."""

    def __init__(self, to: tuple[str, int], cut: Cut | None) -> None:
        self._to = to
        self._cut = cut or Cut()
        self._has_files = cut is not None
        self._heard: list[bytearray] = []  # one for each direction of each connection
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def heard(self) -> bytes:
        """All that has passed, as it was."""
        return b"".join(self._heard)

    @property
    def messages(self) -> list[bytes]:
        """All messages of engines that have passed, in readable form. Fails if one cannot be read."""
        assert not self._has_files, "some of what has passed was not kept"
        return [message for one in self._heard for message in _messages(bytes(one))]

    def close(self) -> None:
        self._server.close()

    def _listen(self) -> None:
        while True:
            try:
                one, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(one,), daemon=True).start()

    def _join(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError), socket.create_connection(self._to, timeout=10) as other:
            other.settimeout(None)
            back = threading.Thread(target=self._pass, args=(other, one), daemon=True)
            back.start()
            self._pass(one, other)
            back.join()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        passed, heard = 0, bytearray()
        self._heard.append(heard)
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if not self._has_files or len(data) < _FILE_PIECE_BYTES:
                    heard += data
                other.sendall(data)
                passed = passed + len(data) if self._cut.is_armed else 0
                if self._cut.breaks(passed):
                    break
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _messages(heard: bytes) -> Iterator[bytes]:
    """The messages in one direction of a connection."""
    head, _, rest = heard.partition(b"\r\n\r\n")
    if f"Upgrade: {PROTOCOL}".encode() not in head:
        return  # no channel
    bodies: dict[int, bytes] = {}  # of streams
    with_messages = set()
    for frame in FrameReader().feed(rest):
        if frame.kind == FrameKind.REQUEST:
            opening = decode_opening(frame.payload)
            bodies[frame.number] = opening.body
            if opening.kind == RequestKind.MESSAGES:
                with_messages.add(frame.number)
        elif frame.kind == FrameKind.RESPONSE:
            bodies[frame.number] = decode_answer(frame.payload).body
        elif frame.kind == FrameKind.DATA:
            bodies[frame.number] += frame.payload
        if frame.number in with_messages and frame.flags & Flag.END:
            yield envelope.readable(bodies[frame.number])


@contextlib.contextmanager
def tapped(*addresses: tuple[str, int], cut: Cut | None = None) -> Iterator[list[Tap]]:
    taps = [Tap(address, cut) for address in addresses]
    try:
        yield taps
    finally:
        for tap in taps:
            tap.close()
