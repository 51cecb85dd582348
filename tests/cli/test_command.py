"""The `cheops` command as a real process: what goes where, and with which exit code."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cheops
from tests.support.command import ROOT, run_here, run_new_python, run_process

ANSI = re.compile(r"\x1b\[")


def on_terminal(*argv: str, **environment: str) -> str:
    """What a person sees: run with a pseudo-terminal in place of pipes."""
    parent, child = pty.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    with subprocess.Popen([sys.executable, "-m", "cheops", *argv], stdin=child, stdout=child, stderr=child, env=env):
        os.close(child)
        seen = b""
        while chunk := _read(parent):
            seen += chunk
    os.close(parent)
    return seen.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how Linux says that nobody has the other end open any more
        return b""


def test_version() -> None:
    ran = run_new_python("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"cheops {cheops.__version__}\n", "")


@pytest.mark.parametrize("argv", [["--help"], ["-h"], []])
def test_help_groups_commands_and_gives_examples(argv: list[str]) -> None:
    ran = run_new_python(*argv)
    text = ran.out + ran.err
    for expected in (
        "Get started",
        "Change resources",
        "scope",
        "demo",
        "Examples:",
        "cheops scope explain 'site1 & site2'",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (["status"], "cheops status [OPTIONS] [ID]"),
        (["wait"], "cheops wait [OPTIONS] ID"),
        (["sites", "set"], "cheops sites set [OPTIONS] ID SITES..."),
        (["site", "ping"], "cheops site ping [OPTIONS] [NAME]"),
        (["config", "check"], "cheops config check [OPTIONS] [FILE]"),
        (["watch"], "cheops watch [OPTIONS] [ID]"),
    ],
)
def test_the_usage_has_arguments_as_they_are_written(argv: list[str], usage: str) -> None:
    ran = run_process(*argv, "--help", env={**os.environ, "COLUMNS": "200"})
    assert f"Usage: {usage}" in [line.strip() for line in ran.out.splitlines()]


def test_paragraphs_of_help_are_wrapped_to_the_window() -> None:
    ran = run_process("resolve", "--help", env={**os.environ, "COLUMNS": "200"})
    assert "with 'no' it runs again. For any other reason why sites differ, see 'cheops repair'." in ran.out


@pytest.mark.parametrize("command", ["parse", "explain", "functions"])
def test_every_command_explains_itself(command: str) -> None:
    ran = run_process("scope", command, "--help")
    assert ran.code == 0
    assert "--output" in ran.out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["scope", "parse"], 2, "Missing argument 'SCOPE'"),
        (["scope", "parse", "a", "-o", "xml"], 2, "'xml' is not one of"),
        (["scope", "parse", "a &"], 1, "error: the scope ends too early"),
        (
            ["scope", "explain", "a", "--sites", "/nonexistent"],
            1,
            "error: /nonexistent: no such file or directory",
        ),
        (["scope", "parse", b"\xff\xfe"], 1, "invisible character U+DCFF"),
        (["scope", "parse", "a\x1b[31mb"], 1, "invisible character U+001B"),
        (
            ["scope", "explain", "a", "--service", "\x1b[31mred"],
            1,
            "--service: a name cannot hold the invisible",
        ),
        (["scope", "explain", "a", "--service", ""], 1, "--service: a name cannot be empty"),
        (["scope", "explain", "a", "--from", b"\xff"], 1, "--from: a name cannot hold the invisible"),
    ],
)
def test_errors_go_to_standard_error_without_a_traceback(argv: list[str | bytes], code: int, message: str) -> None:
    ran = run_process(*argv)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["exec", "--id", "", "--type", "set", "--command", "true"], "the id of the resource is empty"),
        (["exec", "--id", "", "--type", "set", "--command", "true", "--dry-run"], "the id of the resource is empty"),
        (["show", "--id", ""], "the id of the resource is empty"),
        (["status", ""], "the id of the resource is empty"),
        (["delete", "", "--command", "true"], "the id of the resource is empty"),
        (["site", "forget", ""], "the name is empty"),
    ],
)
def test_an_empty_id_or_name_is_named_before_an_agent_is_asked(argv: list[str], message: str) -> None:
    """An agent would say only that it does not know the path."""
    ran = run_here(*argv, "--url", "http://127.0.0.1:1")
    assert (ran.code, ran.out, ran.err) == (1, "", f"error: {message}\n")


def test_a_scope_is_read_from_standard_input() -> None:
    assert "canonical: a & b\n" in run_process("scope", "parse", "-", stdin="a&b\n").out


def test_a_megabyte_from_standard_input_is_refused() -> None:
    ran = run_process("scope", "parse", "-", stdin="a & " * 250_000)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: the scope is longer than 65,536 characters\n"


def test_standard_input_that_is_not_utf8_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cheops", "scope", "parse", "-"],
        input=b"a & \xff",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"invisible character U+DCFF" in done.stderr


def test_a_full_disk_is_an_error_without_a_traceback() -> None:
    command = f"{sys.executable} -m cheops scope functions > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_a_terminal_without_unicode_gets_escapes() -> None:
    ran = run_process("scope", "parse", "é", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ran.code == 0
    assert "canonical: \\xe9\n" in ran.out


@pytest.mark.parametrize(
    "argv", [["scope", "parse", "{a: b & c}"], ["scope", "explain", "{a: b & c}"], ["scope", "functions"]]
)
def test_json_and_yaml_hold_the_same_data(argv: list[str]) -> None:
    as_json = json.loads(run_here(*argv, "-o", "json").out)
    as_yaml = yaml.safe_load(run_here(*argv, "--output", "yaml").out)
    assert as_json
    assert as_json == as_yaml


def test_colours_only_on_a_terminal() -> None:
    argv = ("scope", "explain", "{image: a & b}")
    assert ANSI.search(on_terminal(*argv))
    assert not ANSI.search(run_process(*argv).out)
    assert ANSI.search(on_terminal("scope", "parse", "a &"))


def test_no_color_is_respected() -> None:
    seen = on_terminal("scope", "explain", "{image: a & b}", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", seen)
    assert "replica" in seen


def test_into_a_pipe_lines_are_neither_cut_nor_padded() -> None:
    sites = " & ".join(f"a-site-with-a-long-name-{number}" for number in range(1_000))
    out = run_here("scope", "explain", sites).out
    assert sites in out
    assert "and 800 more; -o json lists them all" in out
    assert out.count("is updated at a-site") == 1
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_a_route_of_many_sites_is_explained_at_once() -> None:
    text = " & ".join(["(s0 ; s1)"] * 10 + [f"s{number}" for number in range(20, 1_000)])
    ran = run_here("scope", "explain", text)
    assert (ran.code, ran.out) == (1, "")
    assert "At most 1,024 alternatives and 8,192 sites are accepted." in ran.err


def test_a_service_that_the_scope_does_not_name_stays_here_also_without_a_file() -> None:
    out = run_here("scope", "explain", "{image: a}", "--service", "compute", "--from", "b").out
    assert "The scope does not name compute: its requests stay here." in out


def test_around_without_distances_says_so() -> None:
    assert "note: No round-trip times are known" in run_here("scope", "explain", "around(a, 10ms)").out


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = (
        f"{sys.executable} -m cheops scope explain '{' & '.join(f's{i}' for i in range(1_000))}' -o json | head -n 1"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_the_tour_of_the_demo_plays_to_its_end() -> None:
    ran = run_process("demo", "--tour")
    assert ran.code == 0
    assert "reads the replica here" in ran.out
    assert "means  paris ; lyon ; nantes" in ran.out
    assert "Did you mean 'lyon'?" in ran.err
    path = re.search(r"--sites (\S+demo_sites.yaml)$", ran.out, re.MULTILINE)
    assert path
    assert Path(path.group(1)).samefile(ROOT / "examples" / "sites.yaml")
