"""Wires between agents that write down all that passes."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Tap:
    """A wire to an address: listens at `address`, and passes on in both directions. With `cut_after` it breaks
    once, when so many bytes of answers have passed."""

    def __init__(self, to: tuple[str, int], cut_after: int | None = None) -> None:
        self._to = to
        self.cut_after = cut_after
        self.cuts = 0
        self._heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def heard(self) -> bytes:
        return b"".join(self._heard)

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
            back = threading.Thread(target=self._pass, args=(other, one, True), daemon=True)
            back.start()
            self._pass(one, other, False)
            back.join()

    def _breaks(self, passed: int) -> bool:
        if self.cut_after is None:
            return False
        self.cut_after -= passed
        if self.cut_after > 0:
            return False
        self.cut_after, self.cuts = None, self.cuts + 1
        return True

    def _pass(self, one: socket.socket, other: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if len(data) < 16384:  # heads and documents; not the content of files
                    self._heard.append(data)
                other.sendall(data)
                if is_answer and self._breaks(len(data)):
                    break
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tapped(*addresses: tuple[str, int]) -> Iterator[list[Tap]]:
    taps = [Tap(address) for address in addresses]
    try:
        yield taps
    finally:
        for tap in taps:
            tap.close()
