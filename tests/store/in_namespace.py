"""Run by test_sqlite_trouble.py in a mount namespace of its own, where a small disk can be full or read-only.

python -m tests.store.in_namespace full|readonly DIRECTORY
"""

import subprocess
import sys
from pathlib import Path

import pytest

from cheops.store.interface import StoreError
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import operation, save


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def full(disk: Path) -> None:
    """The disk runs full under an open store; what was committed stays, and it goes on when there is space."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(2_000_000))  # so much that the log can then be copied into the file
    store = SQLiteStore(disk / "site.db")
    committed = 0
    refusal = ""
    while not refusal:
        try:
            store.commit([save(operation("r", committed + 1, ("lyon",), line="x" * 20_000))])
            committed += 1
        except StoreError as error:
            refusal = str(error)
    assert "site.db: there is no space left for it: free some, and try again" in refusal, refusal
    assert committed > 10
    assert len(store.load("r")) == len(store.changes(0, 1_000, "lyon")) == store.last_seq() == committed
    ballast.unlink()
    assert store.commit([save(operation("r", committed + 1))]) == committed + 1
    store.close()
    store = SQLiteStore(disk / "site.db")
    assert len(store.load("r")) == len(store.changes(0, 1_000, "lyon")) == committed + 1
    store.close()


def readonly(disk: Path) -> None:
    """A disk that cannot be written: also a store that is there already is refused, and unharmed."""
    for there_before in (False, True):
        if there_before:
            store = SQLiteStore(disk / "site.db")
            store.commit([save(operation("r", 1))])
            store.close()
        mount("-o", "remount,ro", str(disk))
        with pytest.raises(StoreError, match=r"site\.db cannot be opened: Read-only file system"):
            SQLiteStore(disk / "site.db")
        mount("-o", "remount,rw", str(disk))
    store = SQLiteStore(disk / "site.db")
    assert len(store.load("r")) == 1
    store.close()


if __name__ == "__main__":
    what, directory = sys.argv[1], Path(sys.argv[2])
    mount("-t", "tmpfs", "-o", "size=4m", "none", str(directory))
    {"full": full, "readonly": readonly}[what](directory)
