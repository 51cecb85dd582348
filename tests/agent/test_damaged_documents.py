"""A disk that changes stored documents: they are reported, never used, and fetched again from other sites."""

import json
import sqlite3
from contextlib import closing
from typing import Any

from tests.agent.rig import MakeRig, RefusedByAgentError, Rig, until
from tests.agent.types import FILE
from tests.security.clients import local
from tests.support.command import run_here

SITES = ("site1", "site2", "site3")


def written(rig: Rig) -> None:
    """A resource whose second operation the disk of site1 has changed, while its agent was stopped."""
    rig.start()
    for text in ("first", "needle-1"):
        kind = "add" if text != "first" else "set"
        rig.exec("site1", "n", kind, f"echo {text} {'>' if kind == 'set' else '>>'} __ID__")
    until(lambda: overall(rig, "site1") == "CONVERGED", "for all to have it")
    for site in SITES:
        rig.stop(site)
    path = rig.folder("site1") / "data" / "store.db"
    data = path.read_bytes()
    assert data.count(b"echo needle-1") == 1
    path.write_bytes(data.replace(b"echo needle-1", b"echo needle-9"))


def overall(rig: Rig, site: str) -> str:
    return str(json.loads(rig.request(site, "GET", "/api/v1/resources/n/status"))["overall"])


def commands(rig: Rig, site: str) -> list[str]:
    found = json.loads(rig.request(site, "GET", "/api/v1/resources/n/operations"))["operations"]
    return [one["command"] for one in found]


def damage(rig: Rig) -> list[dict[str, Any]]:
    checks = json.loads(rig.request("site1", "GET", "/api/v1/check"))["checks"]
    return [one for one in checks if one["name"] == "stored documents of 'n' are damaged"]


def reported(rig: Rig) -> list[str]:
    with closing(sqlite3.connect(rig.folder("site1") / "data" / "notify.db")) as db:
        events = [json.loads(body) for (body,) in db.execute("SELECT body FROM events ORDER BY seq")]
    return [event["detail"] for event in events if event["kind"] == "damaged"]


def test_what_another_site_has_is_fetched_again(make_rig: MakeRig) -> None:
    rig = make_rig({"file": FILE}, *SITES, secure=True)
    written(rig)
    rig.start()
    until(lambda: local(rig).sites().sites[1].state == "up", "for site2")
    until(lambda: is_known(rig), "for the document to be fetched")
    assert commands(rig, "site1")[-1] == "echo needle-1 >> __ID__"
    until(lambda: overall(rig, "site1") == "CONVERGED", "for the status")
    assert damage(rig) == []
    assert "needle-9" not in (rig.folder("site1") / "n").read_text()
    assert "fetched again from site" in rig.log("site1")


def test_until_then_it_is_neither_used_nor_called_converged(make_rig: MakeRig) -> None:
    rig = make_rig({"file": FILE}, *SITES)
    written(rig)
    rig.start("site1")
    until(lambda: not is_known(rig) and damage(rig), "for it to be noticed")
    (check,) = damage(rig)
    assert (check["level"], check["detail"]) == ("failed", "operation site1:2")
    status = run_here("status", "n", "--url", rig.url("site1"))
    assert status.code == 1
    assert "documents of 'n' are damaged (op/n/site1/" in status.err
    until(lambda: health(rig)["states"]["unknown"] == 1, "for the state to be counted")
    assert health(rig)["states"]["converged"] == 0
    assert "damaged (operation site1:2)" in health(rig)["worst"][0]["sentence"]
    (listed,) = json.loads(rig.request("site1", "GET", "/api/v1/resources"))["resources"]
    assert (listed["id"], listed["overall"], listed["sites"]) == ("n", "UNREACHABLE", list(SITES))
    until(lambda: reported(rig) == ["damaged, and at no site that is up: operation site1:2"], "for the event")
    rig.start("site2", "site3")
    until(lambda: is_known(rig), "for the document to be fetched")
    assert commands(rig, "site1")[-1] == "echo needle-1 >> __ID__"
    until(lambda: damage(rig) == [], "for the check to pass")
    until(lambda: overall(rig, "site1") == "CONVERGED", "for the status")
    until(lambda: len(reported(rig)) == 2, "for the second event")
    assert reported(rig)[1].startswith("damaged, and fetched again from site")


def is_known(rig: Rig) -> bool:
    try:
        return bool(commands(rig, "site1"))
    except RefusedByAgentError:
        return False


def health(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.request("site1", "GET", "/api/v1/status"))
    return found
