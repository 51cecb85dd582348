"""A new site becomes part of the mesh by a code: once, in time, and with nobody in between."""

import contextlib
import json
import os
import pty
import signal
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.client.enrollment import Inviter
from cheops.config.site import read_site
from cheops.errors import CheopsError, ClientError
from cheops.security.invitations import parse_code
from cheops.security.keyring import FILES, load_key_folder
from cheops.security.tls import server_context
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.security.clients import configure, local
from tests.security.pki import DAY_S, Pki
from tests.security.sites import TYPES, answer, believing, is_well, refused, states
from tests.support import fork_server
from tests.support.command import CommandResult, run_process


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One site, which has the authority's key."""
    made = Rig(tmp_path_factory.mktemp("join") / "rig", TYPES, ("site1",), secure=True)
    assert made.pki
    ca_key = made.pki.write(made.base / "ca")
    settings: dict[str, Any] = {"folder": "tls", "ca_key": str(ca_key)}
    path = made.folder("site1") / "site.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "security": settings}))
    try:
        made.start()
        yield made
    finally:
        made.close()


def invite(rig: Rig, name: str, **more: Any) -> str:
    body = json.dumps({"site": name, **more})
    return str(json.loads(rig.request("site1", "POST", "/api/v1/invitations", body))["code"])


def join(folder: Path, code: str, *options: str) -> CommandResult:
    folder.mkdir(exist_ok=True)
    config = str(folder / "cheops.yaml")
    return run_process("site", "join", "--config", config, "--listen", _listen(), *options, "-", stdin=code)


