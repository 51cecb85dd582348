"""On the networks of the edge operations arrive, requests are served, and statuses are true. All with TLS.

Each is played on one data plane; `CHEOPS_TEST_EDGE=all` (make soak) plays them on both, and what takes minutes.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.agent.rig import until
from tests.edge.mesh import EdgeMesh
from tests.gateway.stage import PLANES
from tests.wan import Wan
from tests.wan.fixtures import MakeWan

IS_ALL = os.environ.get("CHEOPS_TEST_EDGE") == "all"
planes = pytest.mark.parametrize("plane", PLANES if IS_ALL else PLANES[:1])
# The data plane that does more by itself: it resolves names, and keeps connections of its own.
haproxy = pytest.mark.parametrize("plane", PLANES if IS_ALL else PLANES[-1:])
MOVED = "10.77.0.99"
RELAYED = "by way of {}: no direct connection can be made"
DEFAULT = ("1s", "5s")  # heartbeats


def is_relayed(mesh: EdgeMesh, site: str, other: str, relay: str) -> bool:
    return RELAYED.format(relay) in mesh.checks(site).get(f"{other} is up", "")


@planes
def test_nat_then_a_partial_mesh_then_connections_in_one_direction(plane: str, wan: Wan, tmp_path: Path) -> None:
    with EdgeMesh(tmp_path / "rig", wan, plane=plane) as mesh:
        wan.nat("site3")
        mesh.rig.start()
        mesh.works()
        # Nobody can connect to it, and all use the channels that it has opened: it needs no relay.
        with wan.hosts["site1"].socket() as sock:
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.connect((wan.hosts["site3"].address, 8079))
        until(lambda: not any("by way of" in "".join(mesh.checks(site).values()) for site in mesh.sites))

        wan.restore()
        wan.cut("site1", "site3")
        until(lambda: is_relayed(mesh, "site1", "site3", "site2"), "for site1 to say that it uses a relay")
        until(lambda: is_relayed(mesh, "site3", "site1", "site2"), "for site3 to say so")
        mesh.works()

        wan.restore()
        for site, other in (("site1", "site2"), ("site2", "site3"), ("site3", "site1")):
            wan.refuse_connections(site, other)
        mesh.works()


@planes
def test_loss_then_64_kbit_then_a_small_mtu(plane: str, wan: Wan, tmp_path: Path) -> None:
    with EdgeMesh(tmp_path / "rig", wan, plane=plane, warm=4, heartbeat=DEFAULT) as mesh:
        mesh.rig.start()
        mesh.works()
        wan.delay_all(10)
        wan.loss_all(0.3, seed=1)
        mesh.works(times=0)  # of the connections that are opened, one in four takes more than 3 s
        mesh.stays_up(60 if IS_ALL else 2)

        wan.loss_all(0)
        wan.rate_all(64)
        mesh.works()
        # What takes several seconds does not hold up heartbeats.
        content = mesh.rig.base / "content"
        content.write_bytes(os.urandom(200_000 if IS_ALL else 40_000))
        fields = {"command": "cp {x} large", "sites": "site1 & site2 & site3", "type": "set", "timeout": "0.1"}
        mesh.rig.post("site1", "/exec/large", fields, {"x": content})
        while not all((mesh.rig.folder(site) / "large").exists() for site in mesh.sites):
            mesh.stays_up(0.5)
        mesh.verify("large")

        wan.restore()
        wan.mtu_all(1280)
        before = sum(link.dropped for link in wan.links().values())
        answer = mesh.ask("site1", "{image: site2}", body=b"x" * 50_000)
        assert (answer.status, answer.json["served_by"]) == (200, "image of site2")
        assert sum(link.dropped for link in wan.links().values()) > before  # the path told the sender
        mesh.works()


@planes
def test_ipv6_only(plane: str, make_wan: MakeWan, tmp_path: Path) -> None:
    wan = make_wan("site1", "site2", "site3", ipv6=True)
    with EdgeMesh(tmp_path / "rig", wan, plane=plane) as mesh:
        mesh.rig.start()
        mesh.works()
        assert "https://[fd77::2]:8079" in mesh.rig.request("site1", "GET", "/api/v1/sites").decode()
        if not IS_ALL:
            return
        wan.nat("site3")
        mesh.works()
        wan.restore()
        wan.cut("site1", "site2")
        until(lambda: is_relayed(mesh, "site1", "site2", "site3"), "for a relay")
        mesh.works()


@haproxy
def test_an_address_that_changes_behind_its_name(plane: str, make_wan: MakeWan, tmp_path: Path) -> None:
    wan = make_wan("site1", "site2")
    names = {"site1": "one.example", "site2": "two.example"}
    with EdgeMesh(tmp_path / "rig", wan, plane=plane, names=names) as mesh:
        mesh.rig.start()
        mesh.works()
        for _ in range(3):  # so that HAProxy serves it alone
            assert mesh.ask("site1", "{image: site2}").status == 200
        wan.move("site2", MOVED)
        until(lambda: has_left(mesh), "for the old address to be gone")
        mesh.move({"site2": MOVED})
        mesh.works()
        # Nothing tries the old address first, for gateway.connect_timeout.
        until(lambda: min(taken_s(mesh) for _ in range(3)) < 1.5, "for requests to go to the new address", 20)
        gateway = f"{MOVED}:{mesh.stage.ports['site2', '', 'mesh']}"  # every 30 s an address that failed is tried again
        until(lambda: mesh.ask("site1", "{image: site2}") and gateway in opened(mesh), "for a direct connection", 45)


def has_left(mesh: EdgeMesh) -> bool:
    """Whether site1 no longer has site2 at its first address. It counts as down for a moment at most: it finds site1,
    which has not moved, by itself."""
    return mesh.states("site1")["site2"] == "down" or any(MOVED in line for line in kept(mesh, "site1"))


def taken_s(mesh: EdgeMesh) -> float:
    """How long a request to another site takes."""
    began_s = time.monotonic()
    assert mesh.ask("site1", "{image: site2}").status == 200
    return time.monotonic() - began_s


def kept(mesh: EdgeMesh, site: str) -> list[str]:
    """The connections to other sites that a site keeps, with their timers."""
    shown = mesh.wan.hosts[site].run(["ss", "-Htno", "state", "established"], stdout=subprocess.PIPE, text=True)
    return [line for line in shown.stdout.splitlines() if "10.77.0" in line]


def opened(mesh: EdgeMesh) -> set[str]:
    """The other ends of the connections that site1 keeps."""
    return {line.split()[3] for line in kept(mesh, "site1")}


@haproxy
def test_kept_connections_are_never_silent_for_a_minute(plane: str, make_wan: MakeWan, tmp_path: Path) -> None:
    """A firewall forgets connections that are idle for 60 s. TCP itself sends something on every one before that."""
    wan = make_wan("site1", "site2")
    with EdgeMesh(tmp_path / "rig", wan, plane=plane, warm=4) as mesh:
        mesh.rig.start()
        mesh.works()
        for _ in range(3):
            assert mesh.ask("site1", "{image: site2}").status == 200
        gateway = mesh.stage.ports["site2", "", "mesh"]
        assert any(end.endswith(f":{gateway}") for end in opened(mesh)), opened(mesh)
        for site in mesh.sites:
            for line in kept(mesh, site):
                is_opener = line.split()[3].endswith((":8079", f":{mesh.stage.ports['site2', '', 'mesh']}"))
                if is_opener:
                    assert "timer:(keepalive," in line or "timer:(on," in line, line
        if not IS_ALL:
            return
        wan.forget_idle(60)
        mesh.works()
        time.sleep(65)
        began_s = time.monotonic()
        assert mesh.ask("site1", "{image: site2}").status == 200
        assert time.monotonic() - began_s < 3
        mesh.works()


@planes
def test_a_request_on_a_dead_connection_goes_another_way(plane: str, wan: Wan, tmp_path: Path) -> None:
    """The direct way ends without a word while the site stays up, by way of a third one."""
    with EdgeMesh(tmp_path / "rig", wan, plane=plane, warm=4) as mesh:
        mesh.rig.start()
        mesh.works()
        wan.cut("site1", "site3")
        began_s = time.monotonic()
        assert mesh.ask("site1", "{image: site3}").status in {200, 502, 503, 504}
        assert time.monotonic() - began_s < 30  # the service may take a minute
        until(lambda: mesh.ask("site1", "{image: site3}").status == 200, "for a tunnel")
