"""The store of a site at the start of its agent: a new incarnation if the last one was closed, and one more start."""

import secrets
from pathlib import Path
from typing import Any

import msgspec

from cheops.peers.heartbeat import Watermark
from cheops.peers.watermark import KEPT_NOTE, NOTE, StoreStarts
from cheops.store.interface import Store
from cheops.store.sqlite import SQLiteStore

_KEY_BYTES = 32


def open_store(path: Path, site: str) -> tuple[Store, StoreStarts]:
    """Open the store of a site; blocks. Raises StoreError."""
    store = SQLiteStore(path, site)
    try:
        lineage = store.recovered().lineage
        if lineage.closes(store.incarnation):
            store.begin_incarnation()
        starts = _with_this_start(store, [one.incarnation for one in lineage.closed])
    except BaseException:
        store.close()
        raise
    return store, starts


def _with_this_start(store: Store, closed: list[str]) -> StoreStarts:
    note = store.note(NOTE)
    before = msgspec.convert(note, StoreStarts) if note else StoreStarts(secrets.token_bytes(_KEY_BYTES))
    starts = before.with_start(secrets.token_hex(6), store.last_seq(), store.incarnation, closed)
    # Durable before anything is announced: otherwise a crash would look like an old copy.
    store.put_note(NOTE, msgspec.to_builtins(starts))
    return starts


def read_kept_marks(store: Store) -> dict[str, Watermark]:
    """The marks of other sites that this one has kept."""
    return msgspec.convert((store.note(KEPT_NOTE) or {}).get("marks", {}), dict[str, Watermark])


def marks_note(kept: dict[str, Watermark]) -> dict[str, Any]:
    return {"marks": msgspec.to_builtins(kept)}
