"""minicloud at the sites of the demo: its ports, its configuration, how it is started, and HTTP requests to it.

minicloud is the application of examples/minicloud: two HTTP services, image and compute; each site has its own
instances. Requests go through the gateway of a site (`url`) or directly to an instance (`own`).
"""

import http.client
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def log_of(url: str, id_: str) -> list[dict[str, Any]]:
    """The operations of a resource, as the API's log has them."""
    return list(_get(url, f"/api/v1/resources/{id_}/log")["operations"])


def sees_all_up(url: str) -> bool:
    """Whether an agent has heard of all sites that it knows of."""
    return all(site["state"] == "up" for site in _get(url, "/api/v1/sites")["sites"])


def send_request(
    url: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: str | None = None
) -> HttpResponse:
    """What a service answers, whoever stands before it. Raises OSError."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)
    with closing(connection):
        connection.request(method, path, None if body is None else body.encode(), dict(headers or {}))
        answer = connection.getresponse()
        return HttpResponse(answer.status, answer.headers, answer.read())


def _get(url: str, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = send_request(url, "GET", path).json
    return answer


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

    def own(self, site: str, service: str, path: str) -> HttpResponse:
        """What a site's own instance answers, asked past Cheops."""
        port = self._ports[site][f"{service.upper()}_OWN"]
        return send_request(f"http://{_HOST}:{port}", "GET", path)

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
                send_request(self.url(site, service), "GET", "/", headers).status == 200 for service in SERVICES
            )
        except OSError:
            return False


def _program(name: str) -> list[str]:
    return [sys.executable, str(_PROGRAMS / f"{name}.py")]
