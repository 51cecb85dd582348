"""What backends keep of a resource goes when nothing is left of it in the store; also after a crash in between."""

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cheops.backends.command.runner import CommandRunner
from cheops.backends.http.backend import FILE, HttpBackend
from cheops.backends.http.copies import Copy
from cheops.config.site import parse_site
from cheops.config.types import HTTP_BACKEND
from cheops.engine.replica import Replica
from cheops.node.backends import Backends
from cheops.store.files import FileStore
from cheops.store.memory import MemoryStore
from cheops.store.room import DiskRoom
from tests.backends.contexts import no_drift
from tests.store.documents import forget, operation, save

GONE, STAYS = "11111111-1111-8111-8111-111111111111", "22222222-2222-8222-8222-222222222222"


async def here(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def backends_of(folder: Path) -> Backends:
    config = parse_site(f"site: here\ndata: {folder}\n", folder / "site.yaml")
    files = FileStore(folder / "files", DiskRoom(folder, 0))
    return Backends(config, files, CommandRunner(), lambda _site, _reason: None, no_drift)


def http_of(backends: Backends) -> HttpBackend:
    backend = backends.named(HTTP_BACKEND)
    assert isinstance(backend, HttpBackend)
    return backend


def dropped_store() -> MemoryStore:
    store = MemoryStore()
    store.commit([save(operation(GONE, 1), operation(STAYS, 1))])
    store.commit([forget(operation(GONE, 1))])
    return store


async def bind_both(backend: HttpBackend) -> None:
    for number, meta_id in enumerate((GONE, STAYS)):
        await backend.copies.bind(Copy(meta_id, "image", "/images/{id}", str(number)), approved="site1:1")
        await backend.copies.note_try(meta_id, "site2:1")


def rows(folder: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        tables = ("copies", "approvals", "tries")
        return {(table, row[0]) for table in tables for row in db.execute(f"SELECT meta_id FROM {table}")}  # noqa: S608


ALL_OF_ONE = {(table, STAYS) for table in ("copies", "approvals", "tries")}


def test_the_copies_of_a_dropped_resource_go(tmp_path: Path) -> None:
    store, backends = dropped_store(), backends_of(tmp_path)

    async def scenario() -> None:
        backend = http_of(backends)
        await backend.start()
        await bind_both(backend)
        await backends.forget_dropped(store, here)
        assert list(backend.copies.index.copies) == [STAYS]
        await backend.close()

    asyncio.run(scenario())
    assert rows(tmp_path) == ALL_OF_ONE
    assert store.dropped() == ()


def test_they_go_after_a_crash_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = dropped_store()

    async def crash(_: HttpBackend, resources: Collection[str]) -> None:
        del resources
        raise OSError("power cut")

    async def before() -> None:
        backends = backends_of(tmp_path)
        await http_of(backends).start()
        await bind_both(http_of(backends))
        monkeypatch.setattr(HttpBackend, "forget", crash)
        with pytest.raises(OSError, match="power cut"):
            await backends.forget_dropped(store, here)
        monkeypatch.undo()
        await http_of(backends).close()

    async def after() -> None:
        backends = backends_of(tmp_path)
        await http_of(backends).start()
        assert set(http_of(backends).copies.index.copies) == {GONE, STAYS}
        await backends.forget_dropped(store, here)
        await http_of(backends).close()

    asyncio.run(before())
    asyncio.run(after())
    assert rows(tmp_path) == ALL_OF_ONE


def test_a_copy_that_left_with_its_resource_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = http_of(backends_of(tmp_path))
        await backend.start()
        await bind_both(backend)
        await backend.copies.send_away(GONE)
        await backend.forget([GONE])
        assert backend.copies.away == {}
        await backend.close()

    asyncio.run(scenario())
    assert rows(tmp_path) == ALL_OF_ONE


def test_a_resource_that_is_created_again_keeps_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that clients chose gives the same id again."""

    class Again:
        drafts = (operation(GONE, 2),)
        history = type("History", (), {"known": {}})

    def replica(self: Backends, resource: str) -> Replica | None:
        del self
        return Again() if resource == GONE else None  # type: ignore[return-value]

    monkeypatch.setattr(Backends, "_replica", replica)

    async def scenario() -> None:
        backend = http_of(backends_of(tmp_path))
        await backend.start()
        await bind_both(backend)
        await backend.forget([GONE])
        assert set(backend.copies.index.copies) == {GONE, STAYS}
        await backend.close()

    asyncio.run(scenario())
