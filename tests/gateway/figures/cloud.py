"""The papers' application at every site of a bed: examples/minicloud, with the gateway around its services.

    site1 ── 5 ms ── site2      from both: 40 ms to site3, 60 ms to site4

Compute is App's service `s` with its endpoint `e` (POST /servers), image is `t` with `g` (POST /images) and
`h` (GET /images/ID/file); so creating a server is the workflow s.e → t.h.
"""

import contextlib
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.agent.rig import until
from tests.gateway.stage import Answer, Stage
from tests.support.ports import free_ports
from tests.wan import Wan

SITES = ("site1", "site2", "site3", "site4")
LASTING = SITES[:3]
BALANCED = "site3"  # where the image service is two instances behind a load balancer
MINICLOUD = Path(__file__).parents[3] / "examples" / "minicloud"
_DISTANCES_MS = {("site1", "site2"): 5, ("site1", "site3"): 40, ("site2", "site3"): 40}
_FAR_MS = 60


class Cloud(Stage):
    def __init__(self, base: Path, wan: Wan) -> None:
        super().__init__(base, SITES, ("image", "compute"), wan=wan, outbound=True, carriers=["X-Request-Id"])
        self.wan = wan
        self._applications: dict[str, list[subprocess.Popen[Any]]] = {site: [] for site in SITES}

    # -- starting ----------------------------------------------------------------------------------------

    def start(self) -> None:
        for site in SITES:
            self.start_services(site)
        self.rig.start()
        for site in SITES:
            for service in self.services:
                until(lambda s=site, of=service: self._is_there(s, of), f"for {service} of {site}")  # type: ignore[misc]
        self.all_see_all(*SITES)

    def start_services(self, site: str) -> None:
        images = ["--data", str(self.rig.folder(site) / "images")]
        ports = [self.own(site)]
        if site == BALANCED:
            ports = free_ports(2)
            balancer = [sys.executable, "-m", "tests.gateway.figures.balancer", str(self.own(site))]
            self._start(site, "balancer", [*balancer, *map(str, ports)])
        for number, port in enumerate(ports, 1):
            argv = [sys.executable, str(MINICLOUD / "image.py"), "--port", str(port), *images]
            self._start(site, f"image{number}", argv)
        compute = [sys.executable, str(MINICLOUD / "compute.py"), "--port", str(self.own(site, "compute"))]
        outbound = "http://{}:{}".format(*self.address(site, "image", "outbound"))
        self._start(site, "compute", ["env", f"IMAGE_URL={outbound}", *compute])

    def _start(self, site: str, name: str, argv: list[str]) -> None:
        log = (self.rig.folder(site) / f"{name}.log").open("ab")
        process = self.rig._popen(site, argv, stdout=log, stderr=log)
        log.close()
        self._applications[site].append(process)
        self.rig.side_processes.append(process)

    def stop_services(self, site: str) -> None:
        for process in self._applications[site]:
            process.kill()
            process.wait()
        self._applications[site].clear()

    def _is_there(self, site: str, service: str) -> bool:
        with contextlib.suppress(OSError):
            return self.direct(site, "GET", _COLLECTIONS[service], service=service).status == 200
        return False

    def all_see_all(self, *sites: str) -> None:
        """Wait until these sites, by default those that no test removes, know each other to be up, and how far."""
        wanted = sites or LASTING

        def do() -> bool:
            scope = f"{{image: {' ; '.join(wanted)}}}"
            told = [self.call(site, "GET", "/images", scope=scope, Cheops_Dry_Run="1") for site in wanted]
            if any(answer.status != 200 for answer in told):
                return False
            return all(one["up"] and one["rtt_ms"] is not None for answer in told for one in answer.json["sites"])

        until(do, f"for {', '.join(wanted)} to see each other")

    # -- requests ----------------------------------------------------------------------------------------

    def call(  # noqa: PLR0913 - what a request has
        self,
        site: str,
        method: str,
        target: str,
        content: Any = None,
        *,
        scope: str | None = None,
        service: str = "image",
        **headers: str,
    ) -> Answer:
        """A client on the machine of a site, through its gateway. Names of headers have `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        scoped = {} if scope is None else {"Scope": scope}
        return self._sent(site, self.address(site, service), method, target, content, **scoped, **named)

    def direct(self, site: str, method: str, target: str, content: Any = None, *, service: str = "image") -> Answer:
        """To the site's own service, past its gateway."""
        return self._sent(site, ("127.0.0.1", self.own(site, service)), method, target, content)

    def _sent(
        self, site: str, address: tuple[str, int], method: str, target: str, content: Any, **headers: str
    ) -> Answer:
        body = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        return self._asked(site, address, method, target, body, {"Content-Type": kind, **headers})

    def new_image(self, site: str, name: str, file: bytes, *, scope: str | None = None) -> str:
        """With `&`, when all sites have it; gives its id."""
        made = self.call(site, "POST", "/images", {"name": name}, scope=scope, Cheops_Wait="all")
        assert made.status == 201, made.body
        id_: str = made.json["id"]
        one = None if scope is None or "&" in scope else scope
        put = self.call(site, "PUT", f"/images/{id_}/file", file, scope=one, Cheops_Wait="all")
        assert put.status == 204, put.body
        return id_

    def boot(self, site: str, name: str, image: str, *, scope: str | None = None) -> Answer:
        """Create a server: the workflow s.e → t.h."""
        return self.call(site, "POST", "/servers", {"name": name, "image": image}, scope=scope, service="compute")

    # -- what is there -----------------------------------------------------------------------------------

    def images(self, site: str) -> dict[str, dict[str, Any]]:
        """The images that a site's own service has, by name."""
        return {image["name"]: image for image in self.direct(site, "GET", "/images").json["images"]}

    def servers(self, site: str) -> dict[str, dict[str, Any]]:
        found = self.direct(site, "GET", "/servers", service="compute").json["servers"]
        return {server["name"]: server for server in found}

    def reads(self, site: str, log: str = "image1") -> int:
        """How many times an instance of a site's image service was asked for an image or its file."""
        text = (self.rig.folder(site) / f"{log}.log").read_text()
        return text.count('"GET /images/')

    def replicant(self, site: str, meta_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rig.request(site, "GET", f"/api/v1/replicants/{meta_id}"))
        return found

    def shape(self) -> None:
        """The distances of the bed."""
        self.wan.heal()
        self.wan.delay_all(_FAR_MS)
        for (one, other), delay_ms in _DISTANCES_MS.items():
            self.wan.delay(one, other, delay_ms)


_COLLECTIONS = {"image": "/images", "compute": "/servers"}


def digest(file: bytes) -> str:
    return sha256(file).hexdigest()
