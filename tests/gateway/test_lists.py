"""Reads over several sites (`a % b`): real agents, and services that give lists in every way."""

import http.client
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from cheops.gateway.pages import read, written
from tests.agent.rig import until
from tests.gateway.list_service import (
    Asked,
    Given,
    ListService,
    Respond,
    as_json,
    by_marker,
    by_number,
    problem,
    streamed,
    things,
    whole,
)
from tests.gateway.stage import Answer, Stage, both_planes

plane = both_planes
SITES = ("site1", "site2", "site3")
ALL = "site1 % site2 % site3"
PAGES: dict[str, Any] = {
    "plain": {},
    "markers": {"pages": {"limit": "limit", "marker": "marker", "next": "$.next"}},
    "links": {"pages": {"limit": "limit", "marker": "marker", "next": "$.things_links"}},
    "silent": {"pages": {"limit": "limit", "marker": "marker"}},
    "counted": {"pages": {"limit": "per_page", "page": "page"}},
    "numbers": {"pages": {"limit": "per_page", "page": "page", "next": "Link"}},
    "closed": {"forward": "none", "pages": "none"},
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("lists") / "rig", SITES, tuple(PAGES), plane=plane, by_service=PAGES)
    try:
        stage.rig.start()
        until(lambda: all(is_up(stage, site) for site in SITES))
        yield stage
    finally:
        stage.rig.close()


def is_up(stage: Stage, site: str) -> bool:
    answer = stage.ask(site, scope=" ; ".join(SITES), service="plain", headers={"Cheops-Dry-Run": "1"})
    return answer.status == 200 and all(one["up"] and one["rtt_ms"] is not None for one in answer.json["sites"])


class Services:
    """One instance of a service at each site."""

    def __init__(self, stage: Stage, service: str) -> None:
        self._stage, self.name = stage, service
        self.at = {
            site: ListService(stage.own(site, service), whole(things(site, 2), "things")) for site in stage.sites
        }

    def respond(self, make: Any) -> None:
        for site, service in self.at.items():
            service.respond = make(site)

    def ask(self, target: str = "/things", scope: str = ALL, site: str = "site1", **more: Any) -> Answer:
        return self._stage.ask(site, target, scope, service=self.name, **more)

    def address(self, site: str = "site1") -> tuple[str, int]:
        return self._stage.address(site, self.name)

    def close(self) -> None:
        for service in self.at.values():
            service.close()


def _services(stage: Stage, name: str) -> Iterator[Services]:
    services = Services(stage, name)
    try:
        yield services
    finally:
        services.close()


@pytest.fixture
def plain(three: Stage) -> Iterator[Services]:
    yield from _services(three, "plain")


def ids(answer: Answer) -> list[str]:
    found = answer.json
    return [item["id"] for item in (found if isinstance(found, list) else found["things"])]


def expected(count: int = 2, sites: tuple[str, ...] = SITES) -> list[str]:
    return [item["id"] for site in sites for item in things(site, count)]


# -- one list of all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [ALL, "{plain: site1 % site2 % site3}", "site1 + site2 + site3"])
def test_one_list_of_all(scope: str, plain: Services) -> None:
    for site in SITES:
        answer = plain.ask(scope=scope, site=site)
        assert (answer.status, ids(answer)) == (200, expected())
        assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=200, site3; status=200"
        assert answer.headers["Cheops-Site"] == site
    assert len(plain.at["site1"].asked) == 3


def test_the_order_is_that_of_the_scope(plain: Services) -> None:
    assert ids(plain.ask(scope="site3 % site1")) == expected(sites=("site3", "site1"))


def test_arrays_are_lists(plain: Services) -> None:
    plain.respond(lambda site: whole(things(site, 2) if site != "site2" else []))
    assert ids(plain.ask()) == expected(sites=("site1", "site3"))
    plain.respond(lambda _site: whole([]))
    assert plain.ask().json == []


