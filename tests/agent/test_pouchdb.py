"""A real PouchDB between two agents that cannot reach each other: it carries operations there, and replies back."""

import asyncio
from pathlib import Path

import pytest
import yaml

from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import TALLY
from tests.sync.couch_peers import installed_packages, pouch


@pytest.fixture
def packages(request: pytest.FixtureRequest) -> Path:
    return installed_packages(request.config)


def _tear_apart(rig: Rig) -> None:
    """Let each site think that the other is at an address where nobody listens."""
    for name in rig.names:
        path = rig.folder(name) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["peers"] = {other: "http://127.0.0.1:1" for other in rig.names if other != name}
        path.write_text(yaml.safe_dump(config))


def test_a_pouchdb_carries_operations_between_agents(make_rig: MakeRig, packages: Path) -> None:
    rig = make_rig({"tally": TALLY}, "site1", "site2")
    _tear_apart(rig)
    rig.start()
    for _ in range(3):
        assert rig.exec_here("site1", "n", "inc", "printf x >> __ID__")["Status"] == "OK"
    assert rig.exec_here("site2", "n", "inc", "printf x >> __ID__")["Status"] == "OK"

    async def carry() -> None:
        async with pouch(packages) as peer:
            for _ in range(2):  # there with operations, back with replies
                for direction in ("pull", "push"):
                    for site in rig.names:
                        done = await peer.tell("once", direction=direction, url=f"{rig.url(site)}/db/cheops")
                        assert done["failed"] == 0, done
                for site in rig.names:
                    expected = rig.folder(site) / "n"
                    until(lambda path=expected: path.read_text() == "x" * 4, f"for {expected}")  # type: ignore[misc]
            documents = await peer.tell("docs")
        replies = {(doc["origin"].rpartition("/")[0], doc["n"]) for doc in documents if doc["doc"] == "reply"}
        assert {site for site, _ in replies} == {"site1", "site2"}
        assert sum(doc["doc"] == "op" for doc in documents) == 4

    asyncio.run(carry())
