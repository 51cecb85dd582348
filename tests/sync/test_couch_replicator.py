"""Our replicator against our server, against PouchDB's, and against a real CouchDB where there is one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from cheops.peers.couchdb.client import RemoteError
from cheops.peers.couchdb.documents import RefusedError
from cheops.peers.couchdb.replicator import Replicator
from tests.sync.couch_lab import MATRIX, Site, couch, operation, operations, reply, until
from tests.sync.couch_pair import did, notes_of, stored
from tests.sync.couch_peers import KINDS, Foreign, foreign

Kind = Callable[[Callable[[Site, Foreign, Replicator], Awaitable[None]]], None]


@pytest.fixture(params=KINDS)
def with_foreign(request: pytest.FixtureRequest) -> Kind:
    """Runs a dialogue between a site and an empty foreign database, with a replicator between the two."""
    return _runner(request.param, request.config)


@pytest.fixture(params=[kind for kind in KINDS if kind != "ours"])
def with_a_strange_one(request: pytest.FixtureRequest) -> Kind:
    """As `with_foreign`, with a database that takes anything."""
    return _runner(request.param, request.config)


def _runner(kind: str, config: pytest.Config) -> Kind:
    def run(dialogue: Callable[[Site, Foreign, Replicator], Awaitable[None]]) -> None:
        async def main() -> None:
            async with foreign(kind, config) as there:
                site = Site()
                try:
                    await dialogue(site, there, site.replicator(there.url, there.session))
                finally:
                    site.close()

        asyncio.run(main())

    return run


def test_push_once_and_again(with_foreign: Kind) -> None:
    documents = [*operations(25), MATRIX, reply(1), operation(1, "a b/Zürich 猫+%")]

    async def dialogue(site: Site, there: Foreign, replicator: Replicator) -> None:
        site.commit(documents)
        assert did(await replicator.push_once()) == {"read": 28, "written": 28}
        assert await there.docs() == stored(*documents)
        assert did(await replicator.push_once()) == {}  # not even looked at
        site.commit([operation(26)])
        assert did(await replicator.push_once()) == {"read": 1, "written": 1}

    with_foreign(dialogue)


def test_pull_once_and_again(with_foreign: Kind) -> None:
    documents = [*operations(25), MATRIX, reply(1), operation(1, "a b/Zürich 猫+%")]

    async def dialogue(site: Site, there: Foreign, replicator: Replicator) -> None:
        await there.write(*(couch(one) for one in documents))
        assert did(await replicator.pull_once()) == {"read": 28, "written": 28}
        assert stored(*site.accepted) == stored(*documents)
        assert did(await replicator.pull_once()) == {}
        await there.write(couch(operation(26)))
        assert did(await replicator.pull_once()) == {"read": 1, "written": 1}
        assert did(await replicator.push_once()) == {"read": 29}  # all of it is there: nothing is sent

    with_foreign(dialogue)


def test_both_directions_for_ever(with_foreign: Kind) -> None:
    async def dialogue(site: Site, there: Foreign, replicator: Replicator) -> None:
        tasks = [asyncio.create_task(run()) for run in (replicator.push_forever, replicator.pull_forever)]
        site.commit(operations(3))
        await there.has(3)
        await there.write(*(couch(reply(n)) for n in (1, 2)))
        await until(lambda: len(site.accepted) == 2)
        site.commit([MATRIX])
        await there.has(6)
        # Once it is quiet, both directions note at our end how far they are.
        await until(lambda: len([name for name in notes_of(site) if name.startswith("couch/")]) == 2)
        for task in tasks:
            task.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))

    with_foreign(dialogue)


def test_two_sites_meet_in_a_foreign_database(with_foreign: Kind) -> None:
    async def dialogue(site: Site, there: Foreign, replicator: Replicator) -> None:
        other = Site()
        site.commit(operations(9))
        other.commit([reply(n) for n in range(1, 9)])
        beside = other.replicator(there.url, there.session)
        for run in (replicator.push_once, beside.push_once, replicator.pull_once, beside.pull_once):
            await run()
        assert sorted(site.ids) == sorted(other.ids)
        assert len(site.ids) == len(await there.docs()) == 17
        other.close()

    with_foreign(dialogue)


def test_documents_that_are_none_of_ours_are_passed_over(with_a_strange_one: Kind) -> None:
    edited = {**couch(operation(2)), "_rev": "2-b", "payload": {"line": "changed"}}
    edited["_revisions"] = {"start": 2, "ids": ["b", couch(operation(2))["_rev"][2:]]}
    changed = {**couch(operation(3)), "payload": {"line": "changed"}}
    strange = [
        {"_id": "_design/a", "_rev": "1-a", "language": "javascript"},
        {"_id": "shopping", "_rev": "1-a", "milk": 2},
        {"_id": "op/x", "_rev": "1-a"},
        {"_id": "op/counter/paris/3f2a/8", "_rev": "2-b", "_deleted": True},
        edited,
    ]

    async def dialogue(site: Site, there: Foreign, replicator: Replicator) -> None:
        reported: list[Exception] = []
        await there.write(*(couch(one) for one in operations(2)))
        await there.write(*strange, changed, couch(operation(4)))
        replicator = replace(replicator, report=reported.append)
        tally = await replicator.pull_once()
        assert did(tally) == {"read": 8, "written": 2, "foreign": 5, "refused": 1}
        assert stored(*site.accepted) == stored(operation(1), operation(4))
        assert [type(error) for error in reported] == [RefusedError]
        assert "the revision of this content is" in str(reported[0])

    with_a_strange_one(dialogue)


def test_a_database_that_was_made_anew_gets_everything_again(with_a_strange_one: Kind) -> None:
    async def dialogue(site: Site, there: Foreign, replicator: Replicator) -> None:
        site.commit(operations(9))
        await replicator.push_once()
        await there.ask("DELETE", "")
        with pytest.raises(RemoteError, match="404"):
            await replicator.push_once()
        await there.ask("PUT", "")
        assert did(await replicator.push_once()) == {"read": 9, "written": 9}

    with_a_strange_one(dialogue)
