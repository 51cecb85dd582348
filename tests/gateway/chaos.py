"""Load while sites, agents, HAProxies and services end and come back: `python -m tests.gateway.chaos --minutes 10`.

Every answer must come from a site that the scope of its request allows. A request may fail only where
something that it needed was really gone: then, or a moment before.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.agent.rig import until
from tests.gateway.service import Service
from tests.gateway.stage import Stage

SITES = ("site1", "site2", "site3")
_CLIENTS = 4
_GRACE_S = 4.0  # until what came back is seen to be back: heartbeats, back-off
_ASK_S = 40.0
_PROXY_GONE = ("HAProxy killed", "site gone")
_PAUSES_S = (0.1, 0.5, 1.0, 6.0)  # long enough, now and then, for everything to be well


@dataclass(frozen=True)
class Gone:
    """Something of a site that was not there for a while."""

    what: str
    site: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Failure:
    entry: str
    scope: str
    said: str
    start_s: float
    end_s: float

    def is_excused(self, gone: list[Gone], allowed: frozenset[str]) -> bool:
        """Without the agent or the service there is an answer. A connection breaks only where a proxy ends,
        or where the service or the agent ends while it has the request: of one that was kept, HAProxy leaves
        it to the client to ask again."""
        is_answer = self.said[:3] in {"502", "503", "504"}
        return any(
            one.site in {self.entry, *allowed}
            and one.start_s <= self.end_s
            and self.start_s <= one.end_s + (_GRACE_S if is_answer or one.what in _PROXY_GONE else 0.0)
            and (is_answer or one.what in {*_PROXY_GONE, "service gone", "agent killed"})
            for one in gone
        )


@dataclass
class Report:
    served: int
    wrong: list[str]
    failures: list[Failure]
    unexcused: list[Failure]
    disturbances: collections.Counter[str]


class Chaos:
    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.random = random.Random(seed)  # noqa: S311
        self.services = {site: Service(site, stage.own(site)) for site in SITES}
        self.gone: list[Gone] = []
        self.failures: list[Failure] = []
        self.wrong: list[str] = []
        self.served = 0
        self.disturbances: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._is_done = threading.Event()

    # -- load ----------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> Report:
        self.disturbances.clear()
        clients = [threading.Thread(target=self._ask, args=(n,)) for n in range(_CLIENTS)]
        for client in clients:
            client.start()
        end_s = time.monotonic() + seconds
        try:
            while time.monotonic() < end_s:
                self._disturb()
                time.sleep(self.random.choice(_PAUSES_S))
        finally:
            self._is_done.set()
            for client in clients:
                client.join()
        unexcused = [one for one in self.failures if not one.is_excused(self.gone, allowed_by(one.scope, one.entry))]
        return Report(self.served, self.wrong, self.failures, unexcused, self.disturbances)

    def _ask(self, number: int) -> None:
        chance = random.Random(number)  # noqa: S311
        connections: dict[str, http.client.HTTPConnection] = {}
        while not self._is_done.is_set():
            entry, scope = chance.choice(SITES), some_scope(chance)
            start_s = time.monotonic()
            try:
                connection = connections.setdefault(
                    entry, http.client.HTTPConnection(*self.stage.address(entry), timeout=_ASK_S)
                )
                connection.request("GET", "/", headers={"Scope": scope} if scope else {})
                answer = connection.getresponse()
                body = answer.read()
                self._note(entry, scope, answer.status, body, start_s)
                if answer.will_close:
                    connections.pop(entry).close()
            except (OSError, http.client.HTTPException) as error:
                connections.pop(entry).close()
                with self._lock:
                    self.failures.append(Failure(entry, scope, repr(error), start_s, time.monotonic()))
                time.sleep(0.02)
        for connection in connections.values():
            connection.close()

    def _note(self, entry: str, scope: str, status: int, body: bytes, start_s: float) -> None:
        with self._lock:
            if status != 200:
                said = f"{status} {body.decode(errors='replace')[:160]}"
                self.failures.append(Failure(entry, scope, said, start_s, time.monotonic()))
                return
            self.served += 1
            site = json.loads(body)["served_by"]
            if site not in allowed_by(scope, entry):
                self.wrong.append(f"'{scope}' at {entry} was served by {site}")

    # -- disturbances ---------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        site = self.random.choice(SITES)
        kinds: dict[str, Callable[[str], None]] = {
            "agent killed": self._kill_agent,
            "HAProxy killed": self._kill_haproxy,
            "HAProxy reloaded": self._reload,
            "service gone": self._stop_service,
            "site gone": self._kill_site,
        }
        kind = self.random.choice(sorted(kinds))
        self.disturbances[kind] += 1
        start_s = time.monotonic()
        kinds[kind](site)
        if kind != "HAProxy reloaded":  # nothing is gone by that
            self.gone.append(Gone(kind, site, start_s, time.monotonic()))

    def _kill_agent(self, site: str) -> None:
        self.stage.rig.kill_agent(site)
        time.sleep(self.random.uniform(0.0, 0.5))
        self.stage.rig.start(site)

    def _kill_haproxy(self, site: str) -> None:
        pid = self.stage.rig.haproxy(site)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            until(lambda: self.stage.rig.haproxy(site) not in {None, pid}, f"for HAProxy of {site}")
            until(lambda: self._serves(site), f"for HAProxy of {site} to serve")

    def _reload(self, site: str) -> None:
        if pid := self.stage.rig.haproxy(site):
            os.kill(pid, signal.SIGUSR2)

    def _stop_service(self, site: str) -> None:
        self.services[site].close()
        time.sleep(self.random.uniform(0.0, 0.5))
        self.services[site] = Service(site, self.stage.own(site))

    def _kill_site(self, site: str) -> None:
        self.stage.rig.kill(site)
        time.sleep(self.random.uniform(0.0, 2.5))
        self.stage.rig.start(site)

    def _serves(self, site: str) -> bool:
        with contextlib.suppress(OSError):
            return self.stage.ask(site).status == 200
        return False


def some_scope(chance: random.Random) -> str:
    one, other = chance.sample(SITES, 2)
    return chance.choice(
        (
            "",
            one,
            f"{{image: {one}}}",
            f"{one} ; {other}",
            f"{{image: {one} ; {other}}}",
            f"around({one}, 10s)",
        )
    )


def allowed_by(scope: str, entry: str) -> frozenset[str]:
    if scope.startswith("around"):
        return frozenset(SITES)
    named = frozenset(site for site in SITES if site in scope)
    return named or frozenset({entry})


def run(base: Path, seconds: float, seed: int) -> Report:
    stage = Stage(base, SITES, ("image",), plane="haproxy")
    try:
        stage.rig.start()
        chaos = Chaos(stage, seed)
        until(lambda: all(stage.ask(a, scope=b).status == 200 for a in SITES for b in SITES), "for all to be up")
        try:
            return chaos.run(seconds)
        finally:
            for service in chaos.services.values():
                service.close()
    finally:
        stage.rig.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        report = run(Path(base) / "rig", asked.minutes * 60, asked.seed)
    sys.stdout.write(
        f"{report.served:,} served, {len(report.wrong)} by a wrong site; {len(report.failures):,} failed, "
        f"{len(report.unexcused)} of them with nothing gone; {dict(report.disturbances)}\n"
    )
    for one in (*report.wrong[:10], *report.unexcused[:10]):
        sys.stdout.write(f"{one}\n")
    return 1 if report.wrong or report.unexcused else 0


if __name__ == "__main__":
    sys.exit(main())
