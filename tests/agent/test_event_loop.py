"""A connection that fails closes its own descriptor, once: a second time it would be somebody else's."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cheops.event_loop import EventLoop
from cheops.security.tls import server_context
from tests.security.pki import Pki


async def connect(listening: socket.socket, *, with_tls: bool, then: Callable[[], object]) -> tuple[socket.socket, int]:
    """The socket of a connection over which something happens before it is used, and its descriptor."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, listening.getsockname())
    descriptor = sock.fileno()
    then()
    options: dict[str, Any] = {"ssl": ssl.create_default_context(), "server_hostname": "site2"} if with_tls else {}
    with contextlib.suppress(OSError):
        await loop.create_connection(asyncio.Protocol, sock=sock, **options)
    return sock, descriptor


async def closed(descriptor: int) -> None:
    for _ in range(1_000):
        try:
            os.fstat(descriptor)
        except OSError:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the descriptor is still open")


@pytest.mark.parametrize("with_tls", [True, False])
def test_a_connection_that_is_reset_leaves_nothing_to_close(with_tls: bool) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            # A listener that closes resets the connections that it has not accepted.
            sock, descriptor = await connect(listening, with_tls=with_tls, then=listening.close)
            await closed(descriptor)
            assert sock.fileno() == -1

    uvloop.run(run(), loop_factory=EventLoop)


def test_a_connection_to_a_server_that_is_not_believed_leaves_nothing_to_close(tmp_path: Path) -> None:
    async def run() -> None:
        context = server_context(Pki().site(tmp_path, "site2", "127.0.0.1"))
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        async with server:
            listening = server.sockets[0]
            sock, descriptor = await connect(listening, with_tls=True, then=lambda: None)
            await closed(descriptor)
            assert sock.fileno() == -1

    uvloop.run(run(), loop_factory=EventLoop)
