"""Datagrams between the hosts of a bed, sent and received by the test itself: no program, no waiting in vain."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from tests.wan.bed import Host, Wan

_PATIENCE_S = 30.0


@contextlib.contextmanager
def ends(source: Host, target: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket at each of two hosts, the first connected to the second."""
    with source.socket(socket.SOCK_DGRAM) as sender, target.socket(socket.SOCK_DGRAM) as receiver:
        sender.settimeout(_PATIENCE_S)
        receiver.settimeout(_PATIENCE_S)
        receiver.bind((target.address, 0))
        sender.connect(receiver.getsockname())
        yield sender, receiver


def reaches(wan: Wan, source: str, target: str) -> bool:
    """Whether a datagram arrives; that it does not is known from the link's count, not from waiting."""
    dropped = wan.links()[source, target].dropped
    with ends(wan.hosts[source], wan.hosts[target]) as (sender, receiver):
        sender.send(b"hello")
        if wan.links()[source, target].dropped == dropped:
            return receiver.recv(100) == b"hello"
        receiver.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(f"dropped, and yet received: {receiver.recv(100)!r}")
        return False


def reachable(wan: Wan) -> set[str]:
    """All directions that work, as `ab` for a → b (hosts with names of one letter)."""
    return {f"{a}{b}" for a in wan.names for b in wan.names if a != b and reaches(wan, a, b)}


def until(condition: Callable[[], bool], what: str) -> None:
    until_none(lambda: [] if condition() else [what])


def until_none(lacking: Callable[[], list[str]]) -> None:
    """Wait until nothing is named any more."""
    give_up = time.monotonic() + _PATIENCE_S
    while named := lacking():
        if time.monotonic() > give_up:
            raise AssertionError(f"waited in vain; still there or not yet: {', '.join(named)}")
        time.sleep(0.01)
