"""Security over what is there already, and sites whose configurations differ."""

import json
from typing import Any

import yaml

from tests.agent.rig import MakeRig, Rig, make_rig, until
from tests.security.pki import Pki
from tests.security.rogue import documents, operations
from tests.security.sites import all_up
from tests.security.test_forgery import ADD, TALLY, TYPES, tally

__all__ = ["make_rig"]


def secure(rig: Rig, *names: str) -> None:
    """Give sites that ran with `security: none` their certificates."""
    rig.pki = rig.pki or Pki()
    for name in names or rig.names:
        path = rig.folder(name) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["security"] = rig._security(name, "127.0.0.1")
        config["peers"] = {other: rig.url(other) for other in rig.names}
        path.write_text(yaml.safe_dump(config))


def post(rig: Rig, site: str, path: str, **body: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    return json.loads(rig.request(site, "POST", f"/api/v1{path}", json.dumps(body), headers))


def status(rig: Rig, site: str, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.request(site, "GET", f"/api/v1/resources/{id_}/status"))
    return found


def overall(rig: Rig, site: str, id_: str) -> str:
    found: str = status(rig, site, id_)["overall"]
    return found


def test_a_site_signs_what_it_made_before_it_had_a_key(make_rig: MakeRig) -> None:
    """A newcomer believes nothing unsigned, and still gets all of it: each site tells what it made itself."""
    rig = make_rig(TYPES, "site1", "site2", "site3")
    rig.start("site1", "site2")
    for site in ("site1", "site2"):
        rig.exec(site, "old", "inc", ADD, sites="site1 & site2", **TALLY)
    until(lambda: overall(rig, "site1", "old") == "CONVERGED", "for both to be done")
    assert not any(one.signature for one in documents(rig, "site1", "old"))
    for site in ("site1", "site2"):
        rig.stop(site)
    secure(rig)
    rig.start()
    all_up(rig)
    for site in ("site1", "site2"):
        kept = documents(rig, site, "old")
        assert all(bool(one.signature) is (one.origin.site == site) for one in kept)
    post(rig, "site1", "/resources/old/sites", sites="site3", how="add")
    until(lambda: overall(rig, "site3", "old") == "CONVERGED", "for the newcomer to have all of it")
    assert tally(rig, "site3", "old") == 2
    assert rig.exec("site3", "old", "inc", ADD, sites="site1 & site2 & site3", **TALLY)[0]["Status"] == "OK"
    assert set(operations(rig, "site3", "old")) >= {"site1:1", "site2:1", "site3:1"}


def test_sites_whose_policies_differ_say_so(make_rig: MakeRig) -> None:
    """What one takes and another does not keeps them apart: visibly, at all, and until they agree."""
    rig = make_rig(TYPES, "site1", "site2", "site3", secure=True)
    for name in ("site1", "site2"):
        _set_policy(rig, name, {"sites": "involved"})
    rig.start()
    all_up(rig)
    rig.exec("site1", "apart", "inc", ADD, **TALLY)
    post(rig, "site2", "/resources/apart/sites?timeout=0", sites="site2 & site3 & site1", how="set")
    rig.exec("site2", "apart", "inc", ADD, timeout=1, **TALLY)

    def told() -> list[Any]:
        checks = json.loads(rig.request("site3", "GET", "/api/v1/check"))["checks"]
        return [one for one in checks if one["group"] == "security" and "waits for a refused one" in one["name"]]

    (found,) = until(told, "for site3 to say what waits there")
    assert not found["ok"]
    assert "site2:2 is waiting here for site2:1, which was refused: only site1, which made it" in found["detail"]
    assert "must be the same at all sites" in found["hint"]
    refusing = status(rig, "site3", "apart")
    explained = json.loads(rig.request("site3", "GET", "/api/v1/resources/apart/explain"))
    assert (refusing["overall"], explained["overall"]) == ("DIVERGED", "DIVERGED")
    for text in (refusing["sentence"], explained["conclusion"]):
        assert "site2:2 is waiting here for site2:1, which was refused" in text
        assert "applied the same operations" not in text
    others = ("site1", "site2")  # it would not end by itself, so it is not CONVERGING there
    until(lambda: {overall(rig, name, "apart") for name in others} == {"DIVERGED"}, "for them to hear of the refusal")
    for name in others:
        assert f"site3 refuses operations that {name} has" in status(rig, name, "apart")["sentence"]
    rig.stop("site3")
    _set_policy(rig, "site3", {"sites": "involved"})
    rig.start("site3")
    until(lambda: {overall(rig, name, "apart") for name in rig.names} == {"CONVERGED"}, "for them to agree")
    assert [tally(rig, name, "apart") for name in rig.names] == [2, 2, 2]


def _set_policy(rig: Rig, name: str, policy: dict[str, Any]) -> None:
    path = rig.folder(name) / "site.yaml"
    config = yaml.safe_load(path.read_text())
    config["types"]["tally"]["policy"] = policy
    path.write_text(yaml.safe_dump(config))
