"""Networks and servers that fail in ways of our choosing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@contextlib.asynccontextmanager
async def cutting_proxy(url: str, budgets: Iterable[int]) -> AsyncIterator[str]:
    """Forwards to a server, but cuts its first connections after so many bytes of answers; gives the new URL."""
    scheme, rest = url.split("://")
    address, path = rest.split("/", 1)
    host, port = address.split(":")
    left = iter(budgets)
    under_way: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        budget = next(left, None)
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        up = asyncio.create_task(_copy(reader, back, None))
        down = asyncio.create_task(_copy(there, writer, budget))
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        await asyncio.wait((up, down))
        for end in (writer, back):
            end.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/{path}"
    finally:
        server.close()
        await server.wait_closed()
        if under_way:
            await asyncio.wait(under_way)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536 if budget is None else max(1, min(budget, 65_536))):
            if budget is not None:
                if budget <= 0:
                    return
                budget -= len(data)
            writer.write(data)
            await writer.drain()


def failing(is_bad: Callable[[int], bool], *, after: bool) -> Callable[[ASGIApp], ASGIApp]:
    """Requests, counted from 1, that end with a 500: before anything was done, or when all was done."""
    numbers = count(1)

    def wrap(app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if not is_bad(next(numbers)):
                await app(scope, receive, send)
                return
            if after:
                await app(scope, receive, _swallow)
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"<h1>Out of order</h1>"})

        return wrapped

    return wrap


async def _swallow(_message: Message) -> None:
    pass


def answering(answers: Callable[[str, str], tuple[int, bytes] | None]) -> Callable[[ASGIApp], ASGIApp]:
    """Some requests (by method and path) get an answer of our own."""

    def wrap(app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            given = answers(scope["method"], scope["path"])
            if given is None:
                await app(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": given[0], "headers": []})
            await send({"type": "http.response.body", "body": given[1]})

        return wrapped

    return wrap
