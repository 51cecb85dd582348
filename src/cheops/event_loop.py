"""The event loop of an agent: uvloop, without its mistake about sockets of connections that fail."""

import asyncio
import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    """uvloop closes the descriptor of a socket that it was given, and must then detach the socket object from it. It
    does not where a connection is reset in its TLS handshake. The object would then close a descriptor that belongs to
    something else by now: the connection of a client, or a file of the store."""

    async def create_connection(self, *args: Any, sock: socket.socket | None = None, **options: Any) -> Any:
        transport: Any
        try:
            transport, protocol = await super().create_connection(*args, sock=sock, **options)
        except (OSError, TimeoutError, asyncio.CancelledError):  # not an argument that is wrong: it had the socket
            if sock is not None:
                sock.detach()
            raise
        if sock is not None and transport.is_closing():
            sock.detach()
        return transport, protocol
