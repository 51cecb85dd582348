"""Run `cheops` command lines: in this process, which is fast, or in a process of its own, as users do."""

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
from tests.support import fork_server

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 100.0


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


def run_here(*argv: str) -> CommandResult:
    """Run in this process, which takes milliseconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(ROOT):
        code = main(list(argv))
    return CommandResult(code, out.getvalue(), err.getvalue())


def run_process(
    *argv: str | bytes, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None
) -> CommandResult:
    """Run in a process of its own, with files instead of a terminal: a fork of one with everything imported.

    Python reads some variables of the environment only when it starts: if they differ, a new Python runs the command.
    """
    environment = dict(os.environ) if env is None else env
    if _python_variables(environment) - _python_variables(dict(os.environ)):
        return run_new_python(*argv, stdin=stdin, env=environment, cwd=cwd)
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile()) for _ in range(3)]
        files[0].write(stdin.encode())
        files[0].seek(0)
        words = [os.fsdecode(word) for word in argv]
        stdin_fd, stdout_fd, stderr_fd = (file.fileno() for file in files)
        process = fork_server.start_command(words, (stdin_fd, stdout_fd, stderr_fd), environment, cwd or Path.cwd())
        code = process.wait(_TIMEOUT_S)
        return CommandResult(code, *(_content(file) for file in files[1:]))


def _python_variables(environment: dict[str, str]) -> set[tuple[str, str]]:
    return {(name, value) for name, value in environment.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def run_new_python(
    *argv: str | bytes, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None
) -> CommandResult:
    """The same with a new Python, for tests of the start itself."""
    process = subprocess.run(
        [sys.executable, "-m", "cheops", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        env=env,
        cwd=cwd,
        check=False,
    )
    return CommandResult(process.returncode, process.stdout, process.stderr)
