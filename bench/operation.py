"""Where the processor time of `exec` at three sites goes, compared with an earlier version, and with security on.

    git worktree add --detach ../base 8fcd3ab
    CHEOPS_BENCH_BASE=../base python -m bench operation

Each version has its own three agents, without security and with it. They take turns, a few hundred operations at a
time, so that whatever else the machine does hits all of them. See exec_cost.py for what is measured.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from bench.report import Section

ROOT = Path(__file__).parents[1]
CLIENTS, OPERATIONS = 8, 25  # of each client, in a turn
TURNS = int(os.environ.get("CHEOPS_BENCH_TURNS", "12"))
TARGET_MS, SECURITY_TARGET = 5, "< 1.10"
KINDS = {"own": "each client its own resource", "new": "a new resource each time"}
HELPERS = "helpers and commands"
_ROLES = {"site1": "origin", "site2": "one peer"}


@dataclass
class _Agents:
    """Three agents of one version. `turns` has what each turn measured, by kind of resource."""

    requests: IO[str]
    results: IO[str]
    turns: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def take_turn(self, kind: str) -> None:
        self.requests.write(f"{CLIENTS} {OPERATIONS} {kind}\n")
        self.requests.flush()
        self.turns[kind].append(json.loads(self.read()))

    def read(self) -> str:
        line = self.results.readline()
        if not line:
            raise RuntimeError("the agents have ended")
        return line

    def agents_ms(self, kind: str) -> list[float]:
        """Of each turn: all threads of the three agents, without helpers and commands."""
        return [sum(map(_threads_ms, turn["sites"].values())) for turn in self.turns[kind]]

    def rest_ms(self, kind: str) -> float:
        return statistics.median(float(turn["rest_ms"]) for turn in self.turns[kind])

    def median_ms(self, kind: str, site: str, part: str) -> float:
        return statistics.median(float(turn["sites"][site][part]) for turn in self.turns[kind])


def _threads_ms(parts: dict[str, float]) -> float:
    return sum(ms for part, ms in parts.items() if part != HELPERS)


@contextmanager
def _agents(tree: Path, security: str) -> Iterator[_Agents]:
    argv = [sys.executable, str(ROOT / "bench" / "exec_cost.py"), security]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=tree, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        agents = _Agents(cast(IO[str], process.stdin), cast(IO[str], process.stdout))
        agents.read()  # they are up
        try:
            yield agents
        finally:
            agents.requests.close()


def run() -> Iterator[Section]:
    base = os.environ.get("CHEOPS_BENCH_BASE", "")
    trees = {"now": ROOT, **({"before": Path(base).resolve()} if base else {})}
    with ExitStack() as stack:
        all_agents = {
            (version, security): stack.enter_context(_agents(tree, security))
            for version, tree in trees.items()
            for security in ("plain", "secure")
        }
        in_order = list(all_agents.values())
        for turn in range(TURNS):
            for kind in KINDS:
                # Every other turn backwards: what comes first finds another machine than what comes last.
                for agents in in_order if turn % 2 == 0 else reversed(in_order):
                    agents.take_turn(kind)
    yield _totals(all_agents)
    yield _parts(all_agents)


def _totals(agents: dict[tuple[str, str], _Agents]) -> Section:
    rows = []
    for kind, text in KINDS.items():
        plain = agents["now", "plain"].agents_ms(kind)
        for security, name in (("plain", "`security: none`"), ("secure", "TLS and signatures")):
            now = agents["now", security].agents_ms(kind)
            before = agents["before", security].agents_ms(kind) if ("before", security) in agents else []
            rows.append(
                (
                    *(
                        text,
                        name,
                        f"{statistics.median(now):.2f} ms",
                        f"{agents['now', security].rest_ms(kind):.2f} ms",
                    ),
                    f"≤ {TARGET_MS} ms",
                    *((f"{statistics.median(before):.2f} ms", _ratio(now, before)) if before else ("-", "-")),
                    *((_ratio(now, plain), SECURITY_TARGET) if security == "secure" else ("", "")),
                )
            )
    columns = (
        *("`exec` of `true` at three sites", "security", "three agents, per operation", "of it at rest", "target"),
        *("before", "ratio", "against `security: none`", "target"),
    )
    about = (
        f"Processor time of all threads of the three agents, without helper processes and commands; {CLIENTS} clients. "
        "At rest is what they use in as much time without operations. "
        f"Medians of {TURNS} turns of {CLIENTS * OPERATIONS} operations, and of the ratios of each turn. *Before* is "
        f"the checkout in `CHEOPS_BENCH_BASE`{_commit_of(os.environ.get('CHEOPS_BENCH_BASE', ''))}."
    )
    return Section("operation-cost", columns, tuple(rows), about=about)


def _commit_of(tree: str) -> str:
    """Which one it is, if git knows."""
    argv = ["git", "-C", tree or ".", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    return f" (`{found}`)" if tree and found else ""


def _ratio(one: list[float], other: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(one, other, strict=True)):.3f}"


def _parts(agents: dict[tuple[str, str], _Agents]) -> Section:
    rows = []
    for security, name in (("plain", "`security: none`"), ("secure", "TLS and signatures")):
        of = {version: agents[version, security] for version in ("now", "before") if (version, security) in agents}
        for site, role in _ROLES.items():
            for part in ("main thread", "other threads", HELPERS):
                figures = [f"{one.median_ms('own', site, part):.2f} ms" for one in of.values()]
                rows.append((role, part, name, *figures, *["-"] * (2 - len(figures))))
    columns = ("site", "what", "security", "per operation", "before")
    return Section(
        "operation-threads", columns, tuple(rows), about="The same by thread, on the clients' own resources."
    )
