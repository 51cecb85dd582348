"""The server end: what comes in, and what it may be."""

import asyncio
import gzip
import hashlib
import json

from cheops.engine.documents import Started
from cheops.peers.couchdb.database import ServerLimits
from cheops.peers.couchdb.requests import GzipReader
from cheops.store.interface import StoreError
from tests.store.plain import to_json
from tests.sync.couch_lab import MATRIX, Json, Site, couch, operation, operations, reply
from tests.sync.couch_talk import Ask, site_with, talk


def test_documents_come_in() -> None:
    site = Site()
    documents = [*operations(3), MATRIX, reply(1)]

    async def dialogue(ask: Ask) -> None:
        body = {"new_edits": False, "docs": [couch(one) for one in documents]}
        assert await ask("POST", "/_bulk_docs", body) == (201, [])
        assert [couch(one) for one in site.accepted] == body["docs"]
        assert await ask("POST", "/_bulk_docs", body) == (201, [])  # what is there is not taken again
        assert len(site.accepted) == 5

    talk(site, dialogue)


def test_documents_that_cannot_be_are_refused_one_by_one() -> None:
    site = site_with(operation(9))
    good = couch(operation(1))
    changed = good | {"payload": {"line": "rm -rf /"}}
    newer = good | {"a_field_to_come": 1}
    started = to_json(Started("counter", 1, None)) | {"_id": "started/counter", "_rev": "1-a"}
    bad: list[tuple[Json, str]] = [
        (changed, "the revision of this content is 1-"),
        (good | {"_rev": "1-abc"}, "the revision of this content is"),
        (good | {"_rev": "2-" + good["_rev"][2:]}, "the revision of this content is"),
        ({name: value for name, value in good.items() if name != "_rev"}, "the revision of this content is"),
        (good | {"_revisions": {"start": 2, "ids": ["b", "a"]}}, "the revision of this content is"),
        (good | {"_id": "op/counter/paris/3f2a/2"}, "its content is that of 'op/counter/paris/3f2a/1'"),
        (good | {"_deleted": True}, "cannot be deleted"),
        (good | {"_attachments": {}}, "no member '_attachments'"),
        ({"_id": "_design/x", "_rev": "1-a", "views": {}}, "not a document"),
        ({"_id": "shopping", "_rev": "1-a", "milk": 2}, "not a document"),
        (good | {"seq": "one"}, "not a document"),
        (good | {"v": 99}, "upgrade"),
        (couch(operation(1, verdict=None)), "not shared"),
        (started, "not shared"),
        ({"milk": 2}, "an object with an '_id'"),
        ({"_id": 7}, "an object with an '_id'"),
        (17, "an object with an '_id'"),
        (couch(operation(9, line="another")), "this id has another content here"),
    ]

    async def dialogue(ask: Ask) -> None:
        assert couch(operation(2))["_id"] != newer["_id"]
        docs = [couch(operation(2)), *(one for one, _ in bad), couch(operation(3))]
        status, rows = await ask("POST", "/_bulk_docs", {"new_edits": False, "docs": docs})
        assert status == 201
        assert {row["error"] for row in rows} == {"forbidden"}
        assert [row["id"] for row in rows[:3]] == [good["_id"]] * 3
        assert len(rows) == len(bad)
        for row, (_, reason) in zip(rows, bad, strict=True):
            assert reason in row["reason"]
        assert [one.seq for one in site.accepted] == [2, 3]  # type: ignore[union-attr]

    talk(site, dialogue)


def test_a_field_of_a_newer_release_does_no_harm() -> None:
    site = Site()
    doc = couch(operation(1)) | {"tomorrow": [1, 2]}
    body = {name: value for name, value in doc.items() if not name.startswith("_")}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    doc["_rev"] = "1-" + hashlib.sha256(text.encode()).hexdigest()[:32]
    doc["_revisions"] = {"start": 1, "ids": [doc["_rev"][2:]]}

    async def dialogue(ask: Ask) -> None:
        for _ in range(2):
            assert await ask("POST", "/_bulk_docs", {"new_edits": False, "docs": [doc]}) == (201, [])
        assert len(site.accepted) == 1

    talk(site, dialogue)


def test_documents_cannot_be_edited() -> None:
    async def dialogue(ask: Ask) -> None:
        doc = couch(operation(1))
        for method, path, body in (
            ("POST", "/_bulk_docs", {"docs": [doc]}),
            ("POST", "/_bulk_docs", {"docs": [doc], "new_edits": True}),
            ("PUT", "/op%2Fx", doc),
            ("DELETE", "/op%2Fx?rev=1-a", None),
        ):
            status, error = await ask(method, path, body)
            assert (status, error["error"]) == (403, "forbidden")
            assert "new_edits=false" in error["reason"]
        bad_ones: list[Json] = [{"new_edits": False}, {"new_edits": False, "docs": {}}, []]
        for bad in bad_ones:
            assert (await ask("POST", "/_bulk_docs", bad))[0] == 400

    talk(Site(), dialogue)


