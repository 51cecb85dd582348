"""Plays docs/tutorial.md: its `text` blocks are what is typed in two terminals, and what is seen there.

    $ cheops …    a command, run in a shell; `$ cheops demo …` starts the first terminal, where the sites are
    demo> …       a word typed there

Ports are free ones in truth and 8081, 8082, 8083 in the text; the demo's directory, times and distances differ
every time, and sites answer in any order: `comparable` says what is left to compare.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.request import urlopen

from tests.agent.rig import until
from tests.support.ports import free_ports

_BLOCK = re.compile(r"(?<=^```text\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(\$|demo>) (.*)$")
_ANSWER = re.compile(r"(OK|KO|TIMEOUT|PENDING) +site\d")
PORT = 8081
_INVITED = "Type here: "
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s)\b"), "SOME s"),
    (re.compile(r"\bnow\b|\bSOME s ago\b"), "WHEN"),
    (re.compile(r"cheops-demo-[0-9a-f]{8}"), "cheops-demo-1a2b3c4d"),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "HASH"),
    (re.compile("no Redis: redis-server is not installed"), "a Redis"),
    (re.compile(r"^.*◌ ran, then superseded.*$", re.MULTILINE), ""),
    (re.compile("◌"), "-"),  # whether a site ran something before it heard that it had lost its effect
    (re.compile(r" +"), " "),  # columns are as wide as what varies
)


def comparable(text: str) -> list[str]:
    """The lines without what differs from run to run; answers that sites give in any order are sorted."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    lines: list[str] = []
    for is_answer, group in groupby(text.splitlines(), key=lambda line: bool(_ANSWER.match(line))):
        found = list(group)
        lines += sorted(found) if is_answer else found
    return [line.rstrip() for line in lines]


class Terminals:
    """A context manager. Temporary files go to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "temporary"
        self._folder.mkdir()
        self._stack = ExitStack()
        self._ports = free_ports(3)
        self._env = {
            **os.environ,
            "TMPDIR": str(self._folder),
            "PATH": f"{commands(folder)}:{os.environ['PATH']}",
        }
        self.demo: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.demo:
            self.demo.kill()
        self._stack.close()

    def played(self, text: str) -> str:
        """A document as it would be if everything in it had been typed now."""
        return _BLOCK.sub(lambda block: self._block(block.group()), text)

    def _block(self, block: str) -> str:
        typed = [match for line in block.splitlines() if (match := _TYPED.match(line))]
        return "".join(f"{match[0]}\n{self._answer(match[1], match[2])}" for match in typed)

    def _answer(self, prompt: str, line: str) -> str:
        line = as_here(line, self._ports)
        if prompt == "demo>":
            answer = self._say(line)
        elif line.startswith("cheops demo"):
            answer = self._start_demo(line)
        elif line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._env[name], answer = value, ""
        else:
            answer = self._run(line)
        return as_in_the_text(answer, self._ports).replace(str(self._folder), "/tmp")  # noqa: S108 - as users see it

    def _run(self, line: str) -> str:
        done = subprocess.run(["sh", "-c", line], env=self._env, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def _start_demo(self, line: str) -> str:
        pipe = subprocess.PIPE
        command = ["sh", "-c", f"exec {line}"]
        self.demo = subprocess.Popen(command, env=self._env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._stack.enter_context(self.demo)
        return _until(self._streams()[1], _INVITED)

    def _say(self, word: str) -> str:
        to_demo, from_demo = self._streams()
        if word == "cut":  # a person is slower than what sites tell each other after a command
            for port in self._ports:
                until(lambda url=f"http://127.0.0.1:{port}": _all_converged(url))  # type: ignore[misc]
        to_demo.write(f"{word}\n")
        to_demo.flush()
        answer = from_demo.read() if word == "quit" else from_demo.readline()
        if word == "cut":  # a person is slower than a heartbeat; a test need not be
            for port in self._ports:
                until(lambda url=f"http://127.0.0.1:{port}": not _sees_another(url))  # type: ignore[misc]
        return answer

    def _streams(self) -> tuple[IO[str], IO[str]]:
        assert self.demo
        assert self.demo.stdin
        assert self.demo.stdout
        return self.demo.stdin, self.demo.stdout


def _sees_another(url: str) -> bool:
    with urlopen(f"{url}/api/v1/sites") as answer:  # noqa: S310 - an agent of ours
        return any(site["state"] == "up" and not site["here"] for site in json.load(answer)["sites"])


def _all_converged(url: str) -> bool:
    with urlopen(f"{url}/api/v1/resources") as answer:  # noqa: S310 - as above
        return all(found["overall"] == "CONVERGED" for found in json.load(answer)["resources"])


def _until(stream: IO[str], start: str) -> str:
    seen = ""
    for line in stream:
        seen += line
        if line.startswith(start):
            return seen
    raise AssertionError(f"it ended:\n{seen}")


def as_here(text: str, ports: Sequence[int]) -> str:
    """With the ports that are free here for those of the text."""
    for number, port in enumerate(ports):
        text = text.replace(str(PORT + number), str(port))
    return text


def as_in_the_text(seen: str, ports: Sequence[int]) -> str:
    """The other way round."""
    for number, port in enumerate(ports):
        seen = seen.replace(str(port), str(PORT + number))
    return seen


def commands(folder: Path) -> Path:
    """A directory with the programs of Cheops, as these tests have it."""
    path = folder / "bin"
    path.mkdir()
    for name, module in (("cheops", "cheops"), ("cheops-text", "cheops.logic.program")):
        program = path / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n')
        program.chmod(0o755)
    (path / "python3").symlink_to(sys.executable)
    return path
