"""Text of peers, services and clients cannot act on the terminal of an operator: not by the log, not by a command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from rich.text import Text

from cheops.cli.output import Output, as_json, as_yaml, console, emit, print_error, print_table, table
from cheops.errors import CheopsError
from cheops.text import escaped, is_invisible

# Clear the screen, set the title, the same with one character (C1), carriage return, backspace, bidirectional
# overrides and isolates, a separator that ends lines, a lone surrogate as file names have them, invisible letters.
HOSTILE = [
    *("\x1b[2J", "\x1b]0;x\x07", "\x9b2J", "a\rb", "ab\x08\x08", "\x00", "\x7f", "\x85"),
    *("\u202eabc", "\u2066abc\u2069", "\u200f", "a\u2028b", "a\u2029b", "\ufeff", "\u200b", "\U000e0041"),
]
LINE = f"said '{''.join(HOSTILE)}'"


def visible(text: str) -> bool:
    return not any(is_invisible(character) for character in text.replace("\n", ""))


def test_an_escape_names_the_character() -> None:
    assert escaped("a\x1b[2J\nb\x9b\u202e é") == "a\\x1b[2J\\nb\\x9b\\u202e é"
    assert visible(escaped(LINE))


LOGGING = """
import logging, sys
import cheops.agent
from cheops.cli.main import main

def run(config, started):
    log = logging.getLogger("cheops.peers.links")
    log.warning("%s did not take messages: %s", "site2", sys.argv[1])
    log.info("first\\n2026-11-17 05:56:03,000 INFO cheops: forged")
    try:
        raise ValueError("second\\n2026-11-17 05:56:03,000 INFO cheops: forged \\x1b[2J")
    except ValueError:
        log.exception("a task failed", stack_info=True)

cheops.agent.run_agent = run
sys.exit(main(["agent", "--config", sys.argv[2]]))
"""


def test_a_log_line_is_one_line_and_nothing_in_it_acts_on_a_terminal(tmp_path: Path) -> None:
    config = tmp_path / "site.yaml"
    config.write_text(yaml.safe_dump({"site": "site1", "listen": "127.0.0.1:1", "security": "none"}))
    given = LINE.replace("\x00", "")  # no argument of a process holds one
    ran = subprocess.run([sys.executable, "-c", LOGGING, given, str(config)], capture_output=True, check=True)
    log = ran.stderr.decode()
    assert visible(log)
    assert log.count("forged") == 2
    assert not [line for line in log.split("\n") if "forged" in line and not line.startswith(("    ", "20"))]
    assert [line for line in log.split("\n") if line.startswith("20") and line.endswith("INFO cheops: forged")] == [
        line for line in log.split("\n") if "first\\n" in line
    ]
    assert "    ValueError: second" in log
    assert "Traceback" in log
    assert "\\x1b[2J\\x1b]0;x\\x07\\x9b2J" in log


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_a_command_prints_nothing_that_a_terminal_acts_on(
    hostile: str, is_terminal: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    rows = table("a")
    rows.add_row(hostile)

    def draw(out: Console) -> None:
        out.print(hostile, soft_wrap=True)
        out.print(Text.assemble(("x", "red"), hostile), style="bold")
        print_table(out, rows)

    emit(Output.TABLE, None, draw)
    print_error(CheopsError(hostile))
    console(stderr=True).print(hostile)
    written = "".join(capfd.readouterr())
    assert visible(without_own_colours(written))


def without_own_colours(text: str) -> str:
    for own in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[1;31m"):
        text = text.replace(own, "")
    return text


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_json_and_yaml_have_escapes_and_lose_nothing(hostile: str) -> None:
    data: dict[str, Any] = {hostile: [hostile, "é", 1], "é": "plain"}
    assert json.loads(as_json(data)) == data
    assert yaml.safe_load(as_yaml(data)) == data
    assert visible(as_json(data, indent=2))
    assert visible(as_yaml(data))


def test_other_text_is_printed_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    emit(Output.JSON, {"é": "日本"}, lambda _out: None)
    emit(Output.TABLE, None, lambda out: out.print("é 日本", soft_wrap=True))
    assert capfd.readouterr().out == '{\n  "é": "日本"\n}\né 日本\n'
