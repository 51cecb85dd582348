"""Run `cheops` command lines: in this process (fast) or as a real process (true)."""

import contextlib
import io
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from cheops.cli.main import main
from tests.support import nursery

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 100.0


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


def run_process(*argv: str | bytes, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run as users do: a process of its own, with files instead of a terminal. What Python itself reads from the
    environment counts when it starts: with that it is started anew, else born with all imported (nursery.py)."""
    environment = dict(os.environ) if env is None else env
    if _for_python(environment) - _for_python(dict(os.environ)):
        return run_anew(*argv, stdin=stdin, env=environment, cwd=cwd)
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile()) for _ in range(3)]
        files[0].write(stdin.encode())
        files[0].seek(0)
        given = [os.fsdecode(word) for word in argv]
        into, out, err = (file.fileno() for file in files)
        code = nursery.command(given, (into, out, err), environment, cwd or Path.cwd()).wait(_PATIENCE_S)
        return Ran(code, *(_all_of(file) for file in files[1:]))


def _for_python(environment: dict[str, str]) -> set[tuple[str, str]]:
    return {(name, value) for name, value in environment.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def run_anew(*argv: str | bytes, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """The same from the very start, by a new Python: what is said of starting itself."""
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
