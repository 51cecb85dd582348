"""What an operator does: each change is shown beforehand, and then made."""

import re

from playwright.sync_api import Locator, Page, expect

from cheops.api.models.operations import Wait
from tests.agent.rig import until
from tests.ui.mesh import Mesh


def preview(page: Page) -> Locator:
    return page.locator("[data-dry-run]")


def test_a_resource_is_created(mesh: Mesh, page: Page) -> None:
    page.goto(mesh.page("new"))
    create = page.get_by_role("button", name="Create")
    expect(create).to_be_disabled()
    page.get_by_label("Id", exact=True).fill("made/here")
    page.get_by_label("Resource type").select_option("file")
    page.get_by_role("button", name="site2").click()
    page.get_by_role("button", name="set", exact=True).click()
    page.get_by_label("Command").fill("echo made > x")
    expect(preview(page)).to_contain_text("the resource is new: it would be created at site1 and site2")
    assert "made/here" not in [one.id for one in mesh.agent().resources(prefix="made").resources]
    create.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("made/here")
    expect(page.locator('.op[data-op="site1:1"]')).to_have_attribute("data-states", "ok ok")


def test_an_operation_is_sent_with_a_look_at_what_it_supersedes(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("sent")
    page.goto(mesh.resource(id_))
    page.get_by_role("button", name="Send operation").click()
    dialog = page.get_by_role("dialog")
    send = dialog.get_by_role("button", name="Send")
    expect(send).to_be_disabled()
    dialog.get_by_label("Command").fill("cat {words.txt} > __ID__")
    words = {"name": "words.txt", "mimeType": "text/plain", "buffer": b"from a file"}
    dialog.get_by_label("Files").set_input_files(words)  # type: ignore[arg-type]
    expect(preview(page)).to_contain_text("site1:1 rule 3: a later operation replaces it")
    expect(preview(page)).to_contain_text("Runs first at")
    expect(page).to_have_url(re.compile("do=send"))
    send.click()
    expect(dialog).to_have_count(0)
    expect(page.locator('.op[data-op="site1:2"]')).to_have_attribute("data-states", "ok ok ok")
    expect(page.locator('.op[data-op="site1:1"]')).to_contain_text("by site1:2, rule 3")
    assert (mesh.rig.folder("site3") / id_).read_text() == "from a file"


def test_what_fails_at_its_origin_and_what_is_not_allowed_is_told(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("refused")
    page.goto(mesh.resource(id_, "?do=send"))
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type of operation").fill("*wrong")
    dialog.get_by_label("Command").fill("true")
    expect(dialog).to_contain_text("begins with a reserved sign")
    expect(dialog.get_by_role("button", name="Send")).to_be_disabled()
    dialog.get_by_label("Type of operation").fill("add")
    dialog.get_by_label("Command").fill("echo no such luck >&2; exit 3")
    expect(preview(page)).to_be_visible()
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_role("alert")).to_contain_text("it is void")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator('.op[data-op="site1:2"]')).to_contain_text("void")


def test_sites_are_changed_by_clicking_them(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("moved")
    page.goto(mesh.resource(id_))
    page.get_by_role("button", name="Change sites").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="site3").click()
    expect(preview(page)).to_contain_text("site2")
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(page.locator("[data-lane]")).to_have_count(2)


def test_a_state_is_forced_and_then_the_resource_deleted(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("forced")
    page.goto(mesh.resource(id_))
    page.get_by_role("button", name="Force a state").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Command").fill("echo forced > __ID__")
    expect(preview(page)).to_contain_text("site1:1")
    dialog.get_by_role("button", name="Force", exact=True).click()
    expect(page.locator('.op[data-op="site1:2"]')).to_contain_text("force")
    until(lambda: (mesh.rig.folder("site3") / id_).read_text() == "forced\n", "for site3")
    page.get_by_role("button", name="Delete").click()
    expect(preview(page)).to_contain_text("site1:2")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Deleted", exact=True)).to_be_visible()


def test_the_operator_says_what_happened_to_an_operation_that_is_unknown(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("unknown", "echo x > __ID__", "slow")
    mesh.do("site1", id_, "inc", "sleep 20", wait=Wait.NONE)
    page.goto(mesh.resource(id_))
    row = page.locator('.op[data-op="site1:2"]')
    expect(row).to_have_attribute("data-states", re.compile("unknown"))
    expect(page.locator('[data-sync="DIVERGED"]')).to_be_visible()
    row.click()
    page.get_by_role("button", name="Resolve").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Resolve")).to_be_disabled()
    dialog.get_by_label("It took effect").check()
    expect(dialog).to_contain_text("It counts as run there")
    dialog.get_by_role("button", name="Resolve").click()
    # The other sites run it now, and may not know either how it ended: that is for their operators to say.
    expect(row).to_have_attribute("data-states", re.compile("^ok "))


def test_a_dry_run_during_a_cut_says_who_would_get_it_later(mesh: Mesh, page: Page) -> None:
    id_ = mesh.make("later")
    with mesh.cut("site3"):
        page.goto(mesh.resource(id_, "?do=send"))
        page.get_by_role("dialog").get_by_label("Command").fill("true")
        expect(preview(page)).to_contain_text(re.compile("site3 (is|are) unreachable now, and would receive it later"))
