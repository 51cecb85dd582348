"""A request that came in, as the replicating half sees it: see seam.Incoming."""

from collections.abc import AsyncIterator

from cheops.gateway.client import Client
from cheops.gateway.headers import Passage
from cheops.gateway.seam import Head
from cheops.gateway.upload import ClientUpload


class Received:
    def __init__(
        self, client: Client, head: Head, upload: ClientUpload, passage: Passage, *, is_forwarded: bool
    ) -> None:
        self.head = head
        self.passage = passage
        self.peer = client.peer
        self.is_forwarded = is_forwarded
        self.size = upload.size
        self._client = client
        self._upload = upload

    async def body(self) -> AsyncIterator[bytes]:
        await self._client.continue_if_awaited()
        async for piece in self._upload.pieces():
            yield piece
