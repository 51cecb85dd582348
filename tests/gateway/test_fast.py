"""The fast path: HAProxy serves what the agent has resolved before, and nothing that could be wrong by now."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.raw import Head, Socket, connected
from tests.gateway.service import Seen, Service
from tests.gateway.stage import Answer, Stage
from tests.support.command import run_process

SITES = ("site1", "site2", "site3")
_HELD = "/held"  # a path whose first request waits for `let_go`


held = threading.Event()
let_go = threading.Event()


def answering(seen: Seen) -> tuple[int, dict[str, Any]]:
    if seen.path == _HELD and not held.is_set():
        held.set()
        let_go.wait(60)
    return 200, {}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    base = tmp_path_factory.mktemp("fast") / "rig"
    stage = Stage(base, SITES, ("image",), plane="haproxy", gateway={"flows": 6})
    services = [Service(f"image of {site}", stage.own(site), answering) for site in SITES]
    try:
        stage.rig.start()
        until(lambda: sees_all(stage), "for the sites to see each other")
        yield stage
    finally:
        stage.rig.close()
        for service in services:
            service.close()


def sees_all(stage: Stage) -> bool:
    found = json.loads(stage.rig.request("site1", "GET", "/api/v1/sites"))["sites"]
    return all(one["state"] == "up" for one in found)


def flows(stage: Stage, site: str = "site1") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(stage.rig.request(site, "GET", "/api/v1/flows"))
    return told


def known(stage: Stage) -> set[tuple[str, str, str]]:
    return {(one["scope"], one["route"], one["site"]) for one in flows(stage)["flows"]}


def learned(stage: Stage, scope: str, path: str = "/") -> Answer:
    """Ask until HAProxy serves a scope by itself; what it served then. (While it is reloaded it counts less.)"""

    def is_served() -> Answer | None:
        before = flows(stage)
        answer = stage.ask("site1", path, scope)
        assert answer.status == 200
        after = flows(stage)
        is_fast = after["fast"] > before["fast"] and after["slow"] == before["slow"]
        return answer if is_fast and any(one["scope"] == scope for one in after["flows"]) else None

    found: Answer = until(is_served, f"for {scope} to be a flow")
    return found


def test_a_scope_is_resolved_once(three: Stage) -> None:
    assert learned(three, "site2").site == "site2"
    assert learned(three, "{image: site1}").site == "site1"
    assert learned(three, "site3 ; site1").site == "site3"
    assert learned(three, "around(site1, 10s)").site == "site1"
    assert {
        ("site2", "forward", "site2"),
        ("{image: site1}", "local", "site1"),
        ("site3 ; site1", "in-turn", "site3"),
        ("around(site1, 10s)", "in-turn", "site1"),
    } <= known(three)


def test_what_was_served_is_known_to_people(three: Stage) -> None:
    learned(three, "site2", "/told/fast?token=secret")
    told = json.loads(three.rig.request("site1", "GET", "/api/v1/requests"))["requests"][0]
    assert (told["path"], told["scope"], told["route"], told["site"], told["status"]) == (
        "/told/fast", "site2", "forward", "site2", 200,
    )  # fmt: skip
    url = three.rig.url("site1")
    shown = run_process("get", "flows", "--url", url).out.splitlines()
    assert shown[0].startswith("HAProxy: ")
    assert shown[1].split() == ["SERVICE", "SCOPE", "ROUTE", "SITE"]
    checks = json.loads(three.rig.request("site1", "GET", "/api/v1/check"))["checks"]
    (found,) = [one for one in checks if one["name"] == "requests are forwarded"]
    assert found["level"] == "ok"
    assert "by HAProxy" in found["detail"]


def test_the_table_is_bounded(three: Stage) -> None:
    for number in range(10):
        learned(three, f"{{image:{' ' * number} site1}}" if number else "site1")
        assert flows(three)["total"] <= 6
    assert three.ask("site1", scope="site2").site == "site2"


def test_the_client_of_an_unknown_scope_is_told_to_the_service(three: Stage) -> None:
    told = three.ask("site1", scope="{image: site1 ; site2 ; site3}", headers={"X-Forwarded-For": "10.9.9.9"})
    assert told.json["headers"]["X-Forwarded-For"] == "10.9.9.9, 127.0.0.1"


def test_nobody_else_can_hand_connections_over(three: Stage) -> None:
    folder = three.rig.folder("site1") / "data" / "gateway"
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.glob("*.sock")}
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert set(modes.values()) == {"0o600"}
    assert {"front.image.sock", "again.image.sock", "master.sock"} <= modes.keys()


# -- what is killed ----------------------------------------------------------------------------------------


def kept(client: Socket) -> str:
    client.send("GET / HTTP/1.1", "Host: h", "Scope: site2")
    answer = client.head()
    client.body(answer)
    return answer["Cheops-Site"] if answer.status == 200 else str(answer.status)


def test_without_its_agent_it_goes_on_and_the_next_agent_takes_it_over(three: Stage) -> None:
    learned(three, "site2")
    pid = three.rig.haproxy("site1")
    with connected(three.address("site1")) as client:
        assert kept(client) == "site2"
        three.rig.kill_agent("site1")
        assert kept(client) == "site2"
        assert three.ask("site1").site == "site1"
        three.rig.start("site1")
        assert kept(client) == "site2"  # over the same connection
    assert three.rig.haproxy("site1") == pid
    assert flows(three)["restarts"] == 0
    until(lambda: sees_all(three), "for the sites to be seen again")
    assert learned(three, "site2").site == "site2"


def test_who_waits_for_an_agent_that_is_killed_gets_an_answer(three: Stage) -> None:
    learned(three, "site2")
    with connected(three.address("site1")) as client:
        kept(client)  # the first on its connection HAProxy answers in any case
        client.send(f"GET {_HELD} HTTP/1.1", "Host: h", "Scope: {image:      site1}")
        until(held.is_set, "for the service to have it from the agent")
        three.rig.kill_agent("site1")
        answer = client.head()
        assert answer.status == 503
        assert b"this needs the agent" in client.body(answer)
        assert kept(client) == "site2"  # over the same connection
    let_go.set()
    three.rig.start("site1")
    until(lambda: sees_all(three), "for the sites to be seen again")


def test_a_client_leaves_a_worker_with_an_old_configuration(three: Stage) -> None:
    pid = three.rig.haproxy("site1")
    assert pid
    with connected(three.address("site1")) as client:
        assert kept(client) == "site2"
        os.kill(pid, signal.SIGUSR2)
        told = until(lambda: asked_over(client), "for it to be told to go")
        assert (told.status, told["Connection"]) == (200, "close")
    assert three.rig.haproxy("site1") == pid
    assert learned(three, "site2").site == "site2"


def asked_over(client: Socket) -> Head | None:
    """An answer that is the last of its connection."""
    client.send("GET / HTTP/1.1", "Host: h")
    answer = client.head()
    client.body(answer)
    return answer if "Connection" in answer else None


def test_it_is_started_again_where_it_ends(three: Stage) -> None:
    learned(three, "site2")
    pid = three.rig.haproxy("site1")
    assert pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: flows(three)["restarts"] == 1, "for HAProxy to be started again")
    until(lambda: asked(three) == "site2", "for it to serve")
    assert three.rig.haproxy("site1") not in {None, pid}
    assert learned(three, "site2").site == "site2"


def asked(stage: Stage) -> str | None:
    with contextlib.suppress(OSError):
        return stage.ask("site1", scope="site2").site
    return None


def test_a_site_that_goes_down_takes_its_flows_with_it(three: Stage) -> None:
    learned(three, "site3")
    learned(three, "site3 ; site2")
    three.rig.kill("site3")
    assert three.ask("site1", scope="site3 ; site2").site == "site2"  # at once, by the agent
    until(lambda: not [one for one in known(three) if one[2] == "site3"], "for the flows to be withdrawn")
    until(lambda: three.ask("site1", scope="site3").status == 503, "for it to be down")
    assert learned(three, "site3 ; site2").site == "site2"
    three.rig.start("site3")
    until(lambda: sees_all(three), "for site3 to be back")
    until(lambda: learned(three, "site3 ; site2").site == "site3", "for the first to be the first again")


def test_it_ends_with_its_agent(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image",), plane="haproxy")
    try:
        stage.rig.start()
        assert stage.rig.haproxy("site1")
        assert stage.rig.stop("site1") == 0
        assert stage.rig.haproxy("site1") is None
    finally:
        stage.rig.close()


def test_where_it_does_not_start_the_agent_forwards_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "haproxy"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\n[ \"$1\" = -v ] && echo 'HAProxy version 2.6.1' || exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}{os.pathsep}{os.environ['PATH']}")
    stage = Stage(tmp_path / "rig", ("site1",), ("image",), plane="auto")
    service = Service("image of site1", stage.own("site1"))
    try:
        stage.rig.start()
        assert stage.ask("site1", "/a", "{image: site1}").site == "site1"
        assert stage.rig.haproxy("site1") is None
        checks = json.loads(stage.rig.request("site1", "GET", "/api/v1/check"))["checks"]
        (found,) = [one for one in checks if one["name"] == "requests are forwarded"]
        assert found["level"] == "failed"
        assert "by the agent itself: HAProxy did not start" in found["detail"]
    finally:
        stage.rig.close()
        service.close()
