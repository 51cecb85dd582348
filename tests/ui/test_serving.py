"""What is served at /ui, and how: by the agent alone, with a strict policy, and no more often than needed."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from cheops.ui.server import files
from tests.agent.rig import Rig
from tests.security.clients import Said, ask, rig_of
from tests.support.command import ROOT
from tests.ui.mesh import Mesh

WEB = ROOT / "src" / "cheops" / "ui" / "web"
SCRIPTS = sorted(WEB.rglob("*.js"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = rig_of(tmp_path_factory.mktemp("serving"), secure=False)
    try:
        found.start()
        yield found
    finally:
        found.close()


def got(rig: Rig, path: str, method: str = "GET", **headers: str) -> Said:
    return ask(rig, method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})


def test_one_page_stands_at_every_address(rig: Rig) -> None:
    page = got(rig, "/ui/")
    assert page.status == 200
    assert got(rig, "/ui/sites?search=x").body == got(rig, "/ui/sites/a%2Fb").body
    assert b"modulepreload" in got(rig, "/ui/no/such/view").body
    assert (got(rig, "/ui").status, got(rig, "/ui").headers["location"]) == (308, "/ui/")
    assert got(rig, "/ui/static/no-such.js").status == 404
    assert got(rig, "/ui/static/../serving.py").status == 404  # no file is looked up
    assert got(rig, "/ui/", "POST").status == 405


def test_the_page_names_the_scripts_that_its_view_needs(rig: Rig) -> None:
    """All of them, or a browser finds out one after the other; and none twice."""
    for path, own in (("", "views/sites.js"), ("resources/x", "lanes/draw.js"), ("new", "actions/dialog.js")):
        named = re.findall(r'modulepreload" href="/ui/static/([^"]+)"', got(rig, f"/ui/{path}").body.decode())
        assert own in named
        assert len(named) == len(set(named))
        imported = {
            str((WEB / name).parent.joinpath(other).resolve().relative_to(WEB))
            for name in named
            for other in re.findall(r'^import .* from "(.*)";$', (WEB / name).read_text(), re.MULTILINE)
        }
        assert imported <= set(named) <= set(files())


def test_the_policy_lets_in_nothing_from_elsewhere(rig: Rig) -> None:
    for path in ("/ui/", "/ui/static/main.js", "/ui/static/none", "/ui"):
        told = got(rig, path).headers
        parts = dict(part.strip().partition(" ")[::2] for part in told["content-security-policy"].split(";"))
        assert parts["default-src"] == "'none'"
        assert parts["script-src"] == parts["style-src"] == parts["connect-src"] == "'self'"
        assert parts["frame-ancestors"] == parts["base-uri"] == "'none'"
        assert (told["x-content-type-options"], told["referrer-policy"]) == ("nosniff", "no-referrer")


def test_what_has_not_changed_is_not_sent_again(rig: Rig) -> None:
    first = got(rig, "/ui/static/main.js", Accept_Encoding="gzip")
    assert first.headers["content-encoding"] == "gzip"
    again = got(rig, "/ui/static/main.js", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert got(rig, "/ui/static/main.js", If_None_Match='"other"').status == 200


def test_a_link_from_elsewhere_leads_to_the_page_and_to_nothing_else(rig: Rig) -> None:
    assert got(rig, "/ui/", Sec_Fetch_Site="cross-site", Cookie="__Host-cheops=over").status == 200
    assert got(rig, "/api/v1/sites", Sec_Fetch_Site="cross-site").status == 403
    # With `security: none` a cookie of another agent on this machine does no harm.
    assert got(rig, "/api/v1/sites", Cookie="__Host-cheops=over").status == 200


def test_what_an_address_holds_does_not_get_out_of_the_page(rig: Rig) -> None:
    asked = "/api/v1/resources/a%2Fb%22/lanes?fresh=0.3"
    assert f'href="{asked}"'.encode() in got(rig, "/ui/resources/a%2Fb%22").body
    for bad in ("x%22%3E%3Cscript%3E", "x'onload='y", "x&quot;><b>", "x/y", "x" * 900):
        body = got(rig, f"/ui/resources/{bad}").body
        assert body.count(b"<script") == 1
        assert b"<b>" not in body
        assert b"'onload" not in body


def test_a_page_announces_just_what_it_asks_for(mesh: Mesh, page: Page) -> None:
    """Otherwise it would be asked twice, which costs more than it saves."""
    mesh.make("announced")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/api/v1")[2]))
    # No timer runs: a view asks once, however long this takes and whatever happens meanwhile.
    page.clock.install(time=0)
    page.clock.pause_at(1)
    for path, waited, question in (
        ("", "tr[data-site]", "/sites"),
        ("resources", "tbody tr", "/resources?limit=50&fresh=0.3"),
        ("resources/announced", ".op", "/resources/announced/lanes?fresh=0.3"),
    ):
        asked.clear()
        page.goto(mesh.page(path))
        expect(page.locator(waited).first).to_be_visible()
        announced = page.locator("link[rel=preload][as=fetch]").evaluate_all("found => found.map(one => one.href)")
        queries = [url.partition("/api/v1")[2] for url in announced]
        assert question in queries
        assert {query: asked.count(query) for query in queries} == dict.fromkeys(queries, 1)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(WEB)))
def test_scripts_are_short_and_make_no_html_of_text(path: object) -> None:
    text = (ROOT / str(path)).read_text()
    assert len(text.splitlines()) <= 250
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)


def test_nothing_names_an_address_elsewhere() -> None:
    for path in WEB.rglob("*.*"):
        found = set(re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]+[^\s\"']*", path.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, path
