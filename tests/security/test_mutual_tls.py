"""Who is let in between sites: nobody but a site of the mesh, as itself, with a certificate that counts."""

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cheops.peers.links import pack
from cheops.security.certificates import dns_name
from cheops.security.tls import client_context
from tests.agent.rig import Rig, until
from tests.security.pki import DAY_S, Pki
from tests.security.sites import (
    NOTE,
    TYPES,
    all_up,
    answer,
    as_site,
    believing,
    heartbeat,
    is_well,
    refused,
    states,
)
from tests.support.command import run_process

PROBE = "/peer/heartbeat"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("tls") / "rig", TYPES, ("site1", "site2"), secure=True)
    try:
        made.start()
        all_up(made)
        yield made
    finally:
        made.close()


def probe(rig: Rig, context: ssl.SSLContext, sender: str) -> int:
    return answer(rig, "site1", context, "POST", PROBE, body=heartbeat(sender))[0]


def failed_handshake(rig: Rig, context: ssl.SSLContext) -> bool:
    """Whether the other end does not take the certificate: with TLS 1.3 that is heard with the first answer."""
    try:
        probe(rig, context, "site2")
    except (ssl.SSLError, ConnectionError, http.client.HTTPException):
        return True
    return False


def test_sites_know_each_other_and_work_together(rig: Rig, tmp_path: Path) -> None:
    source = tmp_path / "page"
    source.write_text("hello")
    lines = rig.exec("site1", "page", "set", f"cp {source} page", **NOTE)
    assert {line["Site"]: line["Status"] for line in lines} == {"site1": "OK", "site2": "OK"}
    assert rig.show("site2", "page")["site1"]["Output"] == "hello"
    assert probe(rig, as_site(rig, "site2"), "site2") == 200


def test_it_speaks_tls_1_3_only(rig: Rig) -> None:
    context = believing(rig, None)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), rig.tls("site1", context, dns_name("site1")):
        pass
    with contextlib.closing(http.client.HTTPConnection(*rig._addresses["site1"], timeout=10)) as plain:
        plain.request("GET", "/healthz")
        with pytest.raises((OSError, http.client.HTTPException)):
            plain.getresponse()
    assert is_well(rig, "site1")


def test_the_certificate_of_another_authority_is_refused(rig: Rig, tmp_path: Path) -> None:
    before = refused(rig, "site1", "certificate of unknown authority")
    stranger = Pki().site(tmp_path / "x", "site2")
    assert failed_handshake(rig, believing(rig, stranger))
    until(lambda: refused(rig, "site1", "certificate of unknown authority") == before + 1)
    assert is_well(rig, "site1")


def test_an_expired_certificate_is_refused(rig: Rig, tmp_path: Path) -> None:
    assert rig.pki
    before = refused(rig, "site1", "expired certificate")
    old = rig.pki.site(tmp_path / "x", "site2", valid_for_s=DAY_S, made_s=Pki.days_ago(2))
    assert probe(rig, believing(rig, old), "site2") == 403  # test_expiry.py has every path
    assert refused(rig, "site1", "expired certificate") == before + 1
    assert is_well(rig, "site1")


def test_a_certificate_of_the_future_is_refused(rig: Rig, tmp_path: Path) -> None:
    assert rig.pki
    before = refused(rig, "site1", "expired certificate")
    early = rig.pki.site(tmp_path / "x", "site2", made_s=Pki.days_ago(-2))
    for path in (PROBE, "/peer/renewal", "/api/v1/sites"):
        status, said = answer(rig, "site1", believing(rig, early), "POST", path, body=heartbeat("site2"))
        assert (status, "one of both clocks is wrong" in said["detail"]) == (403, True), path
    assert refused(rig, "site1", "expired certificate") == before + 3
    assert is_well(rig, "site1")


def test_without_a_certificate_nobody_is_a_site(rig: Rig) -> None:
    nobody = believing(rig, None)
    before = refused(rig, "site1", "no token")
    paths = [("POST", PROBE), ("POST", "/peer/messages"), ("GET", f"/peer/files/{'0' * 64}")]
    paths += [("POST", "/peer/show"), ("POST", "/peer/renewal"), ("GET", "/peer/identity/site1"), ("GET", "/peer/x")]
    for method, path in paths:
        status, said = answer(rig, "site1", nobody, method, path, body=heartbeat("site2"))
        assert status == 401, (path, said)
    assert answer(rig, "site1", nobody, "GET", "/db/cheops/_changes")[0] == 401
    assert refused(rig, "site1", "no token") == before + len(paths) + 1
    assert is_well(rig, "site1")


def test_a_site_cannot_speak_as_another(rig: Rig) -> None:
    """The right authority, but the wrong name in what is said."""
    before = refused(rig, "site1", "forged sender")
    site2 = as_site(rig, "site2")
    assert probe(rig, site2, "site3") == 403
    sent = pack("site3", [])
    headers = {"Content-Type": "application/json"}
    path = "/peer/messages"
    status, said = answer(rig, "site1", site2, "POST", path, body=sent, headers=headers)
    assert (status, said["detail"]) == (403, "'site2' cannot send messages of 'site3'")
    forged = {"Cheops-Forwarded-By": "site3"}
    assert answer(rig, "site1", site2, "POST", "/exec/page", headers=forged)[0] == 403
    assert answer(rig, "site1", believing(rig, None), "POST", "/exec/page", headers=forged)[0] == 403
    assert refused(rig, "site1", "forged sender") == before + 4
    assert "site3" not in states(rig, "site1")
    assert is_well(rig, "site1")