def test_what_each_service_gets(plain: Services) -> None:
    headers = {"Authorization": "secret", "If-None-Match": '"1"', "Range": "bytes=0-3", "Accept-Encoding": "gzip"}
    plain.ask("/things?name=a%20b", headers={**headers, "Prefer": "wait=5, count=exact", "Cheops-Wait": "all"})
    for site in SITES:
        got = plain.at[site].asked[-1]
        assert got.query == {"name": "a b"}
        assert (got.headers["Authorization"], got.headers["Accept-Encoding"]) == ("secret", "identity")
        assert (got.headers["If-None-Match"], got.headers["Range"], got.headers["Prefer"]) == (
            None,
            None,
            "count=exact",
        )
        assert got.headers["Scope"] == f"{{plain: {site}}}"  # it may call itself: at its own site
        assert not [name for name in got.headers if name.lower().startswith("cheops")]


def test_credentials_that_are_not_forwarded(three: Stage) -> None:
    for services in _services(three, "closed"):
        answer = services.ask(headers={"Authorization": "secret"})
        assert answer.headers["Cheops-Credentials"] == "dropped"
        assert [services.at[site].asked[-1].headers["Authorization"] for site in SITES] == ["secret", None, None]


def test_members_beside_the_list(plain: Services) -> None:
    plain.respond(
        lambda site: (
            lambda _: as_json(
                {"kind": "List", "things": things(site, 1), "total": len(site + site[-1:] * int(site[-1]))}
            )
        )
    )
    found = plain.ask().json
    assert (found["kind"], "total" in found) == ("List", False)
    assert found["cheops_parts"] == {"total": {"site1": 6, "site2": 7, "site3": 8}}


def test_annotated(plain: Services) -> None:
    plain.at["site2"].respond = whole([{"id": "x", "cheops_sites": ["forged"]}, {}, 5], "things")
    answer = plain.ask(headers={"Cheops-Annotate": "site"}, scope="site1 % site2")
    assert answer.json["things"][2:] == [{"id": "x", "cheops_sites": ["site2"]}, {"cheops_sites": ["site2"]}, 5]
    assert {one["cheops_sites"][0] for one in answer.json["things"][:2]} == {"site1"}
    assert plain.ask(headers={"Cheops-Annotate": "all"}).status == 400


def test_equal_items_that_are_not_replicated_stay_apart(plain: Services) -> None:
    plain.respond(lambda _site: whole([{"id": "same"}], "things"))
    assert ids(plain.ask()) == ["same"] * 3


def test_alternatives(plain: Services) -> None:
    plain.at.pop("site2").close()
    answer = plain.ask(scope="site2 % site2 ; site1 % site3")
    assert (ids(answer), answer.headers["Cheops-Fallback"]) == (expected(sites=("site1", "site3")), "site2: 502")
    answer = plain.ask(scope="(site2 % site1) ; site3", headers={"Cheops-Wait": "all"})
    assert (ids(answer), answer.headers["Cheops-Fallback"]) == (expected(sites=("site3",)), "site2%20%25%20site1: 503")
    answer = plain.ask(scope="site2 & site3 % site1")  # one replica is enough
    assert (ids(answer), answer.headers["Cheops-Parts"]) == (
        expected(sites=("site3", "site1")),
        "site3; status=200, site1; status=200",
    )


# -- what is missing ---------------------------------------------------------------------------------------


def test_what_answered_is_given(plain: Services) -> None:
    plain.at.pop("site2").close()
    plain.at["site3"].respond = lambda _: problem(403)
    answer = plain.ask()
    assert (answer.status, ids(answer)) == (200, expected(sites=("site1",)))
    assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=502, site3; status=403"
    answer = plain.ask(headers={"Cheops-Wait": "all"})
    assert (answer.status, answer.headers["Cheops-Effect"]) == (503, "none")
    assert "site2 (502) and site3 (403)" in answer.json["detail"]
    assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=502, site3; status=403"


def test_nobody_answered(plain: Services) -> None:
    plain.respond(lambda _site: lambda _: problem(500))
    assert plain.ask().status == 503
    plain.respond(lambda _site: lambda _: problem(401))
    answer = plain.ask()
    assert (answer.status, answer.json) == (401, {"error": 401})
    assert answer.headers["Cheops-Parts"] == "site1; status=401, site2; status=401, site3; status=401"


