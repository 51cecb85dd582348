"""Clients that wait for answers: each request has a queue, until its client has heard enough."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self
from uuid import uuid4

from cheops.engine.events import Answer
from cheops.log.operation import OpId


class Answers:
    """What comes for one request, in order. To be used as a context, so that it does not stay for ever."""

    def __init__(self, waiting: "Waiting") -> None:
        self.request = uuid4().hex
        self._waiting = waiting
        self._queue: asyncio.Queue[Answer] = asyncio.Queue()
        self._op: tuple[str, OpId] | None = None

    def __enter__(self) -> Self:
        self._waiting.open[self.request] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.open.pop(self.request, None)
        if self._op is not None:
            self._waiting.left(*self._op)

    def accepted(self, resource: str, op: OpId) -> None:
        """Which operation it is about, so that the engine can hear when nobody waits any more."""
        self._op = (resource, op)

    def put(self, answer: Answer) -> None:
        self._queue.put_nowait(answer)

    async def next(self) -> Answer:
        return await self._queue.get()

    async def until(self, deadline_s: float) -> AsyncIterator[Answer]:
        """All that come until a time of the event loop's clock."""
        while True:
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                yield await asyncio.wait_for(self._queue.get(), max(left_s, 0))
            except TimeoutError:
                return


class Waiting:
    """All requests that somebody waits for."""

    def __init__(self, left: Callable[[str, OpId], None]) -> None:
        """`left` hears of each operation for which nobody waits any more."""
        self.open: dict[str, Answers] = {}
        self.left = left

    def take(self, answer: Answer) -> None:
        if answers := self.open.get(answer.request):
            answers.put(answer)
