"""The network of the demo: what passes, what a cut breaks, and who is cut from whom."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from cheops.demo.network import Network, UnknownSiteError

# A caller that is another process: it connects, says hello, and prints what it hears, as often as it is told.
CALLER = """
import socket, sys
for line in sys.stdin:
    host, port = line.split(":")
    try:
        with socket.create_connection((host, int(port)), 30) as call:
            call.sendall(b"hello")
            print(call.recv(100).decode() or "nothing", flush=True)
    except OSError:
        print("nothing", flush=True)
"""


@contextmanager
def echoing() -> Iterator[int]:
    """A server that gives back what it gets; gives its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                call, _ = server.accept()
                threading.Thread(target=echo, args=(call,), daemon=True).start()

    def echo(call: socket.socket) -> None:
        with call, suppress(OSError):
            while chunk := call.recv(65_536):
                call.sendall(chunk)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


class World:
    """Three echoing sites; this process is site1, another one is site2, and site3 only listens."""

    def __init__(self, stack: ExitStack) -> None:
        ports = {name: stack.enter_context(echoing()) for name in ("site1", "site2", "site3")}
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._caller = stack.enter_context(subprocess.Popen([sys.executable, "-c", CALLER], **options))  # type: ignore[call-overload]
        self.network = Network(ports, lambda: {"site1": os.getpid(), "site2": self._caller.pid})
        stack.callback(self.network.close)

    def address(self, site: str) -> tuple[str, int]:
        host, _, port = self.network.urls[site].removeprefix("http://").partition(":")
        return host, int(port)

    def reaches(self, caller: str, site: str) -> bool:
        return self._call(site) if caller == "site1" else self._call_of_site2(site)

    def _call(self, site: str) -> bool:
        try:
            with socket.create_connection(self.address(site), 30) as call:
                call.sendall(b"hello")
                return call.recv(100) == b"hello"
        except OSError:
            return False

    def _call_of_site2(self, site: str) -> bool:
        host, port = self.address(site)
        self._caller.stdin.write(f"{host}:{port}\n")
        self._caller.stdin.flush()
        return bool(self._caller.stdout.readline() == "hello\n")


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


PAIRS = [("site1", "site2"), ("site1", "site3"), ("site2", "site1"), ("site2", "site3")]


def reached(world: World) -> list[tuple[str, str]]:
    return [pair for pair in PAIRS if world.reaches(*pair)]


def test_cuts(world: World) -> None:
    assert reached(world) == PAIRS
    world.network.cut("site3")
    assert reached(world) == [("site1", "site2"), ("site2", "site1")]
    world.network.cut("site1")
    assert reached(world) == []
    world.network.heal()
    assert reached(world) == PAIRS
    world.network.cut("site2")
    assert reached(world) == [("site1", "site3")]
    world.network.cut()
    assert reached(world) == []


def test_a_cut_breaks_what_is_open_and_spares_the_others(world: World) -> None:
    with (
        socket.create_connection(world.address("site2"), 30) as broken,
        socket.create_connection(world.address("site3"), 30) as spared,
    ):
        for call in (broken, spared):
            call.sendall(b"hello")
            assert call.recv(100) == b"hello"
        world.network.cut("site2")
        with suppress(ConnectionResetError):
            assert broken.recv(100) == b"", "it has ended"
        spared.sendall(b"still there")
        assert spared.recv(100) == b"still there"


def test_much_passes_both_ways(world: World) -> None:
    sent = os.urandom(3_000_000)
    with socket.create_connection(world.address("site3"), 30) as call:

        def send() -> None:
            call.sendall(sent)
            call.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        got = b"".join(iter(lambda: call.recv(65_536), b""))
        sender.join()
    assert got == sent


def test_a_stranger_does_not_get_around_a_cut(world: World) -> None:
    host, port = world.address("site1")

    def heard() -> str:
        argv, line = [sys.executable, "-c", CALLER], f"{host}:{port}\n"
        return subprocess.run(argv, input=line, capture_output=True, text=True, check=True).stdout

    assert heard() == "hello\n"
    world.network.cut("site1")
    assert heard() == "nothing\n"


def test_an_unknown_site_is_told(world: World) -> None:
    with pytest.raises(UnknownSiteError, match="the demo has no site 'site9'; its sites are site1, site2, site3"):
        world.network.cut("site9")
    assert reached(world) == PAIRS
