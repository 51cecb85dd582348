"""What an agent at rest holds: processes and descriptors; and the thread of its store."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cheops.node.store_thread import StoreThread
from tests.agent.rig import MakeRig, until
from tests.agent.types import TALLY
from tests.backends.processes import descendants


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - as for any process


def test_at_rest_an_agent_has_one_helper_and_no_more_descriptors_than_before(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1")
    rig.start()
    agent = rig.processes["site1"].pid
    rig.exec("site1", "first", "inc", "printf x >> __ID__")
    until(lambda: len(descendants(agent)) == 1, "for the workers to end")
    (helper,) = descendants(agent)
    agent_had, helper_had = descriptors(agent), descriptors(helper)

    def client(number: int) -> str:
        (line,) = rig.exec("site1", f"n{number}", "inc", "printf x >> __ID__", timeout=100)
        return str(line["Status"])

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(client, range(64))) == {"OK"}
    until(lambda: descendants(agent) == [helper], "for the workers to end")
    until(lambda: descriptors(agent) <= agent_had and descriptors(helper) <= helper_had, "for descriptors to be closed")
    assert b"cheops.backends.command.worker" in Path(f"/proc/{helper}/cmdline").read_bytes(), "it is the spawner"


def test_calls_of_the_store_thread_keep_their_order_and_their_errors() -> None:
    order: list[int] = []

    async def main() -> None:
        with StoreThread("test") as thread:
            calls = [thread.call(order.append, number) for number in range(5)]
            pooled = asyncio.get_running_loop().run_in_executor(thread, order.append, 5)
            await asyncio.gather(*calls, pooled)
            with pytest.raises(ZeroDivisionError):
                await thread.call(lambda: 1 // 0)
            cancelled = thread.call(order.append, 6)
            cancelled.cancel()
            assert await thread.call(lambda: "next") == "next"
        with pytest.raises(RuntimeError):
            thread.call(order.append, 7)

    asyncio.run(main())
    assert order == [0, 1, 2, 3, 4, 5, 6]
