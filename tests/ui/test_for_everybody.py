"""Contrast, keyboard, themes, small windows."""

from itertools import product

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ui.mesh import Mesh

# Text on what it stands on, in any combination that occurs: 4.5 to 1 (WCAG 2.2, 1.4.3).
TEXT = [
    *product(("text", "muted"), ("bg", "surface", "raised", "sunken", "hover", "selected", "idle-bg")),
    *product(("text",), ("ok-bg", "warn-bg", "bad-bg", "info-bg")),
    *((kind, f"{kind}-bg") for kind in ("ok", "warn", "bad", "info", "idle")),
    *product(("accent", "bad"), ("bg", "surface", "raised")),
    ("accent-text", "accent"),
]
# Borders of inputs, marks, lines and the focus: 3 to 1 (1.4.11).
SIGNS = [
    *product(("line-strong", "focus", "ok", "warn", "bad", "info", "idle"), ("surface", "bg")),
    *((f"track-{n}", "surface") for n in range(1, 7)),
]
COLOURS = """(names) => {
  const probe = document.body.appendChild(document.createElement("i"));
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
  }
  probe.remove();
  return found;
}"""


def luminance(colour: list[float]) -> float:
    parts = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_colours_have_enough_contrast(mesh: Mesh, browser: Browser, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(mesh.page())
    names = sorted({name for pair in (*TEXT, *SIGNS) for name in pair})
    colours = page.evaluate(COLOURS, names)
    page.close()
    weak = [
        f"{one} on {other}: {contrast(colours[one], colours[other]):.2f}"
        for least, pairs in ((4.5, TEXT), (3.0, SIGNS))
        for one, other in pairs
        if contrast(colours[one], colours[other]) < least
    ]
    assert weak == []


def test_the_switch_goes_round_and_is_remembered(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page())
    switch = page.get_by_role("button", name="Theme")
    expect(switch).to_have_text("Theme: Auto")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    switch.click()
    switch.click()
    expect(switch).to_have_text("Theme: Dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    expect(switch).to_have_text("Theme: Dark")


def test_what_can_be_clicked_can_be_reached_by_the_keyboard_and_is_seen_there(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page())
    expect(page.locator("tr[data-site]")).to_have_count(3)
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "[document.activeElement.textContent.trim() || document.activeElement.getAttribute('aria-label'), "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.append(name)
        is_node = page.evaluate("document.activeElement.matches('a.node')")  # shown by its circle
        assert outline != "none" or is_node, name
        if name == "Cut off":
            break
    wanted = {"Skip to the content", "Sites", "Scope", "Theme: Auto", "Ping all", "site1", "Cut off"}
    assert wanted <= {name.removeprefix("Cheops") for name in reached} | set(reached)


def test_the_focus_stays_where_it_is_when_a_view_is_drawn_again(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page())
    for one in (
        page.locator("a.node").nth(1),
        page.locator("tr[data-site=site2] a"),
        page.get_by_role("button", name="Cut site2 off"),
    ):
        one.focus()
        before = one.element_handle()
        page.wait_for_function("one => !one.isConnected", arg=before)
        expect(one).to_be_focused()


def test_a_small_window_is_enough(mesh: Mesh, browser: Browser) -> None:
    id_ = mesh.make("small " + "window" * 30)
    page = browser.new_page(viewport={"width": 360, "height": 640})
    for url, wanted in (
        (mesh.page(), "tr[data-site]"),
        (mesh.page("resources"), "tbody tr"),
        (mesh.resource(id_, "?op=site1:1"), ".panel .reply"),
        (mesh.resource(id_, "?do=send"), "dialog textarea"),
        (mesh.page("new"), "textarea"),
        (mesh.page("scope"), ".tree"),
    ):
        page.goto(url)
        expect(page.locator(wanted).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, url
    page.close()
