"""Directories for what is measured: on the disk of the repository, since memory would make every sync free.

They are gone when the block ends, whatever ends it.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BASE = Path(__file__).parents[1] / "build" / "bench"


@contextmanager
def folder() -> Iterator[Path]:
    """A new directory on a disk."""
    _BASE.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=_BASE))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        with suppress(OSError):  # others may be in use
            _BASE.rmdir()
