"""The response of one part of a read over several sites: its beginning is looked at, the rest is read on demand.

The beginning shows whether it is a list. If it is short, all of it is looked at before the client gets the head of the
whole response: what is wrong with it can still be refused then.
"""

import asyncio
from collections.abc import AsyncIterator

from cheops.gateway.headers import Headers, RequestHead, first
from cheops.gateway.interfaces import Body, UpstreamError, close_body
from cheops.gateway.json_items import BodyError, ListNames, ListSplitter, Shape, checked
from cheops.gateway.lists import PartStatus, is_json

_LOOK_BYTES = 256 * 1024
_MAX_BLANK_BYTES = 1024 * 1024
_LOOK_S = 0.25  # how long to wait for the rest of a list that has begun
TOO_SLOW = "too slow"
_NO_CONTENT, _PARTIAL = 204, 206


class OpenPart:
    """One part's response. `close` it in any case."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a response is
        self, number: int, status: PartStatus, headers: Headers, body: Body, names: ListNames, stall_s: float
    ) -> None:
        self.number = number
        self.status = status
        self.headers = headers
        self.shape: Shape | None = None
        self.is_ended = False
        self._splitter = ListSplitter(names)
        self._body = body
        self._pieces = _one(body) if isinstance(body, bytes) else body
        self._stall_s = stall_s
        self._beginning: list[bytes] = []  # of the body, until its list is read
        self._is_list_read = False
        self._items: list[bytes] = []  # that were found in the beginning
        self._reading: asyncio.Task[bytes | None] | None = None

    @classmethod
    def without_response(cls, number: int, status: PartStatus) -> "OpenPart":
        part = cls(number, status, (), b"", ListNames(), 0.0)
        part.is_ended = True
        return part

    @property
    def list_kind(self) -> tuple[Shape | None, str]:
        """What must be the same of lists that are put together."""
        return self.shape, self._splitter.list_name

    @property
    def list_name(self) -> str:
        return self._splitter.list_name

    @property
    def beside(self) -> dict[str, bytes]:
        """The members beside the list that were read so far."""
        return self._splitter.beside

    async def look(self) -> None:
        """Read the beginning. Raises CheopsError."""
        if self.status.status == _PARTIAL:
            raise BodyError("it sent a part of a document without a request for one")
        if not is_json(self.headers) or self.status.status == _NO_CONTENT:
            self.shape = Shape.DOCUMENT
            return
        encoding = (first(RequestHead("", "", self.headers), "Content-Encoding") or "identity").strip().lower()
        if encoding != "identity":
            raise BodyError("it compressed its response without a request for that")
        while self.shape is None and not self.is_ended:
            self._take(await self._next_in_time())
            if self.shape is None and sum(map(len, self._beginning)) > _MAX_BLANK_BYTES:
                raise BodyError("it begins with nothing but blanks")
        if self.shape is Shape.DOCUMENT:
            return
        until_s = asyncio.get_running_loop().time() + _LOOK_S
        while not self.is_ended and sum(map(len, self._items)) < _LOOK_BYTES:
            try:
                self._take(await self._next(max(until_s - asyncio.get_running_loop().time(), 0.0)))
            except TimeoutError:
                break  # a service may make its list while it sends it
        for item in self._items:
            checked(item)

    def _take(self, piece: bytes | None) -> None:
        if piece is None:
            self.is_ended = True
            if not self._beginning and self.shape is None:
                self.shape = Shape.DOCUMENT  # it is empty
                return
            self._splitter.finish()
        else:
            if not self._is_list_read:
                self._beginning.append(piece)
            self._items += self._splitter.feed(piece)
        self.shape = self.shape or self._splitter.shape

    async def items(self) -> AsyncIterator[list[bytes]]:
        """The items of a list, as they come. Raises CheopsError if it is not complete."""
        self._is_list_read = True
        self._beginning.clear()
        while True:
            if self._items:
                items, self._items = self._items, []
                yield items
            if self.is_ended:
                return
            self._take(await self._next_in_time())

    async def document(self) -> AsyncIterator[bytes]:
        """The body as it is."""
        for piece in self._beginning:
            yield piece
        self._beginning.clear()
        while not self.is_ended:
            if (more := await self._next_in_time()) is None:
                self.is_ended = True
            else:
                yield more

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
            if not self._reading.cancelled():
                self._reading.exception()  # retrieved, so that asyncio does not log it as lost
            self._reading = None
        await close_body(self._body)

    async def _next_in_time(self) -> bytes | None:
        try:
            return await self._next(self._stall_s)
        except TimeoutError:
            text = f"{self.status.site} sent nothing for {self._stall_s:g} s"
            raise UpstreamError(text, TOO_SLOW, may_have_had_effect=False, status=504) from None

    async def _next(self, limit_s: float) -> bytes | None:
        """The next piece; None at the end. After a TimeoutError it still comes, with the next call."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(_next_of(self._pieces))
        done, _ = await asyncio.wait({self._reading}, timeout=limit_s)
        if not done:
            raise TimeoutError
        reading, self._reading = self._reading, None
        return reading.result()


async def _next_of(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _one(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body
