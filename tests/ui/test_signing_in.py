"""Where tokens are needed: who looks signs in, and a change asks for a token that may."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from cheops.api.models.operations import SubmitRequest
from cheops.security.principal import Role
from tests.agent.rig import Rig
from tests.security.clients import local, rig_of, token


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = rig_of(tmp_path_factory.mktemp("signing-in"))
    try:
        found.start()
        wish = SubmitRequest(type="set", command="echo > __ID__", sites="site1", resource_type="file")
        local(found).submit("page", wish)
        yield found
    finally:
        found.close()


def sign_in(page: Page, secret: str) -> None:
    page.get_by_label("Token").fill(secret)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()


def test_who_looks_signs_in_and_who_changes_shows_a_token_that_may(rig: Rig, page: Page) -> None:
    page.goto(f"{rig.url('site1')}/ui/resources/page")
    sign_in(page, "cheops_wrong")
    expect(page.get_by_role("alert")).to_contain_text("token")
    sign_in(page, token(rig, "looker", Role.VIEWER))
    expect(page.locator('.op[data-op="site1:1"]')).to_be_visible()
    expect(page.locator("#bar")).to_contain_text("looker (viewer)")
    expect(page.locator('.live[data-state="live"]')).to_be_visible()

    page.get_by_role("button", name="Send operation").click()
    page.get_by_role("dialog").get_by_label("Command").fill("echo more >> __ID__")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_text("needs the role operator")).to_be_visible()
    sign_in(page, token(rig, "doer", Role.OPERATOR))
    expect(page.locator('.op[data-op="site1:2"]')).to_be_visible()
    expect(page.locator("#bar")).to_contain_text("doer (operator)")
    assert "cheops_" not in page.evaluate("document.cookie + JSON.stringify({...localStorage})")

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog")).to_contain_text("Sign in with an access token")


def test_a_session_that_is_over_can_be_begun_anew(rig: Rig, page: Page) -> None:
    page.goto(f"{rig.url('site1')}/ui/")
    sign_in(page, token(rig, "ending", Role.VIEWER))
    expect(page.locator("tr[data-site]")).to_have_count(1)
    local(rig).revoke_token("ending")
    expect(page.get_by_role("dialog")).to_be_visible()
    sign_in(page, token(rig, "next", Role.VIEWER))
    expect(page.locator("#bar")).to_contain_text("next (viewer)")


def test_a_page_from_elsewhere_cannot_use_the_session(rig: Rig, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{rig.url('site1')}/ui/")
    sign_in(page, token(rig, "victim", Role.ADMIN))
    expect(page.locator("tr[data-site]")).to_have_count(1)
    with elsewhere() as address:
        page.goto(address)
        tried = page.evaluate(ATTEMPT, f"{rig.url('site1')}/api/v1")
    assert tried == ["TypeError"] * 3  # the browser shows the page no response at all
    done = [one for one in local(rig).audit().entries if one.who == "token:victim" and one.outcome == "done"]
    assert [one.what for one in done] == ["POST /api/v1/session"]


ATTEMPT = """async (base) => {
  const ask = (path, options) =>
    fetch(base + path, {credentials: "include", ...options}).then((answer) => answer.type, (error) => error.name);
  return [
    await ask("/resources/page", {method: "DELETE"}),
    await ask("/resources/page/operations", {method: "POST", mode: "no-cors", body: '{"type": "set", "command": "true"}'}),
    await ask("/resources/page/lanes", {mode: "no-cors"}),
  ];
}"""


@contextmanager
def elsewhere() -> Iterator[str]:
    """A page of another origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"  # an error page has an origin too
        finally:
            server.shutdown()
            thread.join()
