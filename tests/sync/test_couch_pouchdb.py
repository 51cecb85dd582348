"""A real PouchDB replicates from and to our server."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.sync.couch_lab import MATRIX, Site, couch, operation, operations, reply, serving, until
from tests.sync.couch_pair import stored
from tests.sync.couch_peers import Pouch, installed_packages, pouch

Dialogue = Callable[[Site, Pouch], Awaitable[None]]


@pytest.fixture(scope="module")
def packages(request: pytest.FixtureRequest) -> Path:
    return installed_packages(request.config)


def talk(packages: Path, dialogue: Dialogue) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            site = Site()
            stack.callback(site.close)
            await stack.enter_async_context(serving(site))
            await dialogue(site, await stack.enter_async_context(pouch(packages)))

    asyncio.run(run())


def test_pull_once_and_again(packages: Path) -> None:
    documents = [*operations(25), MATRIX, reply(1), operation(1, "a b/Zürich 猫")]

    async def dialogue(site: Site, peer: Pouch) -> None:
        site.commit(documents)
        all_of_it = {"read": 28, "written": 28, "failed": 0}
        assert await peer.tell("once", direction="pull", url=site.at()) == all_of_it
        assert {doc["_id"]: doc for doc in await peer.tell("docs")} == stored(*documents)
        nothing = {"read": 0, "written": 0, "failed": 0}
        assert await peer.tell("once", direction="pull", url=site.at()) == nothing
        site.commit([operation(26)])
        assert (await peer.tell("once", direction="pull", url=site.at()))["read"] == 1

    talk(packages, dialogue)


def test_pull_what_involves_one_site(packages: Path) -> None:
    async def dialogue(site: Site, peer: Pouch) -> None:
        site.commit([operation(1), operation(1, "elsewhere", sites=("brest",)), MATRIX])
        url = site.at("cheops-for-lyon")
        assert (await peer.tell("once", direction="pull", url=url))["written"] == 2
        assert await peer.ids() == set(stored(operation(1), MATRIX))

    talk(packages, dialogue)


def test_push_once_and_again(packages: Path) -> None:
    documents = [*operations(25), MATRIX]

    async def dialogue(site: Site, peer: Pouch) -> None:
        await peer.tell("write", docs=[couch(one) for one in documents])
        all_of_it = {"read": 26, "written": 26, "failed": 0}
        assert await peer.tell("once", direction="push", url=site.at()) == all_of_it
        assert stored(*site.accepted) == stored(*documents)
        nothing = {"read": 0, "written": 0, "failed": 0}
        assert await peer.tell("once", direction="push", url=site.at()) == nothing
        assert len(site.accepted) == 26

    talk(packages, dialogue)


def test_push_what_is_none_of_ours(packages: Path) -> None:
    """It is refused document by document, and the rest arrives."""

    async def dialogue(site: Site, peer: Pouch) -> None:
        await peer.tell("edit", doc={"_id": "shopping", "milk": 2})
        await peer.tell("write", docs=[couch(one) for one in operations(3)])
        await peer.tell("edit", doc={**couch(operation(2)), "payload": {"line": "changed"}})
        done = await peer.tell("once", direction="push", url=site.at())
        assert done == {"read": 4, "written": 2, "failed": 2}
        assert stored(*site.accepted) == stored(operation(1), operation(3))

    talk(packages, dialogue)


def test_live_in_both_directions(packages: Path) -> None:
    async def dialogue(site: Site, peer: Pouch) -> None:
        site.commit([operation(1)])
        for direction in ("pull", "push"):
            await peer.tell("live", direction=direction, url=site.at())
        await peer.has(1)
        site.commit(operations(3, first=2))
        docs = await peer.has(4)
        assert {doc["_id"] for doc in docs} == set(site.ids)
        await peer.tell("write", docs=[couch(reply(n)) for n in (1, 2)])
        await until(lambda: len(site.accepted) == 2)
        site.commit([MATRIX])
        await peer.has(7)
        await peer.tell("stop")
        assert len(site.accepted) == 2  # what came from here did not come back

    talk(packages, dialogue)


def test_live_goes_on_when_the_server_was_away(packages: Path) -> None:
    async def run() -> None:
        site = Site()
        async with pouch(packages) as peer:
            async with serving(site):
                port = int(site.url.split(":")[2].split("/")[0])
                site.commit(operations(12))
                await peer.tell("live", direction="pull", url=site.at())
                await peer.has(12)
            again = Site(store=site.store)  # the agent starts again, with what it kept
            again.commit(operations(3, first=13))
            async with serving(again, port=port):
                await peer.has(15)
                await peer.tell("stop")
        for one in (site, again):
            one.close()

    asyncio.run(run())


def test_a_reborn_server_is_read_from_the_beginning(packages: Path) -> None:
    """Its feed is another one: places that PouchDB noted of the old one mean nothing there."""

    async def run() -> None:
        old, new = Site(), Site()
        async with pouch(packages) as peer:
            async with serving(old):
                port = int(old.url.split(":")[2].split("/")[0])
                old.commit(operations(12))
                await peer.tell("once", direction="pull", url=old.at())
            new.commit(operations(3, first=21))
            async with serving(new, port=port):
                assert (await peer.tell("once", direction="pull", url=new.at()))["written"] == 3
        for one in (old, new):
            one.close()

    asyncio.run(run())
