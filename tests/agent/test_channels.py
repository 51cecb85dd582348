"""The channels between real agents: sites that nobody can reach, cuts, restarts, and sites that must not be there."""

import json
import time
from pathlib import Path

import pytest
import yaml

from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import FILE
from tests.security.sites import all_up, states
from tests.wan import Wan

TYPES = {"file": {**FILE, "policy": {"operate": "mesh"}}}  # any site may pass requests on
PORT = 8079


def connections(rig: Rig, name: str) -> list[tuple[str, str]]:
    """The established TCP connections of an agent that are not its clients': local and remote end."""
    pid = rig.processes[name].pid
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [(row[1], row[2]) for row in rows if row[3] == "01" and row[9] in inodes]


def settled(rig: Rig, *counts: int) -> bool:
    """Whether the agents hold so many connections, for a while."""
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        if tuple(len(connections(rig, name)) for name in rig.names) != counts:
            return False
        time.sleep(0.2)
    return True


def outcomes(rig: Rig, at: str, id_: str, command: str, **more: object) -> dict[str, str]:
    lines = rig.exec(at, id_, "add", command, **more)  # type: ignore[arg-type]
    return {line["Site"]: line["Status"] for line in lines}


def overall(rig: Rig, site: str, id_: str) -> str:
    return str(json.loads(rig.request(site, "GET", f"/api/v1/resources/{id_}/status"))["overall"])


OK = dict.fromkeys(("site1", "site2", "site3"), "OK")


@pytest.fixture
def hidden(make_rig: MakeRig, wan: Wan) -> Rig:
    """Three sites; nobody can connect to site3: it listens on its own loopback only."""
    rig = make_rig(TYPES, wan=wan)
    path = rig.folder("site3") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "listen": f"127.0.0.1:{PORT}", "advertise": rig.url("site3")}))
    rig.start()
    all_up(rig)
    return rig


def test_a_site_that_nobody_can_reach_takes_part_fully(hidden: Rig, wan: Wan) -> None:
    rig = hidden
    with pytest.raises(ConnectionRefusedError), wan.hosts["site1"].socket() as sock:
        sock.connect((wan.hosts["site3"].address, PORT))
    # Operations of every site, at all sites.
    for number, site in enumerate(rig.names):
        assert outcomes(rig, site, "n", f"echo {number} >> n") == OK
    # A request that another site passes on to it, and one that it passes on.
    assert outcomes(rig, "site1", "own", "echo own > own", sites="site3") == {"site3": "OK"}
    assert outcomes(rig, "site3", "other", "echo other > other", sites="site1") == {"site1": "OK"}
    # Reads of its application, from another site.
    shown = rig.show("site1", "n", sites="site3")
    assert (shown["site3"]["Status"], shown["site3"]["Output"]) == ("OK", "0\n1\n2\n")
    # Files in both directions: the origin is asked for what it was given.
    for site in ("site3", "site1"):
        content = rig.base / f"content-{site}"
        content.write_bytes(site.encode() * 200_000)
        done = outcomes(rig, site, f"file-{site}", f"cp {{x}} file-{site}", files={"x": content})
        assert done == OK
        for other in rig.names:
            assert (rig.folder(other) / f"file-{site}").read_bytes() == content.read_bytes()
    for site in rig.names:
        until(lambda site=site: overall(rig, site, "n") == "CONVERGED", f"for {site} to know")  # type: ignore[misc]
        assert "Traceback" not in rig.log(site)
    # What it shares with the others is measured as for any site.
    views = json.loads(rig.request("site1", "GET", "/api/v1/sites"))["sites"]
    assert next(one for one in views if one["name"] == "site3")["rtt_ms"] is not None


def test_it_comes_back_by_itself_after_a_cut_and_after_a_crash_of_another(hidden: Rig, wan: Wan) -> None:
    rig = hidden
    assert outcomes(rig, "site1", "n", "echo 0 >> n") == OK
    wan.isolate("site3")
    until(lambda: states(rig, "site1")["site3"] == "down", "for the cut to be seen")
    assert rig.exec_here("site1", "n", "add", "echo 1 >> n")["Status"] == "OK"
    assert rig.exec_here("site3", "n", "add", "echo 2 >> n")["Status"] == "OK"
    wan.heal()
    all_up(rig)
    until(lambda: overall(rig, "site3", "n") == "CONVERGED", "for the three to agree")
    rig.kill("site1")
    until(lambda: states(rig, "site3")["site1"] == "down", "for the crash to be seen")
    rig.start("site1")
    all_up(rig)
    assert outcomes(rig, "site1", "n", "echo 3 >> n") == OK
    shown = rig.show("site1", "n")
    assert {one["Output"] for one in shown.values()} == {shown["site1"]["Output"]}
    assert sorted(shown["site1"]["Output"].split()) == ["0", "1", "2", "3"]


