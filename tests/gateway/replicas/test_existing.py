"""A create whose target is there already at a site: abort, adopt or overwrite, by service or by request."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.agent.rig import RefusedByAgentError, until
from tests.gateway.replicas.sites import EVERYWHERE, Sites, running


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Sites that know how to find what exists; what to do is said by each request."""
    made = Sites(tmp_path_factory.mktemp("existing") / "rig", find="/images?name={name}")
    with running(made) as sites:
        yield sites


def named(sites: Sites, site: str, name: str) -> list[dict[str, object]]:
    return [item for item in sites.images(site) if item["name"] == name]


def create(sites: Sites, name: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """The status, the meta-id, and what became of it at each site."""
    body = {"name": name, "size": 1}
    answer = sites.call("site1", "POST", "/images", body, EVERYWHERE, Cheops_Wait="all", **headers)
    words = dict(part.split("; status=") for part in answer.headers["Cheops-Replicas"].split(", "))
    return answer.status, (answer.headers["Location"] or "").rpartition("/")[2], words


def test_abort_leaves_what_is_there_and_says_that_the_sites_differ(finding: Sites) -> None:
    finding.direct("site2", "POST", "/images", {"name": "abort", "size": 7})
    status, meta_id, words = create(finding, "abort")
    assert (status, words) == (201, {"site1": "OK", "site2": "KO", "site3": "OK"})
    assert named(finding, "site2", "abort")[0]["size"] == 7
    assert finding.status("site1", meta_id) == "DIVERGED"


def test_adopt_takes_it_as_it_is(finding: Sites) -> None:
    own = finding.direct("site2", "POST", "/images", {"name": "adopt", "size": 7}).json
    status, meta_id, words = create(finding, "adopt", Cheops_Exists="adopt")
    assert (status, set(words.values())) == (201, {"OK"})
    assert finding.replicant("site2", meta_id)["local_id"] == str(own["id"])
    assert named(finding, "site2", "adopt")[0]["size"] == 7
    finding.call("site3", "PATCH", f"/images/{meta_id}", {"size": 9}, Cheops_Wait="all")
    assert named(finding, "site2", "adopt")[0]["size"] == 9


def test_overwrite_writes_over_it(finding: Sites) -> None:
    own = finding.direct("site3", "POST", "/images", {"name": "over", "size": 7, "more": True}).json
    _, meta_id, words = create(finding, "over", Cheops_Exists="overwrite")
    assert set(words.values()) == {"OK"}
    assert finding.replicant("site3", meta_id)["local_id"] == str(own["id"])
    (item,) = named(finding, "site3", "over")
    assert item == {"name": "over", "size": 1, "id": own["id"], "self": own["self"]}


def test_it_may_exist_at_the_site_that_takes_the_request(finding: Sites) -> None:
    finding.direct("site1", "POST", "/images", {"name": "here", "size": 7})
    assert create(finding, "here")[0] == 409
    status, meta_id, words = create(finding, "here", Cheops_Exists="adopt")
    assert (status, set(words.values())) == (200, {"OK"})
    assert finding.call("site1", "GET", f"/images/{meta_id}").json["size"] == 7


def test_what_another_replicant_has_is_not_adopted(finding: Sites) -> None:
    create(finding, "twice")
    answer = finding.call(
        "site1", "POST", "/images", {"name": "twice"}, EVERYWHERE, Cheops_Wait="all", Cheops_Exists="adopt"
    )
    assert answer.status == 409
    assert "as the copy of c4e095a1" in answer.json["detail"]


def test_a_named_one_is_adopted_or_left_alone(finding: Sites) -> None:
    finding.direct("site2", "PUT", "/notes/a", {"text": "old"})
    made = finding.call(
        "site1", "PUT", "/notes/a", {"text": "new"}, EVERYWHERE, Cheops_Wait="all", Cheops_Exists="adopt"
    )
    assert made.status == 201
    assert finding.direct("site2", "GET", "/notes/a").json["text"] == "old"
    finding.direct("site2", "PUT", "/notes/b", {"text": "old"})
    made = finding.call("site1", "PUT", "/notes/b", {"text": "new"}, EVERYWHERE, Cheops_Wait="all")
    assert finding.direct("site2", "GET", "/notes/b").json["text"] == "new"  # a PUT replaces


def test_a_collection_is_adopted_only_if_it_is_there(finding: Sites) -> None:
    """409 can also mean that something is missing above it."""
    finding.direct("site2", "MKCOL", "/notes/folder")
    made = finding.call("site1", "MKCOL", "/notes/folder", scope=EVERYWHERE, Cheops_Wait="all", Cheops_Exists="adopt")
    assert (made.status, made.headers["Cheops-Replicas"].count("status=OK")) == (201, 3)
    finding.direct("site3", "PUT", "/_fault", {"status": 409, "method": "MKCOL", "times": 1})
    made = finding.call("site1", "MKCOL", "/notes/orphan", scope=EVERYWHERE, Cheops_Wait="all", Cheops_Exists="adopt")
    assert "site3; status=KO" in made.headers["Cheops-Replicas"]


def test_what_is_in_a_collection_waits_for_it(finding: Sites) -> None:
    """At a site that is asked for both at once, the one that comes first may be the one that needs the other."""
    finding.direct("site2", "PUT", "/_fault", {"status": 503, "method": "MKCOL"})
    assert finding.call("site1", "MKCOL", "/notes/slow", scope=EVERYWHERE).status == 201
    inner = finding.call("site1", "PUT", "/notes/slow/one", {"n": 1})  # goes where the collection is
    assert inner.status == 201
    assert inner.headers["Cheops-Replicas"].count("site") == 3
    meta_id = inner.headers["Link"].split("/resources/")[1].split("/")[0]
    until(lambda: "it comes after an operation on" in _waits(finding, "site2", meta_id))
    finding.direct("site2", "PUT", "/_fault", {})
    until(lambda: finding.direct("site2", "GET", "/notes/slow/one").status == 200, "for site2 to have both")
    until(lambda: finding.status("site1", meta_id) == "CONVERGED")


def _waits(sites: Sites, site: str, meta_id: str) -> str:
    """What the change waits for there; nothing while the site has not heard of it."""
    with contextlib.suppress(RefusedByAgentError):
        return str(sites.replicant(site, meta_id)["waits"] or "")
    return ""


def test_without_a_way_to_find_it_that_is_said(three: Sites) -> None:
    three.direct("site1", "POST", "/images", {"name": "lost"})
    answer = three.call("site1", "POST", "/images", {"name": "lost"}, EVERYWHERE, Cheops_Exists="adopt")
    assert answer.status == 409
    assert "'find' of the service would" in answer.json["detail"]


def test_what_nobody_knows_is_refused(three: Sites) -> None:
    answer = three.call("site1", "POST", "/images", {"name": "x"}, EVERYWHERE, Cheops_Exists="adapt")
    assert answer.status == 400
    assert "one of abort, adopt, overwrite, not 'adapt'" in answer.json["detail"]
