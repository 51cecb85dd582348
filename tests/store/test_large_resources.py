"""What it takes to load a resource with very many documents: objects and rows, not seconds."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cheops.engine.documents import Document, key_of
from cheops.log.operation import Operation, Reply
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import LYON, PARIS, operation, reply, save

_MANY = 1_500  # more than one read has


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "site.db")) as store:
        yield store


def _documents(count: int) -> list[Document]:
    ops = [operation("large", seq, ("paris", "lyon") if seq == 1 else None) for seq in range(1, count + 1)]
    return [*ops, *(reply("large", n, origin) for n in range(1, count + 1) for origin in (PARIS, LYON))]


def test_equal_values_of_many_documents_are_one_object(store: SQLiteStore) -> None:
    store.commit([save(*_documents(_MANY))])
    loaded = store.load("large")
    assert {key_of(one) for one in loaded} == {key_of(one) for one in _documents(_MANY)}
    ops = [one for one in loaded if isinstance(one, Operation)]
    replies = [one for one in loaded if isinstance(one, Reply)]
    assert len({id(op.resource) for op in ops} | {id(one.resource) for one in replies}) == 1
    assert len({id(op.key) for op in ops} | {id(one.key) for one in replies}) == 1
    assert len({id(one.type) for one in ops}) == 1
    by_id = {op.id: op for op in ops}
    assert all(one.op is by_id[one.op].id for one in replies if one.op)
    assert len({id(one.n) for one in replies}) == _MANY  # of two sites


def test_not_all_rows_are_in_memory_at_once(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit([save(*_documents(_MANY))])
    sizes, rows = [], store._rows

    def counted(statement: str, *values: object) -> list[object]:
        found = rows(statement, *values)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(store, "_rows", counted)
    assert len(store.load("large")) == 3 * _MANY
    assert max(sizes) <= 1_000
    # The first part is read twice: only a full one shows that there are more.
    assert sum(sizes) <= 3 * _MANY + 1_000 + 2


def test_a_commit_between_two_reads_is_seen_as_a_whole_or_not_at_all(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([save(*_documents(_MANY))])
    parts, rows = [], store._rows

    def interrupted(statement: str, *values: object) -> list[object]:
        found = rows(statement, *values)
        if len(found) == 1_000:
            parts.append(found)
            if len(parts) == 2:  # ids that sort before and after what was read
                store.commit([save(operation("large", _MANY + 1), reply("large", _MANY + 1, LYON))])
        return found

    monkeypatch.setattr(store, "_rows", interrupted)
    assert len(store.load("large")) == 3 * _MANY + 2