def test_a_certificate_for_something_else_makes_no_site(rig: Rig, tmp_path: Path) -> None:
    """Of the right authority, but without the names of a site: such as of a web server."""
    assert rig.pki
    bare = rig.pki.bare(tmp_path / "x")
    before = refused(rig, "site1", "certificate of no site")
    assert probe(rig, believing(rig, bare), "site2") == 403
    assert refused(rig, "site1", "certificate of no site") == before + 1


def test_we_talk_to_nobody_else_at_the_address_of_a_site(rig: Rig, tmp_path: Path) -> None:
    """A site whose address leads to another one, or to a stranger, is down: and nothing was sent there."""
    assert rig.pki
    with _impostor(Pki().site(tmp_path / "stranger", "site8")) as (stranger, seen):
        config = yaml.safe_load((rig.folder("site2") / "site.yaml").read_text())
        peers = {
            **config["peers"],
            "site7": rig.url("site1").replace("127.0.0.1", "localhost"),
            "site8": stranger,
        }
        (rig.folder("site2") / "site.yaml").write_text(yaml.safe_dump({**config, "peers": peers}))
        rig.stop("site2")
        rig.start("site2")
        until(lambda: refused(rig, "site2", "another site at its address") > 0)
        until(lambda: refused(rig, "site2", "certificate of unknown authority") > 0)
        assert states(rig, "site2")["site7"] != "up"
        assert states(rig, "site2")["site8"] != "up"
        assert seen == []
    (rig.folder("site2") / "site.yaml").write_text(yaml.safe_dump(config))
    rig.stop("site2")
    rig.start("site2")
    all_up(rig)


def test_a_forgotten_site_is_out_and_knows_it(rig: Rig, tmp_path: Path) -> None:
    assert rig.pki
    site2 = as_site(rig, "site2")
    with rig.tls("site1", site2, dns_name("site1")) as kept:
        kept.request("POST", PROBE, heartbeat("site2"))
        assert kept.getresponse().read()
        rig.request("site1", "DELETE", "/api/v1/sites/site2?force=true")
        kept.request("POST", PROBE, heartbeat("site2"))  # on the connection that it had
        answered = kept.getresponse()
        assert answered.status == 403
        assert json.loads(answered.read())["member"][0] == "site2"
    assert refused(rig, "site1", "forgotten site") >= 1
    problems = json.loads(rig.request("site2", "GET", "/api/v1/sites"))
    until(lambda: states(rig, "site2")["site2"] == "forgotten", f"for it to know: {problems}")
    lifted = [["site2", int(time.time() * 1000), False]]  # it cannot lift that itself
    status, _ = answer(rig, "site1", site2, "POST", PROBE, body=heartbeat("site2", members=lifted))
    assert (status, states(rig, "site1")["site2"]) == (403, "forgotten")

    rig.request("site1", "POST", "/api/v1/sites/site2/admit")
    assert probe(rig, site2, "site2") == 403  # its certificate is from before that
    assert refused(rig, "site1", "certificate from before it was forgotten") >= 1
    new = rig.pki.site(tmp_path / "new", "site2", "127.0.0.1")
    assert probe(rig, client_context(new), "site2") == 200
    rig.pki.site(rig.folder("site2") / "tls", "site2", "127.0.0.1")
    rig.stop("site2")
    rig.start("site2")
    all_up(rig)


# -- starting ----------------------------------------------------------------------------------------------


def test_an_agent_does_not_start_without_a_word_on_security(tmp_path: Path) -> None:
    config = tmp_path / "site.yaml"
    config.write_text("site: site1\nlisten: 127.0.0.1:1\n")
    ran = run_process("agent", "--config", str(config))
    assert ran.code == 1
    assert "'security' is missing, and no agent starts without it: write 'security: none'" in ran.err


def test_it_does_not_start_with_keys_that_others_can_read(tmp_path: Path) -> None:
    Pki().site(tmp_path / "tls", "site1")
    (tmp_path / "tls" / "site.key").chmod(0o640)
    config = tmp_path / "site.yaml"
    config.write_text("site: site1\nlisten: 127.0.0.1:1\nsecurity: {folder: tls}\n")
    ran = run_process("agent", "--config", str(config))
    assert ran.code == 1
    assert "tls/site.key: others than its owner can read or change this key (mode 0640)" in ran.err


@contextlib.contextmanager
def _impostor(folder: object) -> Iterator[tuple[str, list[bytes]]]:
    """Somebody who speaks TLS with a certificate of his own; gives the address, and what he was sent."""
    import threading  # noqa: PLC0415

    from cheops.security.tls import server_context  # noqa: PLC0415

    seen: list[bytes] = []
    context = server_context(folder)  # type: ignore[arg-type]
    context.verify_mode = ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), plain:
                    plain.settimeout(5)
                    with context.wrap_socket(plain, server_side=True) as connection:
                        if told := connection.recv(1000):
                            seen.append(told)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", seen
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)