def test_a_slow_site_does_not_hold_the_others(plain: Services) -> None:
    def slow(_asked: Asked) -> Given:
        time.sleep(20)
        return as_json({"things": []})

    plain.at["site2"].respond = slow
    answer = plain.ask(headers={"Prefer": "wait=1"})
    assert (ids(answer), answer.headers["Cheops-Parts"]) == (
        expected(sites=("site1", "site3")),
        "site1; status=200, site2; status=504, site3; status=200",
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Given([b'{"things": [1, }'], headers={"Content-Type": "application/json"}), "not JSON"),
        (Given([b'{"things": [{"a": tru}]}'], headers={"Content-Type": "application/json"}), "not JSON"),
        (Given([b'{"things": [1'], headers={"Content-Type": "application/json"}), "cut off"),
        (
            Given([b'["', b"x" * 2_000_000, b'"]'], headers={"Content-Type": "application/json"}),
            "larger than 1,048,576",
        ),
        (Given([b"[1]"], headers={"Content-Type": "application/json"}, length=30, is_cut=True), "broke off"),
        (Given([b"[1]"], headers={"Content-Type": "application/json", "Content-Encoding": "br"}), "compressed"),
        (as_json({"things": [], "items": []}), "two lists"),
        (Given([b" " * 65536] * 100, headers={"Content-Type": "application/json"}), "nothing but blanks"),
        (Given([b"\xef\xbb\xbf[]"], headers={"Content-Type": "application/json"}), "not JSON"),
    ],
)
def test_a_bad_list_of_one_site_is_missing(given: Given, why: str, plain: Services) -> None:
    plain.respond(lambda site: whole(things(site, 2)))
    plain.at["site2"].respond = lambda _: given
    answer = plain.ask()
    assert (answer.status, ids(answer)) == (200, expected(sites=("site1", "site3")))
    assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=502, site3; status=200"
    detail = plain.ask(headers={"Cheops-Wait": "all"}).json["detail"]
    assert why in detail


@pytest.mark.parametrize("how", ["cut", "not JSON", "a large item"])
def test_a_list_that_breaks_off_late_does_not_look_complete(how: str, plain: Services) -> None:
    def pieces() -> Iterator[bytes]:
        yield from itertools.islice(streamed(iter(things("site2", 30_000))), 100)
        yield {"cut": b"", "not JSON": b",[}", "a large item": b',"' + b"x" * 2_000_000 + b'"]'}[how]

    plain.respond(lambda site: whole(things(site, 2)))
    plain.at["site2"].respond = lambda _: Given(
        pieces(), headers={"Content-Type": "application/json"}, is_cut=how == "cut"
    )
    for _ in range(2):
        with pytest.raises((http.client.IncompleteRead, ConnectionError)) as broken:
            plain.ask()
        if isinstance(broken.value, http.client.IncompleteRead):
            with pytest.raises(ValueError, match=r"Expecting|delimiter|Unterminated"):
                json.loads(broken.value.partial)
    assert plain.ask(scope="site1 % site3").status == 200


def test_an_endless_list_ends_with_its_client(plain: Services) -> None:
    plain.at["site2"].respond = lambda _: Given(
        streamed({"id": n, "text": "x" * 500} for n in itertools.count()), headers={"Content-Type": "application/json"}
    )
    plain.at["site1"].respond = whole(things("site1", 1))
    connection = http.client.HTTPConnection(*plain.address(), timeout=30)
    connection.request("GET", "/things", headers={"Scope": "site1 % site2"})
    response = connection.getresponse()
    assert len(response.read(5_000_000)) == 5_000_000
    connection.close()
    assert plain.ask(scope="site1 % site1").status == 200


# -- single items, and what is no list ---------------------------------------------------------------------


def of_items(site: str) -> Respond:
    items = {item["id"]: item for item in things(site, 2)}

    def respond(asked: Asked) -> Given:
        item = items.get(asked.path.rpartition("/")[2])
        return as_json(item, headers={"ETag": '"7"'}) if item else problem(404)

    return respond


