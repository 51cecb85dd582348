"""The demo's directory: a temporary one that is removed however the demo ends.

A process of its own waits for the end of this one and removes it (janitor.py). Should that be killed too, the
next demo removes what is left: a directory is locked as long as its demo runs, and it gets the name by which
others find it only when it is locked. So several demos run side by side.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_PREFIX = "cheops-demo-"
_JANITOR = Path(__file__).with_name("janitor.py")


class DemoFolder:
    """A context manager; `path` is the directory."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_leftovers(parent)
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(parent / f"{_PREFIX}{secrets.token_hex(4)}")
        self._janitor = subprocess.Popen(  # noqa: S603 - our own script  # nosec B603
            [sys.executable, "-I", "-S", str(_JANITOR), str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the demo
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._janitor.communicate()
        os.close(self._lock)


def _remove_leftovers(parent: Path) -> None:
    """Directories of ours whose demo is gone, and whose janitor too."""
    for found in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, or another user's, or gone meanwhile
            if found.is_symlink() or found.stat().st_uid != os.getuid():
                continue
            lock = os.open(found, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(found)
            finally:
                os.close(lock)
