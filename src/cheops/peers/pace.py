"""How much of a channel may be on its way, so that heartbeats do not wait; and how long TCP tries.

What was written is sent before anything that becomes urgent later: it waits in TLS, in the kernel, at a relay and in
the queue of the slowest router. On a link of 64 kbit/s, 64 KiB are eight seconds, and the other site would count as
down.

So a channel sends a PING after some of what is not urgent, and writes no more than a window ahead of the PONGs. The
window shrinks while they come late, compared with the fastest one, and grows while they do not. Heartbeats and control
frames need no room in it.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from math import inf

WRITE_BYTES = 64 * 1024  # at a time, and at most unsent in the kernel
_LEAST_BYTES, _FIRST_BYTES, _MOST_BYTES = 4 * 1024, 8 * 1024, 8 * 1024 * 1024  # of a window
_LATE_S, _SOON_S = 0.6, 0.3  # later than the fastest echo
_KEEP_ALIVE_S, _PROBE_S, _PROBES = 20, 5, 3
_USER_TIMEOUT_MS = 20_000  # TCP gives up what is not acknowledged for so long
_TCP_THIN_LINEAR_TIMEOUTS = 16  # Python does not name it
_QUEUE_US = 400_000  # a round trip that takes so much longer than the fastest one


class Pace:
    """Belongs to one channel. Sans-I/O: the channel reports what it writes, and when a PONG comes."""

    def __init__(self) -> None:
        self._window = _FIRST_BYTES
        self._under_way = 0  # bytes that no echo confirms yet
        self._unmarked = 0  # those after the last PING
        self._echoes: deque[tuple[float, int]] = deque()  # PINGs without a PONG: when, and how many bytes before it
        self._fastest_s = inf

    @property
    def room(self) -> int:
        """How many bytes may be written now that are not urgent: a part of the window, and then a PING."""
        return min(max(self._window - self._under_way, 0), self._window // 4)

    @property
    def is_echo_due(self) -> bool:
        return self._unmarked >= self._window // 4

    def wrote(self, size: int) -> None:
        self._under_way += size
        self._unmarked += size

    def asked(self, now_s: float) -> None:
        """A PING goes after what was written."""
        self._echoes.append((now_s, self._unmarked))
        self._unmarked = 0

    def answered(self, now_s: float) -> None:
        """A PONG has come."""
        if not self._echoes:
            return  # nobody asked
        asked_s, size = self._echoes.popleft()
        self._under_way -= size
        self._fastest_s = min(self._fastest_s, now_s - asked_s)
        late_s = now_s - asked_s - self._fastest_s
        if size and late_s > _LATE_S:
            self._window = max(self._window // 2, _LEAST_BYTES)
        elif size and late_s < _SOON_S:
            self._window = min(self._window + size, _MOST_BYTES)


def tune(transport: asyncio.Transport) -> None:
    """Send at once, keep little unsent in the kernel, and notice a dead connection."""
    transport.set_write_buffer_limits(high=WRITE_BYTES, low=WRITE_BYTES // 4)
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), WRITE_BYTES),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
    ):
        with contextlib.suppress(OSError):  # not a TCP socket, in tests; or an older kernel
            sock.setsockopt(level, option, value)
    adapt_retries(transport)


def adapt_retries(transport: asyncio.Transport) -> None:
    """Choose how TCP repeats what is lost; about once a second.

    TCP doubles the time between its retries. Where three packets in ten are lost, that soon makes a silence in which a
    site counts as down, so a channel repeats at constant intervals. Not where packets wait in a queue: there
    repetitions would fill it. The round trips of TCP tell the two apart.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError, struct.error):  # it has just ended, or an older kernel
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 152)
        (rtt_us,), (fastest_us,) = struct.unpack_from("I", info, 68), struct.unpack_from("I", info, 148)
        is_queued = rtt_us > 2 * fastest_us + _QUEUE_US
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, not is_queued)
