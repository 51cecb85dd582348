"""Three real agents whose pages are tested, on a network that can be cut, with services behind their gateways."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from cheops.api.models.operations import SubmitRequest, Wait
from cheops.client import Agent
from cheops.demo.network import Network, NetworkControl
from tests.agent.rig import until
from tests.agent.types import FILE, TALLY
from tests.gateway.replicas.sites import SITES, Sites

# What takes longer than its time may have had an effect: nobody knows.
SLOW: dict[str, Any] = {**TALLY, "timeout": "300ms"}
TYPES = {"file": FILE, "tally": TALLY, "slow": SLOW}


class Mesh(Sites):
    def __init__(self, base: Path, socket: Path) -> None:
        super().__init__(base)
        ports = {site: int(self.rig.url(site).rpartition(":")[2]) for site in SITES}
        self.network = Network(ports, lambda: {n: p.pid for n, p in self.rig.processes.items()})
        self.desk = NetworkControl(self.network, socket)
        for site in SITES:
            path = self.rig.folder(site) / "site.yaml"
            config = yaml.safe_load(path.read_text())
            types = yaml.safe_load(yaml.safe_dump(TYPES).replace("@FOLDER@", str(self.rig.folder(site))))
            config |= {"types": types, "advertise": self.network.urls[site], "demo": {"wires": str(socket)}}
            config["peers"] = dict(self.network.urls)
            path.write_text(yaml.safe_dump(config))

    def agent(self, site: str = "site1") -> Agent:
        return Agent(self.rig.url(site))

    def page(self, path: str = "", site: str = "site1") -> str:
        return f"{self.rig.url(site)}/ui/{path}"

    def resource(self, id_: str, query: str = "", site: str = "site1") -> str:
        return self.page(f"resources/{quote(id_, safe='')}{query}", site)

    def make(self, id_: str, command: str = "echo one > __ID__", rtype: str = "file", type_: str = "set") -> str:
        """A resource, dealt with everywhere when this returns."""
        wish = SubmitRequest(type=type_, command=command, sites=" & ".join(SITES), resource_type=rtype)
        made = self.agent().submit(id_, wish)
        assert made.satisfied, made
        return id_

    def do(self, site: str, id_: str, type_: str, command: str, wait: Wait = Wait.FIRST) -> str:
        return self.agent(site).submit(id_, SubmitRequest(type=type_, command=command), wait=wait).operation

    def becomes(self, id_: str, overall: str, site: str = "site1") -> None:
        until(lambda: self.agent(site).status(id_).overall == overall, f"for {id_} to be {overall}")

    @contextlib.contextmanager
    def cut(self, *alone: str) -> Iterator[None]:
        """Sites without a way to the others, and these see it; in the end all are up."""
        self.network.cut(*alone)
        try:
            for site in alone or SITES:
                until(lambda s=site: self._lost(s), f"for {site} to be cut off")  # type: ignore[misc]
            yield
        finally:
            self.network.heal()
            until(self._all_up, "for all to be up again")

    def _lost(self, site: str) -> bool:
        return all(one.state == "down" for one in self.agent(site).sites().sites if not one.here)


@contextlib.contextmanager
def running_mesh(base: Path) -> Iterator[Mesh]:
    base.mkdir()
    mesh = Mesh(base / "rig", base / "network.sock")
    try:
        mesh.start()
        yield mesh
    finally:
        mesh.rig.close()
        mesh.desk.close()
        mesh.network.close()
