"""A Cheops backend for a table of keys and values in SQLite.

An operation is one of these lines; the key is the id of the resource:

    set VALUE      add NUMBER      delete      get
"""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from cheops.backends.protocol import Backend, Finding
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.engine.replica import Replica
from cheops.engine.settings import Checkpoint
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import Command, Kind

_LINE = re.compile(r"set (?P<value>.+)|add (?P<number>-?\d{1,15})|delete|get", re.DOTALL)
_ADD = "INSERT INTO kv VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = CAST(CAST(value AS INT) + ?2 AS TEXT)"
_CHECKPOINT_AFTER = 100  # operations


class KvBackend(Backend):
    """Each resource type that names this backend has a database of its own: `options: {file: stock.db}`."""

    async def start(self) -> None:
        for rtype in self.context.types:
            await asyncio.to_thread(self._execute, rtype, "CREATE TABLE IF NOT EXISTS kv (key PRIMARY KEY, value)")

    async def run_step(self, run: Run, step: Step) -> Outcome:
        return await asyncio.to_thread(self._apply, run.rtype, run.resource, step.payload.line)

    async def read(self, rtype: str, resource: str, request: str) -> Outcome:
        if request not in {"", "get"}:
            raise ClientError("the state is shown by 'get', and by nothing else")
        return await asyncio.to_thread(self._apply, rtype, resource, "get")

    def checkpoint(self, rtype: str) -> Checkpoint:
        # A history of a thousand `add` becomes one `set`, also for a site that joins later.
        return Checkpoint(Command("get"), _writing, _CHECKPOINT_AFTER)

    def undo(self, rtype: str, payload: Command, before: str | None) -> Command:
        # What stood there before takes back every operation, so there is nothing to refuse at submission.
        return _writing(before or "")

    def check_payload(self, rtype: str, replica: Replica, kind: Kind, payload: Command) -> None:
        _parse(payload.line)

    def deletion(self, replica: Replica) -> Command:
        return Command("delete")

    async def doctor(self) -> list[Finding]:
        findings = []
        for rtype in self.context.types:
            folder = self._path(rtype).parent
            hint = "" if folder.is_dir() else f"create it, or change 'types.{rtype}.options.file'"
            findings.append(Finding(f"{rtype}: the folder of the database is there", str(folder), hint))
        return findings

    # -- the database ----------------------------------------------------------------------------------------

    def _path(self, rtype: str) -> Path:
        config = self.context.config
        return config.source.absolute().parent / self.context.types[rtype].options.get("file", f"{rtype}.db")

    def _apply(self, rtype: str, key: str, line: str) -> Outcome:
        match = _parse(line)
        if line.startswith("set"):
            self._execute(rtype, "INSERT OR REPLACE INTO kv VALUES (?, ?)", key, match["value"])
        elif line == "delete":
            self._execute(rtype, "DELETE FROM kv WHERE key = ?", key)
        elif line.startswith("add"):
            # One statement: a crash leaves either the old or the new value.
            self._execute(rtype, _ADD, key, match["number"])
        row = self._execute(rtype, "SELECT value FROM kv WHERE key = ?", key)
        return Outcome(Result.OK, row[0] if row else "")

    def _execute(self, rtype: str, statement: str, *values: str) -> tuple[str] | None:
        try:
            with closing(sqlite3.connect(self._path(rtype))) as database, database:
                row: tuple[str] | None = database.execute(statement, values).fetchone()
                return row
        except sqlite3.Error as error:  # the transaction was rolled back: nothing happened, so it may be tried again
            raise CheopsError(f"{self._path(rtype)}: {error}") from error


def _writing(state: str) -> Command:
    return Command(f"set {state}" if state else "delete")


def _parse(line: str) -> re.Match[str]:
    if match := _LINE.fullmatch(line):
        return match
    raise ClientError("expected 'set VALUE', 'add NUMBER', 'delete' or 'get'")
