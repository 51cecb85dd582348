"""Plays a how-to: its `text` blocks are what is typed in one shell, and what is seen there.

    $ cp -r examples ~/try && cd ~/try/redis
    $ cheops agent --config site1.yaml 2>> site1/log & echo $! > site1/pid

The shell is a real one that lives from the first line to the last, so variables, directories and background
jobs are as a reader has them. It stands in a copy of the examples in which ports are free ones; in the text
they are 8081, 8082 and 8083. A reader is slower than agents start and miss each other: after a line that starts
or ends agents, it is waited until those that run see each other, and none that does not.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from tests.agent.rig import until
from tests.demo.tutorial import PORT, as_here, as_in_the_text, commands, comparable
from tests.support.command import ROOT
from tests.support.ports import free_ports
from tests.wan import Host
from tests.wan.record import NAMESPACES
from tests.wan.tun import inside

_BLOCK = re.compile(r"(?<=^```text\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_HEADER = re.compile(r"^[A-Za-z][A-Za-z-]*(?=: )", re.MULTILINE)  # small letters where HAProxy forwards
_PROMPT = "$ "
_END = "-- the end of what this line printed --"
_PATIENCE_S = 120.0
_END_S = 20.0
_VARYING = (
    (re.compile(r"free space: [\d,]+ MiB"), "free space: SOME MiB"),
    (re.compile(r"[+-]\d+ ms\b"), "+0 ms"),
    (re.compile(r"\d+\.\d+ ms away"), "SOME ms away"),
    (re.compile(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"), "DATE"),
    (
        re.compile(r"  [✓!] commands (?:do not|of types? .*) run as root.*\n(?: {6}.*\n)*"),
        "  commands may run as root\n",
    ),
    (re.compile(r"^connection: close\r?\n", re.MULTILINE), ""),  # from a HAProxy that is reloaded just then
    (re.compile(r"\d+ warnings?$", re.MULTILINE), "SOME warnings"),
)


def alike(text: str) -> list[str]:
    """The lines without what differs from run to run."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return comparable(_HEADER.sub(lambda name: name.group().lower(), text))


class Reader:
    """Somebody at a shell, with a home of their own below `folder`. A context manager: what they started ends."""

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        """On a host of a test bed all ports are free, and those of the text are used."""
        self._home = folder / "home"
        self._home.mkdir()
        self._host = host
        self._ids: dict[str, str] = {}
        self._ports = [PORT, PORT + 1, PORT + 2] if host else free_ports(3)
        self._checkout = folder / "checkout"
        shutil.copytree(ROOT / "examples", self._checkout / "examples")
        for path in (self._checkout / "examples").rglob("*.yaml"):
            path.write_text(as_here(path.read_text(), self._ports))
        search = f"{commands(folder)}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": search, "HOME": str(self._home), "LC_ALL": "C.UTF-8"}
        self._shell = (host.popen if host else subprocess.Popen)(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._checkout,
            env=env,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, number)  # without a terminal its jobs are of its own group
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.communicate(timeout=_END_S)

    def read(self, text: str) -> str:
        """A document as it would be if everything in it had been typed now."""
        return _BLOCK.sub(lambda block: self._block(block.group()), text)

    def _block(self, block: str) -> str:
        typed = (part.partition("\n") for part in f"\n{block}".split(f"\n{_PROMPT}")[1:])
        return "".join(f"{_PROMPT}{line}\n{self._answer_as_in_the_text(line, seen)}" for line, _, seen in typed)

    def _answer_as_in_the_text(self, line: str, in_the_text: str) -> str:
        """Ids are others every time. Each is written as the text has it, and means the one that was seen."""
        for told, seen in self._ids.items():
            line = line.replace(told, seen)
        answer = self._answer(line)
        self._ids |= dict(zip(_ID.findall(in_the_text), _ID.findall(answer), strict=False))
        for told, seen in self._ids.items():
            answer = answer.replace(seen, told)
        return answer

    def _answer(self, line: str) -> str:
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f"{as_here(line, self._ports)}\necho '{_END}'\n")
        self._shell.stdin.flush()
        seen = []
        for found in self._shell.stdout:
            if found.startswith(_END):
                break
            seen.append(found)
        else:
            raise AssertionError(f"the shell ended after: {line}\n{''.join(seen)}")
        if "/pid" in line:
            until(self._is_settled, f"for the agents to see each other after: {line}", _PATIENCE_S)
        return as_in_the_text("".join(seen), self._ports).replace(str(self._home), "/home/you")

    # -- agents ------------------------------------------------------------------------------------------

    def _is_settled(self) -> bool:
        """Every agent that runs sees those that do; on a host, what it stands in front of takes connections."""
        running = {name for name, pid in self._pids() if _runs(pid)}
        for path in self._home.rglob("site*/log"):
            assert "Traceback" not in (said := path.read_text()), said
        with inside(NAMESPACES / self._host.namespace) if self._host else contextlib.nullcontext():
            urls = [f"http://127.0.0.1:{self._port(name)}" for name in running]
            seen = all(_sees(url) == running for url in urls)
            return seen and (self._host is None or all(map(_serves, urls)))

    def _pids(self) -> list[tuple[str, int]]:
        """The name of each site that was started, and the process of its agent."""
        return [(path.parent.name, int(path.read_text())) for path in self._home.rglob("site*/pid")]

    def _port(self, name: str) -> int:
        return self._ports[int(name.removeprefix("site")) - 1]


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def _sees(url: str) -> set[str]:
    """The sites that an agent sees up, itself among them; none while it does not answer."""
    with contextlib.suppress(OSError), urlopen(f"{url}/api/v1/sites") as answer:  # noqa: S310 - an agent of ours
        return {site["name"] for site in json.load(answer)["sites"] if site["state"] == "up"}
    return set()


def _serves(url: str) -> bool:
    """Whether what an agent stands in front of takes connections."""
    with contextlib.suppress(OSError), urlopen(f"{url}/api/v1/check") as answer:  # noqa: S310 - as above
        return all(one["ok"] for one in json.load(answer)["checks"] if one["group"] == "services")
    return False
