"""minicloud at the sites of the demo: its ports, its part of their configuration, and how it is started.

It is the application of examples/minicloud: two HTTP services, image and compute, of which each site has its
own instances. They are asked through the gateway of a site (`url`) or past it (`own`).
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cheops.demo.answers import HttpAnswer, http_answer

SERVICES = ("image", "compute")
_PROGRAMS = Path(__file__).parent / "minicloud"
_HOST = "127.0.0.1"


class Minicloud:
    """`reserved` gives a free port that stays ours."""

    def __init__(self, sites: tuple[str, ...], reserved: Callable[[], int]) -> None:
        kinds = ("IMAGE_OWN", "IMAGE", "IMAGE_OUTBOUND", "COMPUTE_OWN", "COMPUTE")
        self._sites = sites
        self._ports = {site: {kind: reserved() for kind in kinds} for site in sites}

    def url(self, site: str, service: str) -> str:
        """Where the gateway of a site takes requests for a service."""
        return f"http://{_HOST}:{self._ports[site][service.upper()]}"

    def own(self, site: str, service: str, path: str) -> HttpAnswer:
        """What a site's own instance answers, asked past Cheops."""
        port = self._ports[site][f"{service.upper()}_OWN"]
        return http_answer(f"http://{_HOST}:{port}", "GET", path)

    @property
    def lines(self) -> dict[str, tuple[str, int]]:
        """By which lines the gateways of the sites reach each other: site and port."""
        return {
            f"{site} {service}": (site, self._ports[site][service.upper()])
            for site in self._sites
            for service in SERVICES
        }

    def words(self, site: str, wires: Mapping[str, str]) -> dict[str, str]:
        """What stands in cloud.yaml for a site."""
        wired = {f"{service.upper()}_WIRE": wires[f"{site} {service}"] for service in SERVICES}
        return {kind: str(port) for kind, port in self._ports[site].items()} | wired

    def commands(self, site: str, folder: Path) -> dict[str, list[str]]:
        """What to start at a site; the services keep their files in a folder."""
        ports = self._ports[site]
        image = [*_program("image"), "--port", str(ports["IMAGE_OWN"]), "--data", str(folder / "images")]
        return {
            "image": image,
            "compute": [*_program("compute"), "--port", str(ports["COMPUTE_OWN"])],
        }

    def environment(self, site: str) -> dict[str, str]:
        """Where the compute service of a site finds images: at the gateway."""
        return {**os.environ, "IMAGE_URL": f"http://{_HOST}:{self._ports[site]['IMAGE_OUTBOUND']}"}

    def answers(self, site: str) -> bool:
        """Whether the services of a site are there, and its gateway knows those of all sites."""
        everywhere = " ; ".join(self._sites)
        headers = {"Scope": f"{{image: {everywhere}, compute: {everywhere}}}", "Cheops-Dry-Run": "1"}
        try:
            paths = {"image": "/images", "compute": "/servers"}
            owned = all(self.own(site, service, path).status == 200 for service, path in paths.items())
            return owned and all(
                http_answer(self.url(site, service), "GET", "/", headers).status == 200
                for service in SERVICES
            )
        except OSError:
            return False


def _program(name: str) -> list[str]:
    return [sys.executable, str(_PROGRAMS / f"{name}.py")]
