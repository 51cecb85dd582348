"""The notes of replicators (`_local/<id>`): how far each got. Never replicated, and few.

The names of a database's notes are kept in one more note, so that they can be counted: beyond the limit the
oldest goes, and the replication that wrote it begins anew, which does no harm. Everything here blocks, and
`write_note` is for one thread at a time. As in CouchDB 3 the revision of a note counts up, whatever revision
the writer gave.
"""

from typing import Any

from cheops.store.base import Store


def _name(database: str, id_: str) -> str:
    return f"couch/{database}/{id_}"


def _index_name(database: str) -> str:
    return f"couch-notes/{database}"


def read_note(store: Store, database: str, id_: str) -> dict[str, Any] | None:
    return store.local(_name(database, id_))


def write_note(store: Store, database: str, id_: str, content: dict[str, Any], most: int) -> str:
    """Keep it; gives its revision."""
    before = store.local(_name(database, id_))
    if before is None:
        _enlist(store, database, id_, most)
    number = int(before["_rev"].removeprefix("0-")) + 1 if before else 1
    store.put_local(_name(database, id_), {**content, "_rev": f"0-{number}"})
    return f"0-{number}"


def _enlist(store: Store, database: str, id_: str, most: int) -> None:
    index = store.local(_index_name(database)) or {"ids": []}
    ids = [*(known for known in index["ids"] if known != id_), id_]
    for dropped in ids[:-most]:
        store.put_local(_name(database, dropped), None)
    store.put_local(_index_name(database), {"ids": ids[-most:]})
