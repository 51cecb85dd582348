"""Processes that a test can recognise, and waiting for what is to come about."""

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from cheops.backends.command.runner import CommandRunner, Completed
from cheops.config.command import CommandSettings

ANYTHING = CommandSettings(allow=("...",))
IN_SHELL = CommandSettings(allow=("...",), shell=True)  # noqa: S604 - to be tested
_PATIENCE_S = 60.0


def unique() -> str:
    """A number of seconds for `sleep`, by which its process is found again: a day and a bit."""
    return f"86400.{uuid.uuid4().int % 10**12:012}"


def with_mark(mark: str) -> list[int]:
    """The living processes that have this in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs, as far as they live."""
    try:
        lists = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    children = [int(child) for found in lists for child in found]
    return [one for child in children for one in (child, *descendants(child))]


def is_dead(pid: int) -> bool:
    """Gone, or waiting for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"this did not come about: {what}"
        time.sleep(0.005)


async def soon(condition: Callable[[], object], what: str) -> None:
    """`eventually`, inside an event loop."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"this did not come about: {what}"
        await asyncio.sleep(0.005)


def run(line: str, settings: CommandSettings = ANYTHING, *, resource: str = "counter", **files: Path) -> Completed:
    """Run one command with a runner of its own."""

    async def alone() -> Completed:
        async with CommandRunner() as runner:
            return await runner.run(line, settings, resource=resource, files=files)

    return asyncio.run(alone())
