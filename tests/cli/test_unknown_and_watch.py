"""What an operator says of operations that may have run or not, and sees of all that happens; three agents."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from tests.agent.rig import MakeRig, Rig, until
from tests.cli.test_agents import SITES, at, json_of, started

# Runs at once at site1; elsewhere it begins, and hangs until somebody has made the file `go`.
HANGS_ELSEWHERE = "test $(basename $PWD) = site1 || test -e go || { touch begun; sleep 60; }; echo more >> notes"


def killed_in_the_middle(rig: Rig, *names: str) -> None:
    at(rig)("exec", "--id", "notes", "--sites", SITES, "--type", "set", "--command", "echo one > notes")
    add = ("exec", "--id", "notes", "--type", "add", "--command", HANGS_ELSEWHERE, "--wait", "first")
    at(rig)(*add)
    for name in names:
        until((rig.folder(name) / "begun").exists, f"for {name} to begin")
        rig.kill(name)
        (rig.folder(name) / "go").touch()
        rig.start(name)


def text(rig: Rig, name: str) -> str:
    return (rig.folder(name) / "notes").read_text()


def test_what_did_not_happen_is_run_and_only_there(make_rig: MakeRig) -> None:
    rig = started(make_rig)
    cheops = at(rig)
    killed_in_the_middle(rig, "site2", "site3")
    until(lambda: cheops("resolve", "notes", code=1).out.count("UNKNOWN") == 2, "for both to be in doubt")
    assert text(rig, "site2") == text(rig, "site3") == "one\n", "nothing is guessed"

    both = cheops("resolve", "notes", "--happened", "no", code=1).err
    assert both == (
        "error: 2 operations are UNKNOWN; name the one that you have checked:\n"
        "  --site site2 --op site1:2\n"
        "  --site site3 --op site1:2\n"
    )
    assert "2 operations are UNKNOWN" in cheops("resolve", "notes", "--op", "site1:2", "--happened", "no", code=1).err
    wrong = cheops("resolve", "notes", "--site", "site1", "--happened", "no", code=1).err
    assert "nothing is UNKNOWN at site1; site1:2 at site2 and site1:2 at site3 are: name that site with 'site'" in wrong
    assert "unknown site 'site9'" in cheops("resolve", "notes", "--site", "site9", "--happened", "no", code=1).err

    done = cheops("resolve", "notes", "--site", "site2", "--happened", "no").out
    assert done == "site1:2 did not take effect at site2; it runs there now\n"
    until(lambda: text(rig, "site2") == "one\nmore\n", "for site2 to run it")
    until(lambda: cheops("resolve", "notes", code=1).out.count("UNKNOWN") == 1, "for one to be left")
    last = json_of(cheops("resolve", "notes", "--happened", "no", "-o", "json"))
    assert (last["site"], last["operation"], last["resolution"]) == ("site3", "site1:2", "not-happened")
    cheops("wait", "notes", "--timeout", "60")
    assert {text(rig, name) for name in rig.names} == {"one\nmore\n"}, "once at each site"
    assert cheops("resolve", "notes").out.startswith("nothing to resolve: CONVERGED")
    again = cheops("resolve", "notes", "--happened", "no", code=1).err
    assert again == "error: nothing is UNKNOWN at site1\n"


class Watched:
    """What `cheops watch` prints; read as it comes, past all buffers."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seen = ""

    def until(self, wanted: str, nudge: Callable[[], object] = lambda: None) -> str:
        """Read until something wanted was printed, and give it; meanwhile something is done again and again.
        What was read before is not looked at again."""
        while not (found := re.search(wanted, self.seen)):
            nudge()
            while select.select([self._stream], [], [], 0.5)[0]:
                chunk = os.read(self._stream.fileno(), 65_536)
                assert chunk, f"it ended:\n{self.seen}"
                self.seen += chunk.decode()
        self.seen = self.seen[found.end() :]
        return found[0]


@contextmanager
def watching(rig: Rig, *argv: str) -> Iterator[Watched]:
    """The command at work; ended with Ctrl-C, quietly."""
    line = [sys.executable, "-m", "cheops", "watch", *argv, "--url", rig.url("site1")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        try:
            yield Watched(process.stdout)
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        assert (process.returncode, b"Traceback" in said) == (130, False)


def test_watch_without_an_id_shows_all_resources_and_sites(make_rig: MakeRig) -> None:
    rig = started(make_rig)
    cheops = at(rig)

    def write(id_: str) -> None:
        cheops("exec", "--id", id_, "--sites", SITES, "--type", "set", "--command", f"echo {id_} > {id_}")

    with watching(rig) as watched:
        watched.until("first", lambda: write("first"))
        write("second")
        watched.until(r"second +site1:1 .*site3")
        rig.kill("site3")
        watched.until(r"site-down.*site3")
        rig.start("site3")
        watched.until(r"site-up.*site3")


def test_watch_tells_programs_a_line_per_event_and_finds_the_agent_again(make_rig: MakeRig) -> None:
    rig = started(make_rig)

    def write() -> None:
        at(rig)("exec", "--id", "notes", "--sites", SITES, "--type", "set", "--command", "true")

    with watching(rig, "-o", "json") as watched:
        line = watched.until(r'\{.*"resource".*\}\n', write)  # before it, a site may have come up late
        assert json.loads(line.splitlines()[-1])["resource"] == "notes"
        rig.kill("site1")
        rig.start("site1")
        watched.seen = ""
        watched.until(r'"operation": ?"site1:', write)
