"""Both ends of HTTP by hand: sockets that say exactly what a test wants said, and read what really came."""

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 20.0


class Socket:
    """One end of a connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.settimeout(PATIENCE_S)
        self.waiting = b""

    def send(self, *lines: str, body: bytes = b"") -> None:
        """A head of these lines, and a body."""
        self.raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self) -> "Head":
        """The next head of a request or of an answer."""
        return Head(self.until(b"\r\n\r\n"))

    def until(self, mark: bytes) -> bytes:
        while mark not in self.waiting:
            self._more()
        found, _, self.waiting = self.waiting.partition(mark)
        return found + mark

    def exactly(self, count: int) -> bytes:
        while len(self.waiting) < count:
            self._more()
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def body(self, head: "Head") -> bytes:
        """The body that belongs to a head, by its length or its chunks."""
        if "chunked" in head.all("Transfer-Encoding"):
            return b"".join(self.chunks())
        return self.exactly(int(head["Content-Length"]))

    def chunks(self) -> Iterator[bytes]:
        """Without trailers: those are read with `until`."""
        while size := int(self.until(b"\r\n").strip(), 16):
            yield self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        assert self.until(b"\r\n") == b"\r\n"

    def rest(self) -> bytes:
        """All until the other side closes."""
        try:
            while more := self.socket.recv(65536):
                self.waiting += more
        except ConnectionResetError:
            pass
        found, self.waiting = self.waiting, b""
        return found

    @property
    def is_closed(self) -> bool:
        """Wait for the other side to close, in whichever way."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _more(self) -> None:
        more = self.socket.recv(65536)
        if not more:
            raise EOFError(f"closed after {self.waiting!r}")
        self.waiting += more

    def close(self) -> None:
        self.socket.close()


class Head:
    """The lines of a head."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.first, *self.lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")

    @property
    def status(self) -> int:
        return int(self.first.split()[1])

    def all(self, name: str) -> list[str]:
        pairs = (line.partition(":") for line in self.lines)
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]

    def __getitem__(self, name: str) -> str:
        (value,) = self.all(name)
        return value

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))

    def __repr__(self) -> str:
        return self.raw.decode("latin-1")


class Upstream:
    """A service that does what the test says, connection by connection."""

    def __init__(self, port: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", port), backlog=100)
        self.listener.settimeout(PATIENCE_S)
        self.accepted: list[Socket] = []

    def accept(self) -> Socket:
        connected, _ = self.listener.accept()
        self.accepted.append(Socket(connected))
        return self.accepted[-1]

    def close(self) -> None:
        self.listener.close()
        for one in self.accepted:
            one.close()


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[Socket]:
    with socket.create_connection(address, timeout=PATIENCE_S) as made:
        yield Socket(made)


def until(condition: Callable[[], object], why: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain for {why}"
        time.sleep(0.01)


def resident_bytes(pid: int) -> int:
    """How much memory a process has now."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123 - it is not a file
        found = re.search(r"VmRSS:\s+(\d+) kB", file.read())
    assert found
    return int(found[1]) * 1024
