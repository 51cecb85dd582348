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
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

from cheops.config.address import Address, AddressError, is_loopback, parse_url
from cheops.config.command import COMMAND, split_words
from cheops.config.settings import (
    REQUIRED,
    Section,
    alternatives,
    is_set,
    place,
    read_section,
    section,
    setting,
    settings_of,
)
from cheops.config.values import ADDRESS, BOOLEAN, DURATION, PATH, TEXT, ValueType, choice, list_of, read_names
from cheops.log.operation import Status
from cheops.text import printable, shortened
from cheops.yaml_file import Value


class EventKind(StrEnum):
    """What happened. docs/notifications.md has the same list."""

    ACCEPTED = "accepted"  # an operation is durable at its origin, and has not run yet
    DECIDED = "decided"  # an operation ran at its origin, and goes to the other sites
    VOID = "void"  # an operation failed at its origin: it has no effect anywhere
    SUPERSEDED = "superseded"  # another operation replaced the effect of this one
    ORPHANED = "estranged"  # an operation came too late for what all sites had settled
    SITES = "sites"  # the list of sites of a resource was changed
    RAN = "ran"  # a site ran an operation
    REPLAYED = "replayed"  # a site ran operations again, in the right order
    DIVERGED = "diverged"  # an operation failed at a site, but succeeded at its origin
    UNKNOWN = "unknown"  # it is not known whether an operation ran at a site
    RESOLVED = "resolved"  # now it is known
    ORDER_NOT_ENFORCED = "order-not-enforced"
    UNIT_REFUSED = "unit-refused"
    CHECKPOINT = "checkpoint"
    NO_CHECKPOINT = "no-checkpoint"
    RESET_FAILED = "reset-failed"
    DRIFTED = "drifted"  # the applications differ, although all sites have applied the same: see `verify_every`
    COPY_NOT_DELETED = "copy-not-deleted"  # a site could not delete its copy of a resource that left it
    EQUIVOCATION = "equivocation"  # a site gave one id to two operations: its keys may be stolen
    OLD_COPY = "old-copy"  # the store of a site was an old copy, or its stamps were wrong: a new incarnation begins
    WITHDRAWN = "withdrawn"  # an operation of the incarnation before was taken back
    ISSUED_AGAIN = "issued-again"  # and issued again, under the new one
    BROKEN_STATEMENT = "broken-statement"  # a site made an operation against its statement in a seal: likewise
    DAMAGED = "damaged"  # the disk has changed stored documents of a resource
    SITE_UP = "site-up"
    SITE_DOWN = "site-down"
    SUMMARY = "summary"  # an operation is finished at all sites
    DROPPED = "dropped"  # too many events waited for a receiver, and some were discarded


# What `on` can select. `summary` has a setting of its own, and every target gets `dropped`.
SELECTABLE_EVENTS = tuple(kind for kind in EventKind if kind not in (EventKind.SUMMARY, EventKind.DROPPED))

MAX_TARGETS = 50  # each has its own delivery task
MAX_RECIPIENTS = 100  # what every mail server must accept in one message (RFC 5321, 4.5.3.1.8)
_MAILBOX = re.compile(r"[^\s@<>,;\"]{1,64}@[A-Za-z0-9.\[\]:_-]{1,255}")


def _read_webhook_url(value: Value) -> str:
    """The URL exactly as written: it may have a query, and to a receiver a slash at its end may matter."""
    text = value.string()
    base, _, query = text.partition("?")
    try:
        parse_url(base, with_path=True)
    except AddressError as error:
        raise value.fail(str(error)) from None
    if not query.isascii() or not query.isprintable() or any(sign in query for sign in "# "):
        raise value.fail("the part after '?' has characters that a URL cannot contain")
    return text


def _read_command(value: Value) -> "CommandConfig":
    """A command as one line, or as a list of its words."""
    if not value.is_list:
        line = COMMAND.read(value)
        split_words(value)
        return CommandConfig(line)
    words = [item.string() for item in value.items()]
    if not words or not words[0] or any("\0" in word for word in words):
        raise value.fail("the first word of a command is a program, and no word contains the character U+0000")
    return CommandConfig(shlex.join(words))


def _read_mailbox(value: Value) -> str:
    if not _MAILBOX.fullmatch(value.string()) or not value.string().isascii():
        shown = printable(shortened(value.string()))
        raise value.fail(f"expected an address such as ops@example.org, found '{shown}'")
    return value.string()


def _read_recipients(value: Value) -> tuple[str, ...]:
    to = tuple(map(_read_mailbox, value.items())) if value.is_list else (_read_mailbox(value),)
    if not 1 <= len(to) <= MAX_RECIPIENTS:
        raise value.fail(f"expected 1 to {MAX_RECIPIENTS} addresses")
    return to