def _listen() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_new_site_joins_and_takes_part(rig: Rig, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ran = join(home, invite(rig, "a new one"))
    assert (ran.code, ran.err) == (0, ""), ran
    assert {path.name for path in (home / "tls").iterdir()} == set(FILES)
    for name in ("site.key", "signing.key"):
        assert stat.S_IMODE((home / "tls" / name).stat().st_mode) == 0o600
    folder = load_key_folder(home / "tls", "a new one")
    assert folder.identity.addresses == ("127.0.0.1",)
    config = read_site(home / "cheops.yaml")
    assert (config.name, config.peers) == ("a new one", {"site1": rig.url("site1")})
    assert config.security.folder == home / "tls"
    with _agent(home):
        until(lambda: states(rig, "site1").get("a new one") == "up", "for it to be up")


def test_the_command_that_invites(rig: Rig) -> None:
    """On the machine of a site with the authority's key, by its administrator."""
    url = f"unix://{rig.folder('site1') / 'data' / 'agent.sock'}"
    ran = run_process("site", "invite", "by command", "--valid-for", "15m", "--url", url)
    assert (ran.code, ran.err.startswith("by command may join once, until ")) == (0, True)
    code = parse_code(ran.out)
    assert (code.site, code.inviter, code.url) == ("by command", "site1", rig.url("site1"))
    ran = run_process("site", "invite", "site1", "--url", url)
    assert (ran.code, "is part of the mesh already: it is this site" in ran.err) == (1, True)
    assert "--valid-for: '5' has no unit" in run_process("site", "invite", "x", "--valid-for", "5").err
    assert "--valid-for: expected 1s to 7d, found '8d'" in run_process("site", "invite", "x", "--valid-for", "8d").err
    assert "the name of the site is empty" in run_process("site", "invite", "").err


def test_a_code_works_once(rig: Rig, tmp_path: Path) -> None:
    code = invite(rig, "once")
    assert join(tmp_path / "a", code).code == 0
    before = refused(rig, "site1", "unknown invitation")
    ran = join(tmp_path / "b", code)
    assert ran.code == 1
    assert "there is no such invitation: it was used" in ran.err
    assert list((tmp_path / "b").iterdir()) == []
    assert refused(rig, "site1", "unknown invitation") == before + 1
    told = [one for one in local(rig).audit(limit=1000).entries if one.what == "POST /join"]
    assert [(one.resource, one.outcome) for one in told][-2:] == [("once", "done"), ("", "refused")]


def test_a_code_works_for_a_short_time(rig: Rig, tmp_path: Path) -> None:
    code = invite(rig, "late", valid_for_s=1)
    time.sleep(1.1)  # a wall clock, of another process
    assert "it has expired" in join(tmp_path / "a", code).err


def test_a_second_code_for_a_site_ends_the_first(rig: Rig, tmp_path: Path) -> None:
    first, second = invite(rig, "twice"), invite(rig, "twice")
    assert join(tmp_path / "a", first).code == 1
    assert join(tmp_path / "b", second).code == 0


def test_a_code_outlives_a_restart_and_its_secret_is_nowhere(rig: Rig, tmp_path: Path) -> None:
    code = invite(rig, "patient")
    rig.kill("site1")
    secret = parse_code(code).secret
    shapes = (secret, secret.hex().encode(), code.encode(), code[-60:].encode())
    for path in rig.folder("site1").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(shape in content for shape in shapes), path
    rig.start("site1")
    assert join(tmp_path / "a", code).code == 0


def test_nothing_is_written_over_unless_told(rig: Rig, tmp_path: Path) -> None:
    code = invite(rig, "careful")
    (tmp_path / "cheops.yaml").write_text("mine")
    ran = join(tmp_path, code)
    assert (ran.code, (tmp_path / "cheops.yaml").read_text()) == (1, "mine")
    assert "cheops.yaml exists already, and nothing was written; --force keeps it" in ran.err
    (tmp_path / "cheops.yaml").unlink()
    assert join(tmp_path, code).code == 0  # the code was not used up
    again = invite(rig, "careful two")
    (tmp_path / "cheops.yaml").unlink()
    key = (tmp_path / "tls" / "site.key").read_bytes()
    assert "ca.pem exists already" in join(tmp_path, again).err
    assert (tmp_path / "tls" / "site.key").read_bytes() == key


def test_somebody_in_between_with_another_authority_learns_nothing(rig: Rig, tmp_path: Path) -> None:
    """He answers at the address in the code, with a whole mesh of his own."""
    code = parse_code(invite(rig, "wary"))
    with _in_between(Pki(), tmp_path / "evil") as (url, seen):
        ran = join(tmp_path / "a", str(code.__class__(url, *_rest(code))))
    assert ran.code == 1
    assert "the authority's fingerprint differs. Somebody may be in between" in ran.err
    assert list((tmp_path / "a").iterdir()) == []
    assert seen
    assert not any(code.secret in told or b"/join " in told for told in seen)


def test_somebody_in_between_who_shows_the_right_authority_learns_nothing(rig: Rig, tmp_path: Path) -> None:
    """He hands out the real certificate of the authority, but has none that it made; or one of another site."""
    assert rig.pki
    code = parse_code(invite(rig, "wary"))
    for pki, site in ((Pki(), "site1"), (rig.pki, "site2")):
        with _in_between(pki, tmp_path / f"evil {site}", site, shown=rig.pki.pem) as (url, seen):
            ran = join(tmp_path / "a", str(code.__class__(url, *_rest(code))))
        assert ran.code == 1
        assert "is not the inviting site, site1" in ran.err
        assert "The secret was not sent" in ran.err
        assert not any(b"POST" in told for told in seen)
    assert join(tmp_path / "a", str(code)).code == 0


@pytest.mark.parametrize(("days", "said"), [(2, "2 days behind"), (-300, "300 days ahead of")])
def test_a_wrong_clock_is_reported_as_such(rig: Rig, tmp_path: Path, days: float, said: str) -> None:
    """The certificate is not valid yet, or not any more, for this machine; and the site that invited says its time."""
    assert rig.pki
    code = parse_code(invite(rig, "out of time"))
    made_s = Pki.days_ago(-days - 0.5)
    with _in_between(rig.pki, tmp_path / "late", shown=rig.pki.pem, made_s=made_s, days=days) as (url, seen):
        ran = join(tmp_path / "a", str(code.__class__(url, *_rest(code))))
    assert ran.code == 1
    assert f"It is {said} the clock of site1. Set the clock that is wrong (NTP), and try again" in ran.err
    assert "in between" not in ran.err
    assert not any(b"POST" in told for told in seen)
    assert join(tmp_path / "a", str(code)).code == 0


def test_a_clock_that_would_spoil_the_certificate_does_not_use_up_the_code(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate of site1 is valid for both clocks; the new one, which begins an hour ago, would not be."""
    code, real = invite(rig, "two hours"), time.time
    inviter = Inviter(parse_code(code))
    monkeypatch.setattr("cheops.client.enrollment.time.time", lambda: real() - 7_200)
    with pytest.raises(CheopsError, match="It is 2 hours behind the clock of site1"):
        inviter.get_certificate(inviter.authority(), (), tmp_path)
    monkeypatch.undo()
    assert join(tmp_path / "a", code).code == 0


def test_a_certificate_that_ended_at_the_site_that_invites(rig: Rig, tmp_path: Path) -> None:
    """Both clocks agree, so the fault is there."""
    assert rig.pki
    code = parse_code(invite(rig, "patient too"))
    with _in_between(rig.pki, tmp_path / "late", shown=rig.pki.pem, made_s=Pki.days_ago(60), days=0) as (url, _):
        ran = join(tmp_path / "a", str(code.__class__(url, *_rest(code))))
    assert "look into the log of the agent of site1, which renews its own certificate" in ran.err
    assert (ran.code, "in between" in ran.err) == (1, False)


def test_the_code_comes_from_a_file_too_but_never_from_the_command_line(rig: Rig, tmp_path: Path) -> None:
    code = invite(rig, "filed")
    config = ("--config", str(tmp_path / "cheops.yaml"), "--listen", _listen())
    ran = run_process("site", "join", *config, code)
    assert (ran.code, "every user of this machine can read it" in ran.err) == (1, True)
    (tmp_path / "code").write_text(f"{code}\n")
    assert run_process("site", "join", *config, "--code-file", str(tmp_path / "code")).code == 0


def test_at_a_terminal_the_code_is_asked_for_and_not_shown(rig: Rig, tmp_path: Path) -> None:
    code = invite(rig, "typed")
    argv = [sys.executable, "-m", "cheops", "site", "join", "--config", str(tmp_path / "cheops.yaml")]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], [*argv, "--listen", "127.0.0.1:1"])  # noqa: S606 - Python itself
    shown = b""
    with contextlib.suppress(OSError), os.fdopen(terminal, "r+b", buffering=0) as opened:
        while b"not shown" not in shown:
            shown += opened.read(4096)
        # What is typed before the echo is off is discarded.
        until(lambda: not termios.tcgetattr(terminal)[3] & termios.ECHO, "for the terminal to show nothing")
        opened.write(f"{code}\n".encode())
        while piece := opened.read(4096):
            shown += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert code.encode() not in shown
    assert b"typed has its certificate" in shown


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("site1", 409, "is part of the mesh already"),
        ("  ", 400, "a name cannot be empty"),
        ("x" * 129, 422, "the body is not a InviteRequest"),
    ],
)
def test_some_names_cannot_be_invited(rig: Rig, name: str, status: int, said: str) -> None:
    with pytest.raises(RefusedByAgentError) as caught:
        invite(rig, name)
    assert caught.value.status == status
    assert said in caught.value.detail


def test_nobody_gets_a_certificate_for_the_host_name_of_a_site(rig: Rig, tmp_path: Path) -> None:
    from cheops.security.certificates import dns_name  # noqa: PLC0415

    code = invite(rig, "greedy")
    ran = join(tmp_path / "a", code, "--address", dns_name("site1"))
    assert ran.code == 1
    assert "names below cheops.internal and names with * are reserved" in ran.err


def test_codes_that_are_none() -> None:
    good = "cheops-join-"
    for text in ("", "x", good, f"{good}AAAA", f"{good}{'A' * 3000}", f"{good}é", f"{good}{'A' * 40}"):
        with pytest.raises(ClientError):
            parse_code(text)


def test_one_letter_more_or_less_is_seen(rig: Rig) -> None:
    code = invite(rig, "typo")
    for damaged in (code[:-1], code[:40] + ("A" if code[40] != "A" else "B") + code[41:]):
        with pytest.raises(ClientError, match="damaged"):
            parse_code(damaged)
    with pytest.raises(ClientError, match="there is no code"):
        parse_code("\n")
    assert str(parse_code(f" {code[:50]}\n{code[50:]} ")) == code


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"secret": 1}', b'{"secret": "AA", "request": "AA", "signature": "AA"}']
)
def test_what_is_no_request_to_join_is_refused(rig: Rig, body: bytes) -> None:
    status, said = answer(rig, "site1", believing(rig, None), "POST", "/join", body=body)
    assert status in (400, 403), said
    assert is_well(rig, "site1")


def test_only_a_site_with_the_key_of_the_authority_invites(rig: Rig, tmp_path: Path) -> None:
    assert rig.pki
    other = Rig(tmp_path / "other", TYPES, ("site5",), secure=True)
    try:
        configure(other, "site5", security={"folder": "tls"})
        other.start()
        with pytest.raises(RefusedByAgentError, match="site5 does not have the key of an authority"):
            other.request("site5", "POST", "/api/v1/invitations", json.dumps({"site": "x"}))
    finally:
        other.close()


# -- the authority's own commands ------------------------------------------------------------------------


def test_ca_init_and_issue(tmp_path: Path) -> None:
    def run(*argv: str) -> CommandResult:
        return run_process(*argv, cwd=tmp_path)

    ran = run("ca", "init")
    assert ran.code == 0
    assert "fingerprint (SHA-256): " in ran.out
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert "exists already, and nothing was written" in run("ca", "init").err
    ran = run("ca", "issue", "DC 1", "--address", "10.0.0.1", "--address", "dc1.example.org")
    assert ran.code == 0, ran
    folder = load_key_folder(tmp_path / "tls-DC_1", "DC 1")
    assert folder.identity.addresses == ("dc1.example.org", "10.0.0.1")
    assert "exists already" in run("ca", "issue", "DC 1").err
    assert "--valid-for: expected a time from 1s to 825d" in run("ca", "issue", "b", "--valid-for", "900d").err
    assert "'*.x' cannot be the host name of a site" in run("ca", "issue", "b", "--address", "*.x").err
    assert "SITE: a name cannot be empty" in run("ca", "issue", " ").err


# -- helpers ---------------------------------------------------------------------------------------------


def _rest(code: Any) -> tuple[Any, ...]:
    return code.inviter, code.site, code.fingerprint, code.secret


@contextlib.contextmanager
def _agent(home: Path) -> Iterator[None]:
    with (home / "log").open("wb") as log:
        process = fork_server.start_agent(["--config", str(home / "cheops.yaml")], log.fileno())
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextlib.contextmanager
def _in_between(  # noqa: PLR0913 - what he shows
    pki: Pki, path: Path, site: str = "site1", shown: str = "", *, made_s: float | None = None, days: float = 0
) -> Iterator[tuple[str, list[bytes]]]:
    """Answers as site1 would, with his own certificate, and a clock that is ahead by some days; gives his address, and
    what he was told."""
    context = server_context(pki.site(path, site, "127.0.0.1", made_s=made_s))
    date = formatdate(time.time() + days * DAY_S, usegmt=True)
    seen: list[bytes] = []
    pem = (shown or pki.pem).encode()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), plain:
                    plain.settimeout(10)
                    with context.wrap_socket(plain, server_side=True) as connection:
                        seen.append(connection.recv(65_536))
                        head = f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {len(pem)}\r\n\r\n"
                        connection.sendall(head.encode() + pem)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", seen
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)
