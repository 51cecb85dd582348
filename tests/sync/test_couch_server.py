"""The server end: databases, and documents by their ids, asked for as CouchDB's documentation says."""

import asyncio
import json

import aiohttp
import pytest

from cheops.log.matrix import Entry, Matrix, Result
from cheops.peers.couchdb.database import name_for, site_of
from cheops.store import codec
from tests.sync.couch_lab import MATRIX, Json, Site, couch, operation, operations, serving
from tests.sync.couch_talk import Ask, site_with, talk

# -- the database --------------------------------------------------------------------------------------------


def test_the_server_says_who_it_is() -> None:
    site = Site()

    async def dialogue(ask: Ask) -> None:
        status, welcome = await ask("GET", "/../")
        assert (status, welcome["couchdb"], welcome["uuid"]) == (200, "Welcome", site.databases.positions.uuid)

    talk(site, dialogue)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_database_tells_how_far_it_is(slash: str) -> None:
    async def dialogue(ask: Ask) -> None:
        status, info = await ask("GET", slash)
        assert status == 200
        assert info["db_name"] == "cheops"
        assert info["update_seq"].startswith("2-")
        assert info["instance_start_time"] == "0"
        assert await ask("HEAD", slash) == (200, None)
        status, error = await ask("PUT", slash)
        assert (status, error["error"]) == (412, "file_exists")

    talk(site_with(operation(1), operation(2)), dialogue)


def test_a_database_that_is_not_there() -> None:
    async def dialogue(ask: Ask) -> None:
        for method in ("GET", "PUT"):
            status, error = await ask(method, "")
            assert (status, error["error"]) == (404, "not_found")
        assert "cheops-for-site1" in error["reason"]

    for name in (
        "other",
        "cheops-for-",
        "cheops-for-DC%201",
        "cheops-for-(zz)",
        "cheops-for-(ff)",
        "cheops-for-x",
    ):
        talk(Site(knows_site=lambda site: site != "x"), dialogue, name)


@pytest.mark.parametrize("site", ["site1", "DC 1", "a/b", "Zürich", "x_-y", "(41)", "%", "猫.1"])
def test_every_site_has_a_name_that_couchdb_would_take(site: str) -> None:
    name = name_for(site)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-()")
    assert site_of(name) == site


def test_methods_and_paths_that_replication_does_not_need() -> None:
    async def dialogue(ask: Ask) -> None:
        assert (await ask("POST", "/_local/x", {}))[0] == 405
        assert (await ask("DELETE", ""))[0] == 405
        assert (await ask("GET", "/_bulk_docs"))[0] == 405
        assert (await ask("GET", "/_all_docs"))[0] == 404
        assert (await ask("GET", "/_design/a/_view/b"))[0] == 404
        assert await ask("POST", "/_ensure_full_commit") == (201, {"ok": True, "instance_start_time": "0"})

    talk(Site(), dialogue)


# -- reading documents ----------------------------------------------------------------------------------------


def test_a_document_has_one_revision_made_from_its_content() -> None:
    one = couch(operation(1))
    other = couch(operation(1, line="set 77"))
    assert one["_id"] == other["_id"] == "op/counter/paris/3f2a/1"
    assert one["_rev"].startswith("1-")
    assert one["_rev"] != other["_rev"]
    assert one["_revisions"] == {"start": 1, "ids": [one["_rev"][2:]]}
    assert couch(codec.decode(codec.encode(operation(1)))) == one


def test_the_revision_of_a_document_does_not_change_from_one_release_to_the_next() -> None:
    assert couch(operation(1))["_rev"] == "1-24e86f52473194a188c78086d7ea6120"
    assert couch(MATRIX)["_rev"] == "1-3da6e253b32028248932790e27d83a7c"


def test_a_matrix_written_in_another_order_has_the_same_revision() -> None:
    entries = [Entry("set", "set", Result.TAKE_ONE), Entry("inc", "inc", Result.TAKE_BOTH)]
    one, other = couch(Matrix(entries)), couch(Matrix(entries[::-1]))
    assert one["entries"] != other["entries"]
    assert (one["_id"], one["_rev"]) == (other["_id"], other["_rev"])


