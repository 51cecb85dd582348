"""The ways to send an event: web hook, command and mail. Each succeeds, or raises DeliveryError and is retried.

A web hook gets the event as a signed JSON POST. Any status from 200 to 299 means accepted; the body of the response is
not read, so it may be arbitrarily long.

A command gets the path of a file with the event, as `{event}` in its line and as CHEOPS_EVENT_FILE. Nothing of an
event becomes part of the command line itself. Exit code 0 means accepted.

A mail is one message per event, handed to a mail server. smtplib blocks, so each message has its own thread, which
ends by itself when the server stays silent.
"""

import asyncio
import hashlib
import logging
import os
import smtplib
import ssl
import threading
import time
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec

from cheops import __version__
from cheops.backends.command.runner import CommandRunner, Completed
from cheops.backends.command.wire import CommandStatus
from cheops.config.command import CommandSettings
from cheops.config.notify import CommandConfig, EventKind, MailConfig, WebhookConfig
from cheops.errors import CheopsError, ClientError, Fault
from cheops.notify.event import Event, encoded
from cheops.notify.signature import HEADER, sign
from cheops.peers.client import connection_problem
from cheops.text import printable, shortened

_MAX_SECRET_BYTES = 4_096


class DeliveryError(CheopsError):
    """A target did not accept an event; the delivery is retried."""

    fault = Fault.APPLICATION
    definite = False
    status = 502


class Sender(Protocol):
    """Sends events to one target."""

    async def send(self, event: Event) -> None:
        """Return when the target has the event; raises DeliveryError."""


def read_secret(path: Path) -> bytes:
    """A secret from a file, without the line end. Read for each event, so that it can be changed."""
    try:
        with path.open("rb") as file:
            secret = file.read(_MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise DeliveryError(f"{path} cannot be read: {error.strerror}") from error
    if not 0 < len(secret) <= _MAX_SECRET_BYTES:
        raise DeliveryError(f"{path} must hold 1 to {_MAX_SECRET_BYTES} bytes")
    return secret


FILE = "event"
_MAX_OUTPUT_BYTES = 4_096


class CommandSender:
    """See `Sender`. `path` is the target's own file, overwritten with each event."""

    def __init__(self, config: CommandConfig, timeout_s: float, runner: CommandRunner, path: Path) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._runner = runner
        self._path = path

    async def send(self, event: Event) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._write, event)
        try:
            done = await self._runner.run(
                self._config.line, self._settings(event), resource=event.resource, files={FILE: self._path}
            )
        except ClientError as error:
            raise DeliveryError(str(error)) from error
        if done.status is not CommandStatus.EXITED or done.exit_code != 0:
            raise DeliveryError(_failure_text(done))

    def _write(self, event: Event) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            # The mode is set when the file is created: an event may hold what a command printed.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.write(encoded(event))
        except OSError as error:
            raise DeliveryError(f"{self._path} cannot be written: {error.strerror}") from error

    def _settings(self, event: Event) -> CommandSettings:
        variables = {
            "CHEOPS_EVENT_FILE": str(self._path),
            "CHEOPS_EVENT_ID": event.id,
            "CHEOPS_EVENT_KIND": event.kind,
            "CHEOPS_RESOURCE": event.resource,
            "CHEOPS_OPERATION": event.operation,
            "CHEOPS_STATUS": event.status.value if event.status else "",
        }
        # `allow` is for commands of clients. This line comes from the operator's configuration file.
        return CommandSettings(
            allow=("...",), timeout_s=self._timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES, env=variables
        )


def _failure_text(done: Completed) -> str:
    how = f"exit code {done.exit_code}" if done.status is CommandStatus.EXITED else str(done.status)
    return f"{how}: {shortened(done.output.strip(), 300)}" if done.output.strip() else how


_MAX_SUBJECT = 150
_log = logging.getLogger(__name__)


