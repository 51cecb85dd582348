"""minicloud at the sites of the demo: its ports and configuration, its commands, and HTTP requests to it.

minicloud is the application of examples/minicloud: two HTTP services, image and compute; each site has its own
instances. Requests go through the gateway of a site (`url`), or directly to an instance (`own`).
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


def resource_log(url: str, id_: str) -> list[dict[str, Any]]:
    """The operations of a resource, from the API's log."""
    return list(_get(url, f"/api/v1/resources/{id_}/log")["operations"])


def sees_all_up(url: str) -> bool:
    """Whether an agent sees all its sites up."""
    return all(site["state"] == "up" for site in _get(url, "/api/v1/sites")["sites"])


def send_request(
    url: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: str | None = None
) -> HttpResponse:
    """Send a request to a service, with or without a gateway in front. Raises OSError."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)
    with closing(connection):
        connection.request(method, path, None if body is None else body.encode(), dict(headers or {}))
        response = connection.getresponse()
        return HttpResponse(response.status, response.headers, response.read())


def _get(url: str, path: str) -> dict[str, Any]:
    content: dict[str, Any] = send_request(url, "GET", path).json
    return content


SERVICES = ("image", "compute")
_PROGRAMS = Path(__file__).parent / "minicloud"
_HOST = "127.0.0.1"


class Minicloud:
    """`reserve` returns a free port that no other program gets."""

    def __init__(self, sites: tuple[str, ...], reserve: Callable[[], int]) -> None:
        kinds = ("IMAGE_OWN", "IMAGE", "IMAGE_OUTBOUND", "COMPUTE_OWN", "COMPUTE")
        self._sites = sites
        self._ports = {site: {kind: reserve() for kind in kinds} for site in sites}

    def url(self, site: str, service: str) -> str:
        """The URL at which the gateway of a site accepts requests for a service."""
        return f"http://{_HOST}:{self._ports[site][service.upper()]}"

    def own(self, site: str, service: str, path: str) -> HttpResponse:
        """Query a site's own instance directly, not through Cheops."""
        port = self._ports[site][f"{service.upper()}_OWN"]
        return send_request(f"http://{_HOST}:{port}", "GET", path)

    @property
    def endpoints(self) -> dict[str, tuple[str, int]]:
        """What the gateways of other sites connect to, beside the agents: site and port by name."""
        return {
            f"{site} {service}": (site, self._ports[site][service.upper()])
            for site in self._sites
            for service in SERVICES
        }

    def placeholders(self, site: str, links: Mapping[str, str]) -> dict[str, str]:
        """The values of the placeholders of cloud.yaml. `links`: URL of the link to each endpoint."""
        advertised = {f"{service.upper()}_LINK": links[f"{site} {service}"] for service in SERVICES}
        return {kind: str(port) for kind, port in self._ports[site].items()} | advertised

    def commands(self, site: str, folder: Path) -> dict[str, list[str]]:
        """The commands that start the services of a site; they keep their files in `folder`."""
        ports = self._ports[site]
        image = [*_program("image"), "--port", str(ports["IMAGE_OWN"]), "--data", str(folder / "images")]
        return {
            "image": image,
            "compute": [*_program("compute"), "--port", str(ports["COMPUTE_OWN"])],
        }

    def environment(self, site: str) -> dict[str, str]:
        """The compute service of a site fetches images through the gateway."""
        return {**os.environ, "IMAGE_URL": f"http://{_HOST}:{self._ports[site]['IMAGE_OUTBOUND']}"}

    def answers(self, site: str) -> bool:
        """Whether the services of a site answer, and its gateway knows those of all sites."""
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
