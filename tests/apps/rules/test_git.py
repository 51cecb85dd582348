"""git over HTTP, with `rules: git`: pushes of the real git, on both sides of a cut."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import MakeSites
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
pytestmark = pytest.mark.timeout(300)


class Repositories:
    """A bare repository at each site, and clones of clients."""

    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites, self.base = sites, base
        for site in SITES:
            folder = base / f"git-{site}" / "app.git"
            folder.mkdir(parents=True)
            self._git("init", "--quiet", "--bare", "-b", "main", str(folder))
            self._git("-C", str(folder), "config", "http.receivepack", "true")
        sites.start(
            lambda site, port: [
                sys.executable,
                "-m",
                "tests.apps.rules.git_server",
                str(port),
                str(base / f"git-{site}"),
            ]
        )

    def clone(self, site: str, name: str) -> Path:
        host, port = self.sites.address(site, self.sites.service)
        folder = self.base / name
        done = self.sites.run(site, "git", "clone", "--quiet", f"http://{host}:{port}/app.git", str(folder))
        assert done.returncode == 0, done.stderr
        for key, value in (("user.name", name), ("user.email", f"{name}@example.org")):
            self._git("-C", str(folder), "config", key, value)
        return folder

    def push(self, site: str, folder: Path, file: str) -> subprocess.CompletedProcess[str]:
        """Commit a file, and push with a scope in a header, as git's own settings allow."""
        (folder / file).write_text(file * 100)
        self._git("-C", str(folder), "add", file)
        self._git("-C", str(folder), "commit", "--quiet", "-m", file)
        scope = f"http.extraHeader=Scope: {{{self.sites.service}: {EVERYWHERE}}}"
        return self.sites.run(site, "git", "-C", str(folder), "-c", scope, "push", "--quiet", "origin", "HEAD:main")

    def heads(self) -> list[str]:
        """The commit that each site's repository is at, by git itself."""
        return [self.head(site) for site in SITES]

    def head(self, site: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.base / f"git-{site}" / "app.git"), "rev-parse", "main"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    @staticmethod
    def _git(*argv: str) -> None:
        subprocess.run(["git", *argv], check=True, capture_output=True)


def started(make_sites: MakeSites, wan: Wan, base: Path) -> Repositories:
    return Repositories(make_sites("git", wan, rules="git"), base)


def same(repositories: Repositories, head: str) -> None:
    until(lambda: repositories.heads() == [head] * 3, "for all repositories to be at one commit")


def own_head(folder: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_pushes_arrive_everywhere_in_their_order_also_after_a_cut(
    make_sites: MakeSites, wan: Wan, tmp_path: Path
) -> None:
    repositories = started(make_sites, wan, tmp_path)
    work = repositories.clone("site1", "work")
    assert repositories.push("site1", work, "first").returncode == 0
    same(repositories, own_head(work))
    wan.partition(["site1", "site2"], ["site3"])
    for file in ("second", "third"):  # both while site3 is cut off
        done = repositories.push("site1", work, file)
        assert done.returncode == 0, done.stderr
    wan.heal()
    same(repositories, own_head(work))
    assert repositories.sites.settled() == {site: {"CONVERGED"} for site in SITES}
    other = repositories.clone("site3", "other")
    assert own_head(other) == own_head(work)


def test_pushes_on_both_sides_of_a_cut_are_never_called_equal(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> None:
    repositories = started(make_sites, wan, tmp_path)
    one = repositories.clone("site1", "one")
    assert repositories.push("site1", one, "first").returncode == 0
    same(repositories, own_head(one))
    two = repositories.clone("site2", "two")
    wan.partition(["site1"], ["site2", "site3"])
    assert repositories.push("site1", one, "here").returncode == 0
    assert repositories.push("site2", two, "there").returncode == 0
    wan.heal()
    said = repositories.sites.settled()
    must_be_true(said, repositories.heads())
    # No acknowledged push is lost: each commit is at the site that accepted it.
    assert repositories.head("site1") == own_head(one)
    assert repositories.head("site2") == own_head(two)
    assert "DIVERGED" in said["site1"]


def test_a_push_that_git_refuses_runs_nowhere_else(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> None:
    repositories = started(make_sites, wan, tmp_path)
    one = repositories.clone("site1", "one")
    two = repositories.clone("site2", "two")
    assert repositories.push("site1", one, "first").returncode == 0
    same(repositories, own_head(one))
    refused = repositories.push("site2", two, "unrelated")
    assert refused.returncode != 0
    assert "rejected" in refused.stderr or "fetch first" in refused.stderr
    assert repositories.heads() == [own_head(one)] * 3
    assert repositories.sites.settled() == {site: {"CONVERGED"} for site in SITES}
