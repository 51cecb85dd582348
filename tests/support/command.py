"""Run `cheops` command lines: in this process (fast) or as a real process (true)."""

import contextlib
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cheops.cli.main import main

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def run_here(*argv: str) -> Ran:
    """Run in this process, which costs milliseconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(ROOT):
        code = main(list(argv))
    return Ran(code, out.getvalue(), err.getvalue())


def run_process(
    *argv: str | bytes, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None
) -> Ran:
    """Run as users do: a process of its own, with pipes instead of a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "cheops", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        env=env,
        cwd=cwd,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
