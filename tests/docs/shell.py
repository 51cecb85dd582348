"""Replays a how-to: its `text` blocks are commands typed in one shell, with their output.

    $ cp -rT examples ~/try && cd ~/try/redis
    $ cheops agent --config site1.yaml 2>> site1/log & echo $! > site1/pid

One real shell runs all blocks, so variables, directories and background jobs work as for a reader. It starts in a
copy of the examples that uses free ports instead of 8081, 8082 and 8083. A reader is slower than agents are to start
and to notice each other: after a line that starts or stops agents, the replay waits until the running agents see each
other and no stopped one.
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
_HEADER = re.compile(r"^[A-Za-z][A-Za-z-]*(?=: )", re.MULTILINE)  # lower case if HAProxy forwards
_PROMPT = "$ "
_END = "-- the end of what this line printed --"
_PATIENCE_S = 120.0
_END_S = 20.0
_VARYING = (
    (re.compile(r"free space: [\d,]+ MiB"), "free space: SOME MiB"),
    (re.compile(r"quota: [\d.,]+ [KM]?i?B of"), "quota: SOME of"),
    (re.compile(r"disk usage: .*"), "disk usage: SOME"),
    (re.compile(r"[+-]\d+ ms\b"), "+0 ms"),
    (re.compile(r"\d+\.\d+ ms away"), "SOME ms away"),
    (re.compile(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"), "DATE"),
    (
        re.compile(r"  [✓!] commands (?:do not|of types? .*) run as root.*\n(?: {6}.*\n)*"),
        "  commands may run as root\n",
    ),
    (re.compile(r"^connection: close\r?\n", re.MULTILINE), ""),  # HAProxy was reloaded at that moment
    (re.compile(r"\d+ warnings?$", re.MULTILINE), "SOME warnings"),
)


def normalized_lines(text: str) -> list[str]:
    """The lines, without what differs between runs."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return comparable(_HEADER.sub(lambda name: name.group().lower(), text))


class Reader:
    """A reader at a shell, with a home directory below `folder`. A context manager: its exit stops all processes."""

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        """On a host of a test bed all ports are free, so the ports of the text are used."""
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
                os.killpg(self._shell.pid, number)  # without a terminal, its jobs are in its own group
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.communicate(timeout=_END_S)

    def read(self, text: str) -> str:
        """The document with the output that its commands print now."""
        return _BLOCK.sub(lambda block: self._block(block.group()), text)

    def _block(self, block: str) -> str:
        commands = (part.partition("\n") for part in f"\n{block}".split(f"\n{_PROMPT}")[1:])
        return "".join(f"{_PROMPT}{line}\n{self._output_with_ids_of_text(line, shown)}" for line, _, shown in commands)

    def _output_with_ids_of_text(self, line: str, shown: str) -> str:
        """Ids differ in every run. The output gets those of the text, each for the one that was printed instead."""
        for id_of_text, real_id in self._ids.items():
            line = line.replace(id_of_text, real_id)
        output = self._run(line)
        self._ids |= dict(zip(_ID.findall(shown), _ID.findall(output), strict=False))
        for id_of_text, real_id in self._ids.items():
            output = output.replace(real_id, id_of_text)
        return output

    def _run(self, line: str) -> str:
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f"{as_here(line, self._ports)}\necho '{_END}'\n")
        self._shell.stdin.flush()
        lines = []
        for printed in self._shell.stdout:
            if printed.startswith(_END):
                break
            lines.append(printed)
        else:
            raise AssertionError(f"the shell ended after: {line}\n{''.join(lines)}")
        if "/pid" in line:
            until(self._is_settled, f"for the agents to see each other after: {line}", _PATIENCE_S)
        return as_in_the_text("".join(lines), self._ports).replace(str(self._home), "/home/you")

    # -- agents ------------------------------------------------------------------------------------------

    def _is_settled(self) -> bool:
        """Every running agent sees exactly the running ones; on a host, its services accept connections."""
        running = {name for name, pid in self._pids() if _runs(pid)}
        for path in self._home.rglob("site*/log"):
            assert "Traceback" not in (log := path.read_text()), log
        with inside(NAMESPACES / self._host.namespace) if self._host else contextlib.nullcontext():
            urls = [f"http://127.0.0.1:{self._port(name)}" for name in running]
            complete = all(_sites_up(url) == running for url in urls)
            return complete and (self._host is None or all(map(_services_accept, urls)))

    def _pids(self) -> list[tuple[str, int]]:
        """The name of each started site, and the process id of its agent."""
        return [(path.parent.name, int(path.read_text())) for path in self._home.rglob("site*/pid")]

    def _port(self, name: str) -> int:
        return self._ports[int(name.removeprefix("site")) - 1]


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def _sites_up(url: str) -> set[str]:
    """The sites that are up for an agent, including itself; none while it does not respond."""
    with contextlib.suppress(OSError), urlopen(f"{url}/api/v1/sites") as response:  # noqa: S310 - an agent of ours
        return {site["name"] for site in json.load(response)["sites"] if site["state"] == "up"}
    return set()


def _services_accept(url: str) -> bool:
    """Whether the services of an agent's site accept connections."""
    with contextlib.suppress(OSError), urlopen(f"{url}/api/v1/check") as response:  # noqa: S310 - as above
        return all(check["ok"] for check in json.load(response)["checks"] if check["group"] == "services")
    return False
