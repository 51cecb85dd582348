"""Everything that comes from outside has a limit: sizes, rates, connections, patience, room. Each is refused and
counted, and the agent goes on."""

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from cheops.api.models.operations import SubmitRequest
from cheops.client import AgentError
from cheops.engine.admission import refusal
from cheops.engine.events import Submitted
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Kind, Origin
from cheops.node.limits import DiskQuota
from cheops.security.principal import Role
from cheops.security.refusals import MOST_BUCKETS, RateLimiter
from cheops.security.tls import TOO_MANY, TOO_MANY_OF_ONE
from cheops.store.room import DiskFullError, DiskRoom
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.security.clients import agent, ask, configure, connection, is_unharmed, local, refusals, rig_of, token

MIB = 1024 * 1024
CLIENTS = {
    "head_size": "8KiB",
    "upload_size": "2MiB",
    "head_timeout": "600ms",
    "stall_timeout": "600ms",
    "connections_each": 20,
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Plain HTTP, so that tests can send whatever bytes they like."""
    found = rig_of(tmp_path_factory.mktemp("limits"), secure=False, clients=CLIENTS)
    try:
        found.start()
        yield found
    finally:
        found.close()


def raw(rig: Rig) -> socket.socket:
    host, port = rig.url("site1").partition("://")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def status_of(sock: socket.socket) -> int:
    """Of the answer on a connection; 0 if it was closed without one."""
    got = b""
    try:
        while b"\r\n" not in got and (more := sock.recv(4096)):
            got += more
    except ConnectionError:
        pass
    return int(got.split()[1]) if got else 0


def is_closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


# -- sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nLong: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nNever-ends: " + b"x" * 5_000_000,
    ],
    ids=["target", "header", "headers", "endless"],
)
def test_a_head_beyond_the_limit_is_refused_and_counted(rig: Rig, head: bytes) -> None:
    before = refusals(rig, "head too large")
    with closing(raw(rig)) as sock:
        with suppress(ConnectionError):
            sock.sendall(head)
        assert status_of(sock) in (431, 0)
    until(lambda: refusals(rig, "head too large") > before)
    assert is_unharmed(rig)


def test_a_head_within_the_limit_is_answered(rig: Rig) -> None:
    assert ask(rig, "GET", "/healthz", headers={"Long": "x" * 7_000}).status == 200


@pytest.mark.parametrize(
    ("method", "path", "kind", "size"),
    [
        ("POST", "/api/v1/resources/a/operations", "application/json", 2 * MIB),
        ("POST", "/api/v1/resources/a/dry-run", "application/json", 2 * MIB),
        ("POST", "/api/v1/resources/a/resolve", "application/json", 2 * MIB),
        ("POST", "/api/v1/resources/a/sites", "application/json", 2 * MIB),
        ("PUT", "/api/v1/resources/a/sites", "application/json", 2 * MIB),
        ("PUT", "/api/v1/replicants/a/local-id", "application/json", 2 * MIB),
        ("POST", "/api/v1/tokens", "application/json", 2 * MIB),
        ("POST", "/api/v1/session", "application/json", 2 * MIB),
        ("POST", "/exec/a", "application/x-www-form-urlencoded", 5 * MIB),
        ("POST", "/show/a", "application/x-www-form-urlencoded", 5 * MIB),
        ("POST", "/exec/a", "multipart/form-data; boundary=b", 5 * MIB),
        ("POST", "/api/v1/resources/a/operations", "multipart/form-data; boundary=b", 5 * MIB),
        ("POST", "/peer/heartbeat", "application/json", 5 * MIB),
        ("POST", "/peer/show", "application/json", 2 * MIB),
        ("POST", "/peer/messages", "application/json", 65 * MIB),
        ("POST", "/peer/renewal", "application/json", 2 * MIB),
        ("POST", "/db/cheops/_bulk_docs", "application/json", 17 * MIB),
        ("POST", "/db/cheops/_revs_diff", "application/json", 17 * MIB),
        ("POST", "/db/cheops/_bulk_get", "application/json", 17 * MIB),
        ("PUT", "/db/cheops/_local/x", "application/json", 1 * MIB),
        ("POST", "/join", "application/json", 1 * MIB),
    ],
)
def test_every_body_has_a_limit(rig: Rig, method: str, path: str, kind: str, size: int) -> None:
    start = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' if "multipart" in kind else b"a="
    said = ask(rig, method, path, start + b"x" * size, headers={"Content-Type": kind})
    assert said.status in (400, 409, 413), said
    assert said.status == 413 or path == "/join" or "maximum size" in said.json["detail"], said
    assert is_unharmed(rig)


def test_a_form_has_few_fields(rig: Rig) -> None:
    part = '--b\r\nContent-Disposition: form-data; name="f{}"\r\n\r\nx\r\n'
    body = "".join(part.format(n) for n in range(1_000)) + "--b--\r\n"
    said = ask(rig, "POST", "/exec/a", body.encode(), headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert said.status == 400
    assert "Too many fields" in said.json["detail"]


def test_a_large_body_that_is_refused_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Who may not is told so at once, and the client hears it."""
    rig = rig_of(tmp_path)
    try:
        rig.start()
        asked = agent(rig, token(rig, "reads", Role.VIEWER))
        (tmp_path / "large").write_bytes(os.urandom(20 * MIB))
        submit = SubmitRequest(type="set", command="cp {large} __ID__", sites="site1", resource_type="file")
        with pytest.raises(AgentError) as caught:
            asked.submit("a", submit, files={"large": tmp_path / "large"})
        assert caught.value.http_status == 403
        assert is_unharmed(rig)
    finally:
        rig.close()


# -- patience --------------------------------------------------------------------------------------------------


def test_who_says_nothing_is_closed(rig: Rig) -> None:
    before = refusals(rig, "slow head")
    with closing(raw(rig)) as sock:
        assert status_of(sock) == 408
    assert refusals(rig, "slow head") == before + 1


def test_who_tells_headers_one_by_one_is_closed(rig: Rig) -> None:
    """However busy it looks."""
    before = refusals(rig, "slow head")
    with closing(raw(rig)) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        sock.settimeout(0.1)
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            try:
                sock.sendall(b"A: b\r\n")
                if sock.recv(100):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() < end_s
    until(lambda: refusals(rig, "slow head") > before)


@pytest.mark.parametrize("path", ["/exec/a", "/api/v1/resources/a/operations", "/healthz"], ids=str)
def test_a_body_that_trickles_is_cut_off(rig: Rig, path: str) -> None:
    """Also after the answer, where nobody needs it any more."""
    before = refusals(rig, "slow body")
    with closing(raw(rig)) as sock:
        kind = b"Content-Type: application/x-www-form-urlencoded"
        sock.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: 100000\r\n\r\n" % (path.encode(), kind)
        )
        sock.settimeout(0.1)
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            try:
                sock.sendall(b"x")
                if not sock.recv(65536):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() < end_s
    until(lambda: refusals(rig, "slow body") > before)
    assert is_unharmed(rig)


