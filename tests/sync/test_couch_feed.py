"""The server end: the feed, asked for as CouchDB's documentation says."""

import asyncio
import json

import aiohttp
import pytest

from cheops.peers.couchdb.database import ServerLimits
from tests.sync.couch_lab import MATRIX, Json, Site, couch, operation, operations, reply, serving, until
from tests.sync.couch_talk import Ask, site_with, talk


def test_the_feed_in_pages() -> None:
    site = site_with(*operations(12), MATRIX, reply(1))

    async def dialogue(ask: Ask) -> None:
        status, everything = await ask("GET", "/_changes?style=all_docs")
        assert status == 200
        rows = everything["results"]
        assert [row["id"] for row in rows] == site.ids
        assert rows[0]["changes"] == [{"rev": couch(operation(1))["_rev"]}]
        assert (everything["last_seq"], everything["pending"]) == (rows[-1]["seq"], 0)
        seen: list[Json] = []
        since, pending = "0", []
        while len(seen) < 14:
            page = (await ask("GET", f"/_changes?limit=6&since={since}&seq_interval=6"))[1]
            seen += page["results"]
            since = page["last_seq"]
            pending.append(page["pending"])
        assert (seen, pending) == (rows, [8, 2, 0])
        # CouchDB's replicator writes the place as JSON, and asks with limit=0 how much is pending.
        for place in ('"' + since + '"', since, "now", "14"):
            assert (await ask("GET", "/_changes", params={"since": place, "limit": "0"}))[1]["results"] == []
        page = (await ask("GET", "/_changes?limit=0"))[1]
        assert (len(page["results"]), page["pending"]) == (1, 13)

    talk(site, dialogue)


def test_the_feed_with_documents_and_for_some_ids_only() -> None:
    doc = couch(operation(9))
    del doc["_revisions"]

    async def dialogue(ask: Ask) -> None:
        ids = {"doc_ids": [doc["_id"], "other"]}
        got = (await ask("POST", "/_changes?filter=_doc_ids&include_docs=true&limit=3", ids))[1]
        assert [row["doc"] for row in got["results"]] == [doc]
        assert got["last_seq"].startswith("12-")
        params = {"filter": "_doc_ids", "doc_ids": json.dumps([doc["_id"]])}
        assert len((await ask("GET", "/_changes", params=params))[1]["results"]) == 1

    talk(site_with(*operations(12)), dialogue)


@pytest.mark.parametrize(
    "bad",
    [
        "feed=eventsource",
        "descending=true",
        "since=abc",
        "since=-1",
        "since=99999999999999999999",
        "limit=x",
        "limit=-1",
        "filter=_selector",
        "filter=_doc_ids",
        "filter=_doc_ids&doc_ids={}",
        "heartbeat=often",
        "timeout=1e3",
        "include_docs=yes",
    ],
)
def test_what_the_feed_does_not_take(bad: str) -> None:
    async def dialogue(ask: Ask) -> None:
        status, error = await ask("GET", f"/_changes?{bad}")
        assert (status, error["error"]) == (400, "bad_request")

    talk(Site(), dialogue)


def test_a_place_of_another_life_means_the_beginning() -> None:
    """The site lost its disk, or was set back to an older copy: nothing may be passed over."""

    async def dialogue(ask: Ask) -> None:
        for since in ("2-000000000000", "7", "2-"):
            assert len((await ask("GET", f"/_changes?since={since}"))[1]["results"]) == 3

    talk(site_with(*operations(3)), dialogue)


def test_what_was_forgotten_is_missing_not_deleted() -> None:
    site = site_with(*operations(4))
    site.forget(operation(2))
    gone = couch(operation(2))

    async def dialogue(ask: Ask) -> None:
        rows = (await ask("GET", "/_changes"))[1]["results"]
        assert [row["id"][-1] for row in rows] == ["1", "3", "4"]
        assert not any("deleted" in row for row in rows)
        diff = (await ask("POST", "/_revs_diff", {gone["_id"]: [gone["_rev"]]}))[1]
        assert diff == {gone["_id"]: {"missing": [gone["_rev"]]}}
        assert (await ask("GET", "/op%2Fcounter%2Fparis%2F3f2a%2F2"))[0] == 404

    talk(site, dialogue)


