"""The pages: how long until the user sees them, with few resources, with many, and with a long history.

A real browser, on loopback. The time runs from the start of the navigation to the first paint with the expected
element.
"""

import asyncio
import shutil
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import yaml
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from bench.local_site import fill_store, running_site
from bench.measure import human
from bench.report import Section
from bench.sites import SITES, loopback
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig
from tests.ui.conftest import FLAGS

RESOURCES, OPERATIONS = 100_000, 5_000
LONG = "a-long-history"
_ROUNDS = 15
_TIMEOUT_MS = 60_000
_TARGET = "< 500 ms"
_PLAIN = "a text without any script"
_VIEWS = {
    _PLAIN: ("../healthz", "body"),
    "all sites": ("", "tbody tr"),
    f"a page of {RESOURCES:,} resources": ("resources", "tbody tr"),
    f"lanes of {OPERATIONS:,} operations": (f"resources/{LONG}", ".op"),
}
# Resolves with the time of the first paint with an element that matches.
_WATCH = """(wanted) => new Promise((seen) => {
  const look = () => document.querySelector(wanted)
    ? requestAnimationFrame(() => setTimeout(() => seen(performance.now())))
    : requestAnimationFrame(look);
  look();
})"""
_ABOUT = (
    "The pages of an agent (`/ui`) in a real browser, on loopback, from the address to the first paint of "
    'what is waited for. "New" is a browser that has nothing of\nthe pages yet; "again" has their scripts '
    "and asks whether they are still good. The agent has 100,000 resources, one of them with 5,000 "
    "operations at\nthree sites."
)


def run() -> Iterator[Section]:
    with loopback(SITES[:1]) as rig:
        _prepare(rig)
        rig.start()
        with sync_playwright() as playwright:
            path = shutil.which("chromium")
            with playwright.chromium.launch(executable_path=path, args=list(FLAGS)) as browser:
                yield Section(
                    "ui",
                    ("what is seen", "median", "reference in the same run", "ratio", "target"),
                    tuple(_rows(rig, browser)),
                    "Pages",
                    _ABOUT,
                )


def _prepare(rig: Rig) -> None:
    """A store with many resources, one of them with a long history."""
    folder = rig.folder("site1")
    config = yaml.safe_load((folder / "site.yaml").read_text())
    config["peers"] = {}
    (folder / "site.yaml").write_text(yaml.safe_dump(config))
    (folder / "data").mkdir(mode=0o700)
    path = folder / "data" / "store.db"
    asyncio.run(_long_history(path))
    store = SQLiteStore(path, "site1")
    fill_store(store, range(RESOURCES), SITES)
    store.close()


async def _long_history(path: Path) -> None:
    async with running_site(path) as site:
        for _ in range(OPERATIONS):
            await site.submit(LONG, SITES)


def _rows(rig: Rig, browser: Browser) -> Iterator[tuple[str, ...]]:
    first_s = _new(rig, browser, "", "tbody tr")
    yield "all sites, the very first time: the agent loads its API", human(first_s), "", "", ""
    times: dict[str, list[float]] = {what: [] for what in _VIEWS}
    for _ in range(_ROUNDS):  # in turns, so that a busy moment is the same for all
        for what, (path, wanted) in _VIEWS.items():
            times[what].append(_new(rig, browser, path, wanted))
    medians = {what: statistics.median(samples) for what, samples in times.items()}
    plain_s = medians.pop(_PLAIN)
    for what, new_s in medians.items():
        yield f"{what}, new", human(new_s), f"{_PLAIN}, {human(plain_s)}", f"{new_s / plain_s:.1f} x", _TARGET
    with browser.new_context() as context:
        page = _page(context)
        _seen(page, f"{rig.url('site1')}/ui/", "tbody tr")
        again_s = [_seen(page, f"{rig.url('site1')}/ui/", "tbody tr") for _ in range(_ROUNDS)]
        again = statistics.median(again_s)
        yield "all sites, again", human(again), "", f"{again / plain_s:.1f} x", _TARGET
        yield from _searches(rig, page)
        yield from _scrolling(rig, page)


def _searches(rig: Rig, page: Page) -> Iterator[tuple[str, ...]]:
    """From the last letter typed, with the 180 ms in which the page waits for more."""
    for what, text, wanted in (
        ("a search that finds one", f"RESOURCE-{RESOURCES - 1}", f'tr[data-id="resource-{RESOURCES - 1}"]'),
        ("a search that finds many", "99", 'tr[data-id="resource-10099"]'),
        ("a search that finds nothing", "no such thing", ".blank"),
    ):
        times = []
        for _ in range(_ROUNDS):
            page.goto(f"{rig.url('site1')}/ui/resources")
            expect(page.locator("tbody tr")).to_have_count(50)
            times.append(_after(page, wanted, partial(page.get_by_role("searchbox").fill, text)))
        yield f"{what}, among {RESOURCES:,}", human(statistics.median(times)), "", "", _TARGET


def _scrolling(rig: Rig, page: Page) -> Iterator[tuple[str, ...]]:
    page.goto(f"{rig.url('site1')}/ui/resources/{LONG}")
    expect(page.locator(".op").first).to_be_visible()
    times = []
    for round_ in range(_ROUNDS):
        at, wanted = (10**9, '[data-op="site1:1"]') if round_ % 2 == 0 else (0, f'[data-op="site1:{OPERATIONS}"]')
        scroll = f"document.querySelector('.lanes-view').scrollTop = {at}"
        times.append(_after(page, wanted, partial(page.evaluate, scroll)))
    rows = page.locator(".op").count()
    name = f"from one end of {OPERATIONS:,} operations to the other ({rows} rows are in the page)"
    yield name, human(statistics.median(times)), "", "", "< 100 ms"


# -- times -----------------------------------------------------------------------------------------------


def _page(context: BrowserContext) -> Page:
    context.set_default_timeout(_TIMEOUT_MS)
    return context.new_page()


def _new(rig: Rig, browser: Browser, path: str, wanted: str) -> float:
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        return _seen(_page(context), f"{rig.url('site1')}/ui/{path}", wanted)


def _seen(page: Page, url: str, wanted: str) -> float:
    """Seconds from the start of the navigation."""
    page.goto(url, wait_until="commit")
    return float(page.evaluate(_WATCH, wanted)) / 1_000


def _after(page: Page, wanted: str, act: Callable[[], object]) -> float:
    """Seconds from an act within the page."""
    begun_ms = float(page.evaluate("performance.now()"))
    act()
    return (float(page.evaluate(_WATCH, wanted)) - begun_ms) / 1_000
