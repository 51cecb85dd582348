"""ARCHITECTURE.md lists the modules that a request passes; real agents show that the lists are true.

Each path is a numbered list under a heading `### Path: …`. A real agent records the modules that it enters while it
serves such a request. The list must be part of that record, in its order, and short enough to read top to bottom.
Whatever else the agent enters must be in the table of supporting modules, so that no step is left out of a list.
"""

import fnmatch
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.api.models.operations import SubmitRequest
from tests.agent.rig import until
from tests.gateway.replicas.sites import Sites, running
from tests.security.clients import local
from tests.support import fork_server
from tests.support.command import ROOT

MOST_MODULES = 15
NAMES = ("site1", "site2")
EVERYWHERE = "site1 & site2"
TYPES = {"file": {"allow": ["true"], "matrix": [{"before": "set", "after": "set", "result": "take-one"}]}}
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def listed(heading: str) -> list[str]:
    """The modules of a path, as its numbered list has them."""
    _, _, below = TEXT.partition(f"### Path: {heading}\n")
    section = below.partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/.]+\.py)`", section, re.MULTILINE)


def supporting() -> list[str]:
    """Patterns of the modules that every path may use without listing them."""
    _, _, below = TEXT.partition("### Supporting modules\n")
    return re.findall(r"`([\w/.*]+\.py)`", below.partition("\n#")[0])


class TracedSites(Sites):
    """Two sites with security on and traced agents, which have a service and a type of commands."""

    def __init__(self, base: Path) -> None:
        super().__init__(base / "sites", NAMES, secure=True)
        self._records = base
        self.agents: dict[str, subprocess.Popen[Any]] = {}
        for name in NAMES:
            path = self.rig.folder(name) / "site.yaml"
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "types": TYPES}))

    def start_agent(self, arguments: list[str], log: int) -> subprocess.Popen[Any]:
        name = Path(arguments[1]).parent.name
        argv = [sys.executable, "-m", "tests.support.traced_agent", str(self._record(name)), *arguments]
        self.agents[name] = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)
        return self.agents[name]

    def trace(self, action: Callable[[], object]) -> dict[str, list[str]]:
        """The modules that the agents enter during an action, and in the moments after it."""
        time.sleep(0.5)  # the end of an earlier request must not be recorded
        self._signal(signal.SIGUSR1)
        action()
        time.sleep(0.5)  # replies and acknowledgements are still on their way
        for name in NAMES:
            self._record(name).unlink(missing_ok=True)
        self._signal(signal.SIGUSR2)
        until(lambda: all(self._record(name).exists() for name in NAMES), "for the records")
        return {name: json.loads(self._record(name).read_text()) for name in NAMES}

    def exec(self) -> None:
        """What the command `cheops exec` does: its client, and the agent's Unix socket."""
        request = SubmitRequest(type="set", command="true", sites=EVERYWHERE, resource_type="file")
        response = local(self.rig).submit("a", request)
        assert {reply.site: reply.status for reply in response.answers} == dict.fromkeys(NAMES, "OK")

    def _record(self, name: str) -> Path:
        return self._records / f"{name}.json"

    def _signal(self, number: signal.Signals) -> None:
        for agent in self.agents.values():
            agent.send_signal(number)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the agents entered on each path."""
    sites = TracedSites(tmp_path_factory.mktemp("traces"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start_agent", sites.start_agent)
        with running(sites):
            # Once before: the first request of a kind opens connections, starts workers and fills caches.
            sites.create(scope=EVERYWHERE, name="first")
            sites.exec()
            commands = sites.trace(sites.exec)
            requests = sites.trace(lambda: sites.create(scope=EVERYWHERE, name="second"))
    return {
        "cheops exec, at its origin": commands["site1"],
        "a replicated POST, at its origin": requests["site1"],
        "a message from a peer": commands["site2"],
    }


PATHS = ("cheops exec, at its origin", "a replicated POST, at its origin", "a message from a peer")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_short_enough_to_read_top_to_bottom(path: str) -> None:
    assert 5 <= len(listed(path)) <= MOST_MODULES
    assert all((ROOT / "src" / "cheops" / module).is_file() for module in listed(path))


@pytest.mark.parametrize("path", PATHS)
def test_a_request_passes_the_listed_modules_in_their_order(traces: dict[str, list[str]], path: str) -> None:
    entered = iter(traces[path])
    for module in listed(path):
        assert any(module == one for one in entered), f"{module} is not entered, or not in this place"


@pytest.mark.parametrize("path", PATHS)
def test_no_step_is_left_out(traces: dict[str, list[str]], path: str) -> None:
    patterns = [*listed(path), *supporting()]
    unlisted = {one for one in traces[path] if not any(fnmatch.fnmatch(one, pattern) for pattern in patterns)}
    assert not unlisted, f"neither in the list of '{path}' nor a supporting module"


def test_messages_of_peers_do_not_pass_the_web_stack(traces: dict[str, list[str]]) -> None:
    web = ("ui/", "api/guard", "api/app", "api/endpoints", "api/authenticator")
    assert not [module for module in traces["a message from a peer"] if module.startswith(web)]
