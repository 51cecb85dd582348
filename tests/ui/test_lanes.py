"""A resource: its lanes while the network is cut and when it is whole again, its slider, and its tabs."""

import json
import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.ui.mesh import Mesh


def states(page: Page, op: str) -> str:
    found = page.locator(f'.op[data-op="{op}"]').get_attribute("data-states")
    assert found is not None
    return found


def test_lanes_show_what_is_missing_in_a_cut_and_the_merge_after_it_without_a_reload(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("cut")
    mesh.do("site2", id_, "add", "echo two >> __ID__")
    mesh.becomes(id_, "CONVERGED")
    page.goto(mesh.resource(id_))
    page.evaluate("window.stayed = true")
    expect(page.locator('.op[data-op="site2:1"]')).to_have_attribute("data-states", "ok ok ok")
    with mesh.cut():
        mesh.do("site1", id_, "add", "echo here >> __ID__")
        mesh.do("site2", id_, "set", "echo there > __ID__")
        expect(page.locator('.op[data-op="site1:2"]')).to_have_attribute("data-states", "ok missing missing")
        expect(page.locator("svg .word.missing")).to_have_count(2)
        expect(page.locator('[data-lane="site2"]')).to_contain_text("unreachable")
        expect(page.locator('[data-sync="UNREACHABLE"]')).to_be_visible()
        expect(page.locator('.op[data-op="site2:2"]')).to_have_count(0)
    expect(page.locator('.op[data-op="site2:2"]')).to_have_attribute("data-states", "ok ok ok")
    merged = page.locator('.op[data-op="site1:2"]')
    # site3 may have heard of it before it heard of what beats it.
    expect(merged).to_have_attribute("data-states", re.compile("superseded skipped (skipped|superseded)"))
    expect(merged).to_contain_text("by site2:2, rule 4")
    expect(page.locator('[data-sync="CONVERGED"]')).to_be_visible()
    assert page.evaluate("window.stayed")

    merged.click()
    panel = page.get_by_role("complementary")
    expect(panel).to_contain_text("echo here >> __ID__")
    expect(panel).to_contain_text("Rule 4: a concurrent operation replaces it")
    expect(panel.locator('[data-reply="site1"]')).to_contain_text("took")
    panel.get_by_role("button", name="by site2:2").click()
    expect(panel).to_contain_text("echo there > __ID__")
    expect(page).to_have_url(mesh.resource(id_, "?op=site2%3A2"))
    watch_again(page)


def watch_again(page: Page) -> None:
    """The slider tells the same story: apart first, then merged."""
    slider = page.get_by_label("Time")
    seen = []
    for n in range(int(slider.get_attribute("max") or 0)):
        slider.fill(str(n))
        if page.locator('.op[data-op="site1:2"]').count():
            seen.append(states(page, "site1:2"))
    assert seen[0] == "ok missing missing"
    assert seen[-1] in ("superseded skipped skipped", "superseded skipped superseded")
    expect(page).to_have_url(re.compile(r"[?&]t=\d+"))
    page.reload()  # the moment is part of the address
    expect(page.locator("output")).to_contain_text("event")
    page.get_by_role("button", name="Now").click()
    expect(page.locator("output")).to_contain_text("Now")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Pause").click()


def test_the_real_state_is_compared_and_its_differences_are_shown(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("compared", "printf 'same\\nold\\n' > __ID__")
    page.goto(mesh.resource(id_, "?tab=state"))
    expect(page.get_by_text("Equal everywhere")).to_be_visible()
    (mesh.rig.folder("site3") / id_).write_text("same\nnew\n")  # somebody past Cheops
    page.get_by_role("button", name="Read again").click()
    expect(page.get_by_text("The sites differ")).to_be_visible()
    expect(page.locator(".diff .del")).to_have_text("-old")
    expect(page.locator(".diff .add")).to_have_text("+new")
    expect(page.locator('[data-state-of="site3"] pre')).to_contain_text("new")


def test_matrix_and_reasons(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("reasons")
    page.goto(mesh.resource(id_))
    page.get_by_role("tab", name="Matrix").click()
    cells = page.locator("table.matrix td")
    expect(cells.first).to_contain_text("take one")
    expect(page.locator("table.matrix td.c2").first).to_be_visible()
    expect(page.locator("table.matrix td.inferred").first).to_contain_text("reverse order")
    page.get_by_role("tab", name="Why").click()
    expect(page.locator(".steps li").first).to_contain_text("set by site1:1")
    expect(page.get_by_text("all 3 sites are in sync").first).to_be_visible()


def test_rows_are_reached_by_the_keyboard(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("keys")
    mesh.do("site1", id_, "add", "echo two >> __ID__")
    page.goto(mesh.resource(id_))
    page.locator('.op[data-op="site1:2"]').focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.op") == "site1:1"
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary")).to_contain_text("echo one > __ID__")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.op") == "site1:2"


def test_of_thousands_of_operations_only_those_in_sight_are_there(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("long")
    answer = json.loads(mesh.rig.request("site1", "GET", f"/api/v1/resources/{id_}/lanes"))
    stretch(answer, 5_000)

    def told(route: Route) -> None:
        route.fulfill(json=answer)

    page.route("**/lanes?*", told)
    page.goto(mesh.resource(id_))
    expect(page.locator('.op[data-op="site1:5000"]')).to_be_visible()
    expect(page.locator(".lanes-head .what")).to_contain_text("5,000 operations")
    assert page.locator(".op").count() < 60
    page.locator('.op[data-op="site1:5000"]').focus()
    page.keyboard.press("End")
    expect(page.locator('.op[data-op="site1:1"]')).to_be_focused()
    assert page.locator(".op").count() < 60
    assert page.locator("svg .link").count() < 120


def stretch(answer: dict[str, Any], count: int) -> None:
    """As if it had as many operations, one after the other."""
    first = answer["operations"][0]
    answer["operations"] = [
        {**first, "id": f"site1:{n}", "made_ms": first["made_ms"] + n, "after": [f"site1:{n - 1}"] * (n > 1)}
        for n in range(1, count + 1)
    ]
    for lane in answer["lanes"]:
        lane["states"], lane["ran_ms"] = ["ok"] * count, [first["made_ms"] + count] * count
