"""Many agents on one machine: operations arrive everywhere, with few connections and few messages.

`CHEOPS_TEST_AGENTS=50` (make soak) for more than the eight of `make test`.
"""

import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import FILE

AGENTS = int(os.environ.get("CHEOPS_TEST_AGENTS", "8"))
WIDE = min(20, AGENTS - 2)  # sites of the largest resource
NARROW = 3
PATIENCE_S = 60 + 6 * AGENTS
_SENT = re.compile(r"^cheops_sent_messages_total(?:{[^}]*})? (\S+)$", re.MULTILINE)


def peers_of(rig: Rig) -> dict[str, Counter[str]]:
    """The established connections between agents: how many each has with each other one."""
    inodes = {}
    for name in rig.names:
        for link in Path(f"/proc/{rig.processes[name].pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes[target[8:-1]] = name
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Both ends: one that the other agent has closed, or not accepted yet, is still in one of the two rows.
    owners = {(row[1], row[2]): inodes[row[9]] for row in rows if row[3] == "01" and row[9] in inodes}
    found: dict[str, Counter[str]] = {name: Counter() for name in rig.names}
    for (here, there), own in owners.items():
        other = owners.get((there, here))
        if other and own != other:
            found[own][other] += 1
    return found


def is_modest(rig: Rig) -> bool:
    found = peers_of(rig)
    return all(sum(one.values()) <= 40 and max(one.values(), default=0) <= 2 for one in found.values())


def overall(rig: Rig, site: str, id_: str) -> str:
    return str(json.loads(rig.request(site, "GET", f"/api/v1/resources/{id_}/status"))["overall"])


def messages(rig: Rig) -> float:
    return sum(float(n) for site in rig.names for n in _SENT.findall(rig.request(site, "GET", "/metrics").decode()))


def settled_messages(rig: Rig) -> float:
    """How many were sent, once no more are."""
    found = messages(rig)
    while True:
        time.sleep(1)
        before, found = found, messages(rig)
        if before == found:
            return found


def knows(rig: Rig, site: str, names: tuple[str, ...]) -> bool:
    found = {one["name"]: one["state"] for one in json.loads(rig.request(site, "GET", "/api/v1/sites"))["sites"]}
    return all(found.get(name) == "up" for name in names)


@pytest.mark.timeout(60 + 20 * AGENTS)
def test_operations_arrive_everywhere_with_few_connections(make_rig: MakeRig) -> None:
    names = tuple(f"site{number:02}" for number in range(1, AGENTS + 1))
    rig = make_rig({"file": FILE}, *names)
    for name in names:  # as users have it: the rig's own heartbeats are for three sites
        path = rig.folder(name) / "site.yaml"
        path.write_text(re.sub(r"heartbeat:\n( .*\n)+", "", path.read_text()))
    rig.start()
    wide = names[:WIDE]
    groups = [names[start : start + NARROW] for start in range(0, AGENTS - NARROW + 1, NARROW)][:10]
    for name in wide:
        until(lambda n=name: knows(rig, n, wide), f"for {name} to see the others", PATIENCE_S)  # type: ignore[misc]

    sites = " & ".join(wide)
    for number, site in enumerate((wide[0], wide[-1], wide[0])):
        lines = rig.exec(site, "wide", "add", f"echo {number} >> wide", sites=sites, timeout=PATIENCE_S)
        assert {line["Site"]: line["Status"] for line in lines} == dict.fromkeys(wide, "OK")
    for number, group in enumerate(groups):
        command = f"echo x >> n{number}"
        lines = rig.exec(group[0], f"n{number}", "add", command, sites=" & ".join(group), timeout=PATIENCE_S)
        assert {line["Site"]: line["Status"] for line in lines} == dict.fromkeys(group, "OK")

    for id_, members in [("wide", wide), *((f"n{number}", group) for number, group in enumerate(groups))]:
        for site in members:
            until(lambda s=site, i=id_: overall(rig, s, i) == "CONVERGED", f"for {site} to know", PATIENCE_S)  # type: ignore[misc]
        assert len({(rig.folder(site) / id_).read_text() for site in members}) == 1
    assert (rig.folder(wide[3]) / "wide").read_text() == "0\n1\n2\n"
    until(lambda: is_modest(rig), f"for few connections: {peers_of(rig)}", PATIENCE_S)

    before = settled_messages(rig)
    rig.exec(wide[1], "wide", "add", "echo 3 >> wide", sites=sites, timeout=PATIENCE_S)
    used = settled_messages(rig) - before
    assert WIDE - 1 <= used <= 4 * WIDE, f"{used:.0f} messages for one operation at {WIDE} sites"
    assert all("Traceback" not in rig.log(site) for site in names)
