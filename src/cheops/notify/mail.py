"""Events as mails: one message each, handed to a mail server. See senders.py.

smtplib blocks, so each message has its own thread, which ends by itself when the server stays silent.
"""

import asyncio
import hashlib
import logging
import smtplib
import ssl
import threading
from contextlib import suppress
from email.message import EmailMessage

import msgspec

from cheops.config.notify import EventKind, MailConfig
from cheops.notify.event import Event, encoded
from cheops.notify.senders import DeliveryError, read_secret
from cheops.peers.client import connection_problem
from cheops.text import printable, shortened

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
