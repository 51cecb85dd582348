"""WebDAV with a real server (WsgiDAV) and `rules: webdav`: clients name files and collections."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import APPLICATIONS, MakeSites
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.gateway.stage import Answer
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
PROGRAM = APPLICATIONS / "bin" / "wsgidav"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="needs WsgiDAV: 'make apps' installs it"),
]
_CONFIG = """
server: cheroot
provider_mapping: {{"/": {root}}}
simple_dc: {{user_mapping: {{"*": true}}}}
property_manager: true
lock_storage: true
"""
_SET_COLOUR = '<propertyupdate xmlns="DAV:"><set><prop><colour xmlns="urn:x">{}</colour></prop></set></propertyupdate>'
_SET_TAG = '<propertyupdate xmlns="DAV:"><set><prop><getetag>x</getetag></prop></set></propertyupdate>'
_LOCK = '<lockinfo xmlns="DAV:"><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>'
_FIND_COLOUR = '<propfind xmlns="DAV:"><prop><colour xmlns="urn:x"/></prop></propfind>'


class Servers:
    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites = sites
        self.base = base

    def start(self) -> None:
        self.sites.start(self._argv)
        for site in self.sites.sites:
            until(lambda s=site: self.sites.direct(s, "OPTIONS", "/").status == 200, f"for {site}")  # type: ignore[misc]

    def _argv(self, site: str, port: int) -> list[str]:
        self.root(site).mkdir(exist_ok=True)
        config = self.base / f"{site}.yaml"
        config.write_text(_CONFIG.format(root=self.root(site)))
        return [str(PROGRAM), "--host=127.0.0.1", f"--port={port}", f"--config={config}"]

    def root(self, site: str) -> Path:
        return self.base / f"root-{site}"

    def call(
        self, site: str, method: str, path: str, text: str | None = None, scope: str = "", **headers: str
    ) -> Answer:
        content = None if text is None else text.encode()
        kind = "text/plain" if method == "PUT" else "application/xml"
        return self.sites.call(site, method, path, content, scope, Content_Type=kind, **headers)

    def status(self, *request: Any, **headers: str) -> int:
        return self.call(*request, **headers).status

    def files(self, site: str) -> dict[str, str | None]:
        """What is on the disk of a site: None for a collection."""
        root, found = self.root(site), dict[str, str | None]()
        for folder, folders, names in os.walk(root):
            found |= {f"/{Path(folder, name).relative_to(root)}": None for name in folders}
            found |= {f"/{(path := Path(folder, name)).relative_to(root)}": path.read_text() for name in names}
        return found

    def direct(self, site: str, method: str, path: str, text: str) -> Answer:
        """A request to the server of a site, past its gateway."""
        headers = {"Depth": "0", "Content-Type": "application/xml"}
        address = ("127.0.0.1", self.sites.own(site, self.sites.service))
        return self.sites._asked(site, address, method, path, text.encode(), headers)

    def colour(self, site: str, path: str) -> str:
        """A property that clients set, as the server of a site has it."""
        found = self.direct(site, "PROPFIND", path, _FIND_COLOUR).body.decode()
        return found.partition("colour>")[2].partition("<")[0]

    def said(self, site: str) -> dict[str, str]:
        """What a site says of its replicants, by their paths."""
        found = json.loads(self.sites.rig.request(site, "GET", "/api/v1/replicants"))["replicants"]
        return {one["path"]: one["overall"] for one in found}

    def agree_on(self, wanted: dict[str, str | None]) -> None:
        for site in self.sites.sites:
            until(lambda s=site: self.files(s) == wanted, f"for {wanted} at {site}")  # type: ignore[misc]
        assert self.sites.settled() == {site: {"CONVERGED"} for site in self.sites.sites}
        assert [self.files(site) for site in self.sites.sites] == [wanted] * len(self.sites.sites)


@pytest.fixture
def servers(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> Servers:
    made = Servers(make_sites("files", wan, rules="webdav"), tmp_path)
    made.start()
    return made


def test_files_collections_and_properties_are_the_same_everywhere(servers: Servers, wan: Wan) -> None:
    assert servers.status("site2", "PUT", "/own.txt", "own") == 201  # without a scope as without Cheops
    assert servers.call("site1", "GET", "/own.txt", None, "site2").body == b"own"  # another site's, from here
    assert servers.status("site2", "DELETE", "/own.txt") == 204
    assert servers.status("site1", "MKCOL", "/c", None, EVERYWHERE) == 201
    assert servers.status("site1", "PUT", "/c/a.txt", "one") == 201
    servers.agree_on({"/c": None, "/c/a.txt": "one"})
    assert servers.status("site2", "PROPPATCH", "/c/a.txt", _SET_COLOUR.format("red")) == 207
    assert servers.status("site3", "PROPPATCH", "/c/", _SET_COLOUR.format("blue")) == 207
    for site in SITES:
        until(lambda s=site: servers.colour(s, "/c/a.txt") == "red", f"for red at {site}")  # type: ignore[misc]
        until(lambda s=site: servers.colour(s, "/c/") == "blue", f"for blue at {site}")  # type: ignore[misc]

    wan.partition(["site1"], ["site2", "site3"])
    assert servers.status("site1", "PUT", "/c/a.txt", "first") == 204
    assert servers.status("site2", "PUT", "/c/a.txt", "later") == 204
    assert servers.status("site1", "MKCOL", "/c/d", None, EVERYWHERE) == 201
    assert servers.status("site1", "PUT", "/c/d/b.txt", "two") == 201
    wan.heal()
    servers.agree_on({"/c": None, "/c/a.txt": "later", "/c/d": None, "/c/d/b.txt": "two"})
    assert servers.status("site3", "DELETE", "/c/") == 204
    servers.agree_on({})


def test_a_property_that_is_refused_is_not_replicated(servers: Servers) -> None:
    """WsgiDAV answers 207, and the refusal is in the body."""
    assert servers.status("site1", "PUT", "/a.txt", "one", EVERYWHERE) == 201
    servers.agree_on({"/a.txt": "one"})
    refused = servers.call("site2", "PROPPATCH", "/a.txt", _SET_TAG)
    assert refused.status == 207
    assert b"403 Forbidden" in refused.body
    assert refused.headers["Cheops-Replicas"] == "site2; status=KO"
    servers.agree_on({"/a.txt": "one"})


def test_a_move_or_copy_that_touches_a_replicant_is_refused(servers: Servers) -> None:
    for site in SITES:
        assert servers.status(site, "MKCOL", "/d") == 201
    assert servers.status("site1", "PUT", "/d/a.txt", "one", EVERYWHERE) == 201
    assert servers.status("site1", "PUT", "/own.txt", "own") == 201
    wanted: dict[str, str | None] = {"/d": None, "/d/a.txt": "one"}
    until(lambda: [servers.files(site) for site in SITES[1:]] == [wanted] * 2, "for the file everywhere")
    host, port = servers.sites.address("site1", "files")
    for method, source, destination in (
        ("MOVE", "/own.txt", "/d/a.txt"),  # it would replace it
        ("COPY", "/own.txt", "/d/a.txt"),
        ("MOVE", "/d/a.txt", "/b.txt"),
        ("MOVE", "/d/", "/e/"),  # it contains it
    ):
        there = f"http://{host}:{port}{destination}"
        refused = servers.call("site1", method, source, None, Destination=there, Overwrite="T")
        assert refused.status == 422, (method, source, destination, refused.body)
    assert servers.status("site1", "DELETE", "/d/") == 409
    there = f"http://{host}:{port}/mine.txt"
    assert servers.status("site1", "MOVE", "/own.txt", None, Destination=there) == 201  # nothing of it is replicated
    assert servers.files("site1") == wanted | {"/mine.txt": "own"}
    assert servers.sites.settled() == {site: {"CONVERGED"} for site in SITES}


def test_a_deletion_that_a_service_did_in_part_is_shown(servers: Servers) -> None:
    """A file that is locked at one site stays there, and with it its collection: WsgiDAV answers 207."""
    assert servers.status("site1", "MKCOL", "/c", None, EVERYWHERE) == 201
    for name in ("a.txt", "b.txt"):
        assert servers.status("site1", "PUT", f"/c/{name}", "one") == 201
    servers.agree_on({"/c": None, "/c/a.txt": "one", "/c/b.txt": "one"})
    assert servers.direct("site2", "LOCK", "/c/a.txt", _LOCK).status == 200
    assert servers.status("site1", "DELETE", "/c/") == 204
    until(lambda: servers.files("site3") == {}, "for the deletion at site3")
    assert "/c/a.txt" in servers.files("site2")
    said = {"/c": "DIVERGED", "/c/a.txt": "DIVERGED"}
    for site in SITES:
        until(lambda s=site: said.items() <= servers.said(s).items(), f"for DIVERGED at {site}")  # type: ignore[misc]


@pytest.mark.parametrize("is_made_again", [True, False], ids=["and made again", "and not made again"])
def test_what_a_cut_off_site_changes_in_a_deleted_collection_is_shown(
    servers: Servers, wan: Wan, *, is_made_again: bool
) -> None:
    """Where the change came first, it is deleted with its collection. Elsewhere it finds a new one."""
    assert servers.status("site1", "MKCOL", "/c", None, EVERYWHERE) == 201
    for name in ("a.txt", "z.txt"):
        assert servers.status("site1", "PUT", f"/c/{name}", "one") == 201
    servers.agree_on({"/c": None, "/c/a.txt": "one", "/c/z.txt": "one"})
    wan.partition(["site1"], ["site2", "site3"])
    assert servers.status("site2", "PUT", "/c/a.txt", "two") == 204
    assert servers.status("site2", "PUT", "/c/b.txt", "two") == 201
    assert servers.status("site1", "DELETE", "/c/") == 204
    if is_made_again:
        assert servers.status("site1", "MKCOL", "/c", None, EVERYWHERE) == 201
    wan.heal()
    if not is_made_again:
        until(lambda: servers.files("site3") == {}, "for the deletion at site3")
        assert servers.status("site1", "MKCOL", "/c", None, EVERYWHERE) == 201
    until(lambda: servers.files("site2") == servers.files("site3") == {"/c": None}, "for the new collection")
    until(lambda: "/c/b.txt" in servers.files("site1"), "for the change at site1")
    for site in SITES:
        until(lambda s=site: servers.said(s)["/c/b.txt"] == "DIVERGED", f"for DIVERGED at {site}")  # type: ignore[misc]
    must_be_true(servers.sites.settled(), [servers.files(site) for site in SITES])
    assert servers.said("site2")["/c/z.txt"] == "CONVERGED"  # everybody knew all of it
