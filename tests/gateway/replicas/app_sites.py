"""Sites with a real application behind each gateway, whose own state the tests compare."""

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.agent.rig import PATIENCE_S, until
from tests.gateway.stage import Answer, Stage
from tests.wan import Wan

SITES = ("site1", "site2", "site3")
START_S = 180.0  # a large application may take its time on a busy machine


class AppSites(Stage):
    """Sites on machines of their own, with one service."""

    def __init__(self, base: Path, service: str, wan: Wan, sites: tuple[str, ...] = SITES, **settings: Any) -> None:
        self.service = service
        super().__init__(base, sites, (service,), wan=wan, **settings)

    def configure(self, site: str, **settings: Any) -> None:
        """Change the settings of the service at one site, before the start."""
        path = self.rig.folder(site) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["services"][self.service].update(settings)
        path.write_text(yaml.safe_dump(config))

    def start(self, argv_of: Callable[[str, int], list[str]]) -> None:
        """`argv_of` gives the command that runs the application of a site at a port of 127.0.0.1."""
        for site in self.sites:
            self.rig.start_beside(site, argv_of(site, self.own(site, self.service)))
        self.rig.start()
        for site in self.sites:
            until(
                lambda s=site: self.listens(s, self.own(s, self.service)),  # type: ignore[misc]
                f"for the application of {site}",
                patience_s=START_S,
            )
        until(self._all_up, "for the sites to see each other")

    def listens(self, site: str, port: int) -> bool:
        """Whether a program on the machine of a site listens there."""
        host = self.rig._host(site)
        assert host is not None
        with contextlib.closing(host.socket()) as connection:
            connection.settimeout(1)
            with contextlib.suppress(OSError):
                connection.connect(("127.0.0.1", port))
                return True
        return False

    def _all_up(self) -> bool:
        seen = (json.loads(self.rig.request(site, "GET", "/api/v1/sites")) for site in self.sites)
        return all(sum(one["state"] == "up" for one in found["sites"]) == len(self.sites) for found in seen)

    def run(self, site: str, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A program of a client on the machine of a site."""
        host = self.rig._host(site)
        assert host is not None
        done: subprocess.CompletedProcess[str] = host.run(
            argv, capture_output=True, text=True, timeout=PATIENCE_S, **options
        )
        return done

    def start_program(self, site: str, argv: list[str], out: Any) -> subprocess.Popen[Any]:
        """A program of a client that goes on; the test ends it."""
        return self.rig._popen(site, argv, stdout=out, stderr=subprocess.DEVNULL)

    def call(self, site: str, method: str, target: str, content: Any = None, scope: str = "", **headers: str) -> Answer:
        """A request through the gateway of a site."""
        return self._send(site, self.address(site, self.service), method, target, content, scope, headers)

    def direct(self, site: str, method: str, target: str, content: Any = None) -> Answer:
        """A request to the application of a site, past its gateway."""
        return self._send(site, ("127.0.0.1", self.own(site, self.service)), method, target, content, "", {})

    def _send(  # noqa: PLR0913, PLR0917 - a request's parts
        self,
        site: str,
        address: tuple[str, int],
        method: str,
        target: str,
        content: Any,
        scope: str,
        headers: dict[str, str],
    ) -> Answer:
        body = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        if scope:
            named["Scope"] = f"{{{self.service}: {scope}}}"
        return self._asked(site, address, method, target, body, named)

    def statuses(self, site: str) -> dict[str, str]:
        """What a site says of each of its replicants."""
        found = json.loads(self.rig.request(site, "GET", "/api/v1/replicants"))["replicants"]
        return {one["id"]: one["overall"] for one in found}

    def settled(self) -> dict[str, set[str]]:
        """Wait until every site says something definite of each of its replicants; what they say."""

        def all_said() -> bool:
            said = [status for site in self.sites for status in self.statuses(site).values()]
            return bool(said) and all(status in ("CONVERGED", "DIVERGED") for status in said)

        until(all_said, "for every status to be definite")
        return {site: set(self.statuses(site).values()) for site in self.sites}


def must_be_true(said: dict[str, set[str]], states: list[Any]) -> None:
    """The one thing that no test may let pass: CONVERGED, and states that differ."""
    if any(state != states[0] for state in states):
        assert all("DIVERGED" in statuses for statuses in said.values()), (said, states)


__all__ = ["SITES", "AppSites", "must_be_true"]
