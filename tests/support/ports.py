"""Ports for the servers that tests start.

They are below the range from which the system takes ports for outgoing connections: otherwise some connection could take
the port of an agent while it restarts.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from itertools import cycle

_FIRST, _END = 10_000, 32_000


def _candidates() -> Iterator[int]:
    """All ports, in an order that differs between the processes in which tests run side by side."""
    ports = range(_FIRST, _END)
    start = (os.getpid() * 7_919) % len(ports)
    return cycle((*ports[start:], *ports[:start]))


_next = _candidates()


def free_ports(count: int) -> list[int]:
    """Consecutive ports that are free now, and not used by another test of this process."""
    while True:
        first = next(_next)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            ports = [first, *(next(_next) for _ in range(count - 1))]
            if ports[-1] - first != count - 1:
                continue  # at the end of the range
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports


def free_port() -> int:
    return free_ports(1)[0]