def test_a_slow_body_that_goes_on_is_taken(rig: Rig) -> None:
    """Slow is not too slow: some kilobytes a second, for longer than anybody may stall."""
    body = json.dumps({"type": "set", "command": "true", "sites": "site1", "resource_type": "file", "matrix": None})
    whole = body.encode() + b" " * 20_000
    with closing(raw(rig)) as sock:
        head = f"POST /api/v1/resources/slow/operations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(whole)}\r\n\r\n"
        sock.sendall(head.encode())
        for at in range(0, len(whole), 2_000):
            sock.sendall(whole[at : at + 2_000])
            time.sleep(0.12)
        assert status_of(sock) == 200


def test_an_answer_that_nobody_reads_is_given_up(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(MIB + MIB // 2))
    submit = SubmitRequest(type="set", command="cp {large} __ID__", sites="site1", resource_type="file")
    made = [local(rig).submit(f"large{n}", submit, files={"large": tmp_path / "large"}) for n in range(2)]
    assert all(one.satisfied for one in made)
    large = next(path for path in (rig.folder("site1") / "data" / "files").rglob("*") if path.is_file())
    before = refusals(rig, "answer not read")
    with closing(raw(rig)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(20):
            sock.sendall(f"GET /peer/files/{large.name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: refusals(rig, "answer not read") > before)
    assert is_unharmed(rig)


def test_a_stream_of_events_is_no_slow_answer(rig: Rig) -> None:
    with connection(rig) as asking:
        asking.request("GET", "/api/v1/events")
        answer = asking.getresponse()
        assert answer.status == 200
        time.sleep(1.5)  # longer than anybody may stall
        local(rig).submit("streamed", SubmitRequest(type="set", command="true", sites="site1", resource_type="file"))
        lines = iter(answer.readline, b"")
        assert any(line.startswith(b"data:") for line in lines)


def test_a_handshake_has_an_end(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, clients=CLIENTS)
    try:
        rig.start()
        with ExitStack() as stack:
            silent = [stack.enter_context(closing(raw(rig))) for _ in range(60)]
            assert all(is_closed(sock) for sock in silent)
        assert _counted_locally(rig, TOO_MANY_OF_ONE), "who says nothing has a limit in number, too"
        context = ssl.create_default_context(cadata=rig.pki.pem if rig.pki else None)
        with closing(raw(rig)) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1") as talking:
            assert status_of(talking) == 408, "and then a request must come"
        assert is_unharmed(rig)
    finally:
        rig.close()


# -- how many, how often ---------------------------------------------------------------------------------------


def test_one_address_has_so_many_connections_and_others_are_not_kept_out(rig: Rig) -> None:
    reason = TOO_MANY_OF_ONE
    before = _counted_locally(rig, reason)
    with ExitStack() as stack:
        held = [stack.enter_context(closing(raw(rig))) for _ in range(60)]
        until(lambda: _counted_locally(rig, reason) >= before + 40)
        assert local(rig).health().ok, "whoever administrates always gets in"
        assert {status_of(sock) for sock in held} == {503, 408}
    until(lambda: _counted_locally(rig, "slow head") and is_unharmed(rig))


def test_there_are_so_many_connections_in_all(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, secure=False, clients={"connections": 10})
    try:
        rig.start()
        with ExitStack() as stack:
            held = [stack.enter_context(closing(raw(rig))) for _ in range(12)]
            until(lambda: _counted_locally(rig, TOO_MANY) >= 2)
            assert local(rig).health().ok
            assert len(held) == 12
        until(lambda: is_unharmed(rig))
    finally:
        rig.close()


def _counted_locally(rig: Rig, reason: str) -> int:
    return sum(one.times for one in local(rig).audit(outcome="refused", limit=1000).entries if one.reason == reason)


def test_who_asks_too_often_is_told_when_to_go_on(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, clients={"rate": 5, "burst": 10})
    try:
        rig.start()
        busy, calm = token(rig, "busy", Role.VIEWER), token(rig, "calm", Role.VIEWER)
        said = [ask(rig, "GET", "/api/v1/sites", secret=busy) for _ in range(30)]
        refused = [one for one in said if one.status == 429]
        assert refused
        assert {one.status for one in said} == {200, 429}
        assert int(refused[-1].headers["retry-after"]) >= 1
        assert ask(rig, "GET", "/api/v1/sites", secret=calm).status == 200, "each has a bucket of its own"
        assert [ask(rig, "GET", "/healthz").status for _ in range(30)].count(429), "so has an address without a token"
        assert all(local(rig).health().ok for _ in range(30)), "the agent's own socket has no rate"
        until(lambda: ask(rig, "GET", "/api/v1/sites", secret=busy).status == 200)
        assert refusals(rig, "rate") >= len(refused)
        assert is_unharmed(rig)
    finally:
        rig.close()


def test_a_client_without_a_certificate_is_limited_at_the_peer_endpoint_too(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, clients={"rate": 1, "burst": 3})
    try:
        rig.start()
        responses = [ask(rig, "POST", "/peer/heartbeat", b"{}") for _ in range(30)]
        assert {one.status for one in responses} == {401, 429}
        assert int(next(one for one in responses if one.status == 429).headers["retry-after"]) >= 1
        health = [ask(rig, "GET", "/healthz").status for _ in range(3)]
        assert 429 in health, "the same budget: /peer/ is no second one"
        viewer = token(rig, "viewer", Role.VIEWER)
        with_token = [ask(rig, "POST", "/peer/heartbeat", b"{}", secret=viewer) for _ in range(30)]
        assert {one.status for one in with_token} == {403, 429}
        until(lambda: ask(rig, "GET", "/healthz").status == 200)
        assert refusals(rig, "rate") >= 1
        assert is_unharmed(rig)
    finally:
        rig.close()


def test_buckets_fill_again_at_their_rate_and_are_few() -> None:
    now = [0.0]
    buckets = RateLimiter(2, 4, lambda: now[0])
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    now[0] = 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0
    now[0] = 100.0
    assert [buckets.take("a") for _ in range(5)].count(0) == 4
    for n in range(2 * MOST_BUCKETS):
        buckets.take(str(n))
    assert len(buckets) == MOST_BUCKETS


# -- room ------------------------------------------------------------------------------------------------------


def test_a_log_that_is_too_long_is_not_made_longer(tmp_path: Path) -> None:
    """What replaces everything, or deletes it, is taken: that makes room."""
    rig = rig_of(tmp_path, secure=False, limits={"log": 6, "seal_after": 1})
    try:
        rig.start()
        asked = SubmitRequest(type="add", command="echo x >> __ID__", sites="site1", resource_type="file")
        for _ in range(6):
            assert local(rig).submit("a", asked).satisfied
        with pytest.raises(AgentError) as caught:
            local(rig).submit("a", asked)
        assert caught.value.http_status == 409
        assert "limits.log is 6" in str(caught.value)
        assert "limits.log" in (local(rig).dry_run("a", asked).refused or "")
        forced = SubmitRequest(type="set", command="echo y > __ID__", kind=Kind.FORCE)
        assert local(rig).submit("a", forced).satisfied
        until(lambda: _is_taken(rig, asked))
        assert is_unharmed(rig)
    finally:
        rig.close()


def _is_taken(rig: Rig, asked: SubmitRequest) -> bool:
    try:
        return local(rig).submit("a", asked).satisfied
    except AgentError:
        return False


def test_the_engine_itself_refuses_whoever_asks() -> None:
    replica = Replica("r", Origin("a", "1"), lambda _hash: Matrix(()), Limits(log=0))
    event = Submitted("", "r", "add", Command("x"), Kind.NORMAL, "t", ("a",), None)
    assert "limits.log" in (refusal(replica, event) or "")


def test_nothing_is_taken_that_would_fill_the_disk(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, secure=False, clients={"store_size": "1B"})
    try:
        rig.start()
        asked = SubmitRequest(type="set", command="true", sites="site1", resource_type="file")
        with pytest.raises(AgentError) as caught:
            local(rig).submit("a", asked)
        assert caught.value.http_status == 507
        assert "clients.store_size" in str(caught.value)
        with pytest.raises(RefusedByAgentError) as refused:
            rig.post(
                "site1",
                "/exec/a",
                {"command": "true", "sites": "site1", "type": "set", "resource-type": "file"},
            )
        assert refused.value.status == 507
        assert refusals(rig, "disk full") == 2
        assert local(rig).health().ok
        rig.stop("site1")
        configure(rig, "site1", clients={"free_size": "1000TiB"})
        rig.start("site1")
        with pytest.raises(AgentError, match=r"clients.free_size"):
            local(rig).submit("a", asked)
        rig.stop("site1")
        configure(rig, "site1", clients={})
        rig.start("site1")
        assert is_unharmed(rig)
    finally:
        rig.close()


def test_room_is_looked_at_once_a_second(tmp_path: Path) -> None:
    now, store = [0.0], tmp_path / "store.db"
    store.write_bytes(b"x" * 10)
    room = DiskQuota(store, 10, DiskRoom(tmp_path, 1), now_s=lambda: now[0])
    room.check()
    (tmp_path / "store.db-wal").write_bytes(b"x")
    room.check()
    now[0] = 1.0
    with pytest.raises(DiskFullError):
        room.check()


# -- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rate": 0}, "rate"),
        ({"head_size": "1KiB"}, "a size from 4KiB"),
        ({"head_timeout": 5}, "has no unit"),
        ({"open_metrics": "maybe"}, "open_metrics"),
        ({"speed": 1}, "speed"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    from cheops.config.site import parse_site  # noqa: PLC0415
    from cheops.yaml_file import YamlFileError  # noqa: PLC0415

    text = json.dumps({"site": "a", "security": "none", "clients": settings})
    with pytest.raises(YamlFileError, match=told):
        parse_site(text, tmp_path / "site.yaml")


def test_numbers_are_open_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, clients={"open_metrics": True})
    try:
        rig.start()
        assert ask(rig, "GET", "/metrics").status == 200
        assert ask(rig, "GET", "/api/v1/check").status == 401
    finally:
        rig.close()
