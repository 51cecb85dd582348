"""The contents of Jupyter Server, with `rules: jupyter`: clients name files, and a PATCH renames them."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import APPLICATIONS, MakeSites
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
PROGRAM = APPLICATIONS / "bin" / "jupyter-server"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="needs Jupyter Server: 'make apps' installs it"),
]


class Jupyters:
    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites = sites
        self.base = base

    def start(self) -> None:
        self.sites.start(self._argv)
        for site in SITES:
            until(lambda s=site: self.sites.direct(s, "GET", "/api").status == 200, f"for {site}")  # type: ignore[misc]

    def _argv(self, site: str, port: int) -> list[str]:
        root = self.base / f"root-{site}"
        root.mkdir()
        home = [f"{name}={self.base / f'home-{site}'}" for name in ("HOME", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")]
        return [
            *("env", *home, str(PROGRAM), "--ip=127.0.0.1", f"--port={port}", "--no-browser", "--allow-root"),
            *(f"--ServerApp.root_dir={root}", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"),
            "--ServerApp.allow_remote_access=True",  # by another name than localhost
        ]

    def save(self, site: str, path: str, text: str, scope: str = "") -> int:
        content = {"type": "file", "format": "text", "content": text}
        return self.sites.call(site, "PUT", f"/api/contents/{path}", content, scope).status

    def rename(self, site: str, path: str, to: str, scope: str = "") -> Any:
        return self.sites.call(site, "PATCH", f"/api/contents/{path}", {"path": to}, scope)

    def delete(self, site: str, path: str) -> int:
        return self.sites.call(site, "DELETE", f"/api/contents/{path}").status

    def repair(self, site: str) -> str:
        """Take the state of a site for all, as `cheops repair --from` does."""
        (replicant,) = self.sites.statuses(site)
        body, kind = json.dumps({"resolution": "state", "site": site}), {"Content-Type": "application/json"}
        return self.sites.rig.request(site, "POST", f"/api/v1/resources/{replicant}/resolve", body, kind).decode()

    def files(self, site: str) -> dict[str, str]:
        """What is on the disk of a site."""
        root, found = self.base / f"root-{site}", {}
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # it is renamed at this moment
                    found[str(path.relative_to(root))] = path.read_text()
        return found

    def agree_on(self, wanted: dict[str, str]) -> None:
        for site in SITES:
            until(lambda s=site: self.files(s) == wanted, f"for {wanted} at {site}")  # type: ignore[misc]
        assert self.sites.settled() == {site: {"CONVERGED"} for site in SITES}
        assert [self.files(site) for site in SITES] == [wanted] * len(SITES)


@pytest.fixture
def jupyters(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> Jupyters:
    made = Jupyters(make_sites("contents", wan, rules="jupyter"), tmp_path)
    made.start()
    return made


def test_a_rename_moves_the_file_with_its_history(jupyters: Jupyters, wan: Wan) -> None:
    assert jupyters.save("site2", "own.txt", "own") == 201  # without a scope as without Cheops
    assert jupyters.rename("site2", "own.txt", "mine.txt").status == 200
    assert jupyters.files("site2") == {"mine.txt": "own"}
    shared = jupyters.sites.call("site1", "GET", "/api/contents/mine.txt", scope="site2")
    assert shared.json["content"] == "own"  # another site's, from here
    assert jupyters.delete("site2", "mine.txt") == 204

    assert jupyters.save("site1", "a.txt", "one", EVERYWHERE) == 201
    jupyters.agree_on({"a.txt": "one"})
    renamed = jupyters.rename("site2", "a.txt", "b.txt")
    assert (renamed.status, renamed.json["path"]) == (200, "b.txt")
    jupyters.agree_on({"b.txt": "one"})
    assert jupyters.save("site3", "b.txt", "two") == 200  # it is replicated under its new name, too
    jupyters.agree_on({"b.txt": "two"})
    (replicant,) = jupyters.sites.statuses("site1")
    log = json.loads(jupyters.sites.rig.request("site1", "GET", f"/api/v1/resources/{replicant}/log"))
    assert [op["type"] for op in log["operations"]] == ["put", "move", "put"]  # one history
    assert jupyters.sites.call("site1", "GET", "/api/contents/a.txt").status == 404

    wan.partition(["site1"], ["site2", "site3"])
    assert jupyters.rename("site1", "b.txt", "c.txt").status == 200
    assert jupyters.save("site2", "b.txt", "three") == 200  # the other side has not heard of the new name
    wan.heal()
    jupyters.agree_on({"c.txt": "three"})
    wan.partition(["site1"], ["site2", "site3"])
    assert jupyters.rename("site1", "c.txt", "d.txt").status == 200
    assert jupyters.save("site1", "d.txt", "four") == 200
    assert jupyters.rename("site3", "c.txt", "e.txt").status == 200  # the later one stays
    wan.heal()
    jupyters.agree_on({"e.txt": "four"})
    assert jupyters.delete("site1", "e.txt") == 204
    jupyters.agree_on({})
    assert jupyters.save("site2", "a.txt", "again", EVERYWHERE) == 201  # now its first name is free
    jupyters.agree_on({"a.txt": "again"})


def test_a_rename_that_is_not_safe_is_refused(jupyters: Jupyters) -> None:
    folder = {"type": "directory"}
    assert jupyters.sites.call("site1", "PUT", "/api/contents/d", folder, EVERYWHERE).status == 201
    assert jupyters.save("site1", "d/a.txt", "one", EVERYWHERE) == 201
    assert jupyters.save("site1", "b.txt", "two", EVERYWHERE) == 201
    jupyters.agree_on({"d/a.txt": "one", "b.txt": "two"})
    refused = jupyters.rename("site1", "d", "e")
    assert refused.status == 422
    assert "contains replicated resources" in refused.json["detail"]
    assert jupyters.rename("site1", "b.txt", "d/a.txt").status == 409  # what is there would be lost
    assert jupyters.rename("site1", "d/a.txt", "c.txt").status == 200
    jupyters.agree_on({"c.txt": "one", "b.txt": "two"})
    refused = jupyters.sites.call("site2", "PUT", "/api/contents/d/a.txt", {"type": "file", "content": "x"}, EVERYWHERE)
    assert refused.status == 409
    assert "what was at /api/contents/d/a.txt has another name now" in refused.json["detail"]
    refused = jupyters.sites.call("site1", "POST", "/api/contents", {"type": "notebook"}, EVERYWHERE)
    assert refused.status == 422
    assert "PUT it under a name" in refused.json["detail"]
    assert jupyters.rename("site1", "own.txt", "x.txt", EVERYWHERE).status == 404
    jupyters.agree_on({"c.txt": "one", "b.txt": "two"})


def test_one_name_for_two_files_is_shown(jupyters: Jupyters, wan: Wan) -> None:
    """One side of a cut moves a file to a name, the other side creates another file there."""
    assert jupyters.save("site1", "a.txt", "one", EVERYWHERE) == 201
    jupyters.agree_on({"a.txt": "one"})
    wan.partition(["site1"], ["site2", "site3"])
    assert jupyters.rename("site1", "a.txt", "b.txt").status == 200
    assert jupyters.save("site2", "b.txt", "two", EVERYWHERE) == 201
    wan.heal()
    said = jupyters.sites.settled()
    must_be_true(said, [jupyters.files(site) for site in SITES])
    assert "DIVERGED" in said["site1"]


def test_a_repair_gives_a_file_the_same_name_everywhere(jupyters: Jupyters) -> None:
    """A rename fails at one site, where somebody else has the name. The copy there still has the old one."""
    assert jupyters.save("site1", "a.txt", "one", EVERYWHERE) == 201
    jupyters.agree_on({"a.txt": "one"})
    assert jupyters.save("site2", "b.txt", "own") == 201
    assert jupyters.rename("site1", "a.txt", "b.txt").status == 200
    until(lambda: jupyters.files("site3") == {"b.txt": "one"}, "for the rename at site3")
    assert jupyters.sites.settled() == {site: {"DIVERGED"} for site in SITES}
    assert "something else at /api/contents/b.txt" in jupyters.repair("site1")  # what is not replicated stays
    assert jupyters.sites.settled()["site1"] == {"DIVERGED"}
    assert jupyters.files("site2") == {"a.txt": "one", "b.txt": "own"}
    assert jupyters.sites.direct("site2", "DELETE", "/api/contents/b.txt").status == 204
    jupyters.repair("site1")
    jupyters.agree_on({"b.txt": "one"})
    assert jupyters.save("site2", "b.txt", "two") == 200
    jupyters.agree_on({"b.txt": "two"})


def test_a_rename_whose_response_was_lost_counts_as_done(jupyters: Jupyters, wan: Wan) -> None:
    """The agent of site2 was killed after its service had renamed the file: the second attempt gets 500."""
    assert jupyters.save("site1", "a.txt", "one", EVERYWHERE) == 201
    jupyters.agree_on({"a.txt": "one"})
    wan.partition(["site1"], ["site2", "site3"])
    assert jupyters.rename("site1", "a.txt", "b.txt").status == 200
    assert jupyters.sites.direct("site2", "PATCH", "/api/contents/a.txt", {"path": "b.txt"}).status == 200
    wan.heal()
    jupyters.agree_on({"b.txt": "one"})
    assert jupyters.save("site1", "b.txt", "two") == 200
    jupyters.agree_on({"b.txt": "two"})
