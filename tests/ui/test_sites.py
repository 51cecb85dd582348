"""The sites, and the resources of one: what is seen, and what can be done there."""

import re
from urllib.parse import quote

from playwright.sync_api import Page, expect

from cheops.api.models.operations import SubmitRequest, Wait
from tests.ui.mesh import Mesh


def test_all_sites_are_drawn_and_listed_and_can_be_pinged(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page())
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page.locator('svg a.node[aria-label="site2: up"]')).to_be_visible()
    row = page.locator('tr[data-site="site2"]')
    expect(row.locator('[data-state="up"]')).to_be_visible()
    expect(row).to_contain_text(re.compile(r"seen (just now|\d+ s ago)"))
    expect(row).to_contain_text("image")
    page.get_by_role("button", name="Ping site2").click()
    expect(row.locator(".toolbar .small.muted")).to_have_text(re.compile(r"\d ms"))
    page.get_by_role("button", name="Ping all").click()
    expect(page.locator('tr[data-site="site3"] .toolbar .small.muted')).to_have_text(re.compile(r"\d ms"))


def test_a_site_is_cut_off_and_joined_again_by_its_page_without_a_reload(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page())
    page.evaluate("window.stayed = true")
    page.get_by_role("button", name="Cut site3 off").click()
    try:
        expect(page.locator('tr[data-site="site3"] [data-state="down"]')).to_be_visible()
        expect(page.get_by_text("The demo's network is cut")).to_be_visible()
        expect(page.locator('svg a.node[aria-label="site3: down"]')).to_be_visible()
        expect(page.locator('tr[data-site="site2"] [data-state="up"]')).to_be_visible()
        page.get_by_role("button", name="Rejoin site3").click()
        expect(page.locator('tr[data-site="site3"] [data-state="up"]')).to_be_visible()
        expect(page.get_by_text("The demo's network is cut")).to_have_count(0)
    finally:
        mesh.network.heal()
    assert page.evaluate("window.stayed")


def test_resources_are_searched_filtered_and_paged_by_the_agent(mesh: Mesh, page: Page) -> None:
    for n in range(53):
        wish = SubmitRequest(type="set", command="true", sites="site1", resource_type="tally")
        mesh.agent().submit(f"many-{n:02}", wish)
    mesh.make("Other Thing")
    page.goto(mesh.page("sites/site1?search=MANY-"))
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(3)
    expect(rows.first.locator("[data-sync]")).to_have_attribute("data-sync", "CONVERGED")
    expect(rows.first.locator("[data-health]")).to_have_attribute("data-health", "OK")
    page.reload()  # the page of the list is part of the address
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Previous").click()
    expect(rows).to_have_count(50)

    search = page.get_by_role("searchbox")
    search.fill("other th")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("search=other"))
    page.get_by_label("Type").select_option("tally")
    expect(page.get_by_text("No match")).to_be_visible()
    page.get_by_label("Type").select_option("file")
    expect(rows).to_have_count(1)
    rows.locator("a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Other Thing")
    page.go_back()
    expect(rows).to_have_count(1)


def test_resources_shared_with_another_site_are_listed_as_they_come(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page("sites/site2?search=shared-"))
    expect(page.get_by_text("No match")).to_be_visible()
    mesh.make("shared-now")
    expect(page.locator("tbody tr")).to_have_count(1)  # nobody has reloaded anything
    own = SubmitRequest(type="set", command="true", sites="site1", resource_type="tally")
    mesh.agent().submit("shared-not", own)
    page.goto(mesh.page("sites/site2?search=shared-"))
    expect(page.locator("tbody tr")).to_have_count(1)


def test_every_view_has_an_address_and_says_so_where_there_is_nothing(mesh: Mesh, page: Page) -> None:
    mesh.make("address")
    for path, title in (
        ("", "Sites"),
        ("resources", "Resources"),
        ("sites/site3", "site3"),
        ("resources/address", "address"),
        ("resources/address?tab=matrix", "address"),
        ("new", "New resource"),
        ("scope", "Scope"),
        ("replicants", "Replicants"),
        ("requests", "Requests"),
    ):
        page.goto(mesh.page(path))
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        assert page.title() == f"{title} · Cheops"
    page.goto(mesh.page("no/such/page"))
    expect(page.get_by_text("Page not found")).to_be_visible()
    page.goto(mesh.page("resources/nowhere"))
    expect(page.get_by_role("alert")).to_contain_text("Not found")
    page.goto(mesh.page(f"sites/{quote('site9')}"))
    expect(page.get_by_role("alert")).to_contain_text("unknown site 'site9'")


def test_the_start_page_counts_resources_by_state_and_leads_to_the_diverged_one(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("state of health")
    fails_at_site2 = "test $(basename $PWD) != site2 && echo two >> __ID__"
    mesh.do("site1", id_, "add", fails_at_site2)
    mesh.becomes(id_, "DIVERGED")
    page.goto(mesh.page())
    worst = page.locator(f'[data-worst="{id_}"]')
    expect(worst).to_contain_text("failed at site2 but not at its origin")
    expect(page.locator('[data-count="converged"]')).to_have_text(re.compile(r"^[\d,]+ converged$"))
    page.locator('[data-count="diverged"]').click()
    row = page.locator(f'tr[data-id="{id_}"]')
    expect(row.locator("[data-sync]")).to_have_attribute("data-sync", "DIVERGED")
    expect(page.get_by_label("Sync")).to_have_value("DIVERGED")
    expect(page.locator('[data-sync="CONVERGED"]')).to_have_count(0)
    row.get_by_role("link").click()
    expect(page.locator('[data-lane="site2"]')).to_contain_text("1 failed")
    expect(page.locator('[data-lane="site3"]')).to_contain_text("up to date")
    mesh.do("site1", id_, "set", "echo three > __ID__", Wait.ALL)
    mesh.becomes(id_, "CONVERGED")
    page.goto(mesh.page())
    expect(page.locator('[data-count="converged"]')).to_be_visible()
    expect(worst).to_have_count(0)
