"""When the disk or the file is in trouble: the store says which and what to do, loses nothing, and goes on after."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cheops.engine.documents import key_of
from cheops.store.interface import DamagedError, StoreError
from cheops.store.space import pragma
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import COUNTER, keys, operation, reply, save
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
        before = pragma(store._connection, "max_page_count")
        store._connection.execute(f"PRAGMA max_page_count = {pragma(store._connection, 'page_count')}")
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
        with pytest.raises(DamagedError, match=r"site\.db: documents of 'r' are damaged \(op/r/paris/p1/7\)"):
            store.load("r")
        assert len(store.read(keys(operation("r", n) for n in (6, 8)))) == 2


def test_each_byte_of_a_document_counts(path: Path) -> None:
    """SQLite gives back what the disk gives it: a changed command would be run."""
    with closing(SQLiteStore(path)) as store:
        store.commit([save(operation("r", 1, line="set 100"), operation("r", 2), reply("r", 1), operation("s", 1))])
    flip(path, b"set 100", b"set 900")
    rotten = operation("r", 1, line="set 100")
    with closing(SQLiteStore(path)) as store:
        assert store.damaged == {}, "nothing is read before it is needed"
        with pytest.raises(DamagedError) as error:
            store.load("r")
        assert (error.value.resource, error.value.ids) == ("r", ("op/r/paris/p1/1",))
        assert store.damaged == {"r": frozenset({"op/r/paris/p1/1"})}
        assert len(store.load("s")) == 1
        good = operation("r", 2)
        assert store.read(keys([rotten, good])) == {key_of(good): good}
        before = store.changes(0, 100)
        store.rewrite([rotten])
        assert store.damaged == {}
        assert rotten in store.load("r")
        assert store.changes(0, 100) == before, "it has its old place in the feeds"


def test_documents_of_earlier_versions_are_read_without_a_checksum(path: Path) -> None:
    make(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE documents SET checksum = NULL")
    with closing(SQLiteStore(path)) as store:
        assert store.load("r")


def test_a_damaged_document_of_the_site_itself_stops_the_start(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        store.commit([save(COUNTER)])
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE documents SET checksum = checksum + 1 WHERE resource = ''")
    with closing(SQLiteStore(path)) as store, pytest.raises(DamagedError, match="put it aside and start with an empty"):
        store.recovered()


def flip(path: Path, before: bytes, after: bytes) -> None:
    """As a disk does: the file has other bytes, in one place, and nobody wrote them."""
    data = path.read_bytes()
    assert data.count(before) == 1
    path.write_bytes(data.replace(before, after))
