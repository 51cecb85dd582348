"""Real agents under faults, and a checker that asks for statuses all the time: `python -m tests.agent.status_chaos`.

Each operation appends a word of its own and the time to a file, so each site's file says what that site had applied,
and when. A status is false if

- it says CONVERGED, or that nothing is pending at a site, and that site lacks a word that the asked site had applied
  or acknowledged before;
- it says that more is pending at a site than that site lacked when it last reported;
- it says DIVERGED or shows a failure: no command fails here, and an outcome is unknown only after a kill.

At the end all files have the same words: every acknowledged one, each once.
"""

import argparse
import collections
import contextlib
import http.client
import itertools
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.wan import Wan

SITES = ("site1", "site2", "site3")
WORDS: dict[str, Any] = {
    "shell": True,
    "allow": ["..."],
    "cwd": "@FOLDER@",
    "read": "cut -d' ' -f1 __ID__ | sort",
    "reset": ": > __ID__",
    "matrix": [{"before": "add", "after": "add", "result": "take-both"}],
}
_IDLE = "2s"  # so that resources leave memory often: what is known of other sites must outlive that
_REPORT_S = 10.0  # for which a report may be on its way: `as_of_s` is about its arrival
_WRITERS = 3
_CHECKERS = 2
_Answer = dict[str, Any]


@dataclass
class Report:
    asked: int = 0
    overall: collections.Counter[str] = field(default_factory=collections.Counter)
    not_known: int = 0  # sites of which an answer says that it is not known what they lack
    acknowledged: int = 0
    disturbances: collections.Counter[str] = field(default_factory=collections.Counter)
    resolved: int = 0
    false: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.asked:,} statuses", *(f"{n:,} {word}" for word, n in sorted(self.overall.items()))]
        parts += [f"{self.not_known:,} times not known", f"{self.acknowledged:,} operations acknowledged"]
        parts += [f"{n} x {what}" for what, n in sorted(self.disturbances.items())]
        return f"{', '.join(parts)}, {self.resolved} outcomes resolved: {len(self.false)} false"


class StatusChaos:
    def __init__(self, rig: Rig, wan: Wan, seed: int, resources: int = 6) -> None:
        self.rig, self.wan = rig, wan
        self.report = Report()
        self._random = random.Random(seed)  # noqa: S311
        self._seed = seed
        self._resources = [f"r{n}" for n in range(resources)]
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        # By resource: words that were ever sent, and words that a site has acknowledged, with the site.
        self._sent: dict[str, set[str]] = {name: set() for name in self._resources}
        self._acknowledged: dict[str, dict[str, str]] = {name: {} for name in self._resources}

    def run(self, seconds: float) -> Report:
        for name in self._resources:
            self._write(SITES[0], name)
        work = [(self._writer, n) for n in range(_WRITERS)] + [(self._checker, n) for n in range(_CHECKERS)]
        threads = [threading.Thread(target=what, args=(n,)) for what, n in work]
        for thread in threads:
            thread.start()
        end_s = time.monotonic() + seconds
        try:
            while time.monotonic() < end_s and not self.report.false:
                self._disturb()
        finally:
            self._is_done.set()
            for thread in threads:
                thread.join()
            self.wan.heal()
        if not self.report.false:
            self._end()
        return self.report

    # -- clients -------------------------------------------------------------------------------------------

    def _writer(self, number: int) -> None:
        chance = random.Random(self._seed * 100 + number)  # noqa: S311
        while not self._is_done.is_set():
            self._write(chance.choice(SITES), chance.choice(self._resources))
            self._is_done.wait(chance.choice((0.0, 0.05, 0.5, 3.0)))  # long enough, now and then, to come to rest

    def _write(self, site: str, resource: str) -> None:
        word = f"w{next(self._numbers)}"
        with self._lock:
            self._sent[resource].add(word)
        with _failures_of_agents():
            reply = self.rig.exec_here(site, resource, "add", f"echo {word} $(date +%s.%N) >> __ID__")
            if reply["Status"] == "OK":
                with self._lock:
                    self._acknowledged[resource][word] = site
                    self.report.acknowledged += 1

    def _checker(self, number: int) -> None:
        chance = random.Random(self._seed * 100 + 50 + number)  # noqa: S311
        while not self._is_done.is_set():
            self._check(chance.choice(SITES), chance.choice(self._resources))
            self._is_done.wait(0.02)

    # -- the checks ----------------------------------------------------------------------------------------

    def _check(self, site: str, resource: str) -> None:
        with self._lock:
            acknowledged = {word for word, at in self._acknowledged[resource].items() if at == site}
        known = acknowledged | self._applied(site, resource).keys()
        asked_s = time.time()
        answer = self._ask(site, resource)
        if answer is None:
            return
        with self._lock:
            sent = set(self._sent[resource])
        applied = {name: self._applied(name, resource) for name in SITES}
        false = [f"{site} says of {resource}: {problem}" for problem in problems(answer, known, sent, applied, asked_s)]
        with self._lock:
            self.report.asked += 1
            self.report.overall[answer["overall"]] += 1
            self.report.not_known += sum(one["pending"] is None for one in answer["sites"])
            self.report.false += false

    def _ask(self, site: str, resource: str) -> _Answer | None:
        with _failures_of_agents():
            answer: _Answer = json.loads(self.rig.request(site, "GET", f"/api/v1/resources/{resource}/status"))
            return answer
        return None

    def _applied(self, site: str, resource: str) -> dict[str, float]:
        """When a site applied each word."""
        path = self.rig.folder(site) / resource
        lines = path.read_text().splitlines() if path.exists() else []
        return {word: float(at_s) for word, at_s in (line.split() for line in lines if line.count(" ") == 1)}

    # -- disturbances ---------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        kinds: dict[str, Callable[[str, str], None]] = {
            "cut": self._cut,
            "one-way cut": self._cut_one_way,
            "isolated": self._isolate,
            "killed": self._kill,
            "paused": self._pause,
            "quiet": self._rest,
        }
        kind = self._random.choice(sorted(kinds))
        one, other = self._random.sample(SITES, 2)
        self.report.disturbances[kind] += 1
        kinds[kind](one, other)
        self.wan.heal()
        self._is_done.wait(self._random.choice((0.0, 0.5, 2.0)))
        self._resolve()

    def _cut(self, one: str, other: str) -> None:
        self.wan.cut(one, other)
        self._wait()

    def _cut_one_way(self, one: str, other: str) -> None:
        self.wan.cut(one, other, one_way=True)
        self._wait()

    def _isolate(self, one: str, _other: str) -> None:
        self.wan.isolate(one)
        self._wait()

    def _kill(self, one: str, _other: str) -> None:
        self.rig.kill(one)
        self._is_done.wait(self._random.uniform(0.0, 3.0))
        self.rig.start(one)

    def _pause(self, one: str, _other: str) -> None:
        process = self.rig.processes[one]
        process.send_signal(signal.SIGSTOP)
        self._is_done.wait(self._random.uniform(0.5, 5.0))
        process.send_signal(signal.SIGCONT)

    def _rest(self, _one: str, _other: str) -> None:
        self._wait()

    def _wait(self) -> None:
        self._is_done.wait(self._random.choice((0.5, 2.0, 6.0)))

    # -- the operator ---------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Decide what Cheops cannot know: a kill came between the run and its record."""
        for site, resource in itertools.product(SITES, self._resources):
            answer = self._ask(site, resource)
            troubles = [one for one in (answer or {"sites": ()})["sites"] if one["site"] == site]
            for operation in (trouble["operation"] for one in troubles for trouble in one["unknown"]):
                self._resolve_one(site, resource, operation)

    def _resolve_one(self, site: str, resource: str, operation: str) -> None:
        with _failures_of_agents():
            view = json.loads(self.rig.request(site, "GET", f"/api/v1/resources/{resource}/operations/{operation}"))
            word = view["command"].split()[1]
            resolution = "happened" if word in self._applied(site, resource) else "not-happened"
            body = {"operation": operation, "resolution": resolution}
            headers = {"Content-Type": "application/json"}
            self.rig.request(site, "POST", f"/api/v1/resources/{resource}/resolve", json.dumps(body), headers)
            self.report.resolved += 1

    # -- the end --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Everything is well again: every site says CONVERGED, and it is true."""

        def is_well() -> bool:
            self._resolve()
            return all(
                (self._ask(site, resource) or {}).get("overall") == "CONVERGED"
                for site, resource in itertools.product(SITES, self._resources)
            )

        until(is_well, "for all resources to converge", 120.0)
        for site, resource in itertools.product(SITES, self._resources):
            words = [line.split()[0] for line in (self.rig.folder(site) / resource).read_text().splitlines()]
            expected = self._applied(SITES[0], resource).keys() | self._acknowledged[resource].keys()
            if sorted(words) != sorted(expected):
                difference = collections.Counter(words)
                difference.subtract(expected)
                wrong = {word: n for word, n in difference.items() if n}
                self.report.false.append(f"at the end {resource} at {site} has a wrong number of {wrong}")


