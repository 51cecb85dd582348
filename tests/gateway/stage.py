"""Real agents whose gateways stand in front of services that a test controls."""

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.agent.rig import PATIENCE_S, Rig
from tests.support.ports import free_ports
from tests.wan import Wan

PLANES = ("builtin", "haproxy")


@pytest.fixture(scope="module", params=PLANES)
def both_planes(request: pytest.FixtureRequest) -> str:
    """For a module that says `plane = both_planes`: all of it holds whoever forwards."""
    return str(request.param)


class Answer:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def site(self) -> str | None:
        return self.headers["Cheops-Site"]


class Stage:
    """Sites that each have the same services; the services themselves are the test's affair."""

    def __init__(  # noqa: PLR0913 - what a configuration has
        self,
        base: Path,
        sites: tuple[str, ...],
        services: tuple[str, ...],
        *,
        gateway: dict[str, Any] | None = None,
        wan: Wan | None = None,
        outbound: bool = False,
        secure: bool = False,
        plane: str = "builtin",
        by_service: dict[str, dict[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        self.sites, self.services = sites, services
        self._by_service = by_service or {}
        self.rig = Rig(base, {}, sites, wan, secure=secure)
        self.ports: dict[tuple[str, str, str], int] = {}
        for site in sites:
            self._configure(site, {"data_plane": plane, **(gateway or {})}, outbound=outbound, more=more)

    def _configure(self, site: str, gateway: dict[str, Any], *, outbound: bool, more: dict[str, Any]) -> None:
        path = self.rig.folder(site) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        host = config["listen"].rpartition(":")[0]
        config["services"] = {}
        for service in self.services:
            own, listen, out = free_ports(3)
            self.ports[site, service, "own"] = own
            self.ports[site, service, "listen"] = listen
            self.ports[site, service, "outbound"] = out
            section = {"url": f"http://127.0.0.1:{own}", "listen": f"{host}:{listen}"}
            if outbound:
                section["outbound"] = f"127.0.0.1:{out}"
            config["services"][service] = {**section, **more, **self._by_service.get(service, {})}
        if outbound:
            (proxy,) = free_ports(1)
            self.ports[site, "", "proxy"] = proxy
            gateway = {**gateway, "proxy": f"127.0.0.1:{proxy}"}
        if self.rig.pki:
            (mesh,) = free_ports(1)
            self.ports[site, "", "mesh"] = mesh
            gateway = {**gateway, "listen": f"{host}:{mesh}"}
        config["gateway"] = gateway
        path.write_text(yaml.safe_dump(config))

    def own(self, site: str, service: str = "image") -> int:
        """Where the site's own instance of a service is to listen."""
        return self.ports[site, service, "own"]

    def address(self, site: str, service: str = "image", way: str = "listen") -> tuple[str, int]:
        host = urlsplit(self.rig.url(site)).hostname if way == "listen" else "127.0.0.1"
        return str(host), self.ports[site, service, way]

    def ask(  # noqa: PLR0913 - what a request has
        self,
        site: str,
        target: str = "/",
        scope: str | None = None,
        *,
        service: str = "image",
        method: str = "GET",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        way: str = "listen",
    ) -> Answer:
        """One request by an ordinary client."""
        host, port = self.address(site, service, way)
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        try:
            scoped = {"Scope": scope} if scope is not None else {}
            connection.request(method, target, body, {**scoped, **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def _asked(  # noqa: PLR0913, PLR0917 - as above
        self,
        site: str,
        address: tuple[str, int],
        method: str,
        target: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> Answer:
        """One request by a client on the machine of a site."""
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
            if host := self.rig._host(site):
                connection.sock = host.socket()
                connection.sock.settimeout(PATIENCE_S)
                connection.sock.connect(address)
            connection.request(method, target, body, headers)
            return Answer(connection.getresponse())

    def pid(self, site: str) -> int:
        return self.rig.processes[site].pid
