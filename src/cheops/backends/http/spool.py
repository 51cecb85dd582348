"""Bodies of replicated requests: a small one becomes part of its operation, a larger one a file by its hash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

from msgspec import Struct

from cheops.backends.http.ids import META_ID_BYTES
from cheops.backends.http.payload import MAX_INLINE_BYTES
from cheops.errors import ClientError
from cheops.gateway.interfaces import close_body
from cheops.node.node import Node
from cheops.store.files import FileWriter

_BLOCK = 1024 * 1024
_ID_BYTES = 40  # a meta-id, and what may not be before it


class SpooledBody(Struct, frozen=True):
    """`inline` for a small body; else a file that is pinned until its operation names it."""

    inline: bytes = b""
    file_hash: str = ""
    size: int = 0


async def spool(node: Node, body: AsyncIterator[bytes], pins: ExitStack) -> SpooledBody:
    """Read a body to its end, holding at most one block of it in memory."""
    begun = bytearray()
    try:
        async for piece in body:
            begun += piece
            if len(begun) > MAX_INLINE_BYTES:
                return await _in_file(node, begun, body, pins)
    finally:
        await close_body(body)
    return SpooledBody(bytes(begun), size=len(begun))


async def _in_file(node: Node, block: bytearray, body: AsyncIterator[bytes], pins: ExitStack) -> SpooledBody:
    most = node.config.limits.file_bytes
    writing: FileWriter = await asyncio.to_thread(node.files.begin)
    with writing:
        await write_body(writing, body, most, f"the body has more than {most:,} bytes", block)
        # Pinned before it exists: a file with the same content may just be about to be deleted with its operation.
        hash_ = writing.hash
        pins.enter_context(node.file_references.pin([hash_]))
        await asyncio.to_thread(writing.keep)
    return SpooledBody(file_hash=hash_, size=writing.size)


async def write_body(
    writer: FileWriter, body: AsyncIterator[bytes], most: int, too_large: str, begun: bytearray | None = None
) -> None:
    """Write a body of which `begun` was read before. Raises ClientError, with `too_large`, beyond `most` bytes."""
    block = begun or bytearray()
    async for piece in body:
        block += piece
        if writer.size + len(block) > most:
            raise ClientError(f"{too_large}, limits.file_size of this site, so it cannot be replicated", status=413)
        if len(block) >= _BLOCK:
            await asyncio.to_thread(writer.write, bytes(block))
            block.clear()
    await asyncio.to_thread(writer.write, bytes(block))


async def noting_ids(body: AsyncIterator[bytes], found: dict[str, None]) -> AsyncIterator[bytes]:
    """A body, whose meta-ids are in `found` at its end."""
    kept = b""
    try:
        async for piece in body:
            data = kept + piece
            found.update(dict.fromkeys(one.decode().lower() for one in META_ID_BYTES.findall(data)))
            kept = data[-_ID_BYTES:]  # an id may be shared by two pieces
            yield piece
    finally:
        await close_body(body)
