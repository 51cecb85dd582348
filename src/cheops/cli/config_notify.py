"""The targets of notifications in a configuration, for `cheops config check`: whom, what, and which of it.

What may be secret is not shown: the address of a web hook often is, and so may be the words of a command.
"""

import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from cheops.config.event_kinds import CHOSEN
from cheops.config.notify import (
    DEFAULT_RETRY_MOST_S,
    DEFAULT_TIMEOUT_S,
    Channel,
    CommandConfig,
    MailConfig,
    TargetConfig,
    WebhookConfig,
)
from cheops.text import printable

_REST = "…"
_FILTERS = ("types", "operations", "resources", "statuses")


def target_data(target: TargetConfig) -> dict[str, Any]:
    """For programs."""
    kind, about = _channel(target.channel)
    return {
        kind: about,
        "on": [event.value for event in target.on],
        "summary": target.summary,
        "others": target.others,
        **{name: [str(one) for one in getattr(target, name)] for name in _FILTERS},
        "timeout_s": target.timeout_s,
        "retry_most_s": target.retry_most_s,
    }


def target_facts(target: TargetConfig) -> Iterator[tuple[str, str]]:
    """For people: what one sees at a glance."""
    kind, about = _channel(target.channel)
    yield kind, _in_words(about)
    yield "tells", _told(target)
    for name in _FILTERS:
        if wanted := getattr(target, name):
            yield f"only {name}", printable(", ".join(map(str, wanted)))
    if (target.timeout_s, target.retry_most_s) != (DEFAULT_TIMEOUT_S, DEFAULT_RETRY_MOST_S):
        yield "tries", f"for {target.timeout_s:g} s, then again, at least every {target.retry_most_s:g} s"


def _channel(channel: Channel) -> tuple[str, dict[str, Any]]:
    match channel:
        case WebhookConfig():
            return "webhook", {"url": _origin(channel.url), "signed": channel.secret_file is not None}
        case CommandConfig():
            program, *more = shlex.split(channel.line)
            return "command", {"line": f"{program} {_REST}" if more else program}
        case MailConfig():
            return "mail", {
                "to": list(channel.to),
                "from": channel.sender,
                "smtp": str(channel.smtp),
                "starttls": channel.starttls,
                "user": channel.user,
            }


def _origin(url: str) -> str:
    """A URL without what stands after its host."""
    parts = urlsplit(url)
    more = parts.path.strip("/") or parts.query
    return f"{parts.scheme}://{parts.netloc}/{_REST}" if more else url


def _in_words(about: dict[str, Any]) -> str:
    if "url" in about:
        return f"{about['url']}, {'signed' if about['signed'] else 'not signed'}"
    if "smtp" not in about:
        return printable(about["line"])
    way = "with STARTTLS" if about["starttls"] else "not encrypted"
    user = f", as {printable(about['user'])}" if about["user"] else ""
    return f"{', '.join(about['to'])} from {about['from']} by {about['smtp']} ({way}{user})"


def _told(target: TargetConfig) -> str:
    said = ["a summary of each operation"] if target.summary else []
    if target.on == CHOSEN:
        said.append("every event")
    elif target.on:
        said.append(", ".join(event.value for event in target.on))
    told = "; ".join(said)
    return f"{told}; of other sites too" if target.others else told