def problems(
    answer: _Answer, known: set[str], sent: set[str], applied: dict[str, dict[str, float]], asked_s: float
) -> Iterator[str]:
    """What is false in a status. `known`: words that the asked site had before; `applied`: at each site, afterwards."""
    unknown = any(one["unknown"] for one in answer["sites"])
    if answer["overall"] == "DIVERGED" and not unknown:
        yield f"DIVERGED, and nothing failed: {answer['sentence']}"
    for one in answer["sites"]:
        site, pending = one["site"], one["pending"]
        lacking = known - applied[site].keys()
        if one["failed"]:
            yield f"{len(one['failed'])} failed at {site}"
        if lacking and not unknown and (answer["overall"] == "CONVERGED" or pending == 0):
            yield f"{answer['overall']}, {pending} pending at {site}, which lacks {sorted(lacking)[:5]}"
        reported_s = asked_s - (one["as_of_s"] or 0.0) - _REPORT_S
        had = {word for word, at_s in applied[site].items() if at_s < reported_s}
        if pending is not None and pending > len(sent - had) and not unknown:
            yield f"{pending} pending at {site}, which lacked at most {len(sent - had)}"


def _failures_of_agents() -> contextlib.suppress:
    """An agent that is down, or ends, does not answer."""
    return contextlib.suppress(
        OSError, http.client.HTTPException, RefusedByAgentError, StopIteration, ValueError, KeyError
    )


def make_rig_of_words(base: Path, wan: Wan) -> Rig:
    rig = Rig(base, {"words": WORDS}, SITES, wan)
    for name in SITES:
        path = rig.folder(name) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**config, "limits": {"idle": _IDLE}}))
    return rig


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as base, Wan(SITES, delay_ms=5.0) as wan:
        rig = make_rig_of_words(Path(base), wan)
        try:
            rig.start()
            report = StatusChaos(rig, wan, arguments.seed).run(arguments.minutes * 60)
        finally:
            rig.close()
    sys.stdout.write("".join(f"{line}\n" for line in (*report.false[:20], report)))
    return 1 if report.false or not report.overall["CONVERGED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