def test_one_connection_per_pair_whoever_opened_it(make_rig: MakeRig) -> None:
    """All three start at once, and each opens channels to the others."""
    rig = make_rig(TYPES)
    rig.start()
    all_up(rig)
    assert outcomes(rig, "site1", "n", "true") == OK
    until(lambda: settled(rig, 2, 2, 2), f"for one connection each: {[connections(rig, n) for n in rig.names]}")
    assert outcomes(rig, "site3", "n", "true") == OK
    # One that crashes and starts again takes its place in the same way.
    rig.kill("site2")
    rig.start("site2")
    all_up(rig)
    assert outcomes(rig, "site2", "n", "true") == OK
    until(lambda: settled(rig, 2, 2, 2), "for one connection each after a restart")


def test_a_forgotten_site_loses_its_channel(make_rig: MakeRig) -> None:
    rig = make_rig(TYPES, secure=True)
    rig.start()
    all_up(rig)
    assert outcomes(rig, "site2", "n", "true", sites="site1 & site2") == {"site1": "OK", "site2": "OK"}
    until(lambda: settled(rig, 2, 2, 2), "for one connection each")
    rig.request("site1", "DELETE", "/api/v1/sites/site3?force=true")
    until(lambda: settled(rig, 1, 1, 0), f"for site3 to be alone: {[connections(rig, n) for n in rig.names]}")
    assert states(rig, "site1")["site3"] == "forgotten"
    assert outcomes(rig, "site1", "n", "true", sites="site1 & site2") == {"site1": "OK", "site2": "OK"}


def test_heartbeats_arrive_while_a_large_file_is_on_its_way(make_rig: MakeRig, wan: Wan) -> None:
    rig = make_rig(TYPES, wan=wan)
    wan.delay_all(20)
    rig.start()
    all_up(rig)
    content = rig.base / "large"
    content.write_bytes(b"0123456789abcdef" * (60 * 1024 * 1024 // 16))
    seen: set[str] = set()

    def arrived() -> bool:
        seen.update(states(rig, "site1").values(), states(rig, "site2").values())
        return all((rig.folder(name) / "large").exists() for name in rig.names)

    fields = {"command": "cp {x} large", "sites": "site1 & site2 & site3", "type": "set", "timeout": "0.1"}
    rig.post("site1", "/exec/large", fields, {"x": content})
    until(arrived, "for the file to be everywhere")
    until(lambda: overall(rig, "site1", "large") == "CONVERGED", "for the last reply")
    assert seen == {"up"}


def test_a_transfer_that_is_cut_goes_on_where_it_stopped(make_rig: MakeRig, wan: Wan) -> None:
    rig = make_rig(TYPES, "site1", "site2", wan=wan)
    rig.start()
    all_up(rig)
    wan.delay_all(20)
    content = rig.base / "large"
    content.write_bytes(b"0123456789abcdef" * (30 * 1024 * 1024 // 16))
    fields = {"command": "cp {x} large", "sites": "site1 & site2", "type": "set", "timeout": "0.1"}
    rig.post("site1", "/exec/large", fields, {"x": content})
    files = rig.folder("site2") / "data" / "files"
    until(lambda: any(path.stat().st_size > 1_000_000 for path in files.glob("*.part")), "for the first megabyte")
    wan.isolate("site2")
    until(lambda: states(rig, "site1")["site2"] == "down", "for the cut to be seen")
    wan.heal()
    until(lambda: overall(rig, "site1", "large") == "CONVERGED", "for the file to arrive")
    assert (rig.folder("site2") / "large").read_bytes() == content.read_bytes()


def test_two_sites_that_never_see_each_other_use_a_relay(make_rig: MakeRig, wan: Wan) -> None:
    rig = make_rig(TYPES, wan=wan)
    wan.cut("site1", "site3")
    rig.start()
    until(lambda: states(rig, "site2") == dict.fromkeys(rig.names, "up"), "for site2 to see both")
    # As soon as they share a resource, each looks for a way to the other.
    assert outcomes(rig, "site1", "n", "echo 0 >> n", timeout=60) == OK
    all_up(rig)
    assert outcomes(rig, "site3", "n", "echo 1 >> n") == OK

    def ways() -> list[str]:
        found = [json.loads(rig.request(site, "GET", "/api/v1/check"))["checks"] for site in ("site1", "site3")]
        return [one["detail"] for checks in found for one in checks if one["group"] == "peers"]

    until(lambda: any("by way of site2" in way for way in ways()), f"for the relay to be used: {ways()}")
    content = rig.base / "content"
    content.write_bytes(b"relayed" * 100_000)
    assert outcomes(rig, "site3", "file", "cp {x} file", files={"x": content}) == OK
    assert (rig.folder("site1") / "file").read_bytes() == content.read_bytes()
    # Without the relay they are cut off; with it back, or with a direct way, they go on.
    rig.kill("site2")
    until(lambda: states(rig, "site1")["site3"] == "down", "for site1 to be alone")
    wan.heal()
    until(lambda: states(rig, "site1")["site3"] == "up", "for the direct way")
    assert rig.exec_here("site1", "n", "add", "echo 2 >> n")["Status"] == "OK"
    rig.start("site2")
    all_up(rig)
    until(lambda: overall(rig, "site3", "n") == "CONVERGED", "for the three to agree")
    assert all("Traceback" not in rig.log(site) for site in rig.names)
