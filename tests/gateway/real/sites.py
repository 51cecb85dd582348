"""Sites whose services nobody here wrote: each runs unmodified, as a process of its own, one per site."""

import contextlib
import http.client
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cheops.gateway.cors import EXPOSE_HEADER
from tests.agent.rig import PATIENCE_S, until
from tests.gateway.stage import Answer, Stage
from tests.support.ports import free_ports

SITES = ("site1", "site2", "site3")
EVERYWHERE = "site1 & site2 & site3"

# What belongs to one connection or one moment, and what a gateway says of itself.
_NOT_COMPARED = ("date", "last-modified", "connection", "keep-alive", "via")

Starting = Callable[[Path, int], list[str]]  # a folder of its own and a port → the command that starts it
Headers = dict[str, str]


def asked(
    address: tuple[str, int],
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Headers | None = None,
) -> Answer:
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, target, body, headers or {})
        return Answer(connection.getresponse())


def essence(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """All of an answer that a client can rely on."""
    pairs = ((name.lower(), value) for name, value in answer.headers.items())
    own = (EXPOSE_HEADER[0].lower(), EXPOSE_HEADER[1])  # that pages of other origins may see those of Cheops
    kept = [
        pair for pair in pairs if pair[0] not in _NOT_COMPARED and not pair[0].startswith("cheops-") and pair != own
    ]
    return answer.status, sorted(kept), answer.body


class RealSites(Stage):
    """One service, `name`, and one more instance of it that no gateway stands before: the `reference`."""

    def __init__(self, base: Path, name: str, starting: Starting, **settings: Any) -> None:
        super().__init__(base, SITES, (name,), **settings)
        self.name = name
        self._starting = starting
        self._applications: list[subprocess.Popen[Any]] = []
        (self.reference_port,) = free_ports(1)

    def start(self) -> None:
        for site in self.sites:
            self._start_application(self.rig.folder(site) / "application", self.own(site, self.name))
        self._start_application(self.rig.base / "reference", self.reference_port)
        self.rig.start()
        for port in (*(self.own(site, self.name) for site in self.sites), self.reference_port):
            until(lambda at=port: _listens(at), f"for {self.name} at {port}")  # type: ignore[misc]
        until(self._all_up, "for the sites to see each other")

    def _start_application(self, folder: Path, port: int) -> None:
        folder.mkdir()
        log = (folder / "log").open("wb")
        argv = self._starting(folder, port)
        self._applications.append(subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log))
        log.close()

    def close(self) -> None:
        self.rig.close()
        for process in self._applications:
            process.kill()
            process.wait()

    def _all_up(self) -> bool:
        seen = (json.loads(self.rig.request(site, "GET", "/api/v1/sites")) for site in self.sites)
        return all(sum(one["state"] == "up" for one in found["sites"]) == len(self.sites) for found in seen)

    # -- requests ----------------------------------------------------------------------------------------

    def through(  # noqa: PLR0913, PLR0917 - what a request has
        self,
        site: str,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Headers | None = None,
        scope: str | None = None,
    ) -> Answer:
        """Through the gateway of a site; what is replicated is answered when all sites have it."""
        mesh = {} if scope is None else {"Scope": f"{{{self.name}: {scope}}}"}
        given = {"Cheops-Wait": "all", **mesh, **(headers or {})}
        return asked(self.address(site, self.name), method, target, body, given)

    def direct(
        self, site: str, method: str, target: str, body: bytes | None = None, headers: Headers | None = None
    ) -> Answer:
        """To a site's own instance, past its gateway."""
        return asked(("127.0.0.1", self.own(site, self.name)), method, target, body, headers)

    def reference(self, method: str, target: str, body: bytes | None = None, headers: Headers | None = None) -> Answer:
        return asked(("127.0.0.1", self.reference_port), method, target, body, headers)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        asked(("127.0.0.1", port), "GET", "/")
        return True
    return False


@contextlib.contextmanager
def running(sites: RealSites) -> Iterator[RealSites]:
    try:
        sites.start()
        yield sites
    finally:
        sites.close()
