"""Notifications in the configuration file: the kinds of events, and the targets that receive them.

    notify:
      ops:
        webhook: {url: "https://chat.example/hook", secret_file: hook.secret}
        summary: true
        types: [counter]

A target has one of `webhook`, `command` and `mail`, and filters, all of which must match.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from cheops.config.address import Address, AddressError, address_at, is_loopback, parse_url
from cheops.config.command import command_line
from cheops.config.settings import NOTIFY, NOTIFY_MAIL, NOTIFY_WEBHOOK, duration_s, named_at, optional, path_at
from cheops.documents import Value
from cheops.log.operation import Status
from cheops.text import listed, nearest, printable, shortened


class EventKind(StrEnum):
    """What happened. docs/notifications.md has the same list."""

    ACCEPTED = "accepted"  # an operation is durable at its origin, and was not run yet
    DECIDED = "decided"  # an operation was run at its origin, and goes to the others
    VOID = "void"  # an operation failed at its origin: it has no effect anywhere
    SUPERSEDED = "superseded"  # another operation took the effect of this one
    ORPHANED = "estranged"  # an operation came too late for what all sites had settled
    SITES = "sites"  # the list of sites of a resource was changed
    RAN = "ran"  # a site ran an operation
    REPLAYED = "replayed"  # a site ran operations again, in the right order
    DIVERGED = "diverged"  # an operation failed at a site, and not at its origin
    UNKNOWN = "unknown"  # nobody knows whether an operation ran at a site
    RESOLVED = "resolved"  # now it is known
    ORDER_NOT_ENFORCED = "order-not-enforced"
    UNIT_REFUSED = "unit-refused"
    CHECKPOINT = "checkpoint"
    NO_CHECKPOINT = "no-checkpoint"
    RESET_FAILED = "reset-failed"
    COPY_NOT_DELETED = "copy-not-deleted"  # a site that a resource left should have, and could not
    SITE_UP = "site-up"
    SITE_DOWN = "site-down"
    SUMMARY = "summary"  # all sites have dealt with an operation
    DROPPED = "dropped"  # too many events waited for a receiver: some are gone


# What can be asked for by name. A summary is asked for with `summary`; of what is dropped everybody hears.
SELECTABLE_EVENTS = tuple(kind for kind in EventKind if kind not in (EventKind.SUMMARY, EventKind.DROPPED))


MAX_TARGETS = 50
MAX_RECIPIENTS = 100
DEFAULT_TIMEOUT_S = 10.0
DEFAULT_RETRY_MOST_S = 60.0
_CHANNELS = ("webhook", "command", "mail")
_MAILBOX = re.compile(r"[^\s@<>,;\"]{1,64}@[A-Za-z0-9.\[\]:_-]{1,255}")


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    url: str
    secret_file: Path | None = None  # what the signature is made with


@dataclass(frozen=True, slots=True)
class CommandConfig:
    line: str


@dataclass(frozen=True, slots=True)
class MailConfig:
    smtp: Address
    sender: str
    to: tuple[str, ...]
    starttls: bool
    user: str | None = None
    password_file: Path | None = None


Channel: TypeAlias = WebhookConfig | CommandConfig | MailConfig


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Somebody to tell, and what. Empty filters let everything pass."""

    name: str
    channel: Channel
    on: tuple[EventKind, ...] = SELECTABLE_EVENTS
    summary: bool = False
    others: bool = False
    types: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    retry_most_s: float = DEFAULT_RETRY_MOST_S


def targets_at(value: Value, folder: Path) -> tuple[TargetConfig, ...]:
    named = named_at(value)
    if len(named) > MAX_TARGETS:
        raise value.fail(f"at most {MAX_TARGETS} targets; one program can tell many")
    return tuple(_target(name, at, folder) for name, at in named.items())