def test_documents_by_their_id() -> None:
    doc = couch(operation(1, "a b/c"))
    path = "/op%2Fa%2520b%252Fc%2Fparis%2F3f2a%2F1"
    plain = {name: value for name, value in doc.items() if name != "_revisions"}
    revs = json.dumps([doc["_rev"], "1-abc"])

    async def dialogue(ask: Ask) -> None:
        assert await ask("GET", path) == (200, plain)
        assert await ask("GET", f"{path}?rev={doc['_rev']}&revs=true&attachments=true") == (200, doc)
        assert await ask("GET", f"{path}?open_revs=all&revs=true&latest=true") == (200, [{"ok": doc}])
        assert await ask("GET", path, params={"open_revs": revs}) == (
            200,
            [{"ok": plain}, {"missing": "1-abc"}],
        )
        missing = (404, {"error": "not_found", "reason": "missing"})
        assert await ask("GET", f"{path}?rev=1-abc") == missing
        assert await ask("GET", "/op%2Fx%2Fparis%2F3f2a%2F1") == missing
        assert await ask("GET", "/somebody%27s?open_revs=all") == missing
        assert await ask("GET", "/x", params={"open_revs": '["1-abc"]'}) == (200, [{"missing": "1-abc"}])
        for bad in ("open_revs=1", "open_revs=[[]]", "revs=maybe"):
            assert (await ask("GET", f"{path}?{bad}"))[0] == 400

    talk(site_with(operation(1, "a b/c")), dialogue)


def test_the_revisions_of_a_document_in_parts_as_couchdb_asks_for_them() -> None:
    doc = couch(operation(1))

    async def run() -> None:
        site = site_with(operation(1))
        async with serving(site), aiohttp.ClientSession() as session:
            params = {"open_revs": json.dumps([doc["_rev"], "1-abc"]), "revs": "true"}
            headers = {"Accept": "multipart/mixed"}
            url = f"{site.at()}/op%2Fcounter%2Fparis%2F3f2a%2F1"
            async with session.get(url, params=params, headers=headers) as response:
                reader = aiohttp.MultipartReader.from_response(response)
                parts = []
                while (part := await reader.next()) is not None:
                    assert isinstance(part, aiohttp.BodyPartReader)
                    parts.append((part.headers["Content-Type"], await part.json()))
        site.close()
        assert parts == [
            ("application/json", doc),
            ('application/json; error="true"', {"missing": "1-abc"}),
        ]

    asyncio.run(run())


def test_many_documents_at_once() -> None:
    docs = [couch(one) for one in operations(45)]
    asked = [{"id": doc["_id"], "rev": doc["_rev"]} for doc in docs]

    async def dialogue(ask: Ask) -> None:
        lacking = [{"id": asked[0]["id"], "rev": "1-abc"}, {"id": "_design/x"}]
        status, got = await ask("POST", "/_bulk_get?revs=true&latest=true", {"docs": asked + lacking})
        assert status == 200
        assert [result["docs"] for result in got["results"][:45]] == [[{"ok": doc}] for doc in docs]
        errors = [result["docs"][0]["error"] for result in got["results"][45:]]
        assert errors == [
            {"id": asked[0]["id"], "rev": "1-abc", "error": "not_found", "reason": "missing"},
            {"id": "_design/x", "rev": "undefined", "error": "not_found", "reason": "missing"},
        ]
        assert await ask("POST", "/_bulk_get", {"docs": []}) == (200, {"results": []})
        bad_ones: list[Json] = [{}, {"docs": 1}, {"docs": [1]}, {"docs": [{"rev": "1-a"}]}, [], 1]
        for bad in bad_ones:
            status, error = await ask("POST", "/_bulk_get", bad)
            assert (status, error["error"]) == (400, "bad_request")

    talk(site_with(*operations(45)), dialogue)


def test_what_is_lacking() -> None:
    docs = {couch(one)["_id"]: couch(one)["_rev"] for one in operations(3)}

    async def dialogue(ask: Ask) -> None:
        asked = {id_: [rev] for id_, rev in docs.items()}
        first, second, third = asked
        asked[second].append("2-def")
        asked["_design/x"] = ["1-abc"]
        expected = {
            second: {"missing": ["2-def"]},
            third: {"missing": [docs[third]]},
            "_design/x": {"missing": ["1-abc"]},
        }
        assert await ask("POST", "/_revs_diff", asked) == (200, expected)
        assert await ask("POST", "/_revs_diff", {first: [docs[first]]}) == (200, {})
        bad_ones: list[Json] = [[], {"a": "b"}, {"a": [1]}]
        for bad in bad_ones:
            assert (await ask("POST", "/_revs_diff", bad))[0] == 400

    talk(site_with(*operations(2)), dialogue)


def test_a_draft_is_not_there() -> None:
    draft = operation(1, verdict=None)
    site = site_with(draft)

    async def dialogue(ask: Ask) -> None:
        assert (await ask("GET", "/op%2Fcounter%2Fparis%2F3f2a%2F1"))[0] == 404
        assert (await ask("GET", "/_changes"))[1]["results"] == []

    talk(site, dialogue)