def test_an_item_is_found_where_it_is(plain: Services) -> None:
    plain.respond(of_items)
    answer = plain.ask("/things/site3-1")
    assert (answer.status, answer.json["id"], answer.site, answer.headers["ETag"]) == (200, "site3-1", "site3", '"7"')
    assert answer.headers["Cheops-Parts"] == "site1; status=404, site2; status=404, site3; status=200"
    assert plain.ask("/things/site3-1", headers={"Cheops-Wait": "all"}).status == 200  # 404 is an answer
    head = plain.ask("/things/site2-0", method="HEAD")
    assert (head.status, head.site, head.headers["ETag"]) == (200, "site2", '"7"')
    answer = plain.ask("/things/none")
    assert (answer.status, answer.json) == (404, {"error": 404})


def test_never_a_false_404(plain: Services) -> None:
    plain.respond(of_items)
    plain.at.pop("site2").close()
    answer = plain.ask("/things/none")
    assert (answer.status, answer.headers["Cheops-Parts"]) == (
        503,
        "site1; status=404, site2; status=502, site3; status=404",
    )
    assert "site1 and site3 do not have it" in answer.json["detail"]
    assert plain.ask("/things/site3-1").status == 200
    assert plain.ask("/things/site3-1", headers={"Cheops-Wait": "all"}).status == 503


def test_head_of_a_list(plain: Services) -> None:
    answer = plain.ask(method="HEAD")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, b"", "application/json")
    assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=200, site3; status=200"


def test_what_is_no_list(plain: Services) -> None:
    plain.respond(lambda site: lambda _: Given([f"text of {site}".encode()], headers={"Content-Type": "text/plain"}))
    answer = plain.ask()
    assert answer.status == 406
    assert "accept multipart/mixed" in answer.json["detail"]
    answer = plain.ask(headers={"Accept": "multipart/mixed"})
    kind, _, boundary = answer.headers["Content-Type"].partition('; boundary="')
    assert (answer.status, kind) == (200, "multipart/mixed")
    parts = answer.body.split(b"--" + boundary.rstrip('"').encode())
    assert (parts[0], parts[-1]) == (b"", b"--\r\n")
    assert [part.strip().partition(b"\r\n\r\n")[2] for part in parts[1:-1]] == [f"text of {s}".encode() for s in SITES]
    assert b"Cheops-Site: site2" in parts[2]


