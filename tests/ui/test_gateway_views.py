"""Scopes, replicants and requests, as the pages show them."""

from playwright.sync_api import Page, expect

from tests.ui.mesh import Mesh


def test_a_scope_is_explained_as_it_is_typed(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page("scope?text=%7Bimage%3A%20site1%20%26%20site2%7D"))
    card = page.locator('[data-service="image"]')
    expect(card).to_contain_text("2 replicas, consistency eventual: site1 and site2")
    expect(card.locator(".tree")).to_contain_text("& replicated at")
    expect(card.locator("tbody").last).to_contain_text("create")
    box = page.get_by_label("Scope")
    box.fill("{image: site1 ; sitte2}")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("sitte2")
    expect(alert.locator("mark")).to_have_text("sitte2")
    expect(alert).to_contain_text("site2")
    box.fill("{image: site1 & & site2}")
    expect(alert.locator("mark")).to_have_attribute("data-start", "16")
    box.fill("site3")
    expect(page.locator('[data-service=""]')).to_contain_text("one site: site3")
    assert "text=site3" in page.url


def test_a_replicant_is_shown_with_its_id_at_each_site_and_requests_with_their_route(mesh: Mesh, page: Page) -> None:
    meta_id = mesh.create(name="debian")
    page.goto(mesh.page("replicants"))
    row = page.locator(f'tr[data-id="{meta_id}"]')
    for site in mesh.sites:
        local = str(mesh.images(site)[-1]["id"])
        expect(row.locator(f'td[data-site="{site}"]')).to_have_text(local)
    expect(row.locator('[data-sync="CONVERGED"]')).to_be_visible()

    mesh.call("site1", "GET", "/images", scope="site2")
    page.goto(mesh.page("requests"))
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("GET /images")
    expect(first).to_contain_text("forward")
    expect(first).to_contain_text("site2")
    page.get_by_label("Service").fill("nothing")
    expect(page.get_by_text("No requests yet")).to_be_visible()
