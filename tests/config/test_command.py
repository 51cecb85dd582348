"""`cheops config check` and `cheops init`, as command lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.config.address import Address
from cheops.config.site import read_site
from tests.support.command import CommandResult, run_here

GOOD = """
site: DC 1
security: none
peers: {site2: http://127.0.0.2:8079}
services: {image: {url: "http://127.0.0.1:9292"}}
types:
  counter:
    matrix: [{before: set, after: inc, result: take-both-keep-order}]
    reset: zero __ID__
    on_error: mend __ID__
    parallel: true
    env: {A: b}
"""


def write_file(folder: Path, text: str = GOOD) -> Path:
    path = folder / "cheops.yaml"
    path.write_text(text)
    return path


def test_check_shows_what_the_site_would_be(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    assert run_here("config", "check", str(path)) == CommandResult(
        0,
        f"""\
{path} is valid (DC 1)

SETTING         VALUE
listens at      127.0.0.1:8079
reached at      http://127.0.0.1:8079
security        plain HTTP, on this machine only
data directory  {tmp_path}/data
heartbeat       every 1 s; down after 5 s

PEER   URL
site2  http://127.0.0.2:8079

SERVICE  URL
image    http://127.0.0.1:9292

TYPE     SETTING   VALUE
counter  matrix    set replaces inc, set; inc replaces nothing
         allow     nothing
         reset     zero __ID__
         on_error  mend __ID__
         parallel  true

warning: types.counter: no command is allowed; list patterns under 'allow'
""",
        "",
    )


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_check_gives_programs_everything(tmp_path: Path, output: str, load: Callable[[str], Any]) -> None:
    ran = run_here("config", "check", str(write_file(tmp_path)), "-o", output)
    data = load(ran.out)
    assert list(data) == [
        *(
            "site",
            "listen",
            "advertise",
            "security",
            "data",
            "peers",
            "services",
            "types",
            "limits",
            "heartbeat",
            "notify",
            "errors",
            "warnings",
            "hints",
        ),
    ]
    assert data["peers"] == {"site2": "http://127.0.0.2:8079"}
    assert data["limits"]["idle_ms"] == 30_000
    counter = data["types"]["counter"]
    assert counter["commands"] == {"reset": "zero __ID__", "on_error": "mend __ID__"}
    assert counter["timeout_s"] == 30
    assert counter["env"] == {"A": "b"}
    assert counter["limits"]["cpu_s"] is None
    assert data["warnings"] == ["types.counter: no command is allowed; list patterns under 'allow'"]
    assert (data["notify"], data["hints"]) == ({}, [])


def test_check_reports_what_no_agent_can_work_with(tmp_path: Path) -> None:
    """An agent refuses the first; the other makes its first command fail."""
    path = write_file(tmp_path, "site: a\ntypes: {t: {allow: [x], user: nobody-here, reset: zero}}\n")
    ran = run_here("config", "check", str(path))
    assert (ran.code, ran.out.splitlines()[0]) == (1, f"{path} cannot be used (a)")
    errors = [line for line in ran.out.splitlines() if line.startswith("error:")]
    assert len(errors) == 2
    assert errors[0].startswith("error: 'security' is missing, and no agent starts without it")
    assert errors[1].startswith("error: types.t: there is no user 'nobody-here' on this machine")
    data = run_here("config", "check", str(path), "-o", "json")
    assert (data.code, len(json.loads(data.out)["errors"])) == (1, 2)


BEHIND_A_GATEWAY = """
site: a
listen: 127.0.0.1:8079
security: {folder: tls}
gateway: {listen: "127.0.0.1:8443"}
services:
  image:
    url: http://127.0.0.1:9292
    listen: 127.0.0.1:9392
    forward: none
    auth: {file: image.headers}
    allow: [POST /images, "PUT /images/*"]
  open: {url: "http://127.0.0.1:9293", listen: "127.0.0.1:9393"}
"""


def test_check_shows_who_reaches_a_service_and_with_whose_rights_changes_run(tmp_path: Path) -> None:
    shown = run_here("config", "check", str(write_file(tmp_path, BEHIND_A_GATEWAY))).out
    assert (
        """
GATEWAY  SETTING          VALUE
image    for clients      127.0.0.1:9392
         for other sites  https://127.0.0.1:8443
         forward          none
         replicate_as     own
         allow            POST /images, PUT /images/*
open     for clients      127.0.0.1:9393
         for other sites  https://127.0.0.1:8443
         forward          client
         replicate_as     without credentials: there is no 'auth'
         allow            every change
"""
        in shown
    )
    plain = BEHIND_A_GATEWAY.replace('gateway: {listen: "127.0.0.1:8443"}\n', "")
    assert (
        "for other sites  none: there is no gateway.listen"
        in run_here("config", "check", str(write_file(tmp_path, plain))).out
    )


def test_check_shows_tls_for_clients_and_rules(tmp_path: Path) -> None:
    own = "    rules: [etcd, {match: POST /x, is: read}]\n    tls: {certificate: a.crt, key: a.key}\n"
    text = BEHIND_A_GATEWAY.replace("    forward: none\n", own)
    shown = run_here("config", "check", str(write_file(tmp_path, text))).out
    assert "image    for clients      https://127.0.0.1:9392" in shown
    assert "         rules            10, with those of etcd: cheops scope rules image" in shown


NOTIFYING = """
site: a
security: none
types:
  open: {matrix: [{before: set, after: set, result: take-one}], allow: [cat *]}
  read: {matrix: [{before: set, after: set, result: take-one}], allow: [cat *], read: cat __ID__, show: []}
notify:
  chat:
    webhook: {url: "https://chat.example.org/hooks/KEY?token=KEY", secret_file: KEY}
    summary: true
    on: [diverged, unknown]
  plain: {webhook: {url: "http://hooks.example.org/"}, others: true}
  pager:
    mail: {smtp: "mail.example.org:587", from: cheops@example.org, to: [a@example.org, b@example.org],
      user: ops, password_file: KEY}
    on: [diverged]
    types: [counter]
    operations: [set]
    resources: [shop*]
    statuses: [KO]
    timeout: 3s
  local: {mail: {smtp: "127.0.0.1:25", from: c@example.org, to: a@example.org}}
  record: {command: [curl, "https://example.org/KEY"]}
  bell: {command: /usr/bin/bell}
"""


def test_check_shows_targets_and_no_secrets(tmp_path: Path) -> None:
    path = write_file(tmp_path, NOTIFYING)
    shown = run_here("config", "check", str(path)).out
    assert (
        shown.partition("TARGET")[2].partition("\n")[2]
        == """\
chat    webhook          https://chat.example.org/…, signed
        events           a summary of each operation; diverged, unknown
plain   webhook          http://hooks.example.org/, not signed
        events           all; also those of other sites
pager   mail             a@example.org, b@example.org from cheops@example.org by mail.example.org:587 (with STARTTLS, as ops)
        events           diverged
        only types       counter
        only operations  set
        only resources   shop*
        only statuses    KO
        attempts         up to 3 s each, repeated at least every 60 s
local   mail             a@example.org from c@example.org by 127.0.0.1:25 (not encrypted)
        events           all
record  command          curl …
        events           all
bell    command          /usr/bin/bell
        events           all

hint: types.open: there is no 'show', so 'cheops show --command' may run any allowed command, even one that writes; list patterns of those that only read, or [] for 'read' alone
"""
    )
    assert "show     only 'read'" in shown
    data = run_here("config", "check", str(path), "-o", "json").out
    assert "KEY" not in shown + data
    targets = json.loads(data)["notify"]
    assert targets["chat"]["webhook"] == {"url": "https://chat.example.org/…", "signed": True}
    assert (targets["pager"]["statuses"], targets["pager"]["retry_most_s"]) == (["KO"], 60)
    assert targets["record"]["command"] == {"line": "curl …"}


def test_check_names_the_place_of_a_mistake(tmp_path: Path) -> None:
    path = write_file(tmp_path, "site: a\nlisten: here")
    complaint = "expected host:port, such as 127.0.0.1:8079 or [::1]:8079, found 'here'"
    assert run_here("config", "check", str(path)) == CommandResult(1, "", f"error: {path}:2: listen: {complaint}\n")


def test_what_init_writes_is_valid_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "my site.yaml"
    ran = run_here("init", str(path))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == f"wrote {path}"
    assert f"cheops config check '{path}'" in ran.out
    config = read_site(path)
    assert (config.name, config.listen, config.peers) == ("site1", Address("127.0.0.1", 8079), {})
    assert config.data == tmp_path / "data"
    assert config.warnings == ("types.default: no command is allowed; list patterns under 'allow'",)


@pytest.mark.parametrize("name", ["no", "DC 1", "1", 'a "b" \\c', "~", "a: b # c", "été", "null", "{x}"])
def test_names_come_back_as_they_were_given(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cheops.yaml"
    options = ["--listen", "0.0.0.0:80", "--advertise", "https://10.0.0.1/"]
    ran = run_here("init", str(path), "--site", f"{name}!", *options, "--peer", f"{name}=https://10.0.0.2:8079")
    assert (ran.code, ran.err) == (0, "")
    config = read_site(path)
    assert config.name == f"{name}!"
    assert config.peers == {name: "https://10.0.0.2:8079"}
    assert (str(config.listen), config.advertise) == ("0.0.0.0:80", "https://10.0.0.1")


def test_the_commented_parts_are_valid_too(tmp_path: Path) -> None:
    path = tmp_path / "cheops.yaml"
    run_here("init", str(path))
    lines = path.read_text().splitlines()
    opened = [line.replace("# ", "", 1) if _is_a_setting(line) else line for line in lines]
    assert opened != lines
    path.write_text("\n".join(opened))
    config = read_site(path)
    assert set(config.types) == {"default", "counter"}
    assert set(config.peers) == {"site2"}
    assert set(config.services) == {"image"}


def _is_a_setting(line: str) -> bool:
    """A setting in a comment, not a sentence: these start small, or stand deeper."""
    comment = line.strip().removeprefix("# ")
    return line.strip().startswith("# ") and not comment[0].isupper() and "`" not in line and ". " not in line


def test_init_does_not_write_over_a_file_unless_forced(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    assert run_here("init", str(path)) == CommandResult(
        1, "", f"error: {path} exists already; use --force to overwrite it\n"
    )
    assert path.read_text() == GOOD
    assert run_here("init", str(path), "--force", "--site", "new").code == 0
    assert read_site(path).name == "new"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--site", " "], "--site: a name cannot be empty"),
        (
            ["--listen", "here"],
            "--listen: expected host:port, such as 127.0.0.1:8079 or [::1]:8079, found 'here'",
        ),
        (["--advertise", "http://a/b"], "--advertise: the URL of an agent has no path: 'http://a/b'"),
        (["--peer", "b"], "--peer b: expected NAME=URL, such as site2=https://10.0.0.2:8079"),
        (["--peer", "=http://b"], "--peer =http://b: a name cannot be empty"),
        (["--peer", "b=http://b", "--peer", "b=http://c"], "--peer b=http://c: 'b' is given twice"),
        (
            ["--peer", "b=b:1"],
            "--peer b: expected a URL that starts with http:// or https://, found 'b:1'; write http://b:1",
        ),
        (
            ["--listen", "0.0.0.0:1", "--peer", "b=https://b"],
            (
                "nothing was written, because the file would not be valid\n"
                "  FILE:5: 'advertise' is missing: 0.0.0.0:1 is all addresses of this machine, and peers need one, "
                "such as advertise: https://10.0.0.1:1"
            ),
        ),
    ],
)
def test_init_refuses_what_would_not_be_right(tmp_path: Path, options: list[str], complaint: str) -> None:
    path = tmp_path / "cheops.yaml"
    ran = run_here("init", str(path), *options)
    assert ran == CommandResult(1, "", f"error: {complaint.replace('FILE', str(path))}\n")
    assert list(tmp_path.iterdir()) == []


def test_init_says_why_it_cannot_write(tmp_path: Path) -> None:
    ran = run_here("init", str(tmp_path / "none" / "cheops.yaml"))
    assert ran == CommandResult(1, "", f"error: {tmp_path}/none/cheops.yaml: no such file or directory\n")
    ran = run_here("init", "--force", str(tmp_path))
    assert ran == CommandResult(1, "", f"error: {tmp_path}: is a directory\n")
