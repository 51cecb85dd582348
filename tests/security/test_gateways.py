"""Gateways believe each other by their certificates, and nobody else; clients are served as before."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cheops.security.certificates import dns_name
from cheops.security.keyring import KeyFolder
from cheops.security.tls import TOO_MANY_OF_ONE
from tests.agent.rig import until
from tests.gateway.stage import Stage
from tests.security.pki import DAY_S, Pki
from tests.security.sites import all_up, as_site, believing, is_well, refused

SITES = ("site1", "site2")


class _Service(BaseHTTPRequestHandler):
    """Says what it was asked, and by whom."""

    protocol_version = "HTTP/1.1"
    name = ""

    def do_GET(self) -> None:
        told = json.dumps({"at": self.name, "path": self.path, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module", params=["builtin", "haproxy"])
def stage(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Whoever forwards, the agent or HAProxy."""
    base = tmp_path_factory.mktemp("gateways") / "rig"
    made = Stage(base, SITES, ("image",), secure=True, plane=request.param, gateway={"connections": 400})
    servers = []
    try:
        for site in SITES:
            kind = type("Service", (_Service,), {"name": site})
            servers.append(ThreadingHTTPServer(("127.0.0.1", made.own(site)), kind))
            Thread(target=servers[-1].serve_forever, daemon=True).start()
        made.rig.start()
        all_up(made.rig)
        yield made
    finally:
        made.rig.close()
        for server in servers:
            server.shutdown()
            server.server_close()


def mesh(stage: Stage, context: ssl.SSLContext, **headers: str) -> tuple[int, Any]:
    """What the gateway of site1 answers at the address that is for gateways."""
    address = ("127.0.0.1", stage.ports["site1", "", "mesh"])
    rig = stage.rig
    before, rig._addresses["site1"] = rig._addresses["site1"], address
    try:
        with rig.tls("site1", context, dns_name("site1")) as connection:
            connection.request("GET", "/a", headers={k.replace("_", "-"): v for k, v in headers.items()})
            answered = connection.getresponse()
            return answered.status, json.loads(answered.read())
    finally:
        rig._addresses["site1"] = before


def test_a_request_goes_to_another_site_and_back(stage: Stage) -> None:
    for _ in range(5):  # over a connection that stays warm
        answer = stage.ask("site1", "/x?y", "{image: site2}")
        assert (answer.status, answer.site, answer.json["at"]) == (200, "site2", "site2")
        assert answer.json["path"] == "/x?y"
        assert not [name for name in answer.json["headers"] if name.lower().startswith("cheops-")]
    assert stage.ask("site1", "/x").json["at"] == "site1"


def test_a_gateway_of_the_mesh_is_believed(stage: Stage) -> None:
    status, told = mesh(stage, as_site(stage.rig, "site2"), Cheops_Hop="site2", Cheops_Service="image")
    assert (status, told["at"]) == (200, "site1")


def test_haproxy_believes_a_certificate_that_the_agent_has_seen(stage: Stage) -> None:
    def counts() -> tuple[int, int]:
        told = json.loads(stage.rig.request("site1", "GET", "/api/v1/flows"))
        return told["fast"], told["slow"]

    if not json.loads(stage.rig.request("site1", "GET", "/api/v1/flows"))["plane"].startswith("haproxy"):
        return  # the agent itself looks at each
    site2 = as_site(stage.rig, "site2")

    def is_fast() -> bool:
        fast, slow = counts()
        status, told = mesh(stage, site2, Cheops_Hop="site2", Cheops_Service="image", Scope="{image: site2}")
        assert (status, told["at"]) == (200, "site1")
        assert not [name for name in told["headers"] if name.lower().startswith("cheops-")]
        return counts() == (fast + 1, slow)

    until(is_fast, "for HAProxy to serve another gateway by itself")


def test_it_speaks_for_itself_alone(stage: Stage) -> None:
    before = refused(stage.rig, "site1", "forged sender")
    site2 = as_site(stage.rig, "site2")
    status, told = mesh(stage, site2, Cheops_Hop="site3", Cheops_Service="image")
    assert (status, told["detail"]) == (403, "'site2' cannot send requests as 'site3'")
    assert mesh(stage, site2, Cheops_Service="image")[0] == 403
    assert refused(stage.rig, "site1", "forged sender") == before + 2
    status, told = mesh(stage, site2, Cheops_Hop="site2", Cheops_Service="nothing")
    assert (status, told["detail"]) == (404, "this site has no service 'nothing'; it has image")


def test_strangers_do_not_get_through_the_handshake(stage: Stage, tmp_path: Path) -> None:
    rig = stage.rig
    assert rig.pki
    of_another = Pki().site(tmp_path / "a", "site2")
    expired = rig.pki.site(tmp_path / "b", "site2", valid_for_s=DAY_S, made_s=rig.pki.days_ago(2))
    for folder, reason in (
        (of_another, "certificate of unknown authority"),
        (expired, "expired certificate"),
        (None, "no certificate"),
    ):
        until(lambda f=folder, r=reason: _is_refused_and_counted(stage, f, r), f"for a count: {reason}")  # type: ignore[misc]
    status, _ = mesh(stage, believing(rig, rig.pki.bare(tmp_path / "c")), Cheops_Hop="site2")
    assert status in (403, 404)
    assert is_well(rig, "site1")


def test_who_opens_connections_and_says_nothing_leaves_room_for_others(stage: Stage) -> None:
    address = ("127.0.0.1", stage.ports["site1", "", "mesh"])
    with ExitStack() as stack:
        for _ in range(150):
            with suppress(ConnectionError):  # one too many is closed as soon as it is there
                stack.enter_context(closing(socket.create_connection(address, timeout=10)))
        until(lambda: refused(stage.rig, "site1", TOO_MANY_OF_ONE), "for some to be refused")
        site2 = ("127.0.0.2", 0)
        with closing(socket.create_connection(address, timeout=10, source_address=site2)) as plain:
            context = as_site(stage.rig, "site2")
            with context.wrap_socket(plain, server_hostname=dns_name("site1")) as other:
                lines = ("GET /a HTTP/1.1", "Host: h", "Cheops-Hop: site2", "Cheops-Service: image", "", "")
                other.sendall("\r\n".join(lines).encode())
                assert other.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert is_well(stage.rig, "site1")


def _is_refused_and_counted(stage: Stage, folder: KeyFolder | None, reason: str) -> bool:
    """What HAProxy noted just before a reload is lost, so it may take a second attempt."""
    before = refused(stage.rig, "site1", reason)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        mesh(stage, believing(stage.rig, folder), Cheops_Hop="site2", Cheops_Service="image")
    return refused(stage.rig, "site1", reason) == before + 1


def test_at_the_address_for_clients_nobody_passes_for_a_gateway(stage: Stage) -> None:
    """Who could would have his requests served here, whatever their scope."""
    forged = {"Cheops-Hop": "site2", "Cheops-For": "replication"}
    answer = stage.ask("site1", "/x", "{image: site2}", headers=forged)
    assert (answer.status, answer.json["at"]) == (200, "site2")


def test_a_forgotten_gateway_is_out_at_once(stage: Stage) -> None:
    rig = stage.rig
    site2 = as_site(rig, "site2")
    rig.request("site1", "DELETE", "/api/v1/sites/site2?force=true")
    status, told = mesh(stage, site2, Cheops_Hop="site2", Cheops_Service="image")
    assert status == 403
    assert "was forgotten" in told["detail"]
    assert refused(rig, "site1", "forgotten site") >= 1
    assert stage.ask("site1", "/x", "{image: site2}").status >= 400