def test_documents_of_several_sites_are_not_guessed_to_be_one(plain: Services) -> None:
    plain.respond(lambda site: lambda _: as_json({"version": site}))
    answer = plain.ask("/version")
    assert answer.status == 406
    assert "services.plain.pages: {items: $.…}" in answer.json["detail"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_changes_are_refused_as_before(method: str, plain: Services) -> None:
    answer = plain.ask(method=method, body=b"{}")
    assert (answer.status, answer.headers["Cheops-Effect"]) == (501, "none")
    assert answer.json["detail"].startswith("resources that span sites (%) are not implemented; use &")
    assert not plain.at["site1"].asked


def test_what_else_cannot_be_sent_to_several_sites(plain: Services) -> None:
    assert plain.ask(body=b"{}").status == 422
    upgrade = {"Connection": "upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    upgrade["Sec-WebSocket-Version"] = "13"
    assert plain.ask(headers=upgrade).status == 422
    assert plain.ask(headers={"Cheops-Wait": "some"}).status == 400
    assert not plain.at["site1"].asked


# -- dry runs, and what is recorded ------------------------------------------------------------------------


def test_a_dry_run_says_what_is_done(plain: Services) -> None:
    dry = plain.ask(headers={"Cheops-Dry-Run": "1"}).json
    assert (dry["decision"], dry["tried"]) == ("gather", [{"kind": "gather", "sites": list(SITES)}])
    assert (
        dry["effect"]["does"]
        == "asks site1, site2 and site3 at once, and gives one list of all, or the item that one of them has"
    )
    assert not plain.at["site1"].asked
    bad: list[dict[str, Any]] = [{"target": "/things?limit=5"}, {"method": "POST"}, {"headers": {"Cheops-Wait": "x"}}]
    for one in bad:
        tried = plain.ask(**{**one, "headers": {**one.get("headers", {}), "Cheops-Dry-Run": "1"}})
        done = plain.ask(**one)
        assert (tried.status, tried.json["detail"]) == (done.status, done.json["detail"])


def test_requests_are_recorded(three: Stage, plain: Services) -> None:
    plain.at["site2"].respond = lambda _: problem(500)
    plain.ask()
    found = json.loads(three.rig.request("site1", "GET", "/api/v1/requests"))["requests"][0]
    assert (found["route"], found["status"], found["service"]) == ("gather", 200, "plain")
    assert found["parts"] == "site1; status=200, site2; status=500, site3; status=200"
    assert 'route="gather"' in three.rig.request("site1", "GET", "/metrics").decode()


# -- pages -------------------------------------------------------------------------------------------------


def test_pages_that_nothing_explains_are_refused(plain: Services) -> None:
    answer = plain.ask("/things?limit=2")
    assert (answer.status, "services.plain.pages" in answer.json["detail"]) == (422, True)
    plain.respond(lambda site: by_marker(things(site, 5)))
    answer = plain.ask()
    assert (answer.status, "$.next" in answer.json["detail"]) == (501, True)
    plain.respond(lambda site: by_number(things(site, 5)))
    assert "the header Link" in plain.ask().json["detail"]
    plain.respond(lambda _site: lambda _: as_json({"things": [], "metadata": {"continue": "abc"}}))
    assert "$.metadata.continue" in plain.ask().json["detail"]


def pages_of(services: Services, target: str, **more: Any) -> Iterator[Answer]:
    for _ in range(100):
        answer = services.ask(target, **more)
        yield answer
        if answer.status != 200 or not (link := answer.headers["Link"]):
            return
        target = link.partition(">")[0].lstrip("<")
        if "next" in (answer.json if isinstance(answer.json, dict) else {}):
            assert answer.json["next"] == target
    raise AssertionError("the pages never end")


CASES: dict[str, tuple[Callable[[list[Any]], Respond], str]] = {
    "markers": (by_marker, "limit"),
    "links": (lambda items: by_marker(items, links="things_links"), "limit"),
    "silent": (lambda items: by_marker(items, links=""), "limit"),
    "numbers": (by_number, "per_page"),  # a page is not filled up from the next part
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_item_once_and_in_order(name: str, size: int, three: Stage) -> None:
    make, limit = CASES[name]
    items = {site: things(site, count) for site, count in zip(SITES, (5, 0, 7), strict=True)}
    for services in _services(three, name):
        services.respond(lambda site: make(items[site]))
        pages = list(pages_of(services, f"/things?{limit}={size}&x=1"))
        assert [one for page in pages for one in ids(page)] == [one["id"] for site in SITES for one in items[site]]
        sizes = [len(ids(page)) for page in pages]
        assert max(sizes) <= size
        assert name == "numbers" or all(one == size for one in sizes[:-1])
        assert pages[0].headers["Cheops-Parts"] == "site1; status=200, site2; status=200, site3; status=200"
        assert "site1; done" in pages[-1].headers["Cheops-Parts"]
        assert all(asked.query["x"] == "1" for asked in services.at["site1"].asked)


def test_without_a_limit_a_page_is_what_a_site_gives(three: Stage) -> None:
    for services in _services(three, "markers"):
        services.respond(lambda site: by_marker(things(site, 4)))
        pages = list(pages_of(services, "/things"))
        assert [one for page in pages for one in ids(page)] == expected(4)
        assert [len(ids(page)) for page in pages] == [3, 4, 4, 1]
        assert pages[0].json["next"].startswith("/things?marker=cheops1.")


def test_sites_that_give_less_than_they_are_asked_for(three: Stage) -> None:
    """A service that does not say whether there is more is asked until a page is empty."""
    for services in _services(three, "silent"):
        services.respond(lambda site: by_marker(things(site, 12), links=""))  # at most 5 at a time
        for target in ("/things?limit=8", "/things"):
            pages = list(pages_of(services, target))
            assert [one for page in pages for one in ids(page)] == expected(12)
    for services in _services(three, "counted"):
        services.respond(lambda site: by_number(things(site, 5), has_link=False, is_strict=site == "site2"))
        pages = list(pages_of(services, "/things?per_page=3"))
        assert [one for page in pages for one in ids(page)] == expected(5)


def test_replicas_on_several_pages_are_one_item(three: Stage) -> None:
    """The gateways of the sites give meta-ids in place of local ids; here the services do it themselves."""
    shared = [{"id": f"c4e095a1-0000-8000-8000-{number:012}"} for number in range(4)]
    for services in _services(three, "numbers"):
        services.respond(lambda site: by_number([*shared[:3], *things(site, 2), *shared[3:]]))
        pages = list(pages_of(services, "/things?per_page=2"))
        once = [*(one["id"] for one in shared[:3]), "site1-0", "site1-1", shared[3]["id"], *expected(2, SITES[1:])]
        assert [one for page in pages for one in ids(page)] == once
        # A page that is asked for again is the same again, also after later ones.
        target = pages[0].headers["Link"].partition(">")[0].lstrip("<")
        assert [ids(services.ask(target)) for _ in range(2)] == [once[2:4]] * 2
        position = msgspec.structs.replace(read(target.partition("&page=")[2]), seen="forgotten")
        answer = services.ask(f"/things?per_page=2&page={written(position)}")
        assert (answer.status, "begin the list again" in answer.json["detail"]) == (410, True)


def test_pages_of_sites_that_come_and_go(three: Stage) -> None:
    for services in _services(three, "markers"):
        services.respond(lambda site: by_marker(things(site, 4)))
        services.at["site2"].respond = lambda _: problem(503)
        first, second, *_ = pages = list(pages_of(services, "/things?limit=3"))
        assert [one for page in pages for one in ids(page)] == expected(4, ("site1", "site3"))
        assert first.headers["Cheops-Parts"] == "site1; status=200, site2; status=503, site3; status=200"
        assert second.headers["Cheops-Parts"] == "site1; status=200, site2; status=503, site3; status=200"
        # In the middle of a site's part, nothing is left out: the client asks again.
        services.respond(lambda site: by_marker(things(site, 4)))
        target = services.ask("/things?limit=3").json["next"]
        services.at["site1"].respond = lambda _: problem(503)
        broken = services.ask(target)
        assert (broken.status, "Ask for the same page again" in broken.json["detail"]) == (503, True)
        services.respond(lambda site: by_marker(things(site, 4)))
        assert ids(services.ask(target)) == ["site1-3", "site2-0", "site2-1"]
        services.at["site2"].respond = lambda _: problem(503)
        assert services.ask("/things?limit=3", headers={"Cheops-Wait": "all"}).status == 503


def test_a_part_that_is_left_out_hides_nothing(three: Stage) -> None:
    """Its copies were read, and then it turned out to be bad: those of the next part count."""
    shared = [{"id": f"c4e095a1-0000-8000-8000-{number:012}"} for number in range(4)]
    bad = json.dumps([{**one, "text": "x" * 200_000} for one in shared])[:-1].encode() + b",]"
    for services in _services(three, "numbers"):
        services.respond(lambda _site: by_number(shared))
        services.at["site1"].respond = lambda _: Given([bad], headers={"Content-Type": "application/json"})
        answer = services.ask("/things")
        assert (answer.status, ids(answer)) == (200, [one["id"] for one in shared])
        assert answer.headers["Cheops-Parts"].startswith("site1; status=502")


def test_markers_that_are_not_ours(three: Stage) -> None:
    for services in _services(three, "markers"):
        services.respond(lambda site: by_marker(things(site, 4)))
        answer = services.ask("/things?marker=site1-1")
        assert (answer.status, "follow the 'next' link" in answer.json["detail"]) == (400, True)
        assert services.ask("/things?marker=cheops1.AAAA").status == 400
        target = services.ask("/things?limit=3").json["next"]
        answer = services.ask(target, scope="site1 % site2")
        assert (answer.status, "site1 % site2 % site3" in answer.json["detail"]) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        {"things": [{"id": 1}], "next": "/other?marker=1"},
        {"things": [{"id": 1}], "next": 5},
        {"things": [], "next": "?limit=1"},
    ],
)
def test_next_links_that_lead_astray(body: Any, three: Stage) -> None:
    for services in _services(three, "markers"):
        services.respond(lambda site: by_marker(things(site, 2)))
        services.at["site2"].respond = lambda _: as_json(body)
        answer = services.ask("/things?limit=1")
        assert ids(answer) == ["site1-0"]
        last = list(pages_of(services, "/things?limit=1"))[-1]
        assert "site2; status=502" in last.headers["Cheops-Parts"]
