"""Two sites, each with its own OpenStack, and agents before them with either data plane."""

import contextlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.rig import until
from tests.apps.openstack.cloud import ADMIN, PROJECTS, Cloud, call, with_token
from tests.gateway.stage import PLANES, Answer, Stage
from tests.support.ports import free_ports

SITES = ("site1", "site2")
BOTH = "site1 & site2"
_LOG_IN = Path(__file__).with_name("log_in.py")


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cloud]]:
    base = tmp_path_factory.mktemp("openstack")
    made = {site: Cloud(base / site, site, *free_ports(2)) for site in SITES}
    (base / "databases").mkdir()
    try:
        first, *others = made.values()
        first.start(base / "databases")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda cloud: cloud.start(base / "databases"), others))
        yield made
    finally:
        for cloud in made.values():
            cloud.close()


class CloudSites(Stage):
    """Three services before the same OpenStack: `image` replicates as the client (mapped), `common` as the site's own
    administrator and forwards no credentials, `identity` is keystone."""

    def __init__(self, base: Path, clouds: dict[str, Cloud], plane: str) -> None:
        super().__init__(base, SITES, ("image", "common", "identity"), plane=plane)
        self.clouds = clouds
        for site in SITES:
            self._configure_services(site)

    def _configure_services(self, site: str) -> None:
        cloud, folder = self.clouds[site], self.rig.folder(site)
        passwords = folder / "passwords"
        passwords.mkdir()
        for user in (*PROJECTS, ADMIN):
            (passwords / user).write_text(cloud.password(user))
        path = folder / "site.yaml"
        config = yaml.safe_load(path.read_text())
        services, keystone = config["services"], cloud.identity_url
        log_in = [sys.executable, str(_LOG_IN), keystone, str(passwords)]
        glance = f"http://127.0.0.1:{cloud.image_port}"
        services["image"] |= {
            "url": glance,
            "rules": "openstack",
            "replicate_as": "mapped",
            "auth": {"command": log_in},
            "client": {
                "ask": f"{keystone}/auth/tokens",
                "with": {"X-Subject-Token": "X-Auth-Token"},
                "value": "$.token.project.name",
            },
        }
        services["common"] |= {"url": glance, "forward": "none", "auth": {"command": [*log_in, ADMIN]}}
        services["identity"] |= {
            "url": f"http://127.0.0.1:{cloud.identity_port}",
            "rules": "openstack",
            "auth": {"command": [*log_in, ADMIN]},
        }
        path.write_text(yaml.safe_dump(config))

    def start(self) -> None:
        self.rig.start()
        until(self._all_up, "for the sites to see each other")

    def _all_up(self) -> bool:
        seen = (json.loads(self.rig.request(site, "GET", "/api/v1/sites")) for site in SITES)
        return all(sum(one["state"] == "up" for one in found["sites"]) == len(SITES) for found in seen)

    def call(  # noqa: PLR0913 - what a request has
        self,
        site: str,
        method: str,
        target: str,
        body: object = None,
        *,
        service: str = "image",
        scope: str | None = None,
        token: str | None = None,
        wait: str = "all",
    ) -> Answer:
        """Through the gateway of a site. What is replicated is answered when both sites have it."""
        scoped = {} if scope is None else {"Scope": f"{{{service}: {scope}}}"}
        headers = {"Cheops-Wait": wait, **scoped, **with_token(token)}
        return call(self.address(site, service)[1], method, target, body, headers)

    def written(self) -> Iterator[tuple[Path, bytes]]:
        """Everything that the agents have written: stores, logs, audit logs, files."""
        for site in SITES:
            for path in self.rig.folder(site).rglob("*"):
                if path.is_file() and path.parent.name != "passwords":
                    yield path, path.read_bytes()


@pytest.fixture(scope="module", params=PLANES)
def sites(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, clouds: dict[str, Cloud]
) -> Iterator[CloudSites]:
    made = CloudSites(tmp_path_factory.mktemp("sites") / "rig", clouds, request.param)
    with contextlib.closing(made.rig):
        made.start()
        yield made


def new_image(name: str) -> dict[str, Any]:
    return {"name": name, "disk_format": "raw", "container_format": "bare"}
