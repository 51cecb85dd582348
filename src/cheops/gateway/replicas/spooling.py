"""The body of a request that becomes an operation: small ones into the log, larger ones into a file."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass

from cheops.backends.http_request import MAX_INLINE_BYTES
from cheops.gateway.replicas.streams import closed
from cheops.node.files import Writing
from cheops.node.node import Node

_BLOCK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Spooled:
    """`inline` for a small body; else a file that is pinned until its operation names it."""

    inline: bytes = b""
    file_hash: str = ""
    size: int = 0


async def spooled(node: Node, body: AsyncIterator[bytes], pins: ExitStack) -> Spooled:
    """Read a body to its end, without ever holding more of it than a block."""
    begun = bytearray()
    try:
        async for piece in body:
            begun += piece
            if len(begun) > MAX_INLINE_BYTES:
                return await _in_file(node, begun, body, pins)
    finally:
        await closed(body)
    return Spooled(bytes(begun), size=len(begun))


async def _in_file(node: Node, block: bytearray, body: AsyncIterator[bytes], pins: ExitStack) -> Spooled:
    size = 0
    writing: Writing = await asyncio.to_thread(node.files.begin)
    with writing:
        async for piece in body:
            block += piece
            if len(block) >= _BLOCK:
                await asyncio.to_thread(writing.write, bytes(block))
                size += len(block)
                block.clear()
        await asyncio.to_thread(writing.write, bytes(block))
        size += len(block)
        # Pinned before it is there: the same content may be just about to go with another operation.
        hash_ = writing.hash
        pins.enter_context(node.keeping.pinned([hash_]))
        await asyncio.to_thread(writing.keep)
    return Spooled(file_hash=hash_, size=size)
