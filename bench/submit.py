"""Durable submit at one site without a command to fork: what engine, pump and store can do."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvloop

from bench.bare import bare
from bench.desk import Desk, desk
from bench.load import per_second
from bench.measure import human
from bench.place import folder
from bench.report import Section

SUBMITTERS = (1, 8, 32)
TARGET = 3_000
_ROUNDS, _ROUND_S = 3, 1.0
_MOST_COMMITS = 300  # that the reference repeats

# What the operations of submitter so-and-so are about, the so-manieth of them.
Resource = Callable[[int, int], str]
KINDS: dict[str, Resource] = {
    "each submitter its own": lambda client, _turn: f"own-{client}",
    "a new one each time": lambda client, turn: f"new-{client}-{turn}",
    "all the same": lambda _client, _turn: "same",
}


@dataclass(frozen=True)
class Measured:
    per_s: float
    cpu_s: float  # per operation
    commits_per_operation: float
    commits: tuple[int, ...]  # documents in each


def submit_section() -> Section:
    with bare() as reference:
        reference.seconds([1] * 50)
        synced_per_s = 300 / reference.seconds([1] * 300)
        rows = [("reference: one bare INSERT per commit", "1", f"{synced_per_s:,.0f}", *[""] * 5)]
        for kind, resource in KINDS.items():
            for submitters in SUBMITTERS:
                found = uvloop.run(_measured(resource, submitters))
                bare_s = reference.seconds(found.commits) / len(found.commits)
                rows.append((kind, str(submitters), *_figures(found, bare_s)))
    columns = (
        "resource",
        "submitters",
        "operations/s",
        "target",
        "processor time per operation",
        "commits per operation",
        "the same commits bare: operations/s",
        "ratio",
    )
    return Section("agent-submit", columns, tuple(rows))


def _figures(found: Measured, bare_s: float) -> tuple[str, ...]:
    bare_per_s = 1 / (bare_s * found.commits_per_operation)
    return (
        f"{found.per_s:,.0f}",
        f"≥ {TARGET:,}",
        human(found.cpu_s),
        f"{found.commits_per_operation:.2f}",
        f"{bare_per_s:,.0f}",
        f"{found.per_s / bare_per_s:.2f} x",
    )


async def _measured(resource: Resource, submitters: int) -> Measured:
    """The median of some rounds, each on a store of its own."""
    rounds = []
    for _ in range(_ROUNDS):
        with folder() as place:
            async with desk(place / "store.db") as made:
                rounds.append(await _round(made, resource, submitters))
    middle = statistics.median(round_.per_s for round_ in rounds)
    return next(round_ for round_ in rounds if round_.per_s == middle)


async def _round(made: Desk, resource: Resource, submitters: int) -> Measured:
    done = 0

    async def action(client: int, turn: int) -> None:
        nonlocal done
        await made.submit(resource(client, turn))
        done += 1

    used_s = time.process_time()
    per_s = await per_second(action, submitters, _ROUND_S)
    used_s, commits = time.process_time() - used_s, made.commits
    return Measured(per_s, used_s / done, len(commits) / done, tuple(commits[-_MOST_COMMITS:]))
