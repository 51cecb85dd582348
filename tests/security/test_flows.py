"""The fast path of others stays fast, whatever scopes a client makes up."""

import contextlib
import http.client
from pathlib import Path

from tests.agent.rig import until
from tests.gateway.service import Service
from tests.gateway.stage import Stage
from tests.gateway.test_fast import flows, known, learned, sees_all

SITES = ("site1", "site2", "site3")


def test_a_client_that_makes_up_scopes_does_not_push_out_those_of_others(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", SITES, ("image",), plane="haproxy", gateway={"flows": 6})
    services = [Service(f"image of {site}", stage.own(site)) for site in SITES]
    made_up = [f"site2{' ' * number}; {'(' * number}site3{')' * number}" for number in range(1, 30)]
    made_up += [f"around(site1, {number}s)" for number in range(10, 40)]
    try:
        stage.rig.start()
        until(lambda: sees_all(stage), "for the sites to see each other")
        for scope in ("site2", "site3"):
            learned(stage, scope)
        other = http.client.HTTPConnection(*stage.address("site1"), timeout=60, source_address=("127.0.0.2", 0))
        with contextlib.closing(other):
            for scope in made_up:
                other.request("GET", "/", headers={"Scope": scope})
                assert other.getresponse().read()
        kept = {scope for scope, _, _ in known(stage)}
        assert {"site2", "site3"} <= kept
        assert kept & set(made_up), "there is room for some of them"
        before = flows(stage)
        for scope in ("site2", "site3"):
            assert stage.ask("site1", "/", scope).status == 200
        assert flows(stage)["slow"] == before["slow"]
    finally:
        stage.rig.close()
        for one in services:
            one.close()
