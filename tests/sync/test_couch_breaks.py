"""Our replicator when connections, servers and answers break."""

import asyncio

import aiohttp
import pytest

from cheops.peers.couchdb.client import RemoteError
from tests.sync.couch_faults import answering, failing
from tests.sync.couch_lab import Site, operations, reply, serving, until
from tests.sync.couch_pair import Pair, between


async def both_ways(pair: Pair) -> None:
    """Everything gets across in both directions, each document once."""
    pair.here.commit(operations(30))
    pair.there.commit([reply(n) for n in range(1, 31)])
    tasks = [asyncio.create_task(run()) for run in (pair.replicator.push_forever, pair.replicator.pull_forever)]
    await until(lambda: len(pair.here.ids) == len(pair.there.ids) == 60 or any(task.done() for task in tasks))
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    assert len(pair.here.accepted) == len(pair.there.accepted) == 30
    assert pair.reported
    assert all(isinstance(error, RemoteError) for error in pair.reported)


@pytest.mark.parametrize("step", [0, 1, 60, 170, 300, 777])
def test_connections_that_are_cut(step: int) -> None:
    """In the middle of heads, of bodies, and before anything was said."""
    between(both_ways, budgets=tuple(step * n for n in range(1, 30)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_server_that_fails_now_and_then(period: int, after: bool) -> None:
    """Also after it did what was asked: then the other does not know, and asks again."""
    between(both_ways, failing(lambda n: n < 60 and n % period == 0, after=after))


def test_a_server_that_comes_late() -> None:
    async def main() -> None:
        here, there = Site(), Site()
        async with aiohttp.ClientSession() as session:
            async with serving(there):
                port = int(there.url.split(":")[2].split("/")[0])
            reported: list[Exception] = []
            late = Site(store=there.store)
            late.commit(operations(3))
            replicator = here.replicator(f"http://127.0.0.1:{port}/couch/cheops", session, reported.append)
            task = asyncio.create_task(replicator.pull_forever())
            await until(lambda: len(reported) > 2)
            async with serving(late, port=port):
                await until(lambda: len(here.accepted) == 3)
                task.cancel()
                await asyncio.wait((task,))
        for site in (here, there, late):
            site.close()

    asyncio.run(main())


def test_when_our_end_is_closed_replication_ends() -> None:
    async def dialogue(pair: Pair) -> None:
        pair.here.commit(operations(3))
        pair.there.commit([reply(1)])
        tasks = [asyncio.create_task(run()) for run in (pair.replicator.push_forever, pair.replicator.pull_forever)]
        await until(lambda: len(pair.here.ids) == len(pair.there.ids) == 4)
        pair.here.databases.close()
        pair.there.databases.close()  # a long poll that the other ends, too
        await asyncio.gather(*tasks)
        assert pair.reported == []

    between(dialogue)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>", "does not follow the protocol"),
        (200, b'{"results": [', "does not follow the protocol"),
        (200, b'{"results": [{"id": 1}], "last_seq": 1}', "does not follow the protocol"),
        (200, b"\xff", "does not follow the protocol"),
        (200, b'{"results": [], "last_seq": ' + b"[" * 100_000, "does not follow the protocol"),
        (200, b'{"results": [], "more": ' + b"[" * 100_000, "does not follow the protocol"),
        (200, b'{"results": [{"id": "x", "changes": []}], "last_seq": 0}', "does not advance beyond 0"),
        (302, b"", "answered 302"),
        (401, b'{"error": "unauthorized", "reason": "who are you?"}', "who are you"),
        (500, b"\x1b[31mred", "answered 500"),
        (503, b'{"error": ["odd"], "reason": 7}', "odd"),
    ],
)
def test_answers_that_are_not_of_the_protocol(status: int, body: bytes, message: str) -> None:
    async def dialogue(pair: Pair) -> None:
        with pytest.raises(RemoteError, match=message) as caught:
            await pair.replicator.pull_once()
        assert "/cheops" in str(caught.value)
        assert "\x1b" not in str(caught.value)

    between(dialogue, answering(lambda _method, path: (status, body) if path.endswith("/_changes") else None))
