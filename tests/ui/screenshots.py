"""`python -m tests.ui.screenshots [FOLDER]`: take screenshots of every view, light and dark, of the demo.

They show real sites: those of `cheops demo`, with a network that is really cut, in a real browser.
"""

import base64
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect, sync_playwright

from cheops.api.endpoints.site import GET_SITE
from cheops.api.models.operations import SubmitRequest, Wait
from cheops.client import Agent
from cheops.demo.cloud import send_request
from cheops.demo.sites import NAMES, Sites
from tests.support.command import ROOT
from tests.ui.conftest import FLAGS

FOLDER = ROOT / "docs" / "pictures" / "ui"
_WIDTH, _LEAST, _MOST = 1200, 420, 800
_QUALITY = 40
_EVERYWHERE = " & ".join(NAMES)
Scheme = Literal["light", "dark"]


@dataclass(frozen=True)
class View:
    """A screenshot: its name, the URL, the selector to wait for, and what to do on the page first."""

    name: str
    path: str
    seen: str
    act: Callable[[Page], None] = lambda _page: None


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with Sites() as sites, sync_playwright() as playwright:
        path = shutil.which("chromium")
        with playwright.chromium.launch(executable_path=path, args=list(FLAGS)) as browser:
            for view in _story(sites):
                for scheme in ("light", "dark"):
                    _take(browser, sites.urls["site1"], view, scheme, folder / f"{view.name}-{scheme}.webp")


def _story(sites: Sites) -> Iterator[View]:
    """What happens at the sites, with a look at it in between."""
    agents = {name: Agent(url) for name, url in sites.urls.items()}
    _together(sites, agents)
    sites.network.cut("site3")
    _wait(lambda: agents["site1"].call(GET_SITE, "site3").state == "down")
    _apart(agents)
    yield View("sites", "", "tr[data-site=site3] [data-state=down]")
    yield View("lanes-cut", "resources/shopping", ".word.missing")
    yield View("state", "resources/shopping?tab=state", "[data-state-of=site3] pre")
    yield View(
        "send",
        "resources/shopping?do=send",
        "[data-dry-run]",
        lambda page: page.get_by_label("Command").fill("note set shopping tea"),
    )
    sites.network.heal()
    _wait(lambda: all(agents["site1"].status(id_).overall == "CONVERGED" for id_ in ("shopping", "counter")))
    yield View("resources", "resources", "tbody tr")
    yield View("lanes", "resources/shopping?op=site1:2", ".panel .reply")
    yield View("replay", "resources/shopping", "output:has-text('event ')", _go_back)
    yield View("failed", "resources/visits", ".word.failed")
    yield View("matrix", "resources/counter?tab=matrix", ".matrix td")
    yield View("why", "resources/shopping?tab=why", ".steps li")
    yield View("new", "new", "[data-dry-run]", _begin)
    yield View("scope", f"scope?text={quote('{image: around(site1, 50ms), compute: site2}')}", ".tree")
    yield View("scope-mistake", f"scope?text={quote('{image: site1 ; sitte2}')}", "mark")
    yield View("replicants", "replicants", "td[data-site=site3] code")
    yield View("requests", "requests", "tbody tr")


def _together(sites: Sites, agents: dict[str, Agent]) -> None:
    _make(agents, "shopping", "note", "note set shopping bread")
    _do(agents, "site2", "shopping", "add", "note add shopping milk", Wait.ALL)
    _do(agents, "site3", "shopping", "add", "note add shopping eggs", Wait.ALL)
    _make(agents, "shoes", "stock", "stock set shoes 100")
    for name in ("notes/release", "notes/on-call", "notes/parking"):
        _make(agents, name, "note", f"note set {name.replace('/', '-')} draft")
    if sites.redis_server:
        _make(agents, "counter", "counter", "redis-cli set counter 0")
        _do(agents, "site2", "counter", "inc", "redis-cli incrby counter 7", Wait.ALL)
        _make(agents, "visits", "counter", "redis-cli set visits 0")
        sites.state("site3", "redis-cli", "set", "visits", "many")  # a change without Cheops
        _do(agents, "site1", "visits", "inc", "redis-cli incrby visits 1", Wait.ALL)
    for name in ("debian", "alpine"):
        _ask(sites, "image", "POST", "/images", f"{{image: {_EVERYWHERE}}}", f'{{"name": "{name}"}}')
    _ask(sites, "image", "GET", "/images", "{image: site2}")
    _ask(sites, "image", "GET", "/images", "{image: site3 ; site1}")
    _ask(sites, "image", "GET", "/images", "{image: around(site1, 50ms)}")


