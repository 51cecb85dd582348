"""Dialogues with a site's server in plain HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.sync.couch_lab import Json, Site, serving

Ask = Callable[..., Coroutine[Any, Any, tuple[int, Json]]]


@asynccontextmanager
async def asking(site: Site, database: str = "cheops") -> AsyncIterator[Ask]:
    """`ask(method, path, body)` gives the status and the JSON of the answer."""
    async with serving(site), aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: Json = None, **options: Any) -> tuple[int, Json]:
            data = options.pop("data", None if body is None else json.dumps(body))
            url = f"{site.at(database)}{path}"
            async with session.request(method, url, data=data, **options) as response:
                raw = await response.read()
                return response.status, json.loads(raw) if raw else None

        try:
            yield ask
        finally:
            site.close()


def talk(site: Site, dialogue: Callable[[Ask], Awaitable[None]], database: str = "cheops") -> None:
    async def run() -> None:
        async with asking(site, database) as ask:
            await dialogue(ask)

    asyncio.run(run())


def site_with(*documents: Any, **options: Any) -> Site:
    site = Site(**options)
    site.commit(documents)
    return site
