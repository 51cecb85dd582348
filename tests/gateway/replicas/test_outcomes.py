"""What a service's answers mean: done, failed, to be tried again, or unknown."""

import json

import msgspec
import pytest

from cheops.backends.http.deletions import failed_part
from cheops.backends.http.payload import KeptResponse, result_of
from cheops.backends.http.request import Wait
from cheops.backends.http.sender import ServiceReply
from cheops.backends.http.submission import SubmissionResult, repeated_answer
from cheops.engine.events import Answer, Result, Stage
from cheops.log.operation import OpId, Origin, Status
from tests.agent.rig import until
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.support.command import run_here

PAIR = "site1 & site2"


@pytest.mark.parametrize(
    ("method", "status", "body", "failed"),
    [
        ("DELETE", 207, b"<status>HTTP/1.1 423 Locked</status>", "423"),
        ("DELETE", 207, b"", "nothing"),
        ("PROPPATCH", 207, b"<status>HTTP/1.1 200 OK</status><status>HTTP/1.1 403 Forbidden</status>", "403"),
        ("PROPPATCH", 207, b"<status>HTTP/1.1 200 OK</status>", ""),
        ("PUT", 201, b"HTTP/1.1 404 Not Found", ""),
    ],
)
def test_a_response_with_several_statuses_is_a_success_if_all_are(
    method: str, status: int, body: bytes, failed: str
) -> None:
    said = failed_part(method, ServiceReply(status, (), body, len(body)))
    assert (failed in said) if failed else not said


@pytest.mark.parametrize(
    ("method", "status", "result"),
    [
        *[(method, 200, Result.OK) for method in ("POST", "PUT", "PATCH", "DELETE")],
        ("POST", 201, Result.OK),
        ("POST", 303, Result.OK),
        ("DELETE", 404, Result.OK),
        ("DELETE", 410, Result.OK),
        ("PUT", 404, Result.KO),
        ("PATCH", 404, Result.KO),
        ("POST", 302, Result.KO),
        *[("POST", status, Result.KO) for status in (400, 401, 403, 409, 412, 413, 422, 501, 505)],
        *[("POST", status, Result.RETRY) for status in (408, 425, 429, 503)],
        *[("POST", status, Result.MAYBE) for status in (500, 502, 504, 507)],
        *[("PATCH", status, Result.MAYBE) for status in (500, 502, 504)],
        *[("PUT", status, Result.RETRY) for status in (500, 502, 504)],
        *[("DELETE", status, Result.RETRY) for status in (500, 502, 504)],
    ],
)
def test_what_a_status_means(method: str, status: int, result: Result) -> None:
    of_client = status not in (404, 410)
    assert result_of(method, status, may_repeat=False, of_client=of_client) is result


def test_a_key_makes_a_doubtful_one_repeatable_and_credentials_of_the_site_can_be_replaced() -> None:
    assert result_of("POST", 500, may_repeat=True, of_client=True) is Result.RETRY
    assert result_of("POST", 401, may_repeat=False, of_client=False) is Result.RETRY


@pytest.mark.parametrize("status", [404, 410])
def test_to_a_client_nothing_there_is_a_refusal(status: int) -> None:
    """Services answer so for what a client may not see."""
    assert result_of("DELETE", status, may_repeat=True, of_client=True) is Result.KO


def fault(sites: Sites, site: str, **how: object) -> None:
    sites.direct(site, "PUT", "/_fault", how)


def test_a_repeated_key_gets_the_status_alone_where_there_is_no_copy() -> None:
    op = OpId(Origin("site1", "x"), 1)
    kept = msgspec.json.encode(KeptResponse(status=201, text="secret")).decode()

    def answered(status: Status, output: str, *, has_copy: bool = False) -> tuple[int, str] | None:
        decided = Answer("", Stage.DECIDED, op, "site1", status, "", output)
        found = repeated_answer(SubmissionResult(op, ("site1",), Wait.FIRST, decided=decided), has_copy=has_copy)
        return (found.status, found.note) if found else None

    assert answered(Status.OK, kept, has_copy=True) is None
    assert answered(Status.OK, kept) == (201, "the response is not repeated: this site has no copy")
    assert answered(Status.OK, "") == (200, "the response is not repeated: it is kept at site1 alone")
    assert answered(Status.KO, "") is None


