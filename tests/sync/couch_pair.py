"""Two sites with a replicator between them, and words for what it did."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

import aiohttp

from cheops.peers.couchdb.database import ServerLimits
from cheops.peers.couchdb.replicator import ReplicationStats, Replicator
from cheops.store.memory import MemoryStore
from tests.sync.couch_faults import cutting_proxy
from tests.sync.couch_lab import Site, couch, serving


def stored(*documents: object) -> dict[str, object]:
    docs = [couch(one) for one in documents]  # type: ignore[arg-type]
    return {doc["_id"]: {name: doc[name] for name in doc if name != "_revisions"} for doc in docs}


def did(tally: ReplicationStats) -> dict[str, int]:
    """What is not 0 of a tally."""
    return {name: number for name, number in asdict(tally).items() if number}


def notes_of(site: Site) -> dict[str, bytes]:
    assert isinstance(site.store, MemoryStore)
    return site.store._notes


@dataclass
class Pair:
    here: Site
    there: Site
    session: aiohttp.ClientSession
    replicator: Replicator
    reported: list[Exception]


def between(
    dialogue: Callable[[Pair], Awaitable[None]],
    wrap: Callable[..., object] = lambda app: app,
    limits: ServerLimits | None = None,
    budgets: tuple[int, ...] | None = None,
) -> None:
    """A dialogue with two sites, of which the other is served, perhaps badly."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            here, there = Site(), Site(limits=limits or ServerLimits(page=5))
            stack.callback(here.close)
            stack.callback(there.close)
            await stack.enter_async_context(serving(there, wrap))  # type: ignore[arg-type]
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url = there.at()
            if budgets is not None:
                url = await stack.enter_async_context(cutting_proxy(url, budgets))
            reported: list[Exception] = []
            replicator = here.replicator(url, session, reported.append)
            try:
                await dialogue(Pair(here, there, session, replicator, reported))
            finally:
                await session.close()  # before the proxy, which waits for its connections

    asyncio.run(main())