def _read_texts(value: Value) -> tuple[str, ...]:
    texts = tuple(item.string() for item in value.items())
    if not texts or not all(texts):
        raise value.fail("expected texts that are not empty; leave the key out for everything")
    return texts


_TEXTS = ValueType("list of texts", _read_texts)


@dataclass(frozen=True, slots=True)
class WebhookConfig(Section):
    word: ClassVar[str] = "web hook"

    url: str = setting(
        ValueType("URL", _read_webhook_url),
        REQUIRED,
        "The URL to which each event is posted; it may have a path and a query.",
    )
    secret_file: Path | None = setting(
        PATH, None, "The file with the secret that signs each request. It is read each time, so it can be changed."
    )


@dataclass(frozen=True, slots=True)
class CommandConfig:
    word: ClassVar[str] = "command"

    line: str


@dataclass(frozen=True, slots=True)
class MailConfig(Section):
    word: ClassVar[str] = "mail"

    smtp: Address = setting(ADDRESS, REQUIRED, "The mail server, `mail.example.org:587`.")
    sender: str = setting(ValueType("mail address", _read_mailbox), REQUIRED, "The sender's address.", key="from")
    to: tuple[str, ...] = setting(
        ValueType("mail address or list", _read_recipients), REQUIRED, "One address, or a list of them."
    )
    starttls: bool = setting(
        BOOLEAN,
        True,
        "Whether the connection is encrypted and the server's certificate is checked.",
        shown="on; off for a server on this machine",
    )
    user: str | None = setting(TEXT, None, "The user name at the mail server; with `password_file`.")
    password_file: Path | None = setting(PATH, None, "The file with the password.")

    def complete(self, value: Value) -> Self:
        is_local = is_loopback(self.smtp.url)
        starttls = self.starttls if is_set(value, "starttls") else not is_local
        if is_set(value, "user") != is_set(value, "password_file"):
            raise value.fail("'user' and 'password_file' go together")
        if self.user and not starttls and not is_local:
            raise value.fail("without 'starttls' the password would be sent in plain text")
        return replace(self, starttls=starttls)


Channel: TypeAlias = WebhookConfig | CommandConfig | MailConfig


@dataclass(frozen=True, slots=True)
class TargetConfig(Section):
    """A receiver of events, and which of them it receives. An empty filter lets everything pass."""

    name: str
    channel: Channel = alternatives(
        webhook=(section(WebhookConfig), "Send events by HTTP."),
        command=(
            ValueType("command, or list of words", _read_command),
            "Run a command for each event; `{event}` is the path of the file with the event.",
        ),
        mail=(section(MailConfig), "Send events by mail."),
    )
    on: tuple[EventKind, ...] = setting(
        list_of(choice(SELECTABLE_EVENTS, EventKind), "list of [events](notifications.md#events)"),
        SELECTABLE_EVENTS,
        "Which kinds of events to send.",
        shown="all kinds; none with `summary`",
    )
    summary: bool = setting(
        BOOLEAN, False, "Whether to send one summary per operation when it is finished at all sites."
    )
    others: bool = setting(
        BOOLEAN, False, "Whether this site also reports what happened at other sites, when it learns of it."
    )
    types: tuple[str, ...] = setting(_TEXTS, (), "Only events of these resource types.", shown="all")
    operations: tuple[str, ...] = setting(_TEXTS, (), "Only events of these operation types.", shown="all")
    resources: tuple[str, ...] = setting(
        _TEXTS, (), "Only events of resources whose id matches a pattern: `*`, `?` and `[…]`.", shown="all"
    )
    statuses: tuple[Status, ...] = setting(
        list_of(choice(Status, Status), "list of texts"),
        (),
        f"Only events with these statuses: {', '.join(f'`{status.value}`' for status in Status)}.",
        shown="all",
    )
    timeout_s: float = setting(DURATION, 10.0, "How long one attempt may take.")
    retry_most_s: float = setting(
        DURATION, 60.0, "A failed attempt is repeated after longer and longer pauses, but at least this often."
    )

    def complete(self, value: Value) -> Self:
        if self.summary and not is_set(value, "on"):
            return replace(self, on=())
        if not self.on and not self.summary:
            raise place(value, "on").fail("an empty list selects no events; leave it out for all of them")
        return self


def _read_targets(value: Value) -> tuple[TargetConfig, ...]:
    targets = read_names(value)
    if len(targets) > MAX_TARGETS:
        raise value.fail(f"at most {MAX_TARGETS} targets; one program can notify many others")
    return tuple(read_section(TargetConfig, at, name=name) for name, at in targets.items())


TARGETS = ValueType("sections by name", _read_targets, settings=settings_of(TargetConfig), is_named=True)
