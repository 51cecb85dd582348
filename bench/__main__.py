"""Run all benchmarks, or those named: python -m bench [scope …]"""

import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from bench import (
    agent,
    fastpath,
    flows,
    gateway,
    health,
    joins,
    loading,
    memory,
    merge,
    operation,
    scale,
    scope,
    security,
    ui,
)
from bench.report import Section, write

SUITES: dict[str, Callable[[], Iterable[Section]]] = {
    "scope": scope.run,
    "merge": merge.run,
    "agent": agent.run,
    "operation": operation.run,
    "gateway": gateway.run,
    "fastpath": fastpath.run,
    "flows": flows.run,
    "security": security.run,
    "health": health.run,
    "loading": loading.run,
    "memory": memory.run,
    "joins": joins.run,
    "scale": scale.run,
    "ui": ui.run,
}


def machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Linux, Python {platform.python_version()}"


def main(names: list[str]) -> int:
    if unknown := set(names) - SUITES.keys():
        print(f"unknown benchmark: {', '.join(unknown)}; there are: {', '.join(SUITES)}", file=sys.stderr)
        return 2
    for name in names or SUITES:
        for section in SUITES[name]():
            table = Table(*section.columns, title=section.name)
            for row in section.rows:
                table.add_row(*row)
            Console().print(table)
            write(section, machine())
    return 0


def _end(*_: object) -> None:
    sys.exit(143)


os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # agents start as they do where they are installed
signal.signal(signal.SIGTERM, _end)  # so that processes and files are cleaned up, as after Ctrl-C
sys.exit(main(sys.argv[1:]))
