"""Snapshots in pieces: those that are on their way to a peer, and those of which only some pieces have come.

A snapshot may be far larger than a message, so it goes in pieces, each a message of its own (`OutgoingSnapshot`). The
next piece goes when the receiver says that it has the last one. A snapshot is sent to its end as it was when it began,
though its sender takes further operations meanwhile: those follow as to any other site. So it ends, however much is
written. A piece that has come is not sent again, also after a cut; after a restart of either site all begins anew.

The receiver keeps the pieces until all are there (`Assemblies`), and then judges the whole. What others can make it
keep is bounded: pieces come in order, from the one site that it has chosen as its source (catch_up.py); all snapshots
of one sender have at most `limits.snapshot_bytes` together, and there are at most a few senders. If nothing comes for a
while, or another snapshot begins, what was there is dropped.
"""

from msgspec import Struct, field
from msgspec.structs import replace

from cheops.engine.documents import Message, Piece, Snapshot, size_of
from cheops.engine.settings import Limits
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Reply

_MOST_SENDERS = 4  # whose snapshots are incomplete here, at a time
_SILENT_MS = 30_000  # several times the longest pause between two attempts to send


class Part(Struct, frozen=True):
    """The documents of one piece."""

    matrices: tuple[Matrix, ...] = ()
    ops: tuple[Operation, ...] = ()
    replies: tuple[Reply, ...] = ()


class OutgoingSnapshot(Struct):
    """A snapshot on its way to one peer, as it was when it began."""

    id: str
    snapshot: Snapshot
    parts: list[Part]
    held: int = 0  # pieces that the peer has, by what it last said

    @property
    def is_in_pieces(self) -> bool:
        return len(self.parts) > 1

    @property
    def next_piece(self) -> Piece:
        return Piece(self.id, min(self.held + 1, len(self.parts)), len(self.parts))

    def note_held(self, held: Piece | None) -> bool:
        """Note what the peer says that it has; True if it has more than it last said.

        It may have less than before: it may have dropped its pieces for those of another snapshot, and begun anew. If
        the message was only overtaken, the peer gets a piece a second time, and says again what it has."""
        here = held.number if held is not None and (held.snapshot, held.total) == (self.id, len(self.parts)) else 0
        before, self.held = self.held, here
        return here > before


class _Assembly(Struct):
    peer: str
    piece: Piece  # the last one that has come
    touched_ms: int
    messages: list[Message] = field(default_factory=list)
    bytes: int = 0

    def is_of(self, peer: str, piece: Piece) -> bool:
        return (self.peer, self.piece.snapshot, self.piece.total) == (peer, piece.snapshot, piece.total)


class TooLargeError(Exception):
    """A snapshot has more than this site may keep of it."""


class Assemblies:
    """The snapshots of which only some pieces are here, of all resources of a site: at most one of each resource."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_resource: dict[str, _Assembly] = {}

    def __len__(self) -> int:
        return len(self._by_resource)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self._by_resource.values())

    def held(self, resource: str, peer: str) -> Piece | None:
        """The last piece that has come of a snapshot of this peer."""
        one = self._by_resource.get(resource)
        return one.piece if one is not None and one.peer == peer else None

    def add(self, peer: str, message: Message, now_ms: int) -> Message | None:
        """Keep a piece; with the last one, return the whole snapshot as one message. Raises TooLargeError."""
        piece, one = message.piece, self._by_resource.get(message.resource)
        if piece is None or piece.number > piece.total:
            return None
        if one is None or not one.is_of(peer, piece):
            self.drop(message.resource)  # it has changed, and what is here is of no use
            one = self._begin(peer, message.resource, piece, now_ms) if piece.number == 1 else None
        if one is None or piece.number != len(one.messages) + 1:
            return None
        self._keep(one, message, piece, now_ms)
        return self._whole(one) if piece.number == piece.total else None

    def _begin(self, peer: str, resource: str, piece: Piece, now_ms: int) -> _Assembly | None:
        senders = {one.peer for one in self._by_resource.values()}
        if peer not in senders and len(senders) >= _MOST_SENDERS:
            return None  # it is sent again later
        self._by_resource[resource] = _Assembly(peer, piece, now_ms)
        return self._by_resource[resource]

    def _keep(self, one: _Assembly, message: Message, piece: Piece, now_ms: int) -> None:
        one.messages.append(message)
        one.bytes += size_of(message)
        one.piece, one.touched_ms = piece, now_ms
        of_sender = sum(other.bytes for other in self._by_resource.values() if other.peer == one.peer)
        if of_sender > self._limits.snapshot_bytes:
            self.drop(message.resource)
            raise TooLargeError

    def _whole(self, one: _Assembly) -> Message:
        last = one.messages[-1]
        self.drop(last.resource)
        return replace(
            last,
            matrices=tuple(matrix for message in one.messages for matrix in message.matrices),
            ops=tuple(op for message in one.messages for op in message.ops),
            replies=tuple(reply for message in one.messages for reply in message.replies),
            piece=None,
        )

    def drop(self, resource: str) -> None:
        self._by_resource.pop(resource, None)

    def drop_silent(self, now_ms: int) -> None:
        """Drop those of which nothing has come for a while; also if the clock was set back by more."""
        silent = [name for name, one in self._by_resource.items() if abs(now_ms - one.touched_ms) > _SILENT_MS]
        for resource in silent:
            self.drop(resource)
