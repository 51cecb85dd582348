"""Transcripts: commands (`$ cheops …`) followed by their output, checked by running them.

A text file is one transcript; a Markdown file holds one in every ```console block. So what the
documentation shows is real output.
"""

import re
import shlex
from pathlib import Path

from tests.support.command import run_here

_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


def replayed(path: Path) -> str:
    """The text of the file, with the output that its commands have now."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return _BLOCK.sub(lambda block: _replay(block.group(), exit_codes=False), text)
    return _replay(text, exit_codes=True)


def has_transcript(path: Path) -> bool:
    return path.suffix != ".md" or _BLOCK.search(path.read_text(encoding="utf-8")) is not None


def _replay(transcript: str, *, exit_codes: bool) -> str:
    lines = [line for line in transcript.splitlines() if line.startswith(("$ ", "# "))]
    return "\n".join(_with_output(line, exit_codes=exit_codes) for line in lines)


def _with_output(line: str, *, exit_codes: bool) -> str:
    if line.startswith("# "):
        return f"{line}\n"
    command, *argv = shlex.split(line[2:])
    if command != "cheops":
        raise ValueError(f"a transcript runs cheops, not {command}")
    result = run_here(*argv)
    code = f"[exit {result.code}]\n" if result.code and exit_codes else ""
    return f"{line}\n{result.out}{result.err}{code}"
