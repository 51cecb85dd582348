"""Ids, commands, outputs and errors from outside are text on these pages, whatever they hold."""

import re

from playwright.sync_api import BrowserContext, Page, expect

from cheops.api.models.operations import SubmitRequest
from tests.agent.rig import until
from tests.ui.mesh import Mesh

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "javascript:alert(1)/*",
    "{{7*7}}${alert(1)}",
    "' onclick='alert(1)",
    "a%2F..%2Fb?x=<svg/onload=alert(1)>#y",
    "]]><!--<style>*{display:none}</style>",
    "ünï → 漢字 " + "x" * 200,
)


def test_a_hostile_id_is_a_strange_name_and_no_more(mesh: Mesh, page: Page) -> None:
    for id_ in HOSTILE:
        wish = SubmitRequest(type="set", command="true", sites="site1", resource_type="tally")
        mesh.agent().submit(id_, wish)
    for id_ in HOSTILE:
        page.goto(mesh.resource(id_))
        expect(page.get_by_role("heading", level=1)).to_have_text(id_)
        expect(page.locator(".op")).to_have_count(1)
        is_harmless(page)
    page.goto(mesh.page("sites/site1"))
    for id_ in (HOSTILE[0], HOSTILE[1], HOSTILE[-1]):
        page.get_by_role("searchbox").fill(id_)
        expect(page.locator("tbody a")).to_have_text([id_])
    is_harmless(page)
    page.locator("tbody a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE[-1])


def is_harmless(page: Page) -> None:
    assert page.evaluate("document.scripts.length") == 1
    assert page.locator("main img, main script, main style, main iframe").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"


def test_commands_and_outputs_are_text(mesh: Mesh, page: Page) -> None:
    bad = "<img src=x onerror=alert(2)><script>alert(3)</script>"
    id_ = mesh.make("output", f"echo '{bad}'", "file")
    mesh.do("site1", id_, "<b>add</b>", f"echo '{bad}' >&2; false")
    (mesh.rig.folder("site1") / id_).write_text(bad)
    page.goto(mesh.resource(id_, "?op=site1:1"))
    panel = page.get_by_role("complementary")
    expect(panel.locator("[data-command]")).to_have_text(f"echo '{bad}'")
    expect(panel.locator('[data-reply="site2"] pre')).to_have_text(re.compile(re.escape(bad)))
    page.locator('.op[data-op="site1:2"]').click()
    expect(panel).to_contain_text(bad)
    expect(page.locator('.op[data-op="site1:2"] .type')).to_have_text("<b>add</b>")
    page.goto(mesh.resource(id_, "?tab=state"))
    expect(page.locator('[data-state-of="site1"] pre')).to_have_text(bad)
    page.goto(mesh.page(f"scope?text={bad}"))
    expect(page.get_by_role("alert")).to_contain_text("<")
    assert page.locator("main img, main script").count() == 0


def test_a_script_in_the_page_would_not_run(mesh: Mesh, context: BrowserContext) -> None:
    """The policy itself: even if somebody got HTML into the page."""
    page = context.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.goto(mesh.page())
    attempt = "try { document.body.innerHTML += '<b>x</b>'; 'taken' } catch (error) { error.name }"
    assert page.evaluate(attempt) == "TypeError"  # no text becomes HTML here
    page.evaluate("new Image().src = 'http://127.0.0.1:9/x.png'")
    until(lambda: page.evaluate("1") and any("img-src" in text for text in heard), "for the refusal")
    policy = page.request.get(mesh.page()).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
