"""A response in lines, each sent as soon as it is known, for the replies of sites.

Starlette's own watches from the start, in a group of tasks, whether the client leaves. Most operations are done within
milliseconds, so here the watch begins only when a response takes longer. A line that is known to be the last one ends
the response in the same packet.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_WATCH_AFTER_S = 0.5


class Line(NamedTuple):
    text: bytes
    is_last: bool = False  # False: it may be, too


class LineStream(Response):
    def __init__(self, lines: AsyncGenerator[Line, None], media_type: str, headers: Mapping[str, str]) -> None:
        self._lines = lines
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        watch = _ClientWatch(receive)
        try:
            async with aclosing(self._lines):
                await self._send_all(send)
        except asyncio.CancelledError:
            if not watch.is_answered():
                raise
        finally:
            watch.end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for line in self._lines:
            await send({"type": "http.response.body", "body": line.text, "more_body": not line.is_last})
            if line.is_last:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _ClientWatch:
    """After a while, watches whether the client leaves, and then cancels the task that made this."""

    def __init__(self, receive: Receive) -> None:
        serving = asyncio.current_task()
        assert serving is not None  # noqa: S101 - called in a coroutine
        self._serving = serving
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self._has_left = False
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._serving.cancel()

    def is_answered(self) -> bool:
        """Whether it was this that cancelled the task, and nobody else."""
        return self._has_left and self._serving.uncancel() == 0

    def end(self) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