def test_a_busy_service_is_asked_again(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2")
    sites.start()
    fault(sites, "site1", status=503, times=2, method="POST")
    fault(sites, "site2", status=429, times=2, method="POST")
    answer = sites.call("site1", "POST", "/images", {"name": "busy"}, PAIR, Cheops_Wait="all")
    assert answer.status == 201
    assert [len(sites.images(site)) for site in ("site1", "site2")] == [1, 1]


def test_what_the_first_service_refuses_is_pending_nowhere_and_listed_as_void(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2")
    sites.start()
    fault(sites, "site1", status=422, times=1, method="POST")
    answer = sites.call("site1", "POST", "/images", {"name": "refused"}, PAIR, Cheops_Wait="all")
    assert (answer.status, answer.headers["Cheops-Replicas"]) == (422, "site1; status=KO")
    assert [len(sites.images(site)) for site in ("site1", "site2")] == [0, 0]
    url = sites.rig.url("site1")
    for kind in ("resources", "replicants"):
        said = run_here("get", kind, "--url", url)
        (row,) = said.out.splitlines()[1:]
        assert ("void" in row.split(), "CONVERGED" in row) == (True, False), said.out
    (one,) = json.loads(run_here("get", "resources", "--url", url, "-o", "json").out)
    assert "nothing was created: every operation failed" in run_here("status", one["id"], "--url", url).out
    explained = run_here("explain", one["id"], "--url", url).out
    assert "(create), 'POST /images', made at site1" in explained
    assert "has no effect anywhere (rule 1): the service answers 422: " in explained, "not the JSON of the log"
    meta_id = sites.create("site1", PAIR, name="taken")
    rows = {row.split()[0]: row for row in run_here("get", "resources", "--url", url).out.splitlines()[1:]}
    assert "CONVERGED" in rows[meta_id] or "CONVERGING" in rows[meta_id]


def test_a_service_that_is_down_gets_it_when_it_is_back(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2")
    sites.start()
    meta_id = sites.create("site1", PAIR, name="down")
    sites.stop_service("site1")
    answer = sites.call("site1", "PUT", f"/images/{meta_id}", {"name": "later"}, Prefer="wait=1")
    assert answer.status == 202
    assert "cannot be reached" in sites.replicant("site1", meta_id)["waits"]
    # reads go to the other replica meanwhile
    read = sites.call("site1", "GET", f"/images/{meta_id}")
    assert (read.status, read.site, read.json["id"]) == (200, "site2", meta_id)


def test_a_timeout_of_a_create_is_unknown_until_somebody_has_looked(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2", timeout="1s")
    sites.start()
    fault(sites, "site1", hang_s=3, after=True, times=1, method="POST")  # it is done, but nobody hears of it
    answer = sites.call("site1", "POST", "/images", {"name": "doubt"}, PAIR)
    assert answer.status == 504
    assert "may have had an effect at site1, and nobody knows" in answer.json["detail"]
    assert "Cheops-Effect" not in answer.headers  # it does not say that there was none
    assert len([told for told in sites.told("site1") if told["method"] == "POST"]) == 1  # never guessed
    assert sites.told("site2") == []
    # the operator looks, finds it, and says so
    listed = json.loads(sites.rig.request("site1", "GET", "/api/v1/replicants"))["replicants"]
    ((meta_id, overall),) = [(one["id"], one["overall"]) for one in listed]
    assert overall == "DIVERGED"
    told = run_here("status", meta_id, "--url", sites.rig.url("site1"))
    assert told.out.startswith(f"DIVERGED  {meta_id}: it is unknown whether site1:1 ran at site1")
    assert f"how to fix it: cheops resolve {meta_id}" in told.out
    shown = run_here("describe", "replicant", meta_id, "--url", sites.rig.url("site1")).out
    assert f"it is unknown whether site1:1 ran here; see 'cheops resolve {meta_id}'" in " ".join(shown.split())
    assert "UNKNOWN   site1:1 at site1" in run_here("resolve", meta_id, "--url", sites.rig.url("site1")).out
    (own,) = sites.images("site1")
    body = json.dumps({"local_id": str(own["id"]), "is_number": True})
    path = f"/api/v1/replicants/{meta_id}/local-id"
    sites.rig.request("site1", "PUT", path, body, {"Content-Type": "application/json"})
    resolved = json.dumps({"operation": "site1:1", "resolution": "happened"})
    sites.rig.request(
        "site1",
        "POST",
        f"/api/v1/resources/{meta_id}/resolve",
        resolved,
        {"Content-Type": "application/json"},
    )
    until(lambda: len(sites.images("site2")) == 1, "for site2 to have it")
    assert sites.call("site1", "GET", f"/images/{meta_id}").json["name"] == "doubt"
    assert sites.call("site2", "GET", f"/images/{meta_id}").json["name"] == "doubt"
    assert len(sites.images("site1")) == 1


def test_a_put_in_doubt_is_simply_repeated(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2")
    sites.start()
    meta_id = sites.create("site1", PAIR, name="put")
    fault(sites, "site1", status=500, times=2, method="PUT")
    fault(sites, "site2", times=1, method="PUT")  # closes the connection without an answer
    answer = sites.call("site1", "PUT", f"/images/{meta_id}", {"name": "put", "n": 1}, Cheops_Wait="all")
    assert answer.status == 200
    assert [sites.images(site)[0]["n"] for site in ("site1", "site2")] == [1, 1]


def test_a_kill_in_the_middle_of_a_create_is_not_guessed(make_sites: MakeSites) -> None:
    """What the service gave is kept before anybody hears of it; before that nobody knows."""
    sites = make_sites("site1", "site2")
    sites.start()
    fault(sites, "site1", hang_s=2, after=True, times=1, method="POST")
    answer = sites.call("site1", "POST", "/images", {"name": "killed"}, PAIR, Prefer="wait=0")
    assert answer.status == 202
    until(lambda: len(sites.told("site1")) == 1)
    sites.rig.kill("site1")
    sites.rig.start("site1")
    meta_id = answer.json["resource"]
    until(lambda: "it is unknown whether site1:1 ran here" in (sites.replicant("site1", meta_id)["waits"] or ""))
    assert len(sites.told("site1")) == 1
    assert sites.told("site2") == []


def test_a_restart_forgets_no_local_id(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2")
    sites.start()
    meta_id = sites.create("site1", PAIR, name="kept")
    for site in ("site1", "site2"):
        sites.rig.kill(site)
    sites.rig.start()
    until(sites._all_up)
    # nothing is in memory: the list says how it is, and not what nobody has heard yet
    listed = json.loads(sites.rig.request("site1", "GET", "/api/v1/replicants"))["replicants"]
    assert [(one["id"], one["overall"]) for one in listed] == [(meta_id, "CONVERGED")]
    assert sites.call("site2", "GET", f"/images/{meta_id}").json["name"] == "kept"
    assert sites.call("site1", "PATCH", f"/images/{meta_id}", {"size": 1}, Cheops_Wait="all").status == 200
    assert [sites.images(site)[0]["size"] for site in ("site1", "site2")] == [1, 1]


def test_a_failure_at_one_site_shows_and_an_answer_too_large_is_cut(make_sites: MakeSites) -> None:
    sites = make_sites(keep_response="100B")
    sites.start()
    fault(sites, "site3", status=400, times=1, method="POST")
    body = {"name": "x" * 200}
    answer = sites.call("site1", "POST", "/images", body, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201
    assert answer.body == b""
    assert "bytes of the response were not kept" in answer.headers["Cheops-Cut"]
    assert "site3; status=KO" in answer.headers["Cheops-Replicas"]
    meta_id = answer.headers["Location"].rpartition("/")[2]
    assert sites.status("site1", meta_id) == "DIVERGED"
    assert [len(sites.images(site)) for site in SITES] == [1, 1, 0]


def test_what_exists_after_a_create_in_doubt_is_not_overwritten(make_sites: MakeSites) -> None:
    """The response to the first attempt is lost, so it is sent again, and something of that name is there: perhaps of
    the first attempt, perhaps somebody else's."""
    rules = [{"match": "POST /images", "is": "create", "name": "$.name"}]
    sites = make_sites("site1", "site2", timeout="1s", rules=rules)
    sites.start()
    fault(sites, "site1", hang_s=3, after=True, times=1, method="POST")
    answer = sites.call("site1", "POST", "/images", {"name": "doubt"}, PAIR)
    assert answer.status == 504  # unknown, until somebody looks
    assert "may be of an attempt before, whose response was lost" in answer.json["detail"]
    assert "cheops resolve" in answer.json["detail"]
    assert [told["method"] for told in sites.told("site1")] == ["POST", "POST"]
    assert sites.told("site2") == []
