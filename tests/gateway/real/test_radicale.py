"""Radicale, a CalDAV server from PyPI, through the gateway: unmodified, with methods that are not REST's own.

Its clients choose the paths of what they create (a PUT creates), list with PROPFIND and REPORT, and guard
their changes with If-Match. Each site has its own password: what came from another site runs with this site's.
"""

import base64
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.gateway.real.sites import EVERYWHERE, SITES, Headers, RealSites, asked, essence, running
from tests.gateway.stage import Answer
from tests.support.command import run_here
from tests.support.ports import free_ports

HOME = "/alice"
XML = {"Content-Type": "application/xml; charset=utf-8"}
ICS = {"Content-Type": "text/calendar; charset=utf-8"}
PROPERTIES = b"""<?xml version="1.0"?><d:propfind xmlns:d="DAV:"><d:prop>
<d:resourcetype/><d:displayname/><d:getetag/><d:getcontenttype/></d:prop></d:propfind>"""
EVENTS = b"""<?xml version="1.0"?><c:calendar-query xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav">
<d:prop><d:getetag/><c:calendar-data/></d:prop><c:filter><c:comp-filter name="VCALENDAR">
<c:comp-filter name="VEVENT"/></c:comp-filter></c:filter></c:calendar-query>"""


def calendar(name: str) -> bytes:
    text = f"""<?xml version="1.0"?><c:mkcalendar xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav">
<d:set><d:prop><d:displayname>{name}</d:displayname></d:prop></d:set></c:mkcalendar>"""
    return text.encode()


def event(uid: str, summary: str) -> bytes:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//example//EN", "BEGIN:VEVENT", f"UID:{uid}"]
    lines += ["DTSTAMP:20260101T000000Z", "DTSTART:20260102T100000Z", "DTEND:20260102T110000Z"]
    lines += [f"SUMMARY:{summary}", "END:VEVENT", "END:VCALENDAR", ""]
    return "\r\n".join(lines).encode()


def card(text: str) -> bytes:
    lines = ["BEGIN:VCARD", "VERSION:3.0", "UID:one", f"FN:{text}", f"N:{text};;;;", "END:VCARD", ""]
    return "\r\n".join(lines).encode()


ADDRESSES = b"""<?xml version="1.0"?><d:mkcol xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:carddav">
<d:set><d:prop><d:resourcetype><d:collection/><c:addressbook/></d:resourcetype></d:prop></d:set></d:mkcol>"""
# Per method: what makes the collection, and what is put into it.
MADE_BY: dict[str, tuple[bytes, str, Callable[[str], bytes]]] = {
    "MKCALENDAR": (calendar("Shared"), "ics", lambda text: event("one", text)),
    "MKCOL": (ADDRESSES, "vcf", card),
}


def login(site: str) -> Headers:
    word = base64.b64encode(f"alice:secret of {site}".encode()).decode()
    return {"Authorization": f"Basic {word}"}


def starting(folder: Path, port: int) -> list[str]:
    site = folder.parent.name if folder.parent.name in SITES else "site1"  # the reference is like site1
    (folder / "users").write_text(f"alice:secret of {site}\n")
    options = [f"--server-hosts=127.0.0.1:{port}", f"--storage-filesystem-folder={folder / 'data'}"]
    options += ["--auth-type=htpasswd", f"--auth-htpasswd-filename={folder / 'users'}", "--auth-delay=0"]
    options += ["--auth-htpasswd-encryption=plain", "--logging-level=warning", "--config="]
    return [sys.executable, "-m", "radicale", *options]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSites]:
    """The service `calendar`, with each site's own credentials; and `shared`, the same instances, to which a
    client's own credentials are handed on."""
    made = RealSites(tmp_path_factory.mktemp("radicale") / "rig", "calendar", starting)
    for site in SITES:
        path = made.rig.folder(site) / "site.yaml"
        (path.parent / "login").write_text(f"Authorization: {login(site)['Authorization']}\n")
        config = yaml.safe_load(path.read_text())
        config["services"]["calendar"] |= {"auth": {"file": "login"}, "forward": "none", "exists": "adopt"}
        (port,) = free_ports(1)
        made.ports[site, "shared", "listen"] = port
        url = config["services"]["calendar"]["url"]
        config["services"]["shared"] = {"url": url, "listen": f"127.0.0.1:{port}"}
        path.write_text(yaml.safe_dump(config))
    with running(made):
        done = [_new_calendar(made, one, "team") for one in (*SITES, None)]
        assert [answer.status for answer in done] == [201] * 4
        yield made


