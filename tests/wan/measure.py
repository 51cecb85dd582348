"""What the bed itself adds: measured round trips for delays that were asked for, and what it can carry.

Both ends are sockets of this one process, so that one clock sees everything and no scheduling of a second
program is measured along: the client sends, the server end receives and sends back, the client end receives.
"""

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.wan.bed import Host, Wan

DELAYS_MS = (0.0, 1.0, 5.0, 25.0, 50.0, 100.0)
_BUDGET_S = 2.0  # per delay
_MOST_PROBES = 500
_TRANSFER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class RoundTrips:
    """Round trips over a link with `delay_ms` in each direction."""

    delay_ms: float
    rtts_ms: tuple[float, ...]

    def row(self) -> str:
        asked = 2 * self.delay_ms
        ordered = sorted(self.rtts_ms)
        late = ordered[int(len(ordered) * 0.99)]
        median = statistics.median(ordered)
        return (
            f"{self.delay_ms:10.0f} {asked:10.0f} {len(ordered):7d} {ordered[0]:9.2f} {median:9.2f} {late:9.2f}"
            f" {ordered[-1]:9.2f} {median - asked:9.2f}"
        )


def report() -> Iterator[str]:
    """The lines to print, each as soon as it is known."""
    began = time.monotonic()
    with Wan(3) as wan:
        yield f"3 hosts up in {(time.monotonic() - began) * 1000:.0f} ms"
        yield "one way ms     rtt ms  probes       min    median       p99       max    beyond"
        for delay_ms in DELAYS_MS:
            wan.delay_all(delay_ms)
            yield round_trips(wan.hosts["site1"], wan.hosts["site2"], delay_ms).row()
        for delay_ms in (0.0, 5.0):
            wan.delay_all(delay_ms)
            rate = throughput(wan.hosts["site1"], wan.hosts["site2"])
            yield f"one TCP connection, {delay_ms:.0f} ms one way: {rate / 1e6:.0f} MB/s"
        began = time.monotonic()
    yield f"down in {(time.monotonic() - began) * 1000:.0f} ms"


def round_trips(near: Host, far: Host, delay_ms: float) -> RoundTrips:
    probes = min(_MOST_PROBES, int(_BUDGET_S * 1000 / (2 * delay_ms or 1)))
    with near.socket(socket.SOCK_DGRAM) as client, far.socket(socket.SOCK_DGRAM) as server:
        client.bind((near.address, 0))
        server.bind((far.address, 0))
        return RoundTrips(delay_ms, tuple(_rtt_ms(client, server) for _ in range(probes)))


def _rtt_ms(client: socket.socket, server: socket.socket) -> float:
    client.settimeout(10)
    server.settimeout(10)
    sent = time.monotonic()
    client.sendto(b"probe", server.getsockname())
    server.sendto(*server.recvfrom(100))
    client.recv(100)
    return (time.monotonic() - sent) * 1000


def throughput(source: Host, target: Host) -> float:
    """Bytes per second that one TCP connection gets through."""
    with target.socket() as listener, source.socket() as sender:
        listener.bind((target.address, 0))
        listener.listen()
        sender.connect(listener.getsockname())
        receiver = listener.accept()[0]
        began = time.monotonic()
        sending = threading.Thread(target=sender.sendall, args=(bytes(_TRANSFER_BYTES),))
        sending.start()
        with receiver:
            left = _TRANSFER_BYTES
            while left:
                left -= len(receiver.recv(1 << 20))
        sending.join()
        return _TRANSFER_BYTES / (time.monotonic() - began)
