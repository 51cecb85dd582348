"""Remove a directory when the process that started this one ends, however it ends.

    python -I -S janitor.py DIRECTORY

It waits for the end of its standard input, which is a pipe of that process. What was tied to that process is
dying at the same moment and may still write, so removing is tried again until the directory is gone.
"""

import shutil
import signal
import sys
import time
from pathlib import Path

_PATIENCE_S = 10.0
_PAUSE_S = 0.02


def main(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends by itself
    sys.stdin.buffer.read()
    deadline_s = time.monotonic() + _PATIENCE_S
    while folder.exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