def _new_calendar(sites: RealSites, site: str | None, name: str) -> Answer:
    target, body = f"{HOME}/{name}/", calendar(name)
    if site is None:
        return sites.reference("MKCALENDAR", target, body, login("site1") | XML)
    return sites.direct(site, "MKCALENDAR", target, body, login(site) | XML)


def own(sites: RealSites, site: str, path: str) -> bytes | int:
    """What the site's own instance has there, or the status with which it says that it has not."""
    answer = sites.direct(site, "GET", path, headers=login(site))
    return answer.body if answer.status == 200 else answer.status


def hrefs(answer: Answer) -> list[str]:
    assert answer.status == 207, answer.body
    return sorted(one.text or "" for one in ET.fromstring(answer.body).iter("{DAV:}href"))  # noqa: S314


def summary_of(body: bytes) -> str:
    found = re.search(rb"SUMMARY:(.*?)\r?\n", body)
    assert found, body
    return found[1].decode()


# -- without a scope ---------------------------------------------------------------------------------------

HOST = {"Host": "calendars.example"}
A, B = f"{HOME}/home/a.ics", f"{HOME}/home/b.ics"
CALLS: list[tuple[str, str, bytes | None, Headers]] = [
    ("OPTIONS", "/", None, {}),
    ("PROPFIND", "/", PROPERTIES, XML | {"Depth": "0"}),
    ("MKCALENDAR", f"{HOME}/home/", calendar("Home"), XML),
    ("MKCALENDAR", f"{HOME}/home/", calendar("Home"), XML),
    ("PROPFIND", f"{HOME}/", PROPERTIES, XML | {"Depth": "1"}),
    ("PUT", A, event("a", "first"), ICS),
    ("PUT", A, event("a", "again"), ICS | {"If-None-Match": "*"}),
    ("PUT", A, event("a", "wrong"), ICS | {"If-Match": '"none"'}),
    ("PUT", B, event("b", "second"), ICS),
    ("PUT", f"{HOME}/home/bad.ics", b"no calendar", ICS),
    ("GET", A, None, {}),
    ("HEAD", A, None, {}),
    ("PROPFIND", f"{HOME}/home/", PROPERTIES, XML | {"Depth": "1"}),
    ("REPORT", f"{HOME}/home/", EVENTS, XML | {"Depth": "1"}),
    ("MOVE", B, None, {"Destination": f"{HOME}/home/c.ics"}),
    ("GET", B, None, {}),
    ("DELETE", A, None, {"If-Match": '"none"'}),
    ("DELETE", A, None, {}),
    ("DELETE", A, None, {}),
    ("REPORT", f"{HOME}/home/", EVENTS, XML | {"Depth": "1"}),
    ("GET", f"{HOME}/home/", None, {}),
    ("DELETE", f"{HOME}/home/", None, {}),
]


def test_without_a_scope_clients_see_no_difference(sites: RealSites) -> None:
    for method, target, body, headers in CALLS:
        given = HOST | login("site1") | headers
        direct = sites.reference(method, target, body, given)
        gated = sites.through("site1", method, target, body, given)
        assert essence(gated) == essence(direct), (method, target)


def test_credentials_are_asked_for_as_by_the_service(sites: RealSites) -> None:
    for headers in ({}, login("site2")):
        direct = sites.reference("PROPFIND", f"{HOME}/", PROPERTIES, headers)
        gated = sites.through("site1", "PROPFIND", f"{HOME}/", PROPERTIES, headers)
        assert gated.status == 401
        assert essence(gated) == essence(direct)


# -- sharing -----------------------------------------------------------------------------------------------


