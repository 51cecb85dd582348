"""The logic `text`: concurrent edits of one text become one edit that keeps all of them.

Each operation is a command whose last two words are the hash of the text it was made for, and the edit:

    cheops-text pages/__ID__ 9f86d081884c7d65 '[120,"milk\\n"]'

The logic gives every origin a document of a CRDT (Loro, with Fugue), and lets it make its edits with exactly those of
the others that it knew (`deps`). All documents together are the merged text. What was inserted is there once, in
one place; what one of them deleted is gone; text that two inserted at one place is not mixed, and stands in the order
of the names of the origins. The text itself is not needed: the edits say how long it was, and the result is again an
edit, of the text after the last base.

So the result is a function of the operations, and of the version of Loro: install the same one at all sites.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Protocol

import loro

from cheops.log.operation import Command, Operation, OpId
from cheops.logic.edit import ANY, HASH, Edit, Part, compact, decoded, encoded, length_before, pieces

_TEXT = "text"
_BASE = 0  # the peer that wrote the text after the last base
_UNKNOWN = "\0"  # stands for a character of that text
# Of one command, which is a word of at most 128 KiB: a character can take six bytes of JSON, or four of UTF-8.
_MAX_PIECE = 12_000


class EditAt(Protocol):
    def __call__(self, op: Operation, text: str, /) -> Edit | None:
        """The edit that an operation is, of the text that its origin had; None: it does not fit that text."""


def text_logic(ops: Sequence[Operation]) -> tuple[Command, ...]:
    """The commands that make the merged text, from the text after the last base.

    If these are not all edits of one text, the operations run in their order. An edit that does not fit there fails,
    and the status shows it.
    """
    as_they_are = tuple(op.payload for op in ops)
    found = [_Written.read(op.payload) for op in ops]
    written = {op.id: one for op, one in zip(ops, found, strict=True) if one}
    firsts = {written[op.id].hash for op in ops if op.id in written and not any(o.is_before(op) for o in ops)}
    if len(written) != len(ops) or len({one.words for one in written.values()}) != 1 or len(firsts) != 1:
        return as_they_are
    first = next(iter(written.values()))

    def edit_at(op: Operation, text: str) -> Edit | None:
        edit = written[op.id].edit
        return edit if length_before(edit) == len(text) else None

    base = length_before(written[ops[0].id].edit)
    edit = merged_edit(ops, edit_at, _UNKNOWN * base)
    if edit is None:
        return as_they_are
    hashes = chain(firsts, repeat(ANY))  # of what is between two pieces, no hash is known
    return tuple(
        _command(first.words, hash_, piece) for hash_, piece in zip(hashes, pieces(edit, _MAX_PIECE), strict=False)
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """An edit as a command has it, and the words before it."""

    words: tuple[str, ...]
    hash: str
    edit: Edit

    @classmethod
    def read(cls, payload: Command) -> "_Written | None":
        try:
            *words, hash_, word = shlex.split(payload.line)
            edit = decoded(word)
        except ValueError:
            return None
        return cls(tuple(words), hash_, edit) if words and not payload.files and HASH.fullmatch(hash_) else None


def _command(words: tuple[str, ...], hash_: str, edit: Edit) -> Command:
    return Command(shlex.join((*words, hash_, encoded(edit))))


# -- merging -----------------------------------------------------------------------------------------------


def merged_edit(ops: Sequence[Operation], edit_at: EditAt, base: str) -> Edit | None:
    """The edit of the base by which all these operations have their effect; None if one does not fit."""
    documents = _Documents(ops, base)
    for op in ops:
        text = documents.of(op).text
        edit = edit_at(op, text)
        if edit is None or length_before(edit) != len(text):
            return None
        documents.make(op, edit)
    return documents.merged()


class _Documents:
    """One document per origin of these operations."""

    def __init__(self, ops: Sequence[Operation], base: str) -> None:
        self._made: list[tuple[Operation, bytes]] = []
        self._length = len(base)
        self._base = _Document(_BASE)
        self._base.make((base,))
        # Peers are numbered, so that no two are equal; with more origins, the order of any two remains the same.
        ranks = {origin: rank for rank, origin in enumerate(sorted({op.origin for op in ops}), _BASE + 1)}
        self._of = {origin: self._base.copy(rank) for origin, rank in ranks.items()}

    def of(self, op: Operation) -> "_Document":
        """That of its origin, with all that the origin knew when it made the operation."""
        document = self._of[op.origin]
        for other, update in self._made:
            if other.origin != op.origin and other.is_before(op):
                document.take(other.id, update)
        return document

    def make(self, op: Operation, edit: Edit) -> None:
        self._made.append((op, self._of[op.origin].make(edit)))

    def merged(self) -> Edit:
        before = self._base.version
        for op, update in self._made:
            self._base.take(op.id, update)
        return compact(_with_rest(self._base.parts_since(before), self._length))


def _with_rest(parts: Iterator[Part], length: int) -> Iterator[Part]:
    """What follows the last change is kept."""
    for part in parts:
        length -= abs(part) if isinstance(part, int) else 0
        yield part
    yield length


class _Document:
    """A text in Loro. Each change is committed at once, without a time."""

    def __init__(self, peer: int) -> None:
        self._doc = loro.LoroDoc()  # type: ignore[no-untyped-call]
        self._doc.peer_id = peer
        self._taken: set[OpId] = set()

    @property
    def _text(self) -> loro.LoroText:
        return self._doc.get_text(_TEXT)

    def copy(self, peer: int) -> "_Document":
        other = _Document(peer)
        other._doc.import_(self._doc.export(loro.ExportMode.Snapshot()))
        return other

    @property
    def text(self) -> str:
        return self._text.to_string()

    @property
    def version(self) -> loro.Frontiers:
        return self._doc.oplog_frontiers

    def make(self, edit: Edit) -> bytes:
        """Change it, and return the change for the other documents."""
        before, text, place = self._doc.oplog_vv, self._text, 0
        for part in edit:
            if isinstance(part, str):
                text.insert(place, part)
                place += len(part)
            elif part < 0:
                text.delete(place, -part)
            else:
                place += part
        self._doc.commit()
        return self._doc.export(loro.ExportMode.Updates(before))

    def take(self, id_: OpId, update: bytes) -> None:
        if id_ not in self._taken:
            self._taken.add(id_)
            self._doc.import_(update)

    def parts_since(self, version: loro.Frontiers) -> Iterator[Part]:
        for _, diff in self._doc.diff(version, self.version).get_diff():
            for delta in diff.diff if isinstance(diff, loro.Diff.Text) else ():
                match delta:
                    case loro.TextDelta.Retain():
                        yield delta.retain
                    case loro.TextDelta.Insert():
                        yield delta.insert
                    case loro.TextDelta.Delete():
                        yield -delta.delete