def _apart(agents: dict[str, Agent]) -> None:
    _do(agents, "site1", "shopping", "add", "note add shopping butter")
    _do(agents, "site3", "shopping", "set", "note set shopping pizza")
    _do(agents, "site2", "shopping", "add", "note add shopping salt")
    _do(agents, "site1", "counter", "set", "redis-cli set counter 29")
    _do(agents, "site3", "counter", "inc", "redis-cli incrby counter 13")


def _make(agents: dict[str, Agent], id_: str, rtype: str, command: str) -> None:
    wish = SubmitRequest(type="set", command=command, sites=_EVERYWHERE, resource_type=rtype)
    agents["site1"].submit(id_, wish)


def _do(  # noqa: PLR0913, PLR0917 - where, on what, and what
    agents: dict[str, Agent], site: str, id_: str, type_: str, command: str, wait: Wait = Wait.FIRST
) -> None:
    agents[site].submit(id_, SubmitRequest(type=type_, command=command), wait=wait)


def _ask(  # noqa: PLR0913, PLR0917 - what a request has
    sites: Sites, service: str, method: str, path: str, scope: str, data: str | None = None
) -> None:
    kind = {} if data is None else {"Content-Type": "application/json", "Cheops-Wait": "all"}
    send_request(sites.cloud.url("site1", service), method, path, {"Scope": scope, **kind}, data)


def _wait(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.1)


# -- pages -----------------------------------------------------------------------------------------------


def _go_back(page: Page) -> None:
    """To when the sites were apart."""
    slider = page.get_by_label("Time")
    expect(page.locator(".op").first).to_be_visible()
    slider.fill(str(int(slider.get_attribute("max") or 0) - 5))


def _begin(page: Page) -> None:
    page.get_by_label("Id", exact=True).fill("notes/holidays")
    page.get_by_label("Resource type").select_option("note")
    page.get_by_role("button", name="site2").click()
    page.get_by_role("button", name="set", exact=True).click()
    page.get_by_label("Command").fill("note set holidays closed")


def _take(browser: Browser, url: str, view: View, scheme: Scheme, path: Path) -> None:
    size = {"width": _WIDTH, "height": _MOST}
    with browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce") as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{url}/ui/{view.path}")
        expect(page.locator("h1").first).to_be_visible()
        view.act(page)
        expect(page.locator(view.seen).first).to_be_visible()
        expect(page.locator(".live[data-state=live]")).to_be_visible()
        page.evaluate("document.activeElement?.blur()")
        wanted = int(page.evaluate("document.getElementById('main').getBoundingClientRect().bottom")) + 8
        dialog = int(page.evaluate("document.querySelector('dialog')?.offsetHeight ?? 0")) + 80
        page.set_viewport_size({"width": _WIDTH, "height": max(_LEAST, dialog, min(wanted, _MOST))})
        page.wait_for_timeout(300)  # what is drawn anew for the new size
        session = context.new_cdp_session(page)
        shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
        path.write_bytes(base64.b64decode(shot["data"]))
        if "--png" in sys.argv:  # for those whose viewer knows no WebP
            page.screenshot(path=str(path.with_suffix(".png")))


if __name__ == "__main__":
    main(Path(next((word for word in sys.argv[1:] if not word.startswith("-")), FOLDER)))
