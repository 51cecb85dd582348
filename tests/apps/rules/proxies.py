"""A proxy on the machine of each site that adds headers for a client that cannot; see scope_proxy.py."""

import sys
from pathlib import Path

from tests.agent.rig import until
from tests.gateway.replicas.app_sites import AppSites
from tests.support.ports import free_port


class ScopeProxies:
    """One in front of each gateway."""

    def __init__(self, sites: AppSites, base: Path) -> None:
        self._sites = sites
        self._ports: dict[str, int] = {}
        self._headers = {site: base / f"{site}.headers" for site in sites.sites}

    def start(self) -> None:
        for site in self._sites.sites:
            self._headers[site].write_text("")
            port = self._ports[site] = free_port()
            host, gateway = self._sites.address(site, self._sites.service)
            argv = [sys.executable, "-m", "tests.apps.rules.scope_proxy", str(port), f"{host}:{gateway}"]
            self._sites.rig.start_beside(site, [*argv, str(self._headers[site])])
        for site, port in self._ports.items():
            until(lambda s=site, p=port: self._sites.listens(s, p), f"for the proxy of {site}")  # type: ignore[misc]

    def url(self, site: str, scope: str = "", **headers: str) -> str:
        """Where a client of a site sends its requests; they have this scope, and these headers, from now on."""
        lines = [f"{name}={value}" for name, value in headers.items()]
        lines += [f"Scope={{{self._sites.service}: {scope}}}"] if scope else []
        self._headers[site].write_text("\n".join(lines))
        return f"http://127.0.0.1:{self._ports[site]}"
