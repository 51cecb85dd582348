"""Run by test_killed.py: fork processes that commit, kill each at some moment, and look at what is left.

    python -m tests.store.killing FILE ROUNDS

A process of its own, because forking wants one without threads, and is much cheaper than starting anew. A child commits
numbered batches and says each number once it is durable. Batch n brings documents of several sizes and forgets
those of batch n - KEPT, so exactly KEPT batches are there whenever a commit is whole.
"""

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random

from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Save
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import operation, reply

KEPT = 3
RESOURCES = ("r0", "r1", "r2")


def batch(number: int) -> list[Document]:
    """The documents of one batch: always the same for a number."""
    random = Random(number)  # noqa: S311 - to be repeatable
    ops = [
        operation(random.choice(RESOURCES), number * 100 + n, ("lyon",), line="x" * random.randrange(3_000))
        for n in range(random.choice((1, 5, 40)))
    ]
    return [*ops, *(reply(op.resource, op.seq) for op in ops)]


def batch_keys(number: int) -> tuple[Key, ...]:
    return tuple(map(key_of, batch(number))) if number > 0 else ()


def commit_for_ever(path: Path, first: int, out: int) -> None:
    store = SQLiteStore(path)
    for number in range(first, sys.maxsize):
        saves = [Save((document,)) for document in batch(number)]  # as an agent does it: several in one commit
        store.commit([*saves, Save((), batch_keys(number - KEPT))])
        os.write(out, f"{number}\n".encode())


def said_until_killed(path: Path, first: int, random: Random) -> list[int]:
    """Let a child say some numbers, then kill it a moment later, in whatever it is doing."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            commit_for_ever(path, first, send)
        finally:
            os._exit(1)
    os.close(send)
    with open(receive, encoding="ascii") as said:  # noqa: PTH123 - a descriptor
        numbers = [int(said.readline()) for _ in range(random.randint(1, 12))]
        time.sleep(random.uniform(0, 0.02))  # any moment of some commits; whichever it is, the law holds
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        return numbers + [int(line) for line in said]


def check(store: SQLiteStore, promised: int) -> int:
    """All that was promised is there, and each batch whole or not at all; gives the last one."""
    feed = [change.key for change in store.changes(0, 10_000)]
    last = max(int(str(key[3])) for key in feed) // 100
    assert last in {promised, promised + 1}, f"{last} is there, {promised} was promised"
    expected = [key for number in range(last - KEPT + 1, last + 1) for key in batch_keys(number)]
    assert feed == expected
    assert [change.key for change in store.changes(0, 10_000, "lyon")] == expected
    loaded = [key_of(document) for resource in RESOURCES for document in store.load(resource)]
    assert len(loaded) == len(expected)
    assert set(loaded) == set(expected)
    return last


def main(path: Path, rounds: int) -> None:
    random = Random(7)  # noqa: S311 - to be repeatable
    last = unsaid = 0
    for _ in range(rounds):
        promised = said_until_killed(path, last + 1, random)[-1]
        with closing(SQLiteStore(path)) as store:
            last = check(store, promised)
        unsaid += last - promised
    sys.stdout.write(f"{rounds} rounds, {last} batches, {unsaid} durable but not said\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
