"""The commands against real agents: everyday life, trouble and what cures it, and on a terminal."""

import json
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cheops.client import Agent
from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import FILE
from tests.cli.test_command import on_terminal
from tests.support.command import CommandResult, run_here

SITES = "site1 & site2 & site3"
Cheops = Callable[..., CommandResult]


def started(make_rig: MakeRig, *names: str) -> Rig:
    rig = make_rig({"file": FILE}, *names)
    rig.start()
    return rig


def at(rig: Rig, site: str = "site1") -> Cheops:
    """Runs commands that ask the agent of a site."""

    def cheops(*argv: str, code: int = 0) -> CommandResult:
        ran = run_here(*argv, "--url", rig.url(site))
        assert ran.code == code, ran
        return ran

    return cheops


def json_of(ran: CommandResult) -> Any:
    return json.loads(ran.out)


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_everyday_life(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = started(make_rig)
    cheops = at(rig)
    _operations(rig, cheops, tmp_path)
    _looking(cheops)
    _sites(rig, cheops)
    _moving_and_deleting(rig, cheops)


def _operations(rig: Rig, cheops: Cheops, tmp_path: Path) -> None:
    bare = ("--id", "notes", "--sites", SITES, "--type", "set", "--command", "echo one > notes; echo hello")
    said = cheops(*bare, "--timeout", "30").out
    assert sorted(said.splitlines()) == [f"OK      {site}  hello" for site in rig.names]
    file, rules = tmp_path / "words.txt", tmp_path / "rules.yaml"
    file.write_text("from a file\n")
    add = ("exec", "--id", "notes", "--type", "add", "--command")
    cheops(*add, f"cat {{{file}}} >> notes")
    assert (rig.folder("site3") / "notes").read_text() == "one\nfrom a file\n"
    accepted = json_of(cheops(*add, "exit 7", "-o", "json", code=1))
    assert (accepted["verdict"], accepted["answers"][0]["detail"]) == ("VOID", "exit code 7")
    first = cheops(*add, "echo three >> notes", "--wait", "first").out
    assert first.startswith("OK      site1")
    replace = ("exec", "--id", "notes", "--type", "set", "--command", "echo new > notes")
    tried = json_of(cheops(*replace, "--dry-run", "-o", "json"))
    assert [one["operation"] for one in tried["would_supersede"]] == ["site1:1", "site1:2", "site1:4"]
    assert "Nothing was run" in cheops(*replace, "--dry-run").out
    assert "the resource is at" in cheops(*replace, "--sites", "site1", "--dry-run", code=1).out
    entry = "{before: set, after: add, result: take-both-keep-order}"
    rules.write_text(f"matrix:\n  - {{before: set, after: set, result: take-one}}\n  - {entry}\n")
    cheops(*replace, "--config", str(rules))
    rules.write_text("matrix:\n  - {before: set, after: set, result: take-two}\n")
    assert f"{rules}:2: matrix[0].result" in cheops(*replace, "--config", str(rules), code=1).err


def _looking(cheops: Cheops) -> None:
    assert "CONVERGED" in cheops("wait", "notes", "--for=converged").out
    assert cheops("status", "notes").out.startswith("CONVERGED  notes: all 3 sites are in sync\n")
    assert json_of(cheops("status", "notes", "-o", "json"))["overall"] == "CONVERGED"
    assert "no resource 'nope' is known" in cheops("status", "nope", code=1).err
    assert "equal at all 3 sites" in cheops("verify", "notes").out
    log = words(cheops("log", "notes").out)
    assert log[2][:5] == ["site1:2", "add", "◌", "◌", "◌"]
    assert log[3][:5] == ["site1:3", "add", "✗", "-", "-"]
    assert log[5] == ["site1:5", "set", "●", "●", "●", "effective,", "position", "1"]
    assert "echo new > notes" in cheops("log", "notes", "-o", "wide").out
    assert "superseded by site1:5" in cheops("explain", "notes").out
    assert words(cheops("show", "--id", "notes").out)[1:] == [[f"site{n}", "OK", "new"] for n in (1, 2, 3)]
    assert words(cheops("get", "resources").out)[1][:3] == ["notes", "file", "CONVERGED"]
    assert json_of(cheops("get", "resources", "--prefix", "x", "-o", "json")) == []
    assert [row[0] for row in words(cheops("get", "operations", "notes").out)[1:]] == [
        f"site1:{number}" for number in range(1, 6)
    ]
    assert "no replicants" in cheops("get", "replicants").out
    assert "5 known, 1 effective" in cheops("describe", "resource", "notes").out
    described = cheops("describe", "operation", "notes", "site1:2").out
    assert re.search(r"effect +superseded by site1:5", described)
    shown = cheops("matrix", "show", "notes").out
    assert "set replaces add, set" in shown
    assert json_of(cheops("matrix", "show", "notes", "-o", "json"))["resource"] == "notes"
    assert "nothing to resolve" in cheops("resolve", "notes").out


def _sites(rig: Rig, cheops: Cheops) -> None:
    for listing in (("get", "sites"), ("site", "list")):
        assert [row[0] for row in words(cheops(*listing).out)[1:4]] == list(rig.names)
    assert rig.url("site2") in cheops("site", "list", "-o", "wide").out
    assert rig.url("site2") in cheops("describe", "site", "site2").out
    assert "did you mean 'site2'?" in cheops("describe", "site", "sote2", code=1).err
    assert [row[:2] for row in words(cheops("site", "ping").out)[1:]] == [["site2", "OK"], ["site3", "OK"]]
    assert json_of(cheops("site", "ping", "site3", "-o", "json"))[0]["answers_as"] == "site3"
    checked = cheops("check").out
    assert "peers\n  ✓ site2 is up" in checked
    assert json_of(cheops("check", "-o", "json"))["ok"] is True


def _moving_and_deleting(rig: Rig, cheops: Cheops) -> None:
    assert "OK      site2" in cheops("sites", "remove", "notes", "site3").out
    cheops("exec", "--id", "notes", "--type", "add", "--command", "echo later >> notes")
    assert (rig.folder("site3") / "notes").read_text() == "new\n"
    cheops("sites", "add", "notes", "site3")
    cheops("wait", "notes")
    assert (rig.folder("site3") / "notes").read_text() == "new\nlater\n"
    cheops("sites", "set", "notes", "site1", "site2", "--delete-with", "rm notes")
    until(lambda: not (rig.folder("site3") / "notes").exists(), "site3 deletes its copy")
    cheops("sites", "add", "notes", "site3")
    cheops("wait", "notes")
    assert (rig.folder("site3") / "notes").read_text() == "new\nlater\n"
    cheops("sites", "set", "notes", "site1", "site2")
    assert json_of(cheops("get", "resources", "-o", "json"))[0]["sites"] == ["site1", "site2"]
    (rig.folder("site2") / "notes").write_text("other\n")
    differs = cheops("verify", "notes", code=1).out
    assert "+other" in differs.splitlines()
    cheops("delete", "notes", "--command", "rm notes")
    assert not (rig.folder("site2") / "notes").exists()
    until(lambda: "notes" in cheops("get", "resources", "--deleted").out, "all sites have deleted it")
    assert "notes" not in cheops("get", "resources").out


def test_trouble_and_what_cures_it(make_rig: MakeRig) -> None:
    rig = started(make_rig, "site1", "site2")
    cheops = at(rig)
    make = ("exec", "--id", "notes", "--sites", "site1 & site2", "--type")
    cheops(*make, "set", "--command", "echo one > notes")
    _diverged(cheops, make)
    _unknown(rig, cheops)
    _cut_off(rig, cheops)


def _diverged(cheops: Cheops, make: tuple[str, ...]) -> None:
    fails_at_site2 = "test $(basename $PWD) = site1 && echo two >> notes"
    ran = cheops(*make, "add", "--command", fails_at_site2, code=1)
    assert "KO      site2  exit code 1" in ran.out
    assert cheops("status", "notes", code=1).out.startswith("DIVERGED")
    whole = cheops("status", code=1).out
    assert re.search(r"diverged +1 +sites differ: fix it", whole)
    assert "DIVERGED  notes: site1:2 failed at site2 but not at its origin\n  cheops repair notes" in whole
    check = cheops("check", code=1).out
    assert "✗ 'notes' is DIVERGED: site1:2 failed at site2 but not at its origin" in check
    assert "'cheops repair notes' says how to fix it" in check
    assert words(cheops("get", "resources", "--overall", "diverged").out)[1][0] == "notes"
    assert cheops("get", "resources", "--overall", "converged").out == "no resources\n"
    assert "1/2, 1 failed" in cheops("get", "operations", "notes").out
    assert "cheops repair notes" in cheops("resolve", "notes", code=1).out
    plan = cheops("repair", "notes", code=1).out
    assert "  runs again: site1:2 at site2" in plan
    assert "cheops repair notes --from SITE\n  cannot be done: the type" in plan
    assert "it failed at a site" in cheops("repair", "notes", "--retry", code=1).out
    assert "cannot be done: the type" in cheops("repair", "notes", "--from", "site2", code=1).out
    assert "has no 'checkpoint'" in cheops("repair", "notes", "--from", "site2", "--yes", code=1).err
    assert "choose one" in cheops("repair", "notes", "--from", "site2", "--retry", code=1).err
    assert "--yes is for --from" in cheops("repair", "notes", "--retry", "--yes", code=1).err
    assert "'site9' is no site of this resource" in cheops("repair", "notes", "--from", "site9", code=1).err
    assert re.search(r"site1:2 +add +● +✗", cheops("log", "notes").out)
    assert cheops("wait", "notes", "--timeout", "0", code=1).out.startswith("DIVERGED")
    cheops(*make, "set", "--command", "echo base > notes", "--force")
    cheops("wait", "notes")
    assert "nothing to repair" in cheops("repair", "notes").out


def _unknown(rig: Rig, cheops: Cheops) -> None:
    """The agent is killed in the middle of a run; who waits for an answer hears that it broke off."""
    command = "echo u >> notes; test $(basename $PWD) = site2 || sleep 30"
    add = ["exec", "--id", "notes", "--type", "add", "--command", command, "--url", rig.url("site1")]
    argv = [sys.executable, "-m", "cheops", *add]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        until(lambda: "u\n" in (rig.folder("site1") / "notes").read_text(), "for the run to begin")
        rig.kill("site1")
        _, said = waiting.communicate()
    assert (waiting.returncode, "error: " in said) == (1, True)
    rig.start("site1")
    assert "UNKNOWN   site1:4 at site1" in cheops("resolve", "notes", code=1).out
    assert re.search(r"site1:4 +add +\? +·", cheops("log", "notes").out)
    assert "--happened is missing" in cheops("resolve", "notes", "--op", "site1:4", code=1).err
    assert "not site1:1" in cheops("resolve", "notes", "--op", "site1:1", "--happened", "no", code=1).err
    cheops("resolve", "notes", "--site", "site1", "--op", "site1:4", "--happened", "yes")
    cheops("wait", "notes", "--timeout", "60")
    assert (rig.folder("site1") / "notes").read_text() == "base\nu\n"
    until(lambda: (rig.folder("site2") / "notes").read_text() == "base\nu\n")


def _cut_off(rig: Rig, cheops: Cheops) -> None:
    rig.kill("site2")
    until(lambda: re.search(r"site2 +down", cheops("site", "list").out), "for site2 to be down")
    ran = cheops("exec", "--id", "notes", "--type", "add", "--command", "echo v >> notes", "--timeout", "0.3", code=3)
    refused = "the connection is refused: nothing listens at its address"
    assert "TIMEOUT site2  no reply yet (connection refused); delivery continues in the background" in ran.out
    assert "cheops wait notes --for=converged" in ran.err
    assert cheops("status", "notes", code=3).out.startswith("UNREACHABLE")
    assert cheops("wait", "notes", "--timeout", "0", code=3).out.startswith("UNREACHABLE")
    verified = cheops("verify", "notes", code=3).out
    assert "no reply from site2" in verified
    assert re.search(rf"site2 +UNREACHABLE +site2 is unreachable: {refused[:25]}", verified)
    pinged = cheops("site", "ping", "site2", code=1).out
    assert words(pinged)[1][:2] == ["site2", "failed"]
    assert refused in pinged
    # Not: probed 0 s ago.
    assert re.search(rf"✗ site2 is down: last seen [^0].* s ago; {refused}", cheops("check", code=1).out)
    assert re.search(r"state +down, last seen \d+ s ago", cheops("describe", "site", "site2").out)
    feed = json.loads(cheops("site", "list", "-o", "json").out)
    assert next(one["problems"] for one in feed["sites"] if one["name"] == "site2") == [refused]
    assert "Remove it there first, or use --force" in cheops("site", "forget", "site2", code=1).err
    assert "it no longer counts for: notes" in cheops("site", "forget", "site2", "--force").out
    assert re.search(r"site2 +forgotten", cheops("get", "sites").out)
    assert cheops("wait", "notes").out.startswith("CONVERGED  notes: site1, its only site, is up to date")
    assert "site2 is part of the mesh again: at this agent" in cheops("site", "admit", "site2").out
    status = ("status", "notes", "--url", rig.url("site1"))
    until(lambda: run_here(*status).out.startswith("UNREACHABLE"), "for site2 to count again")


def test_on_a_terminal(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = started(make_rig, "site1", "site2")
    url = rig.url("site1")
    big = tmp_path / "big.bin"
    big.write_bytes(bytes(3_000_000))
    make = ["exec", "--id", "notes", "--sites", "site1 & site2", "--type", "set", "--url", url, "--command"]
    seen = on_terminal(*make, f"wc -c < {{{big}}} > notes; cat notes")
    assert "upload" in seen
    assert "…" in seen  # a site that had not answered yet
    assert re.search(r"OK.*site2  3000000", seen)
    watching = [sys.executable, "-m", "cheops", "watch", "notes", "--url", url, "-o", "json"]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout
        until(lambda: at(rig)("exec", "--id", "notes", "--type", "set", "--command", "true") and _has(watch))
        event = json.loads(watch.stdout.readline())
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
    assert (event["resource"], watch.returncode) == ("notes", 130)


def test_watching_goes_on_over_a_restart(make_rig: MakeRig) -> None:
    rig = started(make_rig, "site1")
    cheops, url = at(rig), rig.url("site1")
    make = ("exec", "--id", "notes", "--sites", "site1", "--type", "add", "--command")
    cheops(*make, "echo one")
    start = Agent(url).changes().last
    watching = [
        sys.executable,
        "-m",
        "cheops",
        "watch",
        "notes",
        "--url",
        url,
        "--since",
        start,
        "-o",
        "json",
    ]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout
        assert watch.stderr
        cheops(*make, "echo two")
        first = [json.loads(watch.stdout.readline()) for _ in range(3)]
        rig.stop("site1")
        assert "lost the connection to the agent" in watch.stderr.readline()
        rig.start("site1")
        cheops(*make, "echo three")
        then = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        watch.communicate()
    assert [(event["kind"], event["operation"]) for event in first + then] == [
        (kind, f"site1:{n}") for n in (2, 3) for kind in ("accepted", "decided", "ran")
    ]
    assert [event["output"] for event in (first[-1], then[-1])] == ["two\n", "three\n"]
    assert "a position in the feed looks like" in cheops("watch", "--since", "yesterday", code=1).err


def _has(process: "subprocess.Popen[str]") -> bool:
    """Whether something can be read of it; an operation before it began to watch is none of its own."""
    return bool(process.stdout and select.select([process.stdout], [], [], 0.5)[0])