class MailSender:
    """See `Sender`."""

    def __init__(self, config: MailConfig, timeout_s: float, site: str) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._site = site

    async def send(self, event: Event) -> None:
        """In a daemon thread: a silent mail server must not keep the agent from stopping."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def finish(problem: str) -> None:
            if not done.done():
                done.set_result(problem)

        def work() -> None:
            problem = self._try(event)
            with suppress(RuntimeError):  # the loop is closed: the agent has stopped meanwhile
                loop.call_soon_threadsafe(finish, problem)

        threading.Thread(target=work, name="mail", daemon=True).start()
        if problem := await done:
            raise DeliveryError(problem)

    def _try(self, event: Event) -> str:
        """Send. Returns the problem, or an empty text."""
        try:
            self._hand_over(message_of(event, self._config, self._site))
        except DeliveryError as error:
            return str(error)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return printable(shortened(f"{self._config.smtp}: {connection_problem(error)}", 300))
        return ""

    def _hand_over(self, message: EmailMessage) -> None:
        config = self._config
        with smtplib.SMTP(config.smtp.host, config.smtp.port, timeout=self._timeout_s) as server:
            if config.starttls:
                server.starttls(context=ssl.create_default_context())
            if config.user is not None and config.password_file is not None:
                server.login(config.user, read_secret(config.password_file).decode("utf-8", "replace"))
            refused = server.send_message(message, config.sender, list(config.to))
        if refused:  # a retry for these would send the mail again to all others
            _log.warning("%s does not take mail for %s", config.smtp, ", ".join(sorted(refused)))


def message_of(event: Event, config: MailConfig, site: str) -> EmailMessage:
    """The event in words, and whole as an attachment. The same event has the same Message-ID."""
    message = EmailMessage()
    message["Subject"] = shortened(_subject(event), _MAX_SUBJECT)
    message["From"] = config.sender
    message["To"] = ", ".join(config.to)
    # Mail programs recognise a repetition by its Message-ID, as other receivers do by the event's id.
    name = hashlib.sha256(event.id.encode()).hexdigest()[:32]
    message["Message-ID"] = f"<{name}@{config.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office replies, please
    message["X-Cheops-Event"] = event.kind
    message.set_content(_text(event, site))
    pretty = msgspec.json.format(encoded(event), indent=2)
    message.add_attachment(pretty, "application", "json", filename="event.json")
    return message


def _subject(event: Event) -> str:
    about = " ".join(filter(None, (event.resource, event.operation, event.status and event.status.value)))
    return printable(f"[cheops] {event.kind} {about or ' '.join(event.sites)}".rstrip())


def _text(event: Event, site: str) -> str:
    lines = [
        ("what", event.kind),
        ("when", event.time),
        ("where", event.site),
        ("resource", event.resource),
        ("operation", f"{event.operation} {event.type}".strip()),
        ("status", event.status.value if event.status else ""),
        ("detail", event.detail),
        ("output", event.output),
    ]
    text = "".join(f"{name}: {value}\n" for name, value in lines if value)
    results = "".join(f"  {r.site}: {r.status.value} {r.detail}".rstrip() + "\n" for r in event.results)
    if event.kind == EventKind.SUMMARY and not event.complete:
        results += "Some sites have not reported an outcome, and this site will not learn it.\n"
    return f"{text}{results}reported by: {site}\n"


def webhook_session() -> aiohttp.ClientSession:
    """For web hooks alone: no cookies, no unpacking, nothing shared with the traffic between sites."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"User-Agent": f"cheops/{__version__}"},
        connector=aiohttp.TCPConnector(limit_per_host=4),  # targets of one receiver share these, not all of its sockets
    )


class WebhookSender:
    """See `Sender`. Redirections are not followed: the signature is meant for one receiver."""

    def __init__(self, config: WebhookConfig, timeout_s: float, http: aiohttp.ClientSession) -> None:
        self._config = config
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http = http

    async def send(self, event: Event) -> None:
        body = encoded(event)
        try:
            async with self._http.post(
                self._config.url,
                data=body,
                headers=self._headers(event, body),
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                if not 200 <= response.status < 300:
                    raise DeliveryError(f"it answered {response.status}")
        except TimeoutError as error:
            raise DeliveryError(f"no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DeliveryError(printable(shortened(connection_problem(error), 300))) from error

    def _headers(self, event: Event, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": event.id,
            "Cheops-Event": event.kind,
            "Cheops-Sequence": str(event.sequence),
        }
        if self._config.secret_file is not None:
            headers[HEADER] = sign(read_secret(self._config.secret_file), body, int(time.time()))
        return headers
