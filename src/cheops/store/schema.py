"""The tables of a store's file, and how a file of an earlier version becomes one of today's.

The file says its version (`user_version`), and that it is ours (`application_id`). Version n was made by
the first n migrations; what is lacking is run when a store is opened, each in a transaction together with
the new number. A migration that was released is never changed: another one is added.

    documents  by resource and id; `seq` is the place in the whole feed, for those that are shared
    feeds      (site, seq) → document. Site 0 is the whole feed, 1 what goes to every site (matrices)
    late       documents whose number in a site's feed is not their own: shared before the site was involved
    involved   which sites a resource has or had on its list
    meta       incarnation, created, site; last_seq where the feeds themselves do not tell it any more
"""

import secrets
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime

from cheops.store.interface import StoreError

APPLICATION_ID = 0x43_48_50_53  # "CHPS"
EVERYTHING, EVERYBODY = 0, 1  # feeds beside those of the sites, which begin at 2

Migration = Callable[[sqlite3.Connection], None]


_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE notes (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    doc INTEGER PRIMARY KEY, resource TEXT NOT NULL, id TEXT NOT NULL, unsynced INTEGER NOT NULL, seq INTEGER,
    body BLOB NOT NULL);
CREATE UNIQUE INDEX documents_by_id ON documents (resource, id);
CREATE INDEX documents_unsynced ON documents (resource) WHERE unsynced;
CREATE TABLE sites (site INTEGER PRIMARY KEY, name TEXT UNIQUE);
INSERT INTO sites VALUES (1, NULL);
CREATE TABLE involved (site INTEGER, resource TEXT, PRIMARY KEY (site, resource)) WITHOUT ROWID;
CREATE INDEX involved_by_resource ON involved (resource);
CREATE TABLE feeds (site INTEGER, seq INTEGER, doc INTEGER NOT NULL, PRIMARY KEY (site, seq)) WITHOUT ROWID;
CREATE TABLE late (doc INTEGER, site INTEGER, seq INTEGER NOT NULL, PRIMARY KEY (doc, site)) WITHOUT ROWID;
"""


def _first(connection: sqlite3.Connection) -> None:
    for statement in _FIRST.split(";"):  # not executescript, which would end the transaction
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    facts = {"incarnation": secrets.token_hex(6), "created": datetime.now(UTC).isoformat(timespec="seconds")}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())


MIGRATIONS: list[Migration] = [_first]


def check(connection: sqlite3.Connection, path: object) -> None:
    """Raises StoreError for a file that is not ours to change. Reads only."""
    version = _number(connection, "user_version")
    is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    if not is_empty and _number(connection, "application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: give the store a file of its own")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer Cheops (version {version} of the file; this one knows"
            f" up to {len(MIGRATIONS)}): upgrade this agent. The file was not changed."
        )


def lacking(connection: sqlite3.Connection) -> list[Migration]:
    """What brings the file up to date: steps in order, each to be run in a transaction of its own."""
    version = _number(connection, "user_version")
    return [_numbered(migrate, number) for number, migrate in enumerate(MIGRATIONS[version:], version + 1)]


def _numbered(migrate: Migration, number: int) -> Migration:
    def step(connection: sqlite3.Connection) -> None:
        migrate(connection)
        connection.execute(f"PRAGMA user_version = {number}")

    return step


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    (number,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return int(number)
