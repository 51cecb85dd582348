"""The gateway as a part of an agent: its addresses, what is checked, and how many it serves."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.gateway.raw import Upstream, connected, until
from tests.gateway.service import Service
from tests.gateway.stage import PLANES, Stage


def test_an_address_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image",))
    host, port = stage.address("site1")
    with socket.create_server((host, port)):
        config = str(stage.rig.folder("site1") / "site.yaml")
        argv = [sys.executable, "-m", "cheops", "agent", "--config", config]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"the gateway cannot listen on {host}:{port}" in ended.stderr
    assert "services.image.listen" in ended.stderr
    assert not (stage.rig.folder("site1") / "data" / "store.db").exists()


def test_check_knows_the_services_and_their_addresses(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image", "compute"))
    image = Service("image", stage.own("site1"))
    try:
        stage.rig.start()
        found = json.loads(stage.rig.request("site1", "GET", "/api/v1/check"))["checks"]
        told = {one["name"]: one["level"] for one in found if one["group"] == "services"}
        assert told == {
            "image accepts connections": "ok",
            "compute accepts connections": "failed",
            "gateway listens for image": "ok",
            "gateway listens for compute": "ok",
            "requests are forwarded": "ok",
        }
    finally:
        stage.rig.close()
        image.close()


def test_who_is_one_too_many_is_told_so(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image",), gateway={"connections": 2})
    service = Service("image", stage.own("site1"))
    try:
        stage.rig.start()
        address = stage.address("site1")
        with connected(address) as first, connected(address) as second:
            for one in (first, second):
                one.send("GET / HTTP/1.1", "Host: h")
                assert one.head().status == 200
            with connected(address) as third:
                assert third.head().status == 503
    finally:
        stage.rig.close()
        service.close()


def test_a_stop_lets_what_is_under_way_come_to_its_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image",))
    upstream = Upstream(stage.own("site1"))
    address, api = stage.address("site1"), stage.rig.url("site1").removeprefix("http://").split(":")
    request = ("GET / HTTP/1.1", "Host: h")
    try:
        stage.rig.start()
        with (
            connected(address) as idle,
            connected(address) as slow,
            connected(address) as half,
            connected((api[0], int(api[1]))) as stream,
        ):
            idle.send(*request)
            service = upstream.accept()
            service.head()
            service.send("HTTP/1.1 200 OK", "Content-Length: 0")
            assert "Connection" not in idle.head()
            slow.send(*request)
            service.head()
            half.raw(b"GET /half HTTP/1.1\r\n")
            stream.send("GET /api/v1/events HTTP/1.1", "Host: localhost")
            events = stream.head()
            until(lambda: "cheops_gateway_connections 3\n" in metrics(stage), "for the connections")

            agent = stage.rig.processes.pop("site1")
            agent.send_signal(signal.SIGTERM)
            assert idle.is_closed
            until(lambda: is_refused(address), "for it to take no more")
            half.raw(b"Host: h\r\n\r\n")
            other = upstream.accept()
            assert other.head().first.startswith("GET /half ")
            for client, one in ((half, other), (slow, service)):
                one.send("HTTP/1.1 200 OK", "Content-Length: 4", body=b"done")
                answer = client.head()
                assert (answer.status, answer["Connection"], client.body(answer)) == (200, "close", b"done")
            ended = b"".join(stream.chunks()) if events["Transfer-Encoding"] == "chunked" else b"?"
            assert b"error" not in ended  # it ended as it should, and did not break off
            assert agent.wait(timeout=60) == 0
    finally:
        stage.rig.close()
        upstream.close()


def metrics(stage: Stage) -> str:
    return stage.rig.request("site1", "GET", "/metrics").decode()


def is_refused(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("plane", PLANES)
def test_a_service_below_a_path(plane: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image",))
    path = stage.rig.folder("site1") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    config["services"]["image"]["url"] += "/api/"
    config["gateway"] = {"forwarded_headers": "none", "data_plane": plane}
    path.write_text(yaml.safe_dump(config))
    service = Service("image", stage.own("site1"))
    try:
        stage.rig.start()
        told = stage.ask("site1", "/v2/images?x").json
        assert told["path"] == "/api/v2/images?x"
        assert not [name for name in told["headers"] if "forwarded" in name.lower()]
    finally:
        stage.rig.close()
        service.close()
