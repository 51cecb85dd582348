"""Our replicator between two sites, undisturbed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from cheops.peers.couchdb.client import RemoteError
from cheops.peers.couchdb.database import ServerLimits
from cheops.store.sqlite import SQLiteStore
from tests.sync.couch_faults import answering
from tests.sync.couch_lab import MATRIX, QUICK, Site, operation, operations, reply, serving
from tests.sync.couch_pair import Pair, between, did, notes_of, stored


def test_only_what_involves_a_site_goes_there() -> None:
    async def dialogue(pair: Pair) -> None:
        pair.here.commit([operation(1), operation(1, "elsewhere", sites=("brest",)), MATRIX])
        local = pair.here.databases.named("cheops-for-lyon")
        assert did(await replace(pair.replicator, local=local).push_once()) == {"read": 2, "written": 2}
        assert pair.there.ids == list(stored(operation(1), MATRIX))

    between(dialogue)


def test_a_reborn_source_is_read_from_the_beginning() -> None:
    async def dialogue(pair: Pair) -> None:
        pair.here.commit(operations(9))
        await pair.replicator.push_once()
        reborn = Site()
        reborn.commit(operations(3, first=21))
        again = replace(pair.replicator, local=reborn.database)
        assert did(await again.push_once()) == {"read": 3, "written": 3}
        reborn.close()

    between(dialogue)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    """With stores on disk, of which one is opened again."""

    async def main() -> None:
        here, there = (Site(store=SQLiteStore(tmp_path / name)) for name in ("here", "there"))
        async with serving(there), aiohttp.ClientSession() as session:
            here.commit(operations(9))
            there.commit([reply(n) for n in range(1, 9)])
            replicator = here.replicator(there.at(), session)
            assert did(await replicator.push_once()) == {"read": 9, "written": 9}
            assert did(await replicator.pull_once()) == {"read": 17, "written": 8}
            here.close()
            again = Site(store=SQLiteStore(tmp_path / "here"))
            replicator = again.replicator(there.at(), session, seed=2)
            assert did(await replicator.push_once()) == {"read": 8}  # what was pulled, compared once
            assert did(await replicator.pull_once()) == {}
            assert sorted(again.ids) == sorted(there.ids)
        for site in (again, there):
            site.close()

    asyncio.run(main())


def test_when_the_notes_of_one_end_are_lost_all_is_compared_again_and_nothing_sent() -> None:
    async def dialogue(pair: Pair) -> None:
        pair.here.commit(operations(9))
        await pair.replicator.push_once()
        for site in (pair.here, pair.there):
            notes_of(site).clear()
            assert did(await pair.replicator.push_once()) == {"read": 9}
            assert did(await pair.replicator.push_once()) == {}
        assert len(pair.there.accepted) == 9

    between(dialogue)


def test_a_source_without_bulk_get_is_read_one_by_one() -> None:
    refuse = answering(lambda _method, path: (404, b"{}") if path.endswith("/_bulk_get") else None)

    async def dialogue(pair: Pair) -> None:
        pair.there.commit([*operations(9), operation(1, "a b/Zürich 猫+%")])
        assert did(await pair.replicator.pull_once()) == {"read": 10, "written": 10}
        assert stored(*pair.here.accepted) == stored(*operations(9), operation(1, "a b/Zürich 猫+%"))

    between(dialogue, refuse)


@pytest.mark.parametrize("has_bulk_get", [True, False])
def test_what_is_forgotten_while_it_is_asked_for_is_passed_over(has_bulk_get: bool) -> None:
    pairs: list[Pair] = []

    def forget_then(_method: str, path: str) -> tuple[int, bytes] | None:
        if path.endswith(("/_bulk_get", "/op/counter/paris/3f2a/1")):
            pairs[0].there.forget(operation(2))
        return (405, b"{}") if path.endswith("/_bulk_get") and not has_bulk_get else None

    async def dialogue(pair: Pair) -> None:
        pairs.append(pair)
        pair.there.commit(operations(3))
        assert did(await pair.replicator.pull_once()) == {"read": 3, "written": 2, "gone": 1}

    between(dialogue, answering(forget_then))


def test_what_the_other_refuses_is_reported_and_the_rest_goes() -> None:
    async def dialogue(pair: Pair) -> None:
        pair.there.commit([operation(2, line="another")])
        pair.here.commit(operations(3))
        assert did(await pair.replicator.push_once()) == {"read": 3, "written": 2, "refused": 1}
        assert "this id has another content here" in str(pair.reported[0])
        assert did(await pair.replicator.pull_once()) == {"read": 3, "refused": 1}
        assert "has another content" in str(pair.reported[1])

    between(dialogue)


def test_what_cannot_be_written_for_now_is_not_passed_over() -> None:
    row = b'[{"id": "x", "error": "internal_server_error", "reason": "busy"}]'
    answers = answering(lambda _method, path: (201, row) if path.endswith("/_bulk_docs") else None)

    async def dialogue(pair: Pair) -> None:
        pair.here.commit(operations(3))
        with pytest.raises(RemoteError, match="busy"):
            await pair.replicator.push_once()
        assert notes_of(pair.there) == {}

    between(dialogue, answers)


def test_large_documents_go_in_small_pieces() -> None:
    """The other takes 30,000 bytes at a time, which we learn when it refuses 60,000."""
    documents = [operation(n, line="x" * 12_000) for n in range(1, 8)]
    too_large = operation(8, line="x" * 40_000)

    async def dialogue(pair: Pair) -> None:
        pair.here.commit([*documents, too_large, operation(9)])
        replicator = replace(pair.replicator, settings=replace(QUICK, send_bytes=60_000))
        assert did(await replicator.push_once()) == {"read": 9, "written": 8, "refused": 1}
        assert sorted(pair.there.ids) == sorted(stored(*documents, operation(9)))
        assert "too_large" in str(pair.reported[0])

    between(dialogue, limits=ServerLimits(body_bytes=30_000))


def test_large_documents_are_fetched_in_small_pieces() -> None:
    documents = [operation(n, line="x" * 12_000) for n in range(1, 8)]
    too_large = operation(8, line="x" * 40_000)

    async def dialogue(pair: Pair) -> None:
        pair.there.commit([*documents, too_large, operation(9)])
        replicator = replace(pair.replicator, settings=replace(QUICK, response_bytes=30_000))
        assert did(await replicator.pull_once()) == {"read": 9, "written": 8, "refused": 1}
        assert stored(*pair.here.accepted) == stored(*documents, operation(9))
        assert "more than" in str(pair.reported[0])

    between(dialogue, limits=ServerLimits(page=100))
