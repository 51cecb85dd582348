"""Replays docs/certificates-trouble.md: three sites with certificates, and everything that can go wrong with them."""

import contextlib
import re
import shutil
import time
from itertools import groupby
from pathlib import Path

import pytest

from cheops.client import Agent
from cheops.errors import CheopsError
from tests.agent.rig import until
from tests.docs.shell import Reader, _runs, normalized_lines
from tests.support.command import ROOT
from tests.support.ports import free_ports

PAGE = ROOT / "docs" / "certificates-trouble.md"
_VARYING = (
    (re.compile(r"(?:[0-9a-f]{2}:){31}[0-9a-f]{2}"), "FINGERPRINT"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "TIME"),
    (re.compile(r"[\d,]+\.\d days ago"), "SOME days ago"),
    (re.compile(r"3[56]\d more days"), "SOME more days"),
    (re.compile(r"\d+(\.\d+)? µs"), "SOME s"),
    (re.compile(r"[─-╿]+"), "-"),
)
_PATIENCE_S = 120.0
_NOT_RENEWED = "reload its agent (kill -HUP), which renews it within seconds"


class CarefulReader(Reader):
    """Waits for agents before it looks: until they answer, and before a list of sites until they see each other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = free_ports(5)

    def _run(self, line: str) -> str:
        if line.startswith(("cheops site list", "cheops wait", "cheops ca retire")):
            until(self._is_settled, f"for the agents to see each other before: {line}", _PATIENCE_S)
        output = super()._run(line)
        deadline_s = time.monotonic() + _PATIENCE_S
        while _NOT_RENEWED in output and time.monotonic() < deadline_s:  # it says to wait for that, and changes nothing
            time.sleep(0.5)
            output = super()._run(line)
        if "start " in line:
            until(self._all_answer, f"for the agents to answer after: {line}", _PATIENCE_S)
        return output

    def _running(self) -> list[str]:
        folders = self._home.glob("try/*/pid")
        return [path.parent.name for path in folders if _runs(int(path.read_text()))]

    def _all_answer(self) -> bool:
        return all(self._up(site) for site in self._running())

    def _is_settled(self) -> bool:
        running = set(self._running())
        for path in self._home.glob("try/*/log"):
            assert "Traceback" not in (log := path.read_text()), log
        return all(self._up(site) == running for site in running) and self._have_one_authority(running)

    def _have_one_authority(self, running: set[str]) -> bool:
        """Whether a change of authorities, if one is under way, has reached all."""
        lists = {(self._home / "try" / site / "tls" / "ca.pem").read_bytes() for site in running}
        return len(lists) <= 1

    def _up(self, site: str) -> set[str]:
        with contextlib.suppress(OSError, CheopsError):
            found = Agent(f"unix://{self._home / 'try' / site / 'data' / 'agent.sock'}").sites().sites
            # By own probes: otherwise the list has no distance, and a note.
            return {one.name for one in found if one.state == "up" and (one.here or one.rtt_measured)}
        return set()


def lines(text: str) -> list[str]:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    # Replies of sites come in the order in which they arrive.
    found: list[str] = []
    for is_reply, group in groupby(normalized_lines(text), key=lambda line: line.startswith("OK ")):
        together = list(group)
        found += sorted(together) if is_reply else together
    return found


@pytest.mark.timeout(600)
def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    with CarefulReader(tmp_path) as reader:
        now = reader.read(text)
    for bad in ("no response from the agent", "No such", "Traceback", "not found"):
        assert bad not in now
    assert re.findall(r"^error: .*?; (.{22})", now, re.MULTILINE) == ["copy the authority's k"], "the only one is meant"
    if request.config.getoption("--update-transcripts") and lines(now) != lines(text):
        PAGE.write_text(now, encoding="utf-8")
        text = now
    assert lines(text) == lines(now), "if the change is meant: pytest --update-transcripts"
    shutil.rmtree(tmp_path / "home")