def test_when_the_engine_cannot_take_them_the_sender_tries_again() -> None:
    site = Site()

    async def full(_documents: object) -> None:
        raise StoreError("the disk is full")

    site.databases.accept = full

    async def dialogue(ask: Ask) -> None:
        body = {"new_edits": False, "docs": [couch(operation(1))]}
        status, error = await ask("POST", "/_bulk_docs", body)
        assert (status, error["reason"]) == (503, "the disk is full")

    talk(site, dialogue)


def test_the_notes_of_replicators() -> None:
    site = Site(limits=ServerLimits(notes=2, note_bytes=100))

    async def dialogue(ask: Ask) -> None:
        assert await ask("GET", "/_local/a.b_c") == (404, {"error": "not_found", "reason": "missing"})
        note = {"_id": "_local/a.b_c", "history": [], "last_seq": 5}
        created = {"ok": True, "id": "_local/a.b_c", "rev": "0-1"}
        assert await ask("PUT", "/_local/a.b_c", note) == (201, created)
        assert await ask("GET", "/_local/a.b_c") == (200, note | {"_rev": "0-1"})
        assert (await ask("PUT", "/_local/a.b_c", note | {"_rev": "0-1"}))[1]["rev"] == "0-2"
        assert (await ask("GET", "/../cheops-for-lyon/_local/a.b_c"))[0] == 404
        assert (await ask("PUT", "/_local/x", {"a": "b" * 100}))[0] == 413
        assert (await ask("PUT", f"/_local/{'x' * 600}", {}))[0] == 400
        for name in ("b", "c"):
            await ask("PUT", f"/_local/{name}", {})
        assert [(await ask("GET", f"/_local/{name}"))[0] for name in ("a.b_c", "b", "c")] == [404, 200, 200]

    talk(site, dialogue)


# -- bodies -----------------------------------------------------------------------------------------------------


def test_bodies_may_be_packed() -> None:
    site = Site()
    raw = json.dumps({"new_edits": False, "docs": [couch(one) for one in operations(3)]}).encode()
    packed = {"Content-Encoding": "gzip"}

    async def dialogue(ask: Ask) -> None:
        assert await ask("POST", "/_bulk_docs", data=gzip.compress(raw), headers=packed) == (201, [])
        assert len(site.accepted) == 3
        for bad in (raw, gzip.compress(raw)[:-9], gzip.compress(raw) + b"more", b""):
            assert (await ask("POST", "/_bulk_docs", data=bad, headers=packed))[0] == 400
        status, error = await ask("POST", "/_bulk_docs", data=raw, headers={"Content-Encoding": "br"})
        assert (status, error["error"]) == (415, "bad_content_type")

    talk(site, dialogue)


def test_bodies_have_limits() -> None:
    site = Site(limits=ServerLimits(body_bytes=1_000_000, documents=3))
    bomb = gzip.compress(b" " * 50_000_000)

    async def dialogue(ask: Ask) -> None:
        assert len(bomb) < 1_000_000
        too_large: list[tuple[str, Json]] = [
            ("/_bulk_docs", {"data": b" " * 1_000_001}),
            ("/_bulk_docs", {"data": bomb, "headers": {"Content-Encoding": "gzip"}}),
            ("/_bulk_docs", {"body": {"new_edits": False, "docs": [{}] * 4}}),
            ("/_bulk_get", {"body": {"docs": [{"id": "a"}] * 4}}),
            ("/_revs_diff", {"body": {str(n): [] for n in range(4)}}),
            ("/_changes?filter=_doc_ids", {"body": {"doc_ids": ["a"] * 4}}),
        ]
        for path, options in too_large:
            status, error = await ask("POST", path, **options)
            assert (path, status, error["error"]) == (path, 413, "too_large")
        for bad in (b"", b"{", b"[" * 100_000, b'{"a": "\xff"}', b'{"docs": NaN}'):
            status, error = await ask("POST", "/_bulk_docs", data=bad)
            assert (status, error["error"]) == (400, "bad_request")

    talk(site, dialogue)


def test_a_packed_body_is_never_unpacked_far_beyond_the_limit() -> None:
    bomb = gzip.compress(b" " * 5_000_000)
    unpacking = GzipReader(1_000)
    assert [len(unpacking.feed(part)) for part in (bomb[:2_000], bomb[2_000:])] == [1_001, 0]


def test_large_documents_are_read_a_few_at_a_time() -> None:
    site = Site(limits=ServerLimits(page_bytes=100_000))
    site.commit([operation(n, line="x" * 60_000) for n in range(1, 8)])

    async def run() -> None:
        page = await site.database.page(0, 100)
        assert (len(page.rows), page.reached, page.is_last) == (2, 2, False)

    asyncio.run(run())

    async def dialogue(ask: Ask) -> None:
        assert len((await ask("GET", "/_changes"))[1]["results"]) == 7

    talk(site, dialogue)