def shared(sites: RealSites, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
    """A client at site1, who has an account at site2, works with the calendars there."""
    given = login("site2") | {"Scope": "{shared: site2}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return asked(sites.address("site1", "shared"), method, target, body, given)


def test_a_client_of_site1_works_with_the_calendars_of_site2(sites: RealSites) -> None:
    made = shared(sites, "MKCALENDAR", f"{HOME}/club/", calendar("Club"))
    assert (made.status, made.site) == (201, "site2")
    path = f"{HOME}/club/match.ics"
    put = shared(sites, "PUT", path, event("s", "match"), If_None_Match="*")
    assert put.status == 201, put.body
    assert hrefs(shared(sites, "REPORT", f"{HOME}/club/", EVENTS, Depth="1")) == [path]
    tag = shared(sites, "GET", path).headers["ETag"]
    assert shared(sites, "PUT", path, event("s", "final"), If_Match='"other"').status == 412
    assert shared(sites, "PUT", path, event("s", "final"), If_Match=tag).status in (201, 204)
    assert summary_of(shared(sites, "GET", path).body) == "final"
    assert [own(sites, site, path) for site in ("site1", "site3")] == [404, 404]
    host, port = sites.address("site1", "shared")
    there = f"http://{host}:{port}{HOME}/club/last.ics"  # as clients say it, who know of nothing else
    assert shared(sites, "MOVE", path, Destination=there).status == 201
    assert shared(sites, "DELETE", f"{HOME}/club/").status == 200
    assert own(sites, "site2", path) == 404


def test_credentials_leave_a_site_only_where_the_service_says_so(sites: RealSites) -> None:
    answer = sites.through("site1", "GET", f"{HOME}/team/", headers=login("site2"), scope="site2")
    assert (answer.status, answer.headers["Cheops-Credentials"]) == (401, "dropped")


# -- replication -------------------------------------------------------------------------------------------


def put(sites: RealSites, site: str, path: str, body: bytes, headers: Headers | None = None) -> Answer:
    return sites.through(site, "PUT", path, body, login(site) | ICS | (headers or {}), EVERYWHERE)


def test_an_event_is_replicated_and_known_by_its_path_everywhere(sites: RealSites) -> None:
    path = f"{HOME}/team/meeting.ics"
    made = put(sites, "site1", path, event("m", "planned"))
    assert (made.status, made.headers["Cheops-Replicas"].count("status=OK")) == (201, 3), made.body
    assert [summary_of(own(sites, site, path)) for site in SITES] == ["planned"] * 3  # type: ignore[arg-type]
    for site in SITES:
        read = sites.through(site, "GET", path, headers=login(site))
        assert (read.status, summary_of(read.body), read.site) == (200, "planned", site)

    moved = sites.through("site2", "PUT", path, event("m", "moved"), login("site2") | ICS)  # without a scope
    assert moved.status in (201, 204), moved.body
    assert [summary_of(own(sites, site, path)) for site in SITES] == ["moved"] * 3  # type: ignore[arg-type]

    for site in SITES:
        listed = sites.through(site, "PROPFIND", f"{HOME}/team/", PROPERTIES, login(site) | {"Depth": "1"})
        assert path in hrefs(listed)
        found = sites.through(site, "REPORT", f"{HOME}/team/", EVENTS, login(site) | {"Depth": "1"})
        assert path in hrefs(found)
        assert b"SUMMARY:moved" in found.body

    assert sites.through("site3", "DELETE", path, headers=login("site3")).status in (200, 204)
    assert [own(sites, site, path) for site in SITES] == [404] * 3
    assert [sites.through(site, "GET", path, headers=login(site)).status for site in SITES] == [404] * 3


def test_if_match_guards_a_replicated_event(sites: RealSites) -> None:
    path = f"{HOME}/team/guarded.ics"
    put(sites, "site1", path, event("g", "one"))
    tag = sites.through("site2", "GET", path, headers=login("site2")).headers["ETag"]
    assert put(sites, "site2", path, event("g", "two"), {"If-Match": tag}).status in (201, 204)
    late = put(sites, "site2", path, event("g", "three"), {"If-Match": tag})
    assert late.status == 412, late.body
    assert [summary_of(own(sites, site, path)) for site in SITES] == ["two"] * 3  # type: ignore[arg-type]


def test_asking_for_properties_of_a_replicated_event_changes_nothing(sites: RealSites) -> None:
    """PROPFIND and REPORT only read, so they are answered here and are no operations."""
    path = f"{HOME}/team/read.ics"
    put(sites, "site1", path, event("r", "read"))
    for method, body in (("PROPFIND", PROPERTIES), ("REPORT", EVENTS)):
        read = sites.through("site2", method, path, body, login("site2") | XML | {"Depth": "0"})
        assert hrefs(read) == [path]
        assert "Cheops-Operation" not in read.headers


# -- collections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["MKCALENDAR", "MKCOL"])
def test_a_collection_is_replicated_with_what_is_put_into_it(sites: RealSites, method: str) -> None:
    """A scope says where when it is made. What is made in it is at the same sites, each item by itself."""
    body, suffix, item = MADE_BY[method]
    home, path = f"{HOME}/{method.lower()}/", f"{HOME}/{method.lower()}/one.{suffix}"
    for _ in "12":  # it can be deleted, and made again
        made = sites.through("site2", method, home, body, login("site2") | XML, EVERYWHERE)
        assert (made.status, made.headers["Cheops-Replicas"].count("status=OK")) == (201, 3), made.body
        again = sites.through("site1", method, home, body, login("site1") | XML, EVERYWHERE)
        assert again.status == sites.direct("site1", method, home, body, login("site1") | XML).status
        assert again.status in (405, 409)
        for site, text in (("site1", "cake"), ("site3", "tea"), ("site3", "coffee")):
            put_ = sites.through(site, "PUT", path, item(text), login(site))  # without a scope
            assert put_.headers["Cheops-Replicas"].count("status=OK") == 3, put_.body
        found = [own(sites, site, path) for site in SITES]
        assert all(isinstance(one, bytes) and b"coffee" in one for one in found), found
        for depth, paths in (("0", [home]), ("1", [home, path])):
            headers = login("site3") | XML | {"Depth": depth}
            assert hrefs(sites.through("site3", "PROPFIND", home, PROPERTIES, headers)) == paths
        gone = sites.through("site3", "DELETE", home, headers=login("site3"))
        assert gone.status in (200, 204), gone.body
        for site in SITES:
            assert sites.direct(site, "PROPFIND", home, PROPERTIES, login(site) | XML).status == 404
            assert sites.through(site, "GET", path, headers=login(site)).status == 404


def test_a_calendar_that_a_site_has_already_can_be_adopted(sites: RealSites) -> None:
    assert _new_calendar(sites, "site3", "found").status == 201
    headers = login("site1") | XML
    made = sites.through("site1", "MKCALENDAR", f"{HOME}/found/", calendar("found"), headers, EVERYWHERE)
    assert (made.status, made.headers["Cheops-Replicas"].count("status=OK")) == (201, 3), made.body


def test_what_is_replicated_is_not_moved_nor_copied(sites: RealSites) -> None:
    """Nothing is done by halves: all sites have what they had, under its old name."""
    path, ordinary, free = (f"{HOME}/team/{name}.ics" for name in ("fixed", "ordinary", "free"))
    put(sites, "site1", path, event("f", "fixed"))
    sites.direct("site1", "PUT", ordinary, event("o", "ordinary"), login("site1") | ICS)
    for method, source, destination, scope in (
        ("MOVE", path, free, None),
        ("COPY", path, free, None),
        ("MOVE", ordinary, path, None),  # onto a replicant
        ("MOVE", ordinary, free, EVERYWHERE),
        ("MOVE", f"{HOME}/team/", f"{HOME}/other/", None),  # with all that is in it
    ):
        headers = login("site1") | {"Destination": f"http://calendars.example{destination}", "Overwrite": "T"}
        answer = sites.through("site1", method, source, None, headers, scope)
        assert answer.status == 501, (method, source, answer.body)
        assert f"{method} is not done for what is replicated" in answer.json["detail"]
        assert "PUT it under its new name" in answer.json["detail"]
    assert [summary_of(own(sites, site, path)) for site in SITES] == ["fixed"] * 3  # type: ignore[arg-type]
    assert [own(sites, site, free) for site in SITES] == [404] * 3
    # what is not replicated moves as ever
    host, port = sites.address("site1", "calendar")
    there = {"Destination": f"http://{host}:{port}{free}"}
    assert sites.through("site1", "MOVE", ordinary, None, login("site1") | there).status == 201


def test_a_password_is_good_for_its_own_site_only(sites: RealSites) -> None:
    """The client logs in at site2; site1 and site3 run the same with what their `auth` says."""
    path = f"{HOME}/team/login.ics"
    made = put(sites, "site2", path, event("l", "here"))
    assert made.status == 201, made.body
    refused = sites.through("site2", "PUT", f"{HOME}/team/no.ics", event("n", "no"), login("site1") | ICS, EVERYWHERE)
    assert refused.status == 401
    assert [own(sites, site, f"{HOME}/team/no.ics") for site in SITES] == [404] * 3


def test_an_event_that_differs_at_one_site_is_repaired(sites: RealSites) -> None:
    """Each site writes with its own password. What is not JSON is compared byte by byte."""
    path = f"{HOME}/team/mended.ics"
    assert put(sites, "site1", path, event("mended", "right"), {"Cheops-Wait": "all"}).status == 201
    replicants = json.loads(sites.rig.request("site1", "GET", "/api/v1/replicants"))["replicants"]
    [meta_id] = [one["id"] for one in replicants if one["path"] == path]
    assert sites.direct("site2", "PUT", path, event("mended", "wrong"), ICS | login("site2")).status in (201, 204)
    assert sites.direct("site3", "DELETE", path, None, login("site3")).status == 200
    done = run_here("repair", meta_id, "--from", "site1", "--yes", "--url", sites.rig.url("site2"))
    assert done.code == 0, done
    found = {own(sites, site, path) for site in SITES}
    assert len(found) == 1
    assert summary_of(found.pop()) == "right"  # type: ignore[arg-type]
    assert run_here("wait", meta_id, "--url", sites.rig.url("site3")).code == 0
