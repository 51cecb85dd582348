"""Mail over an encrypted connection: only to a server whose certificate is trusted, and never in the clear."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cheops.config.address import Address
from cheops.config.notify import EventKind, MailConfig
from cheops.notify.event import Event
from cheops.notify.mail import MailSender
from cheops.notify.senders import DeliveryError
from tests.notify.mail_server import MailServer

CERTIFICATE = Path(__file__).with_name("localhost.pem")
EVENT = Event(
    id="diverged:1",
    kind=EventKind.DIVERGED,
    time="2026-11-16T01:41:31.885Z",
    site="site1",
    resource="n",
    detail="exit code 1",
)


def certified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def mail_to(server: MailServer, folder: Path, host: str = "localhost") -> MailSender:
    password = folder / "password"
    password.write_text("pw\n")
    address = Address(host, server.port)
    config = MailConfig(address, "cheops@example.org", ("ops@example.org",), True, "ops", password)
    return MailSender(config, 20, "site1")


def with_server(test: Callable[[MailServer], Awaitable[None]], tls: ssl.SSLContext | None) -> MailServer:
    server = MailServer(tls)

    async def whole() -> None:
        async with server:
            await test(server)

    asyncio.run(whole())
    return server


def refusal(folder: Path, tls: ssl.SSLContext | None, host: str = "localhost") -> tuple[str, MailServer]:
    """Why a mail is not handed over, and what the server saw of it."""
    why = ""

    async def test(server: MailServer) -> None:
        nonlocal why
        with pytest.raises(DeliveryError) as caught:
            await mail_to(server, folder, host).send(EVENT)
        why = str(caught.value)

    server = with_server(test, tls)
    return why, server


def nothing_was_told(server: MailServer) -> bool:
    return not server.taken and not server.logins


def test_mail_and_password_go_encrypted_to_a_server_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    async def test(server: MailServer) -> None:
        await mail_to(server, tmp_path).send(EVENT)

    server = with_server(test, certified())
    (_, to, message) = server.taken[0]
    assert (to, message["Subject"]) == (["ops@example.org"], "[cheops] diverged n")
    assert len(server.logins) == 1
    in_the_clear = [verb for verb, is_encrypted in server.said if not is_encrypted]
    assert in_the_clear == ["EHLO", "STAR"]
    assert ("AUTH", True) in server.said


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("SSL_CERT_DIR", str(empty))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    why, server = refusal(tmp_path, certified())
    assert f"localhost:{server.port}: " in why
    assert "self-signed certificate" in why.replace("self signed", "self-signed")
    assert nothing_was_told(server)


def test_a_certificate_of_another_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    why, server = refusal(tmp_path, certified(), "127.0.0.1")
    assert "127.0.0.1" in why
    assert "certificate is not valid" in why
    assert nothing_was_told(server)


def test_a_server_without_starttls_gets_nothing(tmp_path: Path) -> None:
    why, server = refusal(tmp_path, None)
    assert "STARTTLS extension not supported by server" in why
    assert nothing_was_told(server)
