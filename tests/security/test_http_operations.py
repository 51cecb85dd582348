"""Operations on HTTP services that a stolen site signs: what a site runs with its own credentials, and what it refuses."""

import json
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cheops.backends.http.ids import meta_id_of
from cheops.log.operation import Kind, Stamp
from cheops.security.refusals import COMMAND_NOT_ALLOWED
from tests.agent.rig import until
from tests.gateway.stage import Stage
from tests.security.rogue import Rogue
from tests.security.sites import all_up, is_well, refused

SITES = ("site1", "site2")
ALLOW = ["POST /images", "PUT /images/*", "PATCH /images/**", "DELETE /images/*", "PUT /notes/*", "PATCH /notes/*"]

META_ID, OTHER_ID = (f"c4e095a1-0000-8000-8000-{number:012x}" for number in (1, 2))


class _Service(BaseHTTPRequestHandler):
    """Does everything that it is asked for, and remembers it."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str]]]

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        content = json.dumps({"id": str(uuid.uuid4())}).encode()
        is_taken = self.headers.get("If-None-Match") == "*"
        self.send_response(412 if is_taken else 201 if self.command == "POST" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


for _method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "MOVE", "PROPFIND"):
    setattr(_Service, f"do_{_method}", _Service._any)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(
        tmp_path_factory.mktemp("operations") / "rig",
        SITES,
        ("image",),
        secure=True,
        auth={"file": "token"},
        allow=ALLOW,
        never=["PUT /notes/forbidden"],
    )
    servers = []
    try:
        for site in SITES:
            token: Path = made.rig.folder(site) / "token"
            token.write_text("X-Auth-Token: of-the-site\n")
            token.chmod(0o600)
            kind = type("Service", (_Service,), {"seen": []})
            servers.append(ThreadingHTTPServer(("127.0.0.1", made.own(site)), kind))
            Thread(target=servers[-1].serve_forever, daemon=True).start()
        made.servers = servers  # type: ignore[attr-defined]
        made.rig.start()
        all_up(made.rig)
        yield made
        assert all(is_well(made.rig, site) for site in SITES)
    finally:
        made.rig.close()
        for server in servers:
            server.shutdown()
            server.server_close()


def seen(stage: Stage, site: str = "site1") -> list[tuple[str, str, dict[str, str]]]:
    found: list[tuple[str, str, dict[str, str]]] = stage.servers[SITES.index(site)].RequestHandlerClass.seen  # type: ignore[attr-defined]
    return found


def send(stage: Stage, **request: Any) -> str:
    """Have the stolen site2 begin a resource with this request; gives its id."""
    thief = Rogue.of(stage.rig, "site2")
    is_named = request.get("named", False)
    meta_id = request.pop("meta_id", "")
    if not meta_id and is_named:
        meta_id = meta_id_of("path", "image", request["item"])
    meta_id = meta_id or f"c4e095a1-0000-8000-8000-{uuid.uuid4().hex[:12]}"
    line = json.dumps({"method": "POST", "path": "/images", "item": "/images/{id}"} | request)
    operation = thief.begin(meta_id, "http:image", line, *SITES, type="create")
    assert thief.send("site1", operation)[0] < 300
    return meta_id


def goes_on(stage: Stage) -> None:
    """What the thief may do, as a site of the resource, and by which everything before it is known to be done."""
    before = len(seen(stage))
    send(stage, text="{}", headers=[["Content-Type", "application/json"]])
    until(lambda: len(seen(stage)) > before, "for an allowed operation to run")
    method, path, headers = seen(stage)[-1]
    assert (method, path, headers["x-auth-token"]) == ("POST", "/images", "of-the-site")


@pytest.mark.parametrize(
    "request_",
    [
        {"method": "GET"},
        {"method": "HEAD"},
        {"method": "OPTIONS"},
        {"method": "PROPFIND"},
        {"method": "MOVE"},
        {"path": "/users", "item": "/users/{id}"},  # not in `allow`
        {"path": "/images/../users", "item": "/images/../users/{id}"},
        {"path": "/images/%2e%2e/users", "item": "/images/%2e%2e/users/{id}"},
        {"path": "/images/..%2fusers", "item": "/images/..%2fusers/{id}"},
        {"path": "/images/%252e%252e/users", "item": "/images/%252e%252e/users/{id}"},
        {"path": "http://127.0.0.1/images"},
        {"path": "/images HTTP/1.1\r\nX: y"},
        {"path": "/images%0d%0aX", "item": "/images%0d%0aX/{id}"},
        {"path": "/images\x00"},
        {"item": "/users/{id}"},  # the copy would be somewhere else than what was created
        {"headers": [["X-Auth-Token", "of-the-thief"]]},
        {"headers": [["X_Auth_Token", "of-the-thief"]]},
        {"headers": [["Authorization", "Bearer thief"]]},
        {"headers": [["Cookie", "a=b"]]},
        {"headers": [["Host", "elsewhere"]]},
        {"headers": [["Content-Length", "0"]]},
        {"headers": [["Content_Length", "0"]]},
        {"headers": [["Transfer-Encoding", "chunked"]]},
        {"headers": [["Connection", "X-Auth-Token"]]},
        {"headers": [["X-HTTP-Method-Override", "DELETE"]]},
        {"headers": [["X-Original-URL", "/users"]]},
        {"headers": [["Cheops-Hop", "site1"]]},
        {"method": "PUT", "path": "/notes/forbidden", "item": "/notes/forbidden", "named": True},
        {"method": "PUT", "path": "/notes/a", "item": "/users/a", "named": True},
        {"method": "PUT", "path": "/notes/a", "item": "/notes/a", "named": True, "meta_id": meta_id_of("b", "c", "d")},
        {"client": "x" * 201},
        # a repair of something else than the resource itself
        {"method": "PUT", "path": "/images/x", "state": True, "made_at": "/images"},
        {"method": "PUT", "path": f"/images/{META_ID}", "state": True, "made_at": "/users", "meta_id": META_ID},
        {"method": "PUT", "path": "/notes/a", "item": "/notes/a", "named": True, "state": True, "made_at": "/images"},
        {"method": "PATCH", "path": f"/images/{OTHER_ID}", "state": True, "made_at": "/images", "meta_id": OTHER_ID},
        {"method": "PUT", "path": "/notes/b", "item": "/notes/b", "named": True, "state": True, "made_at": "/../users"},
    ],
    ids=str,
)
def test_what_a_site_does_not_allow_is_not_run_whichever_site_signed_it(stage: Stage, request_: dict[str, Any]) -> None:
    before, counted = len(seen(stage)), refused(stage.rig, "site1", COMMAND_NOT_ALLOWED)
    send(stage, **request_)
    until(lambda: refused(stage.rig, "site1", COMMAND_NOT_ALLOWED) > counted, "for it to be refused and counted")
    assert seen(stage)[before:] == []
    goes_on(stage)


def test_an_operation_on_one_resource_does_not_change_another(stage: Stage) -> None:
    thief = Rogue.of(stage.rig, "site2")
    ours = stage.ask("site1", "/images", "{image: site1}", method="POST", body=b"{}")
    victim = ours.json["id"]
    before, counted = len(seen(stage)), refused(stage.rig, "site1", COMMAND_NOT_ALLOWED)
    line = json.dumps({"method": "POST", "path": "/images", "item": "/images/{id}"})
    first = thief.begin("c4e095a1-0000-8000-8000-00000000ab1e", "http:image", line, *SITES, type="create")
    change = json.dumps({"method": "PATCH", "path": f"/images/{victim}", "text": "{}"})
    deletion = json.dumps({"method": "DELETE", "path": f"/images/{victim}", "item": "/images/{id}"})
    made_ms, origin = first.stamp.time_ms, first.origin
    second = thief.operation(first, change, type="patch", seq=2, stamp=Stamp(made_ms + 1, 0, origin))
    assert thief.send("site1", first, second)[0] < 300
    until(lambda: refused(stage.rig, "site1", COMMAND_NOT_ALLOWED) > counted, "for the change to be refused")
    later = Stamp(made_ms + 2, 0, origin)
    third = thief.operation(second, deletion, type="delete", kind=Kind.DELETE, seq=3, stamp=later)
    assert thief.send("site1", third)[0] < 300
    until(lambda: refused(stage.rig, "site1", COMMAND_NOT_ALLOWED) > counted + 1, "for the deletion to be refused")
    goes_on(stage)
    assert [one[:2] for one in seen(stage)[before:]] == [("POST", "/images")] * 2


def test_a_peer_does_not_decide_that_a_site_adopts_what_it_has(stage: Stage) -> None:
    """It could read it then, as the state of a resource of its own."""
    meta_id = send(stage, method="PUT", path="/notes/taken", item="/notes/taken", named=True, exists="adopt", text="{}")
    until(lambda: ("PUT", "/notes/taken") in [one[:2] for one in seen(stage)], "for it to be tried")
    goes_on(stage)
    found = json.loads(stage.rig.request("site1", "GET", f"/api/v1/replicants/{meta_id}"))
    assert found["local_id"] is None


def test_what_is_not_allowed_is_refused_at_its_origin(stage: Stage) -> None:
    for method, path, status in (("POST", "/users", 403), ("PUT", "/notes/forbidden", 422)):
        answer = stage.ask("site1", path, "{image: site1 & site2}", method=method, body=b"{}")
        assert answer.status == status, answer.body
        assert "services.image." in answer.json["detail"]
    overridden = {"X-HTTP-Method-Override": "DELETE"}
    answer = stage.ask("site1", "/images", "{image: site1 & site2}", method="POST", body=b"{}", headers=overridden)
    assert answer.status == 422
    assert stage.ask("site1", "/users", method="POST", body=b"{}").status == 201
