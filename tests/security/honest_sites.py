"""Three honest sites with real agents and a real application each, and what must hold of them after any attack.

The application of a site is its files: `pages/NAME`, to which real commands add lines. What Cheops says of itself is not
asked: acknowledged lines are counted in the files. `vault` is an HTTP service of each site, which this process plays: it
gives its secret to nobody but the site itself, and notes every request.
"""

import contextlib
import http.client
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import yaml

from cheops.client.agent import Form
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.security.sites import states
from tests.support.command import ROOT
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from tests.security.hostile_site import HostileSite

NAMES = ("site1", "site2", "site3")
STOLEN = "site4"
EVERYWHERE = " & ".join(NAMES)
WITH_STOLEN = f"{EVERYWHERE} & {STOLEN}"
FORGET_S = 5.0  # how long it may take until every honest site has a stolen one out
MOST_BYTES = 64 * 1024 * 1024  # of everything that a site keeps on its disk; far less without an attack
FILE_SIZE = 1024 * 1024  # limits.file_size of all of them
SECRET = "of-the-vault"  # noqa: S105 - of a service of this test
PAGE: dict[str, Any] = {
    "matrix": [
        {"before": "set", "after": "set", "result": "take-one"},
        {"before": "set", "after": "add", "result": "take-both-keep-order"},
        {"before": "add", "after": "set", "result": "take-both-reverse-order"},
    ],
    "allow": ["cp {*} pages/__ID__", "add-line pages/__ID__ *"],
    "read": "cat pages/__ID__",
    "show": ["wc -l pages/__ID__"],
    "reset": "rm -f pages/__ID__",
    "checkpoint": {"write": "write-page pages/__ID__ {state}", "after": 50},
    "cwd": "@FOLDER@",
    "env": {"PATH": f"{ROOT / 'examples' / 'files' / 'bin'}:/usr/local/bin:/usr/bin:/bin"},
}
# The simplest type of all: the id is the name of a file.
NOTE: dict[str, Any] = {
    "matrix": PAGE["matrix"],
    "allow": ["touch __ID__"],
    "read": "cat __ID__",
    "reset": "rm -f __ID__",
    "cwd": "@FOLDER@/notes",
}