def _target(name: str, value: Value, folder: Path) -> TargetConfig:
    record = NOTIFY.read(value)
    summary = optional(record, "summary", Value.boolean, False)
    target = TargetConfig(
        name,
        _channel(value, record, folder),
        optional(record, "on", _kinds, () if summary else SELECTABLE_EVENTS),
        summary,
        optional(record, "others", Value.boolean, False),
        optional(record, "types", _texts, ()),
        optional(record, "operations", _texts, ()),
        optional(record, "resources", _texts, ()),
        optional(record, "statuses", _statuses, ()),
        optional(record, "timeout", duration_s, DEFAULT_TIMEOUT_S),
        optional(record, "retry_most", duration_s, DEFAULT_RETRY_MOST_S),
    )
    if not target.on and not summary:
        raise record["on"].fail("an empty list tells nothing; leave it out for everything")
    return target


def _channel(value: Value, record: dict[str, Value], folder: Path) -> Channel:
    named = [name for name in _CHANNELS if name in record]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise value.fail(f"a target has one of {', '.join(_CHANNELS)}; found {found}")
    at = record[named[0]]
    match named[0]:
        case "webhook":
            return _webhook(at, folder)
        case "command":
            return CommandConfig(_command(at))
        case _:
            return _mail(at, folder)


def _webhook(value: Value, folder: Path) -> WebhookConfig:
    record = NOTIFY_WEBHOOK.read(value)
    return WebhookConfig(
        _url(record["url"]),
        optional(record, "secret_file", lambda at: path_at(at, folder), None),
    )


def _url(value: Value) -> str:
    """As it is written: a receiver may care for a slash at its end, and have a query."""
    text = value.string()
    base, _, query = text.partition("?")
    try:
        parse_url(base, with_path=True)
    except AddressError as error:
        raise value.fail(str(error)) from None
    if not query.isascii() or not query.isprintable() or any(sign in query for sign in "# "):
        raise value.fail("the part after '?' has characters that a URL cannot hold")
    return text


def _command(value: Value) -> str:
    """A command as one line, or as a list of its words."""
    if not value.is_list:
        return command_line(value, shell=False)
    words = [item.string() for item in value.items()]
    if not words or not words[0] or any("\0" in word for word in words):
        raise value.fail("the first word of a command is a program, and no word holds the character U+0000")
    return shlex.join(words)


def _mail(value: Value, folder: Path) -> MailConfig:
    record = NOTIFY_MAIL.read(value)
    smtp = address_at(record["smtp"])
    local = is_loopback(smtp.url)
    starttls = optional(record, "starttls", Value.boolean, not local)
    if ("user" in record) != ("password_file" in record):
        raise value.fail("'user' and 'password_file' go together")
    if "user" in record and not starttls and not local:
        raise value.fail("without 'starttls' the password would be read by others on its way")
    return MailConfig(
        smtp,
        _mailbox(record["from"]),
        _recipients(record["to"]),
        starttls,
        optional(record, "user", Value.string, None),
        optional(record, "password_file", lambda at: path_at(at, folder), None),
    )


def _recipients(value: Value) -> tuple[str, ...]:
    to = tuple(map(_mailbox, value.items())) if value.is_list else (_mailbox(value),)
    if not 1 <= len(to) <= MAX_RECIPIENTS:
        raise value.fail(f"expected 1 to {MAX_RECIPIENTS} addresses")
    return to


def _mailbox(value: Value) -> str:
    if not _MAILBOX.fullmatch(value.string()) or not value.string().isascii():
        shown = printable(shortened(value.string()))
        raise value.fail(f"expected an address such as ops@example.org, found '{shown}'")
    return value.string()


def _texts(value: Value) -> tuple[str, ...]:
    texts = tuple(item.string() for item in value.items())
    if not texts or not all(texts):
        raise value.fail("expected texts that are not empty; leave the key out for everything")
    return texts


def _kinds(value: Value) -> tuple[EventKind, ...]:
    return tuple(EventKind(_one_of(item, SELECTABLE_EVENTS)) for item in value.items())


def _statuses(value: Value) -> tuple[Status, ...]:
    return tuple(Status(_one_of(item, Status)) for item in value.items())


def _one_of(value: Value, known: Iterable[str]) -> str:
    names = [str(name) for name in known]
    text = value.string()
    if text not in names:
        meant = nearest(text, names)
        hint = f"did you mean '{meant}'? " if meant else ""
        shown = printable(shortened(text))
        raise value.fail(f"'{shown}' is not one of them; {hint}Known here: {listed(names, most=len(names))}")
    return text
