"""Run all benchmarks, or those named: python -m bench [scope …]"""

import os
import platform
import sys

from rich.console import Console
from rich.table import Table

from bench import merge, scope
from bench.report import write

SUITES = {"scope": scope.run, "merge": merge.run}


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


sys.exit(main(sys.argv[1:]))