class Vault(ThreadingHTTPServer):
    """The service of one site."""

    daemon_threads = True

    def __init__(self, port: int, token: str) -> None:
        self.token = token
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", port), _VaultHandler)
        Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _VaultHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Vault

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        is_own = self.headers.get("X-Auth-Token") == self.server.token
        body = json.dumps({"id": f"{len(self.server.requests)}", "secret": SECRET if is_own else ""}).encode()
        self.send_response(200 if is_own or self.path == "/open" else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815 - so they are called

    def log_message(self, *_: Any) -> None:
        """Not to the terminal."""


class HonestSites:
    """site1 to site3, which run; `site4` has an address, keys and a certificate, and is played by the test."""

    def __init__(self, base: Path, plane: str = "builtin") -> None:
        self.rig = Rig(base, {"page": PAGE, "note": NOTE}, (*NAMES, STOLEN), secure=True)
        self.acknowledged: dict[str, list[str]] = {}
        self.vaults: dict[str, Vault] = {}
        self.ports: dict[tuple[str, str], int] = {}
        self._numbers = count(1)
        for name in NAMES:
            self._configure(name, plane)

    def _configure(self, name: str, plane: str) -> None:
        folder, pki = self.rig.folder(name), self.rig.pki
        assert pki
        (folder / "pages").mkdir()
        (folder / "notes").mkdir()
        (folder / "token").write_text(f"X-Auth-Token: {name}-own\n")
        (folder / "token").chmod(0o600)
        path = folder / "site.yaml"
        config = yaml.safe_load(path.read_text())
        own, listen, mesh = free_ports(3)
        self.ports |= {(name, "vault"): own, (name, "listen"): listen, (name, "mesh"): mesh}
        config["services"] = {
            "vault": {
                "url": f"http://127.0.0.1:{own}",
                "listen": f"127.0.0.1:{listen}",
                "auth": {"file": "token"},
            }
        }
        config["limits"] = {"file_size": f"{FILE_SIZE}B"}
        config["gateway"] = {"data_plane": plane, "listen": f"127.0.0.1:{mesh}"}
        if name == NAMES[0]:  # the one that may decide who belongs to the mesh
            config["security"]["ca_key"] = str(pki.write(folder / "ca"))
        path.write_text(yaml.safe_dump(config))

    def start(self) -> None:
        for name in NAMES:
            self.vaults[name] = Vault(self.ports[name, "vault"], f"{name}-own")
        self.rig.start(*NAMES)
        self._see_each_other()
        self.write("site1", "first")
        self.agree("first")
        self._processes = {name: self.rig.processes[name].pid for name in NAMES}
        self._around = self._files_around()

    def restart(self, name: str) -> None:
        """Start an agent that a test has ended."""
        self.rig.start(name)
        self._processes[name] = self.rig.processes[name].pid
        self._see_each_other()

    def _see_each_other(self) -> None:
        for name in NAMES:
            until(lambda n=name: all(states(self.rig, n)[o] == "up" for o in NAMES), f"for {name} to see all")  # type: ignore[misc]

    def close(self) -> None:
        self.rig.close()
        for vault in self.vaults.values():
            vault.close()

    # -- the application ---------------------------------------------------------------------------------

    def new_page(self, about: str, sites: str = EVERYWHERE) -> str:
        """A page with one line of each honest site, at all its sites."""
        page = f"{about}-{next(self._numbers)}"
        for site in NAMES:
            if site in sites.split(" & "):
                self.write(site, page, sites)
        self.agree(page)
        return page

    def write(self, site: str, page: str, sites: str = EVERYWHERE) -> str:
        """Add a line to a page. It is acknowledged: the site has run it, and says so."""
        line = f"line-{next(self._numbers)}-of-{site}"
        fields = {"command": f"add-line pages/__ID__ {line}", "sites": sites, "type": "add", "resource-type": "page"}
        form = Form(fields, {})
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        with self.rig._connected(site) as connection:
            connection.request("POST", f"/exec/{page}", iter(form), headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise RefusedByAgentError(response.status, response.read())
            own = next(one for one in map(json.loads, response) if one["Site"] == site)
        assert own["Status"] == "OK", own
        self.acknowledged.setdefault(page, []).append(line)
        return line

    def lines(self, site: str, page: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.rig.folder(site) / "pages" / page).read_text().splitlines()
        return []

    def holds(self, page: str, sites: Sequence[str] = NAMES) -> bool:
        """Whether the files of a page are equal, and have each acknowledged line once."""
        found = [self.lines(site, page) for site in sites]
        wanted = self.acknowledged.get(page, [])
        return all(one == found[0] for one in found) and all(found[0].count(line) == 1 for line in wanted)

    def agree(self, page: str, sites: Sequence[str] = NAMES) -> None:
        def why() -> str:
            return json.dumps({site: self.lines(site, page) for site in sites}, indent=1)

        try:
            until(lambda: self.holds(page, sites))
        except AssertionError:
            missing = self.acknowledged.get(page)
            raise AssertionError(f"the files of {page} differ or lack lines of {missing}: {why()}") from None

    # -- after an attack -----------------------------------------------------------------------------------

    def stand(self, *pages: str) -> None:
        """All sites serve, hold everything that was acknowledged, and agree; nothing is where it should not be."""
        for name in NAMES:
            process = self.rig.processes[name]
            assert process.poll() is None, f"the agent of {name} has ended:\n{self.rig.log(name)}"
            assert process.pid == self._processes[name]
            assert "Traceback" not in self._log(name), self._log(name)[-4_000:]
            assert "\x1b" not in self._log(name)
        page = "first"
        with ThreadPoolExecutor(len(NAMES)) as pool:
            list(pool.map(lambda name: self.write(name, page), NAMES))
        for one in (page, *pages):
            self.agree(one)
        self._know_each_other()
        around = self._files_around()
        assert {path for path in around.keys() | self._around if around.get(path) != self._around.get(path)} == set()
        for name in NAMES:
            assert _bytes_below(self.rig.folder(name) / "data") < MOST_BYTES

    def everything_stands(self) -> None:
        """As `stand`, of every page that was ever written."""
        self.stand(*self.acknowledged)

    def _know_each_other(self) -> None:
        """The addresses of all honest sites are the right ones at each of them."""
        for name in NAMES:
            told = json.loads(self.rig.request(name, "GET", "/api/v1/sites"))["sites"]
            found = {one["name"]: (one["state"], one["url"]) for one in told if one["name"] in NAMES}
            if any(state != "up" for state, _ in found.values()):  # a busy machine may answer a heartbeat late
                until(lambda n=name: all(states(self.rig, n)[o] == "up" for o in NAMES), f"for {name}: {found}")  # type: ignore[misc]
            assert {one: url for one, (_, url) in found.items()} == {one: self.rig.url(one) for one in NAMES}
            assert {one["name"] for one in told} <= {*NAMES, STOLEN}, "a site that was invented is listed"

    def _files_around(self) -> dict[str, bytes]:
        """All files but those that the sites are to write: the application's, the agent's own, and their logs."""
        found: dict[str, bytes] = {}
        for folder, folders, files in os.walk(self.rig.base):
            here = Path(folder).relative_to(self.rig.base)
            if not here.parts:
                folders[:] = [one for one in folders if one != STOLEN]
            if len(here.parts) == 1:
                folders[:] = [one for one in folders if one not in {"data", "pages", "notes"}]
            found |= {str(here / one): (Path(folder) / one).read_bytes() for one in files if one != "log"}
        return found

    def _log(self, name: str) -> str:
        return (self.rig.folder(name) / "log").read_text()

    def resources(self, name: str, text: str = "stolen") -> set[str]:
        """The ids of the resources that a site keeps and that have this text in their id."""
        told = json.loads(self.rig.request(name, "GET", f"/api/v1/resources?limit=500&search={text}"))
        return {one["id"] for one in told["resources"]}

    def refused(self, name: str, who: str = STOLEN) -> float:
        """How much of somebody was refused there, as the metrics say."""
        text = self.rig.request(name, "GET", "/metrics").decode()
        found = re.findall(rf'^cheops_refused_total{{[^}}]*who="{who}"[^}}]*}} (\d+)', text, re.MULTILINE)
        return sum(map(float, found))

    def check(self, name: str) -> str:
        """What `cheops check` says there, as text."""
        return self.rig.request(name, "GET", "/api/v1/check").decode()

    # -- membership ----------------------------------------------------------------------------------------

    def forget_stolen(self) -> None:
        """Forget the stolen site; within 5 s every honest site has it out."""
        self.rig.request(NAMES[0], "DELETE", f"/api/v1/sites/{STOLEN}?force=true")
        until(lambda: all(states(self.rig, name)[STOLEN] == "forgotten" for name in NAMES), "to forget", FORGET_S)

    def admit_stolen(self) -> None:
        """Take it back: its operator says that it is in good hands again. It needs a new certificate."""
        self.rig.request(NAMES[0], "POST", f"/api/v1/sites/{STOLEN}/admit")
        until(lambda: all(states(self.rig, name)[STOLEN] != "forgotten" for name in NAMES), "to admit")

    def forget_and_take_back(self, thief: "HostileSite") -> None:
        """However it attacked before: it can be forgotten within 5 s, and is nobody then; for the next attack it returns
        with new keys."""
        self.forget_stolen()
        assert thief.probe(NAMES[0])[0] == 403
        self.take_back(thief)

    def take_back(self, thief: "HostileSite") -> None:
        self.admit_stolen()
        thief.take_new_keys()
        until(lambda: all(states(self.rig, name)[STOLEN] == "up" for name in NAMES), "for the stolen site to be back")

    # -- what clients do -------------------------------------------------------------------------------------

    def ask_service(self, site: str, path: str, **headers: str) -> tuple[int, bytes]:
        """A client's request to the vault of a site, through its gateway."""
        address = ("127.0.0.1", self.ports[site, "listen"])
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a temporary file may go meanwhile
            total += path.lstat().st_size
    return total


@contextlib.contextmanager
def honest_sites(base: Path, plane: str = "builtin") -> Iterator[HonestSites]:
    sites = HonestSites(base, plane)
    try:
        sites.start()
        yield sites
    finally:
        sites.close()
