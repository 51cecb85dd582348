"""Places for reads: each client has a share, operations have places of their own, and nobody waits without end."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from cheops.node.read_queue import BusyError, ReadQueue
from tests.agent.rig import RefusedByAgentError, until
from tests.agent.types import TALLY
from tests.security.clients import rig_of

LONG_S = 3600.0


class Reads:
    """Reads of clients that last until they are ended."""

    def __init__(self, queue: ReadQueue) -> None:
        self.queue = queue
        self.running: list[str] = []
        self.refused: list[int] = []
        self.ends: dict[str, list[asyncio.Event]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, *clients: str) -> None:
        self._tasks += [asyncio.create_task(self._read(client)) for client in clients]
        await self.settle()

    async def end(self, client: str) -> None:
        self.ends[client].pop(0).set()
        await self.settle()

    def cancel(self, number: int) -> None:
        self._tasks[number].cancel()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.queue.used == 0

    async def _read(self, client: str) -> None:
        try:
            async with self.queue.place(client):
                ended = asyncio.Event()
                self.ends.setdefault(client, []).append(ended)
                self.running.append(client)
                try:
                    await ended.wait()
                finally:
                    self.running.remove(client)
        except BusyError as error:
            self.refused.append(error.status)


def with_reads(story: Callable[[Reads], Awaitable[None]], wait_s: float = LONG_S) -> None:
    async def main() -> None:
        reads = Reads(ReadQueue(4, 3, wait_s))
        await story(reads)
        await reads.close()

    asyncio.run(main())


def test_a_client_gets_its_share_and_no_more() -> None:
    async def story(reads: Reads) -> None:
        await reads.begin(*["a"] * 10, "b")
        assert sorted(reads.running) == ["a", "a", "a", "b"]

    with_reads(story)


def test_a_free_place_goes_to_the_client_with_the_fewest() -> None:
    async def story(reads: Reads) -> None:
        await reads.begin(*["a"] * 3, *["b"] * 3, "c")
        assert sorted(reads.running) == ["a", "a", "a", "b"]
        await reads.end("a")
        assert sorted(reads.running) == ["a", "a", "b", "c"]
        await reads.end("a")
        assert sorted(reads.running) == ["a", "b", "b", "c"]

    with_reads(story)


def test_a_client_that_leaves_while_it_waits_takes_no_place() -> None:
    async def story(reads: Reads) -> None:
        await reads.begin("a", "a", "a", "b", "c", "d")
        reads.cancel(4)
        await reads.end("b")
        assert sorted(reads.running) == ["a", "a", "a", "d"]

    with_reads(story)


def test_a_place_that_is_given_to_a_client_that_just_left_is_given_on() -> None:
    async def story(reads: Reads) -> None:
        await reads.begin("a", "a", "a", "b", "c", "d")
        reads.ends["b"].pop(0).set()
        await asyncio.sleep(0)  # c has the place now, and has not run yet
        reads.cancel(4)
        await reads.settle()
        assert sorted(reads.running) == ["a", "a", "a", "d"]

    with_reads(story)


def test_who_gets_no_place_in_time_is_told_why() -> None:
    async def main() -> None:
        queue = ReadQueue(2, 1, 0.01)
        async with queue.place("token:a"):
            with pytest.raises(BusyError, match="1 reads of token:a are running, and one client may have 1 at a time"):
                async with queue.place("token:a"):
                    pass
            async with queue.place("token:b"):
                with pytest.raises(BusyError, match="all 2 places for reads are taken") as caught:
                    async with queue.place("token:c"):
                        pass
                assert (caught.value.status, caught.value.definite) == (503, False)
                assert caught.value.headers == {"Retry-After": "1"}
        assert queue.used == 0

    asyncio.run(main())


def test_the_requests_of_one_client_that_wait_are_bounded() -> None:
    async def story(reads: Reads) -> None:
        await reads.begin(*["a"] * 200, "b")
        assert set(reads.refused) == {429}
        assert len(reads.refused) == 200 - 3 - 100
        assert "b" in reads.running

    with_reads(story)


def test_slow_reads_do_not_hold_up_operations(tmp_path: Path) -> None:
    """More of them than all commands that an agent runs at a time."""
    rig = rig_of(tmp_path, secure=False, types={"tally": {**TALLY, "cwd": str(tmp_path), "show": ["sleep 1000"]}})
    threads: list[threading.Thread] = []
    answers: list[int] = []

    def show() -> None:
        with suppress(OSError, HTTPException):
            try:
                rig.show("site1", "n", "sleep 1000")
            except RefusedByAgentError as error:
                answers.append(error.status)

    try:
        rig.start()
        assert {line["Status"] for line in rig.exec("site1", "n", "inc", "printf x >> n")} == {"OK"}
        threads = [threading.Thread(target=show, daemon=True) for _ in range(120)]
        for thread in threads:
            thread.start()
        # All places of this client are taken, and the first that waited in vain have their answer.
        until(lambda: 503 in answers, "for a read that is refused")
        assert {line["Status"] for line in rig.exec("site1", "n", "inc", "printf x >> n")} == {"OK"}
    finally:
        rig.close()
        for thread in threads:
            thread.join()
    assert set(answers) <= {429, 503}
