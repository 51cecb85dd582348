"""A request that came in, as the replicating half sees it: see seam.Incoming."""

from collections.abc import AsyncIterator

from cheops.gateway.client import Client
from cheops.gateway.seam import Head
from cheops.gateway.upload import ClientUpload


class Received:
    def __init__(self, client: Client, head: Head, upload: ClientUpload, *, is_forwarded: bool) -> None:
        self.head = head
        self.peer = client.peer
        self.is_forwarded = is_forwarded
        self.size = upload.size
        self._client = client
        self._upload = upload

    async def body(self) -> AsyncIterator[bytes]:
        await self._client.continue_if_awaited()
        async for piece in self._upload.pieces():
            yield piece
