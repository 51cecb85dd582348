"""The body of a request on its way from a client to a service.

It is read from the client once, as fast as the service takes it. While it is small it is also kept, so that
it can be sent a second time, to another site: `can_restart`.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import h11

from cheops.gateway.client import Client
from cheops.gateway.seam import Body, Headers


class Upload(Protocol):
    """What a call sends after its head."""

    size: int | None  # None: only its end will tell
    trailers: Headers

    @property
    def can_restart(self) -> bool: ...

    def at_once(self) -> bytes | None:
        """The whole body, if it is here already."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """From its beginning."""
        ...


class ClientUpload:
    """What a client sends."""

    def __init__(self, client: Client, size: int | None, keep_bytes: int) -> None:
        self.size = size
        self.trailers: Headers = ()
        self._client = client
        self._keep_bytes = keep_bytes
        self._kept: list[bytes] | None = []
        self._kept_bytes = 0
        self._is_complete = False

    @property
    def can_restart(self) -> bool:
        """Whether all that was read of it is still here."""
        return self._kept is not None

    def at_once(self) -> bytes | None:
        if self.size is None or self.size > self._keep_bytes:
            return None
        while not self._is_complete:
            event = self._client.body_now()
            if event is None:
                return None
            self._take(event)
        return b"".join(self._kept or ())

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._kept is None:
            raise AssertionError("what was read is gone: ask can_restart before")
        for piece in tuple(self._kept):
            yield piece
        while not self._is_complete:
            if piece := self._take(await self._client.body()):
                yield piece

    def _take(self, event: h11.Data | h11.EndOfMessage) -> bytes:
        if isinstance(event, h11.EndOfMessage):
            self._is_complete = True
            pairs = event.headers.raw_items()
            self.trailers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in pairs)
            return b""
        piece = bytes(event.data)
        self._kept_bytes += len(piece)
        if self._kept is not None:
            self._kept.append(piece)
        if self._kept_bytes > self._keep_bytes:
            self._kept = None
        return piece


class GivenUpload:
    """A body that somebody in this program made."""

    trailers: Headers = ()

    def __init__(self, body: Body | None, size: int | None) -> None:
        self._body = body or b""
        self.size = len(self._body) if isinstance(self._body, bytes) else size

    @property
    def can_restart(self) -> bool:
        return isinstance(self._body, bytes)

    def at_once(self) -> bytes | None:
        return self._body if isinstance(self._body, bytes) else None

    async def pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._body, bytes):
            yield self._body
            return
        async for piece in self._body:
            yield piece
