"""A response in lines: how it ends, and what happens when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from cheops.api import line_stream
from cheops.api.line_stream import Line, LineStream

Messages = list[Any]


def respond(*lines: Line, then_wait: bool = False) -> tuple[Messages, list[str]]:
    """What is sent, and whether the source of the lines was closed. The client leaves as soon as somebody looks."""
    sent: Messages = []
    events: list[str] = []

    async def source() -> AsyncGenerator[Line, None]:
        try:
            for line in lines:
                yield line
            if then_wait:
                await asyncio.Event().wait()
        finally:
            events.append("closed")

    async def receive() -> Any:
        events.append("watched")
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        await LineStream(source(), "application/json", {})({"type": "http"}, receive, send)
        await asyncio.sleep(0)  # whatever is left of it would show now

    asyncio.run(main())
    return sent, events


def test_a_last_line_ends_the_response() -> None:
    sent, events = respond(Line(b"a\n"), Line(b"b\n", is_last=True), Line(b"never\n"))
    assert [(one["body"], one["more_body"]) for one in sent[1:]] == [(b"a\n", True), (b"b\n", False)]
    assert events == ["closed"]


def test_lines_that_just_end() -> None:
    sent, events = respond(Line(b"a\n"))
    assert [(one["body"], one["more_body"]) for one in sent[1:]] == [(b"a\n", True), (b"", False)]
    assert events == ["closed"]


def test_a_client_that_leaves_ends_a_long_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_stream, "_WATCH_AFTER_S", 0.0)
    sent, events = respond(Line(b"a\n"), then_wait=True)
    assert [one["body"] for one in sent[1:]] == [b"a\n"]
    assert events == ["watched", "closed"]


def test_a_cancelled_request_stays_cancelled() -> None:
    async def source() -> AsyncGenerator[Line, None]:
        await asyncio.Event().wait()
        yield Line(b"")

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(_message: Any) -> None: ...

    async def main() -> None:
        task = asyncio.ensure_future(LineStream(source(), "application/json", {})({"type": "http"}, never, send))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
