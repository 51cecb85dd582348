"""Become another program, tied to the process that started this one: when that dies, however, so does this.

    python -I -S tied.py PARENT PROGRAM ARGUMENT…

A script of its own, so that whoever starts it need not fork: prctl must be called in the new process. The tie
is to the thread that started it, which should be one that lasts.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, argv: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("its parent is gone already")
    os.execvp(argv[0], argv)  # noqa: S606 - this is what it is for  # nosec B606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
