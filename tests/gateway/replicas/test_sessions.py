"""Sessions: what several requests make together is replicated when it is complete, as one operation."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.replicas.app_sites import AppSites
from tests.gateway.stage import Answer
from tests.wan import Wan

BOTH = "site1 & site2"
RULES = [
    {"match": "POST /o/{name}?uploads", "opens": "upload", "id": "xml:Id"},
    {"match": "PUT /o/{name}?upload={upload}&part={n}", "uses": "upload"},
    {"match": "POST /o/{name}?upload={upload}", "completes": "upload", "is": "put", "of": "/o/{name}"},
    {"match": "DELETE /o/{name}?upload={upload}", "aborts": "upload"},
    {
        "match": "POST /b",
        "opens": "blob",
        "id": "Location",
        "next": "Location",
        "without": ["mount"],
        "query": ["mount"],
    },
    {"match": "PATCH /b/u/{blob}", "uses": "blob", "next": "Location", "query": ["state"]},
    {"match": "PUT /b/u/{blob}?name={name}", "completes": "blob", "is": "put", "of": "/b/{name}", "query": ["state"]},
    {"match": "DELETE /b/u/{blob}", "aborts": "blob", "query": ["state"]},
]


@pytest.fixture
def sites(wan: Wan, tmp_path: Path) -> Iterator[AppSites]:
    made = AppSites(tmp_path / "rig", "app", wan, rules=RULES, timeout="5s")
    try:
        made.start(lambda _site, port: [sys.executable, "-m", "tests.gateway.replicas.upload_service", str(port)])
        yield made
    finally:
        made.rig.close()


def state(sites: AppSites, site: str) -> dict[str, Any]:
    found: dict[str, Any] = sites.direct(site, "GET", "/_state").json
    return found


def ok(sites: AppSites, site: str, line: str, body: bytes = b"", scope: str = BOTH, **headers: str) -> Answer:
    method, _, target = line.partition(" ")
    answer = sites.call(site, method, target, body, scope, Content_Type="text/plain", **headers)
    assert answer.status in (200, 201, 202, 204), (answer.status, answer.body)
    return answer


def refused(sites: AppSites, site: str, line: str, scope: str = BOTH) -> tuple[int, str]:
    method, _, target = line.partition(" ")
    answer = sites.call(site, method, target, b"x", scope, Content_Type="text/plain")
    return answer.status, answer.json["detail"]


def opened(sites: AppSites, site: str, name: str, scope: str = BOTH, **headers: str) -> str:
    found = re.search(rb"<Id>(.*)</Id>", ok(sites, site, f"POST /o/{name}?uploads", b"", scope, **headers).body)
    assert found
    return found[1].decode()


def fail(sites: AppSites, site: str, method: str, *, after: bool) -> None:
    sites.direct(site, "POST", "/_fail", {"next": method, "after": after})


def equal(sites: AppSites, *names: str, **wanted: str) -> None:
    for site in names or ("site1", "site2"):
        until(lambda s=site: state(sites, s)["o"] == wanted, f"for {wanted} at {site}")  # type: ignore[misc]
    said = sites.settled()
    assert all(said[site] == {"CONVERGED"} for site in names or ("site1", "site2")), said


def test_a_session_is_one_operation_also_across_a_cut(sites: AppSites, wan: Wan) -> None:
    wan.partition(["site1"], ["site2", "site3"])
    upload = opened(sites, "site1", "a", X_Note="note:")
    for part, text in ((2, b"two"), (1, b"wrong"), (1, b"one ")):  # in any order, and a part again
        ok(sites, "site1", f"PUT /o/a?upload={upload}&part={part}", text)
    # Nothing of it is replicated while it is open.
    assert sites.statuses("site1") == {}
    ok(sites, "site1", f"POST /o/a?upload={upload}", b".", scope="")  # it is known, and needs no scope
    assert state(sites, "site1") == {"o": {"a": "note:one two."}, "open": 0}
    # A state that goes with the handle, and leads from one request to the next.
    where = ok(sites, "site1", "POST /b?mount=other").headers["Location"]
    for text in (b"first ", b"second "):
        where = ok(sites, "site1", f"PATCH {where}", text).headers["Location"]
    ok(sites, "site1", f"PUT {where}&name=blob", b"last")
    wan.heal()
    equal(sites, a="note:one two.", blob="first second last")
    assert state(sites, "site2")["open"] == 0
    (one, *_) = sites.statuses("site1")
    assert len(sites.statuses("site1")) == 2, one
    # What is replicated needs no scope: the opening names it.
    upload = opened(sites, "site2", "a", scope="")
    ok(sites, "site2", f"PUT /o/a?upload={upload}&part=1", b"new", scope="")
    ok(sites, "site2", f"POST /o/a?upload={upload}", scope="")
    equal(sites, a="new", blob="first second last")
    assert not list((sites.rig.folder("site1") / "data" / "sessions").glob("*"))


def test_a_session_for_other_sites_goes_to_one_of_them(sites: AppSites) -> None:
    upload = opened(sites, "site3", "a")
    ok(sites, "site3", f"PUT /o/a?upload={upload}&part=1", b"one")
    ok(sites, "site3", f"POST /o/a?upload={upload}", scope="")
    equal(sites, a="one")
    assert state(sites, "site3") == {"o": {}, "open": 0}


def test_a_session_survives_a_restart_of_the_agent(sites: AppSites) -> None:
    upload = opened(sites, "site1", "a")
    ok(sites, "site1", f"PUT /o/a?upload={upload}&part=1", b"one ")
    sites.rig.kill_agent("site1")
    sites.rig.start("site1")
    ok(sites, "site1", f"PUT /o/a?upload={upload}&part=2", b"two", scope="")
    ok(sites, "site1", f"POST /o/a?upload={upload}", scope="")
    equal(sites, a="one two")


def test_handles_that_are_not_known_are_refused(sites: AppSites) -> None:
    upload = opened(sites, "site1", "a")
    for line in (f"PUT /o/a?upload={upload}&part=1", f"POST /o/a?upload={upload}", f"DELETE /o/a?upload={upload}"):
        status, why = refused(sites, "site2", line)
        assert (status, "site2, knows no open session" in why) == (404, True), why
    status, why = refused(sites, "site1", f"PUT /o/a?upload={upload}&part=1", "site1 & site3")
    assert (status, "was opened for site1 and site2" in why) == (409, True), why
    # One that was opened without a scope is the service's own affair, unless it changes a replicant.
    own = opened(sites, "site1", "b", scope="")
    ok(sites, "site1", f"POST /o/b?upload={own}", b"b", scope="")
    own = opened(sites, "site1", "c", scope="")
    ok(sites, "site1", "PUT /o/c", b"c")
    status, why = refused(sites, "site1", f"POST /o/c?upload={own}", "")
    assert (status, "/o/c is replicated" in why) == (409, True), why
    ok(sites, "site1", f"DELETE /o/a?upload={upload}")
    assert refused(sites, "site1", f"PUT /o/a?upload={upload}&part=1")[0] == 404
    assert state(sites, "site1")["o"] == {"b": "b", "c": "c"}
    until(lambda: state(sites, "site2")["o"] == {"c": "c"}, "for c at site2")


def test_what_may_have_been_done_is_not_guessed(sites: AppSites) -> None:
    upload = opened(sites, "site1", "a")
    fail(sites, "site1", "PUT", after=True)
    assert refused(sites, "site1", f"PUT /o/a?upload={upload}&part=1")[0] in (502, 504)
    status, why = refused(sites, "site1", f"POST /o/a?upload={upload}")
    assert (status, "send that request again" in why) == (409, True), why
    ok(sites, "site1", f"PUT /o/a?upload={upload}&part=1", b"one")
    # At another site, all of it is repeated.
    fail(sites, "site2", "PUT", after=True)
    ok(sites, "site1", f"POST /o/a?upload={upload}")
    equal(sites, a="one")
    # The end of a session cannot be repeated at its own site: nobody says CONVERGED before somebody has looked.
    upload = opened(sites, "site1", "b")
    fail(sites, "site1", "POST", after=True)
    assert refused(sites, "site1", f"POST /o/b?upload={upload}")[0] == 504
    assert state(sites, "site1")["o"].keys() == {"a", "b"}
    assert state(sites, "site2")["o"].keys() == {"a"}
    (unknown,) = (one for one, status in sites.statuses("site1").items() if status != "CONVERGED")
    # A restart does not make it known.
    sites.rig.kill_agent("site1")
    sites.rig.start("site1")
    assert sites.statuses("site1")[unknown] != "CONVERGED"
    body = json.dumps({"resolution": "happened"})
    path = f"/api/v1/resources/{unknown}/resolve"
    sites.rig.request("site1", "POST", path, body, {"Content-Type": "application/json"})
    equal(sites, a="one", b="x")


def test_a_client_that_may_not_know_of_a_session_does_not_end_it(sites: AppSites) -> None:
    upload = opened(sites, "site1", "a")
    ok(sites, "site1", f"PUT /o/a?upload={upload}&part=1", b"one")
    sent = (f"DELETE /o/a?upload={upload}", f"PUT /o/a?upload={upload}&part=2", f"POST /o/a?upload={upload}")
    for line in sent:
        method, _, target = line.partition(" ")
        answer = sites.call("site1", method, target, b"stranger", "", Content_Type="text/plain", X_Stranger="1")
        assert answer.status == 404, answer.body
    bodies = [path for path in (sites.rig.folder("site1") / "data" / "sessions").glob("*/*") if path.name != "journal"]
    assert [path.read_bytes() for path in bodies] == [b"one"]  # what the service refused is not kept
    # What no rule explains would be done here, and not be recorded.
    for more in ("part=2&x=1", "part=2&part=3"):
        assert refused(sites, "site1", f"PUT /o/a?upload={upload}&{more}", "")[0] == 422
    ok(sites, "site1", f"POST /o/a?upload={upload}", scope="")
    equal(sites, a="one")
