"""Three sites with security on, whose service has tenants, in every configuration of credentials at once.

Each configuration is a service of its own (`own-client`, `mapped-none`, …), so one set of sites is enough for all.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.gateway.stage import Answer, Stage
from tests.gateway.tenants.service import Database, Tenants, Token
from tests.security.sites import all_up

SITES = ("site1", "site2", "site3")
EVERYWHERE = "site1 & site2 & site3"
FORWARD = ("client", "none")
REPLICATION = ("own", "bare", "mapped")  # bare: own, and no `auth`
SERVICES = tuple(f"{replication}-{forward}" for replication in REPLICATION for forward in FORWARD)
CLIENTS = ("alice", "bob")


class TenantSites(Stage):
    def __init__(self, base: Path, plane: str) -> None:
        super().__init__(base, SITES, SERVICES, secure=True, plane=plane)
        self.tenants: dict[str, Tenants] = {}
        for site in SITES:
            self._describe(site)

    def _describe(self, site: str) -> None:
        folder = self.rig.folder(site)
        path = folder / "site.yaml"
        config = yaml.safe_load(path.read_text())
        port = self.own(site, SERVICES[0])
        (folder / "auth" / "clients").mkdir(parents=True)
        _keep_token(folder / "auth" / "own", Token(site, "admin"))
        for client in CLIENTS:
            _keep_token(folder / "auth" / "clients" / client, Token(site, client))
        for service in SERVICES:
            replication, _, forward = service.partition("-")
            root = f"http://127.0.0.1:{port}/{service}"
            more: dict[str, Any] = {"url": root, "forward": forward, "id": "$.server.id"}
            if replication == "own":
                more["auth"] = {"file": "auth/own"}
            elif replication == "mapped":
                more["replicate_as"] = "mapped"
                more["auth"] = {"folder": "auth/clients"}
                more["client"] = {
                    "ask": f"{root}/v3/auth/tokens",
                    "with": {"X-Subject-Token": "X-Auth-Token"},
                    "value": "$.token.project.id",
                }
            config["services"][service] |= more
        path.write_text(yaml.safe_dump(config))

    def start(self) -> None:
        for site in SITES:
            self.tenants[site] = Tenants(site, self.own(site, SERVICES[0]))
        self.rig.start()
        all_up(self.rig)

    def restart_service(self, site: str) -> None:
        """The service comes back with what it had."""
        before = self.tenants[site]
        self.tenants[site] = Tenants(site, self.own(site, SERVICES[0]))
        self.tenants[site].databases = before.databases

    def effect(self, site: str, meta_id: str, op: str) -> str:
        found = json.loads(self.rig.request(site, "GET", f"/api/v1/resources/{meta_id}/log"))["operations"]
        return next((str(one["effect"]) for one in found if one["id"] == op), "")

    def close(self) -> None:
        self.rig.close()
        for one in self.tenants.values():
            one.close()

    def call(  # noqa: PLR0913, PLR0917 - what a request has
        self,
        site: str,
        service: str,
        method: str,
        target: str,
        content: Any = None,
        scope: str | None = None,
        token: Token | None = None,
        **headers: str,
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            named["X-Auth-Token"] = token.text
        body = None
        if content is not None:
            body = json.dumps(content).encode()
            named.setdefault("Content-Type", "application/json")
        scope = f"{{{service}: {scope}}}" if scope else None
        return self.ask(site, target, scope, service=service, method=method, body=body, headers=named)

    def database(self, site: str, service: str) -> Database:
        return self.tenants[site].databases[service]

    def state(self, service: str) -> dict[str, Any]:
        return {site: self.tenants[site].state(service) for site in SITES}

    def replicant(self, site: str, meta_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rig.request(site, "GET", f"/api/v1/replicants/{meta_id}"))
        return found


def _keep_token(path: Path, token: Token) -> None:
    path.write_text(f"X-Auth-Token: {token.text}\n")
    path.chmod(0o600)


@contextmanager
def running(base: Path, plane: str) -> Iterator[TenantSites]:
    sites = TenantSites(base, plane)
    try:
        sites.start()
        yield sites
    finally:
        sites.close()
