"""How many commands per second a runner does; for `bench`, since no test asserts on times."""

import asyncio
import time

from cheops.backends.command.runner import CommandRunner
from cheops.config.command import CommandSettings


def commands_per_second(*, parallel: int, count: int = 2000, line: str = "true") -> float:
    """Run `count` commands, `parallel` at a time, with a runner that is warm."""
    return asyncio.run(_measured(parallel, max(1, count // parallel), line))


async def _measured(parallel: int, each: int, line: str) -> float:
    settings = CommandSettings(allow=("...",))
    async with CommandRunner(max_parallel=parallel) as runner:

        async def run_in_turn(times: int) -> None:
            for _ in range(times):
                done = await runner.run(line, settings, resource="counter")
                assert done.exit_code == 0, done

        await asyncio.gather(*(run_in_turn(2) for _ in range(parallel)))
        start = time.perf_counter()
        await asyncio.gather(*(run_in_turn(each) for _ in range(parallel)))
        return parallel * each / (time.perf_counter() - start)
