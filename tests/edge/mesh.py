"""Three agents with gateways, services and TLS on a test bed, and what must hold on every network between them."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import yaml

from tests.agent.rig import PATIENCE_S, until
from tests.agent.types import FILE
from tests.gateway.service import Service
from tests.gateway.stage import Answer, Stage
from tests.wan import Wan

TYPES = {"file": {**FILE, "policy": {"operate": "mesh"}}}  # any site may pass requests on


class EdgeMesh:
    """The agents, and a service `image` at each site that says its name."""

    def __init__(  # noqa: PLR0913 - what differs between networks
        self,
        base: Path,
        wan: Wan,
        *,
        plane: str = "builtin",
        names: dict[str, str] | None = None,
        warm: int = 0,
        heartbeat: tuple[str, str] = ("300ms", "1500ms"),
    ) -> None:
        """`names`: host names by site, which agents use instead of addresses; see `move`. `warm`: idle connections that
        gateways keep."""
        self.wan = wan
        self.sites = tuple(wan.names)
        self.stage = Stage(base, self.sites, ("image",), wan=wan, plane=plane, gateway={"warm": warm})
        self.rig = self.stage.rig
        self._names = names or {}
        self._heartbeat = heartbeat
        self._numbers = 0
        for site in self.sites:
            self._configure(site)
        self.services: dict[str, Service] = {}
        for site in self.sites:
            with wan.hosts[site].inside():
                self.services[site] = Service(f"image of {site}", self.stage.own(site))

    def _configure(self, site: str) -> None:
        path = self.rig.folder(site) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["types"] = json.loads(json.dumps(TYPES).replace("@FOLDER@", str(self.rig.folder(site))))
        config["heartbeat"] = dict(zip(("every", "down_after"), self._heartbeat, strict=True))
        if self._names:
            self._use_names(site, config)
        path.write_text(yaml.safe_dump(config))

    def _use_names(self, site: str, config: dict[str, Any]) -> None:
        """Listen at all addresses, and announce names."""
        self.rig.hosts_file = self.rig.base / "hosts"
        self.move({})
        port = config["listen"].rpartition(":")[2]
        mesh = config["gateway"]["listen"].rpartition(":")[2]
        own = self._names[site]
        config |= {"listen": f"0.0.0.0:{port}", "advertise": f"https://{own}:{port}"}
        config["peers"] = {other: f"https://{name}:{port}" for other, name in self._names.items()}
        image = config["services"]["image"]
        image["listen"] = f"0.0.0.0:{image['listen'].rpartition(':')[2]}"
        config["gateway"] |= {"listen": f"0.0.0.0:{mesh}", "advertise": f"https://{own}:{mesh}"}

    def move(self, addresses: dict[str, str]) -> None:
        """Write the addresses of the names, those given and the first ones of the others."""
        lines = [f"{addresses.get(site, self.wan.hosts[site].address)} {name}" for site, name in self._names.items()]
        (self.rig.base / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def close(self) -> None:
        self.rig.close()
        for service in self.services.values():
            service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what a user sees -----------------------------------------------------------------------------------------

    def states(self, site: str) -> dict[str, str]:
        found = json.loads(self.rig.request(site, "GET", "/api/v1/sites"))["sites"]
        return {one["name"]: one["state"] for one in found}

    def all_up(self) -> bool:
        return all(set(self.states(site).values()) == {"up"} for site in self.sites)

    def checks(self, site: str) -> dict[str, str]:
        """What `cheops check` says of the other sites: the name and the detail of each check."""
        found = json.loads(self.rig.request(site, "GET", "/api/v1/check"))["checks"]
        return {one["name"]: one["detail"] for one in found if one["group"] == "peers"}

    def status(self, site: str, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rig.request(site, "GET", f"/api/v1/resources/{id_}/status"))
        return found

    def content(self, site: str, id_: str) -> str:
        """The state of the application, asked directly."""
        path = self.rig.folder(site) / id_
        return path.read_bytes().decode("latin-1") if path.exists() else ""

    def ask(self, site: str, scope: str, path: str = "/", body: bytes | None = None) -> Answer:
        """A request of a client on the machine of a site, through its gateway."""
        with self._connected(site) as connection:
            connection.request("POST" if body else "GET", path, body, {"Scope": scope})
            return Answer(connection.getresponse())

    @contextlib.contextmanager
    def _connected(self, site: str) -> Iterator[http.client.HTTPConnection]:
        address = ("127.0.0.1" if self._names else self.wan.hosts[site].address, self.stage.address(site)[1])
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
            connection.sock = self.wan.hosts[site].socket()
            connection.sock.settimeout(PATIENCE_S)
            connection.sock.connect(address)
            yield connection

    # -- what must hold ---------------------------------------------------------------------------------------------

    def operate(self, *sites: str, timeout_s: float = 30) -> str:
        """An operation on one resource of all sites, at each of the sites named: all report OK. Gives the resource."""
        self._numbers += 1
        id_ = f"n{self._numbers}"
        for site in sites or self.sites:
            lines = self.rig.exec(site, id_, "add", f"echo {site} >> {id_}", timeout=timeout_s)
            found = {line["Site"]: line["Status"] for line in lines}
            assert found == dict.fromkeys(self.sites, "OK"), f"from {site}: {found}"
        return id_

    def verify(self, id_: str) -> None:
        """All sites come to say CONVERGED. Whenever one does, the applications are equal."""
        for site in self.sites:
            until(lambda s=site: self._is_converged(s, id_), f"for {site} to know of {id_}")  # type: ignore[misc]

    def _is_converged(self, site: str, id_: str) -> bool:
        if self.status(site, id_)["overall"] != "CONVERGED":
            return False
        contents = {one: self.content(one, id_) for one in self.sites}
        assert len(set(contents.values())) == 1, f"{site} says CONVERGED: {contents}"
        return True

    def share(self, times: int = 1) -> None:
        """Requests of each site to the services of all others are served there."""
        for site in self.sites:
            for other in self.sites:
                if site != other:
                    until(lambda s=site, o=other: self._is_served(s, o), f"for {other} to serve {site}")  # type: ignore[misc]
                    for _ in range(times):
                        answer = self.ask(site, f"{{image: {other}}}")
                        assert answer.status == 200, f"{site} asks {other}: {answer.status} {answer.body!r}"
                        assert answer.json["served_by"] == f"image of {other}"

    def _is_served(self, site: str, other: str) -> bool:
        return self.ask(site, f"{{image: {other}}}").status == 200

    def works(self, timeout_s: float = 30, times: int = 1) -> None:
        """Operations of all sites arrive, statuses are true, and requests are served, so many times after the first.
        Waits for all sites to be up."""
        until(self.all_up, "for all sites to be up")
        self.verify(self.operate(timeout_s=timeout_s))
        self.share(times)
        for site in self.sites:
            assert "Traceback" not in self.rig.log(site)

    def stays_up(self, for_s: float) -> None:
        """No site counts as down to another one, at any moment of a while."""
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            found = {site: self.states(site) for site in self.sites}
            assert all("down" not in states.values() for states in found.values()), found
            time.sleep(0.2)
