"""The SQLite file: what survives, what it costs to find, how it grows, and who may have it."""

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cheops.engine.documents import Document, Ledger, Peers, SiteClock, key_of
from cheops.log.causality import Clock
from cheops.store import database, queries, space, sqlite
from cheops.store.interface import StoreError
from cheops.store.space import pragma
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import COUNTER, draft, forget, keys, operation, reply, save

VERSION_1 = Path(__file__).with_name("version-1.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site ?&%#'é.db"  # what a URI or SQL could trip over


def feed(store: SQLiteStore, site: str | None = None, since: int = 0) -> tuple[object, ...]:
    return tuple(change.key for change in store.changes(since, 1_000, site))


# -- what survives ---------------------------------------------------------------------------------------


def test_everything_survives_a_restart(path: Path) -> None:
    op = operation("r", 1, ("paris", "lyon"))
    with closing(SQLiteStore(path)) as store:
        store.commit([save(op, draft("r", 2), Ledger("r", unsynced=True), COUNTER)])
        store.commit([save(SiteClock(Clock(3, 1)), Peers({"lyon": "l1"}))])
        store.put_note("to lyon", {"seq": 1})
        before = (store.incarnation, store.last_seq(), store.changes(0, 10, "lyon"), store.recovered())
    with closing(SQLiteStore(path)) as store:
        assert (
            store.incarnation,
            store.last_seq(),
            store.changes(0, 10, "lyon"),
            store.recovered(),
        ) == before
        assert {key_of(document) for document in store.load("r")} == set(keys([op, draft("r", 2), Ledger("r")]))
        assert store.note("to lyon") == {"seq": 1}
        assert store.involving("lyon") == ("r",)


def test_no_number_is_given_again_after_a_restart(path: Path) -> None:
    ops = [operation("r", 1, ("paris",)), operation("r", 2, ("lyon",))]
    with closing(SQLiteStore(path)) as store:
        store.commit([save(*ops)])
        last = store.commit([forget(*ops), save(Ledger("r"))])
    with closing(SQLiteStore(path)) as store:
        assert store.last_seq() == last
        invited = store.commit([save(draft("r", 3, ("brest",)), reply("r", 1), draft("r", 4, ("nantes",)))])
        assert invited == last + 2  # the reply, and once more in the feed of nantes
    with closing(SQLiteStore(path)) as store:
        assert store.commit([save(operation("r", 5))]) == invited + 1
        assert feed(store, "nantes", invited) == keys([operation("r", 5)])


def test_commits_are_synced_to_the_disk(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_only_the_user_may_read_the_files(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        store.commit([save(COUNTER)])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


def test_a_failure_inside_the_database_leaves_nothing_also_in_memory(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        kept = operation("r", 1, ("paris",))
        before = store.commit([save(kept)])
        store._connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON documents WHEN NEW.id = 'ledger/r'"
            " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
        batch = [save(operation("r", 2, ("paris", "lyon"))), forget(kept), save(Ledger("r"))]
        with pytest.raises(StoreError, match="not this one"):
            store.commit(batch)
        assert store.last_seq() == before
        assert feed(store) == feed(store, "paris") == keys([kept])
        assert (store.involving("lyon"), feed(store, "lyon")) == ((), ())
        store._connection.execute("DROP TRIGGER refuse")
        assert store.commit(batch) == before + 2  # the past for lyon, and the new one
        assert feed(store) == feed(store, "paris") == feed(store, "lyon") == keys([operation("r", 2)])


# -- what it costs ---------------------------------------------------------------------------------------


def test_every_question_is_answered_from_an_index(path: Path) -> None:
    questions: list[Callable[[SQLiteStore], object]] = [
        lambda store: store.load("r"),
        lambda store: store.recovered(),
        lambda store: store.involving("lyon"),
        lambda store: store.resources("a"),
        lambda store: store.read([key_of(operation("r", 1))]),
        lambda store: store.changes(0, 10),
        lambda store: store.changes(0, 10, "lyon"),
        lambda store: store.note("n"),
    ]
    with closing(SQLiteStore(path)) as store:
        asked: list[str] = []
        store._reader.set_trace_callback(asked.append)
        for question in questions:
            question(store)
        store._reader.set_trace_callback(None)
        plans = [row[3] for text in asked for row in store._reader.execute(f"EXPLAIN QUERY PLAN {text}")]
    assert len(asked) == len(questions) + 1  # what a site begins with takes two
    tables = ("documents", "feeds", "sites", "involved", "notes")
    scans = {plan for plan in plans if plan.startswith(tuple(f"SCAN {table}" for table in tables))}
    assert scans == {"SCAN documents USING INDEX documents_unsynced"}  # and all of that is asked for


def test_the_log_stays_bounded(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        for seq in range(1, 41):
            store.commit([save(operation("r", seq, line="x" * 500_000))])
        log = path.with_name(path.name + "-wal")
        assert path.stat().st_size > 10_000_000
        assert log.stat().st_size < 10_000_000


def test_space_that_forgetting_set_free_is_given_back_under_load(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_SHRINK_EVERY", 1)
    monkeypatch.setattr(space, "_BUSY_PAGES", 10)
    ops = [operation("r", seq, line="x" * 4_000) for seq in range(1, 501)]
    with closing(SQLiteStore(path)) as store:
        store.commit([save(*ops)])
        pages = pragma(store._connection, "page_count")
        store.commit([forget(*ops)])
        for n in range(1, 11):
            store.commit([save(reply("r", n))])
        assert pragma(store._connection, "page_count") < pages / 2
        assert feed(store) == keys(reply("r", n) for n in range(1, 11))


def test_at_rest_file_and_log_become_small(path: Path) -> None:
    ops = [operation("r", seq, line="x" * 4_000) for seq in range(1, 1_001)]
    log = path.with_name(path.name + "-wal")
    with closing(SQLiteStore(path)) as store:
        store.commit([save(*ops)])
        store.commit([save(operation("other", 1)), forget(*ops)])
        assert path.stat().st_size + log.stat().st_size > 4_000_000
        assert store.free_bytes == store.space().free > 3_000_000
        steps = 0
        while store.shrink():
            steps += 1
        assert steps > 2  # small ones, so that a commit need not wait for all
        assert path.stat().st_size < 500_000
        assert log.stat().st_size == 0
        assert feed(store) == keys([operation("other", 1)])
        store.commit([save(operation("other", 2))])
    with closing(SQLiteStore(path)) as store:
        assert len(store.load("other")) == 2


def test_a_reader_does_not_hold_up_shrinking_nor_the_other_way_round(path: Path) -> None:
    ops = [operation("r", seq, line="x" * 4_000) for seq in range(1, 501)]
    log = path.with_name(path.name + "-wal")
    with closing(SQLiteStore(path)) as store:
        store.commit([save(*ops)])
        reading = store._reader.execute("SELECT id FROM documents")
        reading.fetchone()
        store.commit([forget(*ops)])
        while store.shrink():
            pass
        assert log.stat().st_size > 0  # the reader needs it
        assert len(reading.fetchall()) == len(ops) - 1
        store.shrink()
        assert log.stat().st_size == 0


# -- versions --------------------------------------------------------------------------------------------


def make_version_1(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1.read_text(encoding="utf-8"))


def test_a_file_of_version_1_is_read_and_goes_on(path: Path) -> None:
    make_version_1(path)
    with closing(SQLiteStore(path, "paris")) as store:
        assert store.incarnation == "0123456789ab"
        documents: list[Document] = [
            operation("counter", 1),
            operation("counter", 2),
            draft("counter", 3),
            Ledger("counter"),
        ]
        assert {key_of(document) for document in store.load("counter")} == set(keys(documents))
        recovered = store.recovered()
        assert (recovered.clock, recovered.unsynced) == (Clock(1003, 0), ("counter",))
        assert (recovered.matrices, recovered.peers) == ((COUNTER,), {"lyon": "l1"})
        assert store.note("to lyon") == {"seq": 2}
        assert [change.seq for change in store.changes(0, 10, "brest")] == [1, 4, 6]
        assert store.commit([save(operation("counter", 3))]) == 7
        assert feed(store, "brest", 6) == keys([operation("counter", 3)])


def test_a_new_file_is_what_version_1_and_all_migrations_give(path: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    make_version_1(old)
    tables = []
    for file in (path, old):
        SQLiteStore(file).close()
        with closing(sqlite3.connect(file)) as connection:
            tables.append(connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall())
            assert connection.execute("PRAGMA user_version").fetchone() == (len(database.MIGRATIONS),)
    assert tables[0] == tables[1]


def test_migrations_run_once_and_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_version_1(path)

    def second(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE second (x)")

    def third(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO second VALUES ('third')")

    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, second, third])
    for _ in range(2):
        with closing(SQLiteStore(path)) as store:
            assert store._connection.execute("SELECT * FROM second").fetchall() == [("third",)]
            assert pragma(store._connection, "user_version") == len(database.MIGRATIONS)
            assert len(store.load("counter")) == 4


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_version_1(path)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM documents")
        connection.execute("SELECT * FROM nowhere")

    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, fail])
        with pytest.raises(StoreError, match="no such table: nowhere"):
            SQLiteStore(path)
    with closing(SQLiteStore(path)) as store:
        assert len(store.load("counter")) == 4


def test_a_file_of_a_newer_cheops_is_refused_and_not_changed(path: Path) -> None:
    make_version_1(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer Cheops \(version 99 of the file; .*upgrade this agent"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused_and_not_changed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE documents (x)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is a database of another program"):
        SQLiteStore(path)
    assert path.read_bytes() == before


# -- who may have it -------------------------------------------------------------------------------------


def test_a_store_is_open_once(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(StoreError) as refused:
            SQLiteStore(path)
        assert str(path) in str(refused.value)
        assert f"in use by another process (pid {os.getpid()}); a store serves one agent" in str(refused.value)
        store.commit([save(COUNTER)])  # the first is not disturbed
    SQLiteStore(path).close()


def test_a_file_belongs_to_one_site(path: Path) -> None:
    SQLiteStore(path, "paris").close()
    with pytest.raises(StoreError, match="is the store of site 'paris', not of 'lyon'"):
        SQLiteStore(path, "lyon")
    SQLiteStore(path, "paris").close()
    SQLiteStore(path).close()


# -- states ------------------------------------------------------------------------------------------------


def test_one_diverged_resource_among_many_is_found_by_the_index_alone(path: Path) -> None:
    many = 20_000
    with closing(SQLiteStore(path)) as store:
        store.commit([save(*(Ledger(f"r{n:05}", state="converged") for n in range(many)))])
        store.commit([save(Ledger("r12345", state="diverged"))])
    with closing(SQLiteStore(path)) as store:  # as after a restart
        query = f"EXPLAIN QUERY PLAN {queries.in_states(2)}"
        plan = [row[-1] for row in store._rows(query, "x", "x", "x", 1, "diverged", "order-not-enforced")]
        by_index = "SEARCH documents USING COVERING INDEX documents_by_state (state=? AND resource>?)"
        assert plan.count(by_index) == 2
        assert not any("SCAN documents" in step or "TEMP B-TREE" in step for step in plan)
        looked_at: list[None] = []
        store._reader.set_progress_handler(lambda: looked_at.append(None), 100)  # every 100 steps of SQLite's machine
        assert store.in_states(["diverged", "order-not-enforced"]) == ("r12345",)
        assert store.states() == {"converged": many - 1, "diverged": 1}
        assert len(looked_at) < 10  # a scan would take thousands


def test_the_states_of_an_old_store_are_not_known_and_its_resources_are_loaded(path: Path) -> None:
    make_version_1(path)
    with closing(sqlite3.connect(path)) as connection:
        ledgers = [row[0] for row in connection.execute("SELECT resource FROM documents WHERE id LIKE 'ledger/%'")]
    assert ledgers
    with closing(SQLiteStore(path)) as store:
        assert store.states() == {"unknown": len(ledgers)}
        assert set(ledgers) <= set(store.recovered().unsynced)
