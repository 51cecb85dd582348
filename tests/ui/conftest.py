import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.ui.mesh import Mesh, running_mesh

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all tests of a process; each has a profile of its own within it."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Three sites that the tests of a process share: each uses names of its own."""
    with running_mesh(tmp_path_factory.mktemp("ui") / "mesh") as found:
        yield found


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800}, ignore_https_errors=True)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must not complain: no error of a script, nothing that the policy refuses, no dialog of the
    browser's own."""
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # What the agent refuses is for the page to tell; that the browser notes it as well is no mistake.
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def refused(dialog: Dialog) -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    made = context.new_page()
    made.on("console", heard)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("dialog", refused)
    yield made
    assert complaints == []
