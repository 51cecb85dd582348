"""Sites with real agents, and in front of each site's own REST service (service.py) their gateway."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.agent.rig import until
from tests.gateway.stage import Answer, Stage
from tests.support.ports import free_port
from tests.wan import Wan

SITES = ("site1", "site2", "site3")
EVERYWHERE = "site1 & site2 & site3"
# The services of the sites give different ids to the same thing.
FIRST_IDS = {"site1": 0, "site2": 40, "site3": 500}


class Sites(Stage):
    """`settings` are those of the service in the configuration of each site."""

    def __init__(self, base: Path, sites: tuple[str, ...] = SITES, wan: Wan | None = None, **settings: Any) -> None:
        self.options: dict[str, list[str]] = {}
        self.applications: dict[str, subprocess.Popen[Any]] = {}
        super().__init__(base, sites, ("image",), wan=wan, **settings)

    def configure(self, site: str, **settings: Any) -> None:
        """Change the settings of the service at one site; takes effect with the next start."""
        path = self.rig.folder(site) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["services"]["image"].update(settings)
        path.write_text(yaml.safe_dump(config))

    def start(self, *options: str) -> None:
        for site in self.sites:
            self.start_service(site, *options)
        self.rig.start()
        until(self._all_up, "for the sites to see each other")

    def start_service(self, site: str, *options: str) -> None:
        self.options[site] = list(options)
        argv = [sys.executable, "-m", "tests.gateway.replicas.service", str(self.own(site)), *options]
        argv += ["--first", str(FIRST_IDS.get(site, 0))]
        self.applications[site] = self.rig.start_beside(site, argv)
        until(lambda: self._answers(site), f"for the service of {site}")

    def stop_service(self, site: str) -> None:
        process = self.applications.pop(site)
        process.kill()
        process.wait()

    def _answers(self, site: str) -> bool:
        with contextlib.suppress(OSError):
            return self.direct(site, "GET", "/images").status == 200 or True
        return False

    def _all_up(self) -> bool:
        seen = (json.loads(self.rig.request(site, "GET", "/api/v1/sites")) for site in self.sites)
        return all(sum(one["state"] == "up" for one in found["sites"]) == len(self.sites) for found in seen)

    # -- requests ------------------------------------------------------------------------------------------

    def call(
        self,
        site: str,
        method: str,
        target: str,
        content: Any = None,
        scope: str | None = None,
        **headers: str,
    ) -> Answer:
        """Through the gateway of a site. Names of headers have `_` for `-`."""
        body = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        if scope is not None:
            named["Scope"] = f"{{image: {scope}}}"
        return self._asked(site, self.address(site), method, target, body, named)

    def direct(self, site: str, method: str, target: str, content: Any = None) -> Answer:
        """To the site's own service, past its gateway."""
        body = None if content is None else json.dumps(content).encode()
        return self._asked(site, ("127.0.0.1", self.own(site)), method, target, body, {})

    def create(self, site: str = "site1", scope: str = EVERYWHERE, **content: Any) -> str:
        """A new image at these sites, when all have it; gives its meta-id."""
        answer = self.call(site, "POST", "/images", content or {"name": "debian"}, scope, Cheops_Wait="all")
        assert answer.status == 201, (answer.status, answer.body)
        meta_id: str = answer.json["id"]
        return meta_id

    # -- what is there -------------------------------------------------------------------------------------

    def told(self, site: str) -> list[dict[str, Any]]:
        """What the service of a site was asked, its own questions left out."""
        found: list[dict[str, Any]] = self.direct(site, "GET", "/_told").json
        return [one for one in found if one["method"] != "GET"]

    def images(self, site: str, collection: str = "images") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.direct(site, "GET", f"/{collection}").json[collection]
        return found

    def replicant(self, site: str, meta_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rig.request(site, "GET", f"/api/v1/replicants/{meta_id}"))
        return found

    def status(self, site: str, meta_id: str) -> str:
        found = json.loads(self.rig.request(site, "GET", f"/api/v1/resources/{meta_id}/status"))
        return str(found["overall"])

    def log(self, site: str, meta_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rig.request(site, "GET", f"/api/v1/resources/{meta_id}/log"))
        return found

    def all_have(self, **wanted: Any) -> None:
        """Wait until the one image of each site's service has these members."""

        def have() -> bool:
            found = [self.images(site) for site in self.sites]
            return all(len(items) == 1 and wanted.items() <= items[0].items() for items in found)

        until(have, f"for {wanted} everywhere, have {[self.images(site) for site in self.sites]}")


def free_address() -> tuple[str, int]:
    return "127.0.0.1", free_port()


@contextlib.contextmanager
def running(sites: Sites, *options: str) -> Iterator[Sites]:
    try:
        sites.start(*options)
        yield sites
    finally:
        sites.rig.close()
