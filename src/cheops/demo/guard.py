"""Clean up after a process that may be killed at any time. A script with two uses:

    python -I -S guard.py remove DIRECTORY              remove the directory when the parent process ends
    python -I -S guard.py tie PARENT PROGRAM ARGUMENT…  become the program, and die when the parent process dies

It is a script, not a function after a fork, because prctl must be called in the new process, and because the
remover must outlive its parent. It imports little: one is started for every process of the demo.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_TIMEOUT_S = 10.0
_RETRY_S = 0.02


def remove(folder: Path) -> None:
    """Wait for the end of standard input, a pipe that the parent holds open, then remove the directory."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    # The tied processes die at the same moment and may still write files, so one attempt may not be enough.
    deadline_s = time.monotonic() + _TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_RETRY_S)


def tie(parent: int, argv: list[str]) -> None:
    """The kernel ties to the thread that started this process: start it from one that lasts."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl, so no signal will come
        sys.exit("the parent process is gone")
    os.execvp(argv[0], argv)  # noqa: S606 - this is what it is for  # nosec B606


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["remove", directory]:
            remove(Path(directory))
        case ["tie", pid, *program]:
            tie(int(pid), program)