def test_the_database_of_a_site_has_what_involves_it() -> None:
    elsewhere = operation(1, "elsewhere", sites=("paris", "brest"))
    site = site_with(operation(1), MATRIX, elsewhere)

    async def dialogue(ask: Ask) -> None:
        got = (await ask("GET", "/_changes"))[1]
        assert [row["id"] for row in got["results"]] == [couch(operation(1))["_id"], couch(MATRIX)["_id"]]
        assert (got["last_seq"], got["pending"]) == (site.databases.positions.format(3), 0)

    talk(site, dialogue, "cheops-for-lyon")


def test_who_waits_hears_of_a_commit() -> None:
    site = site_with(*operations(2))

    async def dialogue(ask: Ask) -> None:
        since = (await ask("GET", "/_changes"))[1]["last_seq"]
        waiting = asyncio.create_task(ask("GET", f"/_changes?feed=longpoll&since={since}&heartbeat=20"))
        await until(lambda: site.databases.signal._waiting)
        assert site.databases.long_polls == 1
        site.commit([operation(3)])
        status, got = await waiting
        assert status == 200
        assert [row["id"] for row in got["results"]] == [couch(operation(3))["_id"]]
        # where there is something, nobody waits
        assert len((await ask("GET", "/_changes?feed=longpoll"))[1]["results"]) == 3
        assert site.databases.long_polls == 0

    talk(site, dialogue)


def test_who_waits_for_one_document_is_not_answered_with_another() -> None:
    site = Site()
    wanted = couch(operation(2))["_id"]

    async def dialogue(ask: Ask) -> None:
        path = "/_changes?feed=longpoll&filter=_doc_ids&heartbeat=20"
        waiting = asyncio.create_task(ask("POST", path, {"doc_ids": [wanted]}))
        for n in (1, 2):
            await until(lambda: site.databases.signal._waiting)
            site.commit([operation(n)])
        assert [row["id"] for row in (await waiting)[1]["results"]] == [wanted]

    talk(site, dialogue)


def test_a_wait_ends_when_its_time_is_over_or_the_server_stops() -> None:
    site = site_with(*operations(2))

    async def dialogue(ask: Ask) -> None:
        status, got = await ask("GET", "/_changes?feed=longpoll&since=now&timeout=1")
        assert (status, got["results"]) == (200, [])
        assert got["last_seq"].startswith("2-")
        waits = [
            asyncio.create_task(ask("GET", f"/_changes?feed={feed}&since=now&heartbeat=60000"))
            for feed in ("longpoll", "continuous")
        ]
        await until(lambda: len(site.databases.signal._waiting) == 2)
        site.databases.close()
        long, lines = [got for _, got in await asyncio.gather(*waits)]
        assert (long["results"], long["last_seq"]) == ([], lines["last_seq"])

    talk(site, dialogue)


def test_only_so_many_may_wait() -> None:
    site = Site(limits=ServerLimits(long_polls=1))

    async def dialogue(ask: Ask) -> None:
        waiting = asyncio.create_task(ask("GET", "/_changes?feed=longpoll"))
        await until(lambda: site.databases.long_polls)
        status, error = await ask("GET", "/_changes?feed=continuous")
        assert (status, error["error"]) == (429, "too_many_requests")
        assert (await ask("GET", "/_changes"))[0] == 200
        waiting.cancel()
        await until(lambda: not site.databases.long_polls)  # who leaves makes room

    talk(site, dialogue)


def test_the_feed_line_by_line() -> None:
    site = site_with(*operations(7))

    async def run() -> None:
        async with serving(site), aiohttp.ClientSession() as session:
            url = f"{site.at()}/_changes?feed=continuous&heartbeat=20&limit=9"
            async with session.get(url) as response:
                lines = [json.loads(await response.content.readline()) for _ in range(7)]
                assert await response.content.readline() == b"\n"  # the heart beats
                site.commit([operation(8), operation(9)])
                rest = [line for line in (await response.read()).splitlines() if line]
            lines += [json.loads(line) for line in rest]
            assert [line["id"] for line in lines[:-1]] == site.ids
            assert lines[-1] == {"last_seq": site.databases.positions.format(9), "pending": 0}
            async with session.get(f"{site.at()}/_changes?feed=continuous&since=now&timeout=1") as response:
                assert [json.loads(x) for x in (await response.read()).splitlines() if x] == lines[-1:]
        site.close()

    asyncio.run(run())
