"""How far a replication got, noted at both ends as CouchDB does, and where to go on from there.

Each run is a *session*. A log (`_local/<replication id>`) lists the sessions, the newest first, with the
place in the source where each began and the one that it reached. To go on, the logs are compared: what counts
is the newest session that both know. If they name different places for it (a crash between writing the two,
or one end set back to an older copy), it counts only up to where it began. If there is no such session, all
is compared anew from 0. Going back costs time but sends nothing twice, since `_revs_diff` is asked first.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import msgspec

from cheops.peers.couchdb.client import ReplicatorSettings, Seq

_KEPT_SESSIONS = 20
START: Seq = 0


class Session(msgspec.Struct, frozen=True):
    """A run, in CouchDB's words, so that its tools can read it."""

    session_id: str
    start_last_seq: Seq
    recorded_seq: Seq
    end_last_seq: Seq
    docs_read: int = 0
    docs_written: int = 0
    doc_write_failures: int = 0


@dataclass(slots=True)
class ReplicationStats:
    """What a replication did."""

    read: int = 0  # changes of the source
    written: int = 0  # documents that the target lacked
    foreign: int = 0  # ids that are none of ours: `_design/…`, deleted or edited ones, others' documents
    refused: int = 0  # documents that somebody would not take; each was reported
    gone: int = 0  # in the feed, but forgotten before they were read

    def add(self, other: "ReplicationStats") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class CheckpointStore(Protocol):
    """An end of a replication, which keeps notes."""

    async def note(self, id_: str) -> dict[str, Any] | None: ...

    async def put_note(self, id_: str, content: dict[str, Any]) -> str: ...


def replication_id(*parts: str) -> str:
    """The name of a replication: of its two ends, and of the direction."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def common_sequence(source: Mapping[str, Any] | None, target: Mapping[str, Any] | None) -> Seq:
    """Up to where both ends agree that the replication got."""
    of_target = {session.session_id: session for session in sessions(target)}
    for mine in sessions(source):
        other = of_target.get(mine.session_id)
        if other is not None and other.recorded_seq == mine.recorded_seq:
            return mine.recorded_seq
        if other is not None and other.start_last_seq == mine.start_last_seq:
            return mine.start_last_seq
    return START


def sessions(log: Mapping[str, Any] | None) -> list[Session]:
    """The sessions of a log; a log that is not as it should be has none."""
    try:
        return msgspec.convert((log or {}).get("history", []), list[Session])
    except msgspec.ValidationError:
        return []


class Checkpoints:
    """The logs of one session of one replication."""

    def __init__(
        self, id_: str, session: str, source: CheckpointStore, target: CheckpointStore, settings: ReplicatorSettings
    ) -> None:
        self._id, self._session = id_, session
        self._ends = (target, source)  # the target first: it must never be behind what the source believes
        self._settings = settings
        self._clock = asyncio.get_running_loop().time
        self._written_at, self._unwritten = self._clock(), 0
        self._start: Seq = START
        self._recorded: Seq = START
        self._place: Seq = START
        self._history: list[Session] = []

    async def start(self) -> Seq:
        """Where to go on."""
        target, source = [await end.note(self._id) for end in self._ends]
        self._start = self._recorded = self._place = common_sequence(source, target)
        self._history = sessions(source)
        return self._start

    def reached(self, place: Seq, changes: int) -> bool:
        """All up to here is durable at the target. Whether it is time to note it."""
        self._place = place
        self._unwritten += changes
        return self._unwritten >= self._settings.checkpoint_changes or self.due_s <= 0

    @property
    def due_s(self) -> float:
        """In how many seconds the place should be noted."""
        return self._written_at + self._settings.checkpoint_s - self._clock()

    @property
    def is_behind(self) -> bool:
        return self._place != self._recorded

    async def write(self, tally: ReplicationStats) -> None:
        """Note the place at both ends, if it is another than the last one."""
        self._written_at, self._unwritten = self._clock(), 0
        if not self.is_behind:
            return
        log = self._log(tally)
        for end in self._ends:
            await end.put_note(self._id, log)
        self._recorded = self._place

    def _log(self, tally: ReplicationStats) -> dict[str, Any]:
        now = Session(
            self._session,
            start_last_seq=self._start,
            recorded_seq=self._place,
            end_last_seq=self._place,
            docs_read=tally.read,
            docs_written=tally.written,
            doc_write_failures=tally.refused,
        )
        history = [now, *self._history][:_KEPT_SESSIONS]
        return {
            "session_id": self._session,
            "source_last_seq": self._place,
            "replication_id_version": 4,
            "replicator": "cheops",
            "history": [msgspec.to_builtins(session) for session in history],
        }
