"""Targets in the configuration file."""

from pathlib import Path

import pytest

from cheops.config.address import Address
from cheops.config.notify import SELECTABLE_EVENTS, CommandConfig, EventKind, MailConfig, TargetConfig, WebhookConfig
from cheops.config.site import parse_site
from cheops.log.operation import Status
from cheops.yaml_file import YamlFileError


def targets(tmp_path: Path, text: str) -> tuple[TargetConfig, ...]:
    return parse_site(f"site: a\nnotify:\n  t: {text}\n", tmp_path / "site.yaml").notify


def test_all_settings_of_a_target(tmp_path: Path) -> None:
    text = (
        "{webhook: {url: 'https://chat.example/hook/?x=1', secret_file: hook.secret}, on: [ran, diverged],"
        " summary: true, others: true, types: [counter], operations: [inc], resources: ['c*'],"
        " statuses: [OK, KO], timeout: 3s, retry_most: 5m}"
    )
    assert targets(tmp_path, text) == (
        TargetConfig(
            "t",
            WebhookConfig("https://chat.example/hook/?x=1", tmp_path / "hook.secret"),
            (EventKind.RAN, EventKind.DIVERGED),
            True,
            True,
            ("counter",),
            ("inc",),
            ("c*",),
            (Status.OK, Status.KO),
            3.0,
            300.0,
        ),
    )


def test_defaults_and_channels(tmp_path: Path) -> None:
    assert targets(tmp_path, "{command: 'notify-send {event}'}") == (
        TargetConfig("t", CommandConfig("notify-send {event}"), SELECTABLE_EVENTS),
    )
    (listed,) = targets(tmp_path, "{command: [sh, -c, 'a b'], summary: true}")
    assert listed.channel == CommandConfig("sh -c 'a b'")
    assert listed.on == ()
    (mail,) = targets(tmp_path, "{mail: {smtp: 'mail.example:25', from: a@b.example, to: c@d.example}}")
    assert mail.channel == MailConfig(Address("mail.example", 25), "a@b.example", ("c@d.example",), starttls=True)
    (local,) = targets(tmp_path, "{mail: {smtp: '127.0.0.1:25', from: a@b.example, to: [c@d.example]}}")
    assert isinstance(local.channel, MailConfig)
    assert local.channel.starttls is False


HOOK = "webhook: {url: 'http://h.example'}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "expected exactly one of webhook, command, mail; found none"),
        (f"{{{HOOK}, command: x}}", "found webhook and command"),
        ("{webhook: {}}", "'url' is missing"),
        ("{webhook: {url: 'ftp://x'}}", "expected a URL that starts with http"),
        ("{webhook: {url: 'http://u:p@h.example'}}", "must not contain a user name or password"),
        ("{webhook: {url: 'http://h.example?a#b'}}", "characters that a URL cannot contain"),
        (f"{{{HOOK}, on: [rann]}}", "did you mean 'ran'?"),
        (f"{{{HOOK}, on: [summary]}}", "unknown value 'summary'"),
        (f"{{{HOOK}, on: []}}", "an empty list selects no events"),
        (f"{{{HOOK}, statuses: [ok]}}", "did you mean 'OK'?"),
        (f"{{{HOOK}, resources: []}}", "leave the key out for everything"),
        (f"{{{HOOK}, timeout: 5}}", "has no unit"),
        (f"{{{HOOK}, secret: x}}", "unknown key"),
        ("{command: []}", "the first word of a command is a program"),
        ("{command: ''}", "a command cannot be empty"),
        ("{mail: {smtp: 'm:25', from: a@b, to: []}}", "expected 1 to 100 addresses"),
        ("{mail: {smtp: 'm:25', from: 'A <a@b>', to: c@d}}", "expected an address such as ops@example.org"),
        ("{mail: {smtp: 'm:25', from: a@b, to: c@d, user: u}}", "go together"),
        (
            "{mail: {smtp: 'm:25', from: a@b, to: c@d, user: u, password_file: p, starttls: false}}",
            "the password would be sent in plain text",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(YamlFileError) as caught:
        targets(tmp_path, text)
    assert expected in str(caught.value)
    assert "site.yaml:3: notify.t" in str(caught.value)
