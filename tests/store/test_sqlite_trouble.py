"""When the disk or the file is in trouble: the store says which and what to do, loses nothing, and goes on after."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cheops.store.interface import StoreError
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import keys, operation, save
from tests.support.command import ROOT

OWN_MOUNTS = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.db"


@pytest.mark.parametrize("trouble", ["full", "readonly"])
def test_a_disk_that_is(trouble: str, tmp_path: Path) -> None:
    try:
        subprocess.run([*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", tmp_path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a mount namespace of its own (unshare, as root or with user namespaces): {error}")
    script = [sys.executable, "-m", "tests.store.in_namespace", trouble, str(tmp_path)]
    done = subprocess.run([*OWN_MOUNTS, *script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_that_cannot_grow(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        store.commit([save(operation("r", 1, ("lyon",)))])
        before = store._pragma("max_page_count")
        store._connection.execute(f"PRAGMA max_page_count = {store._pragma('page_count')}")
        with pytest.raises(StoreError, match="there is no space left for it: free some, and try again"):
            store.commit([save(operation("r", 2), operation("r", 3, line="x" * 100_000))])
        with pytest.raises(StoreError, match="there is no space left"):
            store.put_note("n", {"x": "x" * 100_000})
        assert store.load("r") == (operation("r", 1),)
        assert (store.last_seq(), store.note("n")) == (1, None)
        store._connection.execute(f"PRAGMA max_page_count = {before}")
        assert store.commit([save(operation("r", 2), operation("r", 3, line="x" * 100_000))]) == 3
        assert tuple(change.key for change in store.changes(1, 10, "lyon")) == keys(operation("r", n) for n in (2, 3))


def test_another_program_that_holds_a_lock(path: Path) -> None:
    store = SQLiteStore(path, busy_timeout_s=0.01)
    with closing(store), closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"site\.db: another program holds a lock on it: stop that program"):
            store.commit([save(operation("r", 1))])
        assert store.load("r") == ()  # reading goes on
        other.execute("ROLLBACK")
        assert store.commit([save(operation("r", 1))]) == 1


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "site.db"
    with pytest.raises(StoreError, match=r"missing/site\.db cannot be opened: No such file or directory"):
        SQLiteStore(path)
    path.parent.mkdir()
    SQLiteStore(path).close()


def test_a_directory_in_the_place_of_the_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match=r"site\.db cannot be opened: Is a directory"):
        SQLiteStore(path)


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_text("my shopping list\n" * 100)
    with pytest.raises(StoreError, match=r"site\.db: it is not a store, or it is damaged"):
        SQLiteStore(path)
    assert path.read_text() == "my shopping list\n" * 100
    path.unlink()
    SQLiteStore(path).close()  # the lock was given back


def make(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        store.commit([save(operation("r", n, line="x" * 3_000)) for n in range(1, 50)])


def test_a_damaged_file(path: Path) -> None:
    make(path)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    with pytest.raises(StoreError, match=r"site\.db: it is damaged: put it aside and start with an empty one"):
        SQLiteStore(path)
    path.unlink()
    make(path)


def test_damage_that_shows_only_later(path: Path) -> None:
    make(path)
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 2, len(data)):
        data[place] = 0xA5
    path.write_bytes(data)
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreError, match=r"site\.db: .*is damaged"):
        store.load("r")


def test_a_document_that_was_changed_by_hand(path: Path) -> None:
    make(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE documents SET body = X'7B' WHERE id = 'op/r/paris/p1/7'")
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(StoreError, match=r"site\.db: the document op/r/paris/p1/7 is damaged: not a document"):
            store.load("r")
        assert len(store.read(keys(operation("r", n) for n in (6, 8)))) == 2
