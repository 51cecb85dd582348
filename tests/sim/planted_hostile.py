"""Bugs that a hostile site could use before, and bugs of seals, which prevent some of that (see docs/simulator.md)."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from cheops.engine import admission, contents, intake, retention, snapshot
from cheops.engine.documents import Snapshot, key_of
from cheops.engine.events import Effects
from cheops.engine.matrices import Matrices
from cheops.engine.replica import Replica
from cheops.log import history, names, seals
from cheops.log.causality import Clock, Vector, contains, covers
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId
from cheops.peers.gossip import GossipState
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.membership import Membership
from cheops.peers.settings import MeshSettings
from cheops.security import signatures
from cheops.sim import heartbeats


@contextmanager
def ids_unchecked() -> Iterator[None]:
    """Ids are looked at only where clients send them."""
    with (
        patch.object(intake, "resource_problem", lambda _id: None),
        patch.object(intake, "_is_readable", lambda _name: True),
        patch.object(names, "command_problem", lambda _id: None),
    ):
        yield


def revocations_evicted() -> AbstractContextManager[object]:
    """Any site makes decisions, and beyond a number of them that with the lowest stamp goes."""

    def take(self: Membership, record: MembershipRecord, wall_ms: float) -> bool:
        del wall_ms
        before = self.of(record.name)
        if before is not None and (record.stamp_ms, record.forgotten) <= (before.stamp_ms, before.forgotten):
            return False
        self._put(record)
        if len(self._records) > self._settings.max_members:
            oldest = min(self._records.values(), key=lambda one: one.stamp_ms)
            del self._records[oldest.name]
            self._news.drop(oldest.name)
        return True

    return patch.object(Membership, "take", take)


@contextmanager
def decisions_unsigned() -> Iterator[None]:
    """Any site bans any other, with a stamp that no later decision outdoes."""
    with (
        patch.object(heartbeats.Keys, "check_decision", lambda *_: None),
        patch.object(MeshSettings, "latest_ms", lambda *_: float(2**53)),
    ):
        yield


@contextmanager
def floors_believed() -> Iterator[None]:
    """A snapshot may say that anything was forgotten, and what it leaves out goes."""

    def replaced(_history: History, id_: OpId, snapshot: Snapshot, _folded: Vector) -> bool:
        return contains(snapshot.floor, id_)

    with (
        patch.object(admission, "_snapshot_lie", lambda *_: None),
        patch.object(snapshot, "_is_replaced", replaced),
        patch.object(snapshot, "_reply_floor", lambda _replica, _message, taken: dict(taken.reply_floor)),
    ):
        yield


def counter_without_carry() -> AbstractContextManager[object]:
    """A stamp with the greatest counter leaves no room for the next one."""

    def tick(self: Clock, now_ms: int) -> Clock:
        return Clock(now_ms, 0) if now_ms > self.time_ms else Clock(self.time_ms, self.counter + 1)

    return patch.object(Clock, "tick", tick)


def records_unsigned() -> AbstractContextManager[object]:
    """Any site says where any other is."""
    return patch.object(GossipState, "_check_entry", lambda *_: None)


def files_of_any_size() -> AbstractContextManager[object]:
    """An operation is accepted whatever the size of its files."""
    return patch.object(admission, "files_problem", lambda *_: None)


@contextmanager
def digests_without_contents() -> Iterator[None]:
    """Operations with the same id are taken for the same."""
    with (
        patch.object(contents, "compare", lambda *_: ()),
        patch.object(contents, "note_summary", lambda *_: None),
    ):
        yield


def signatures_unchecked() -> AbstractContextManager[object]:
    """Every site speaks for every other."""
    return patch.object(signatures.Verifier, "check", lambda *_: None)


def every_matrix_kept() -> AbstractContextManager[object]:
    """Matrices that no operation names stay for good."""

    def keep(self: Matrices, _replica: Replica, new: Iterable[Matrix], _ops: object, out: Effects) -> None:
        for matrix in new:
            self[matrix.hash] = matrix
            out.documents[key_of(matrix)] = matrix

    return patch.object(Matrices, "save_used", keep)


# -- what seals with statements prevent ----------------------------------------------------------------------
#
# Not planted, because no history that was tried shows them:
# - A site states what it has not settled (`statements._is_true`): the hostile site asks for such statements, but a seal
#   that takes the effect of what others made is refused, also if it has them (`policy.seal_violation`).
# - A site takes a resource that lists other sites only (`admission._absence`), or a second beginning of another type or
#   without known sites (`policy._beginning_violation`): it shows only where a site is added to a resource whose name
#   the hostile site took there before.


def seals_without_statements() -> AbstractContextManager[object]:
    """A seal speaks for sites that have not signed it."""
    return patch.object(intake, "without_statement", lambda _sealing: [])


@contextmanager
def lone_seals_orphan_others() -> Iterator[None]:
    """What a site sealed alone takes the effect of what other sites made. (The rule
    of `excludes` alone was not seen to matter: such a seal is refused where the list names other sites.)"""

    def excludes(by: Operation, op: Operation) -> bool:
        if by.seal is None or op == by or contains(by.deps, op.id):
            return False
        return not covers(op.deps, by.seal.stable)

    with (
        patch.object(seals, "excludes", excludes),
        patch.object(history, "excludes", excludes),
        patch.object(admission, "seal_violation", lambda *_: None),
    ):
        yield


def checkpoints_beyond_their_seal() -> AbstractContextManager[object]:
    """A seal is taken to cover all that its author made before it."""

    def sealed(ops: Iterable[Operation]) -> Vector:
        return {origin: n for op in ops if op.seal for origin, n in {**op.seal.stable, op.origin: op.seq}.items()}

    return patch.object(retention, "sealed_by", sealed)
