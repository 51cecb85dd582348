"""A site whose store is an old copy, or is lost while its application goes on: real agents, over TLS."""

import json
import shutil
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import FILE

SITES = ("site1", "site2", "site3")


def lines(rig: Rig, site: str, id_: str = "notes") -> list[str]:
    path = rig.folder(site) / id_
    return path.read_text().split() if path.exists() else []


def get(rig: Rig, site: str, path: str) -> Any:
    """What an agent answers; None while it starts again."""
    try:
        return json.loads(rig.request(site, "GET", f"/api/v1/{path}"))
    except (OSError, HTTPException):
        return None


def overall(rig: Rig, site: str, id_: str = "notes") -> str:
    found = get(rig, site, f"resources/{id_}/status")
    return found["overall"] if found else ""


def incarnation(rig: Rig, site: str) -> str:
    sites = (get(rig, site, "sites") or {"sites": ()})["sites"]
    return next((one["incarnation"] for one in sites if one["name"] == site), "")


def add(rig: Rig, site: str, word: str) -> None:
    assert rig.exec_here(site, "notes", "add", f"echo {word} >> __ID__")["Status"] == "OK"


def all_have(rig: Rig, words: set[str]) -> None:
    """All sites end with the same lines, each once, and say so."""
    until(lambda: all(sorted(lines(rig, site)) == sorted(words) for site in SITES), f"for {words}: {shown(rig)}")
    until(lambda: all(overall(rig, site) == "CONVERGED" for site in SITES), "for CONVERGED")
    assert len({tuple(lines(rig, site)) for site in SITES}) == 1


def shown(rig: Rig) -> dict[str, list[str]]:
    return {site: lines(rig, site) for site in SITES}


def back_up(rig: Rig, site: str) -> Path:
    """Stop an agent, copy its data directory, and start it again."""
    rig.stop(site)
    copy = rig.folder(site) / "backup"
    shutil.copytree(rig.folder(site) / "data", copy)
    rig.start(site)
    return copy


def put_back(rig: Rig, site: str, copy: Path) -> None:
    rig.stop(site)
    shutil.rmtree(rig.folder(site) / "data")
    shutil.copytree(copy, rig.folder(site) / "data")


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    rig = make_rig({"file": FILE}, *SITES, secure=True)
    rig.start()
    rig.exec("site3", "notes", "set", "echo a > __ID__", rtype="file")
    return rig


def test_a_restored_backup_is_noticed_before_anything_is_written(rig: Rig) -> None:
    copy, before = back_up(rig, "site3"), incarnation(rig, "site3")
    for word in ("b", "c"):
        add(rig, "site3", word)
    all_have(rig, {"a", "b", "c"})
    put_back(rig, "site3", copy)
    rig.start("site3")
    until(lambda: incarnation(rig, "site3") not in ("", before), f"for a new incarnation:\n{rig.log('site3')}")
    add(rig, "site3", "d")
    all_have(rig, {"a", "b", "c", "d"})
    assert "the store of this site is an old copy" in rig.log("site3")
    assert "old copy" in json.dumps(get(rig, "site3", "check"))


def test_what_a_restored_site_acknowledged_alone_is_issued_again(rig: Rig) -> None:
    copy = back_up(rig, "site3")
    for word in ("b", "c"):
        add(rig, "site3", word)
    all_have(rig, {"a", "b", "c"})
    put_back(rig, "site3", copy)
    for site in ("site1", "site2"):
        rig.stop(site)
    rig.start("site3")
    for word in ("x", "y"):  # with the numbers that b and c have at the other sites
        add(rig, "site3", word)
    rig.start("site1", "site2")
    all_have(rig, {"a", "b", "c", "x", "y"})


def test_a_lost_store_does_not_repeat_what_the_application_has(rig: Rig) -> None:
    for word in ("b", "c"):
        add(rig, "site3", word)
    all_have(rig, {"a", "b", "c"})
    rig.stop("site3")
    shutil.rmtree(rig.folder("site3") / "data")
    rig.start("site3")
    all_have(rig, {"a", "b", "c"})
