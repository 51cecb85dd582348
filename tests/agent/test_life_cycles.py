"""A small run of tests/agent/life_cycles.py: what is deleted leaves nothing behind."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.agent.life_cycles import LifeCycles, MemoryBackend, Sizes, keep_events, running_sites

CYCLES = 60


@pytest.mark.timeout(300)
def test_short_lives_leave_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_sites(tmp_path) as nodes:
            lives = LifeCycles(tmp_path, nodes, workers=6)
            keep_events(nodes, CYCLES)
            await lives.run(CYCLES, None)
            assert lives.done == CYCLES
            await lives.at_rest()
            assert [len(node.pump.site.replicas) for node in nodes] == [0, 0, 0]
            assert lives.sizes().wal == 0  # the stores have emptied their logs
            assert lives.resources() == 0
            assert [node.store.dropped() for node in nodes] == [(), (), ()]

    asyncio.run(scenario())


@pytest.mark.timeout(300)
def test_backends_and_journal_forget_what_the_store_has_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []

    async def note(_: MemoryBackend, resources: Collection[str]) -> None:
        forgotten.extend(resources)

    monkeypatch.setattr(MemoryBackend, "forget", note)

    async def scenario() -> None:
        async with running_sites(tmp_path) as nodes:
            lives, node = LifeCycles(tmp_path, nodes, workers=1), nodes[0]
            node.drifted.add("life-1")
            await lives.run(2, None)
            async with asyncio.timeout(60):
                while "life-1" not in forgotten or node.store.dropped() or "life-1" in node.drifted:
                    await asyncio.sleep(0.1)
            with node.notifier.journal.writing() as db:
                rows = db.execute("SELECT op FROM reported_fates WHERE op LIKE '%life-1%'").fetchall()
            assert rows == []

    asyncio.run(scenario())


def test_growth_is_noticed() -> None:
    before = Sizes(store=100, wal=20, journal=50, replicas=10, memory=1_000)
    assert Sizes(store=150, wal=30, journal=75, replicas=15, memory=1_500).excess(before) == []
    grown = Sizes(store=200, wal=0, journal=80, replicas=10, memory=1_501).excess(before)
    assert [line.split()[0] for line in grown] == ["store", "journal", "memory"]
