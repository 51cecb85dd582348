"""Where the programs of a type's commands are, and what `cheops check` says of them."""

import asyncio
from pathlib import Path

import pytest

from cheops.backends.command.backend import root_finding
from cheops.backends.command.runner import CommandRunner, environment, where_is
from cheops.backends.command.wire import CommandStatus
from cheops.config.command import CommandSettings
from cheops.config.site import parse_site
from cheops.config.types import TypeConfig
from cheops.log.matrix import Matrix
from tests.backends.contexts import command_backend


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho here\n")
    path.chmod(0o755)
    return path


def test_the_path_of_the_type_comes_before_that_of_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = program(tmp_path / "mine" / "tool")
    monkeypatch.setenv("PATH", str(program(tmp_path / "agent" / "tool").parent))
    assert where_is("tool", CommandSettings()) == tmp_path / "agent" / "tool"
    assert where_is("tool", CommandSettings(env={"PATH": str(mine.parent)})) == mine
    assert where_is("tool", CommandSettings(env={"PATH": "/nowhere"})) is None
    assert environment(CommandSettings(user="nobody")).get("HOME") is None


def test_relative_paths_start_where_commands_do(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")
    settings = CommandSettings(cwd=tmp_path, env={"PATH": "bin"})
    assert where_is("bin/tool", settings) == where_is("tool", settings) == tool
    assert where_is("bin/tool", CommandSettings()) is None
    (tmp_path / "bin" / "text").write_text("not a program")
    assert where_is("text", settings) is None


async def ran(line: str, settings: CommandSettings) -> CommandStatus:
    async with CommandRunner() as runner:
        return (await runner.run(line, settings, resource="n")).status


def test_what_is_found_is_what_runs(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "tool")
    found = CommandSettings(allow=("...",), cwd=tmp_path, env={"PATH": "bin"})
    lost = CommandSettings(allow=("...",), env={"PATH": "bin"})
    for settings in (found, lost):
        status = asyncio.run(ran("tool", settings))
        assert (status is CommandStatus.EXITED) == (where_is("tool", settings) is not None)


def test_a_check_looks_where_the_type_does_and_at_what_it_allows(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "tool")
    text = f"""
site: a
types:
  t:
    env: {{PATH: {tool.parent}}}
    allow: ["tool set *", "other get *", "* anything", "...", "gone"]
    read: tool get __ID__
    reset: none __ID__
"""
    backend = command_backend(parse_site(text, tmp_path / "site.yaml"))
    findings = [
        (one.name, one.detail, bool(one.hint), one.is_warning)
        for one in asyncio.run(backend.doctor())
        if one.group == "backends"
    ]
    assert findings == [
        ("t: read can run", str(tool), False, False),
        ("t: reset cannot run", "no program none", True, False),
        ("t: allowed program other cannot run", "no program other", True, True),
        ("t: allowed program gone cannot run", "no program gone", True, True),
    ]


def test_commands_as_root_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_warning(user: str | None) -> bool:
        finding = root_finding([TypeConfig("note", Matrix(), command=CommandSettings(user=user))])
        assert (finding.group, bool(finding.hint)) == ("security", finding.is_warning)
        return finding.is_warning

    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert is_warning(None)
    assert is_warning("root")
    assert not is_warning("nobody")
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert not is_warning(None)
