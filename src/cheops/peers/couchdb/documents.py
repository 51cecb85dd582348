"""Documents as CouchDB has them: an id, one revision, and the body that the store's codec gives.

A document of Cheops never changes, so it has one revision: `1-` and the first 32 digits of the SHA-256 of its body as
JSON with sorted keys and no blanks. Without its signature, which may come later, and without an output whose hash is in
the body: not all sites have that. All sites compute the same revision, so a CouchDB between them never sees a conflict.
A document from outside is accepted only if its id, its revision and its content agree, and it is of a kind that sites
share.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cheops.engine.documents import Document, Key, key_of
from cheops.errors import CheopsError, Fault
from cheops.log.matrix import Matrix
from cheops.store import codec, interface
from cheops.text import printable, shortened

REVISION_PREFIX = "1-"  # of the only revision of a document
_SIGNATURE, _OUTPUT, _OUTPUT_HASH = "signature", "output", "output_hash"
_KNOWN_MEMBERS = frozenset({"_id", "_rev", "_revisions"})


class RefusedError(CheopsError):
    """A document from outside that cannot be accepted: it is skipped, and the rest goes on."""

    fault = Fault.PEER
    status = 403

    def __init__(self, id_: str, rev: str, reason: str) -> None:
        super().__init__(f"document '{printable(shortened(id_, 100))}': {reason}")
        self.id, self.rev, self.reason = id_, rev, reason


@dataclass(frozen=True, slots=True)
class CouchDocument:
    """One document with its revision."""

    id: str
    rev: str
    raw: bytes  # the body, a JSON object that is not empty

    def as_couch(self, *, history: bool = False) -> msgspec.Raw:
        """With CouchDB's own members; with `history` also the list of revisions, which has one entry."""
        members: dict[str, Any] = {"_id": self.id, "_rev": self.rev}
        if history:
            members["_revisions"] = _history(self.rev)
        return msgspec.Raw(msgspec.json.encode(members)[:-1] + b"," + self.raw[1:])


def couch_document(document: Document) -> CouchDocument:
    raw = codec.encode(document)
    return CouchDocument(codec.id_of(key_of(document)), _revision_of(document, msgspec.json.decode(raw)), raw)


def shared_key(id_: str) -> Key | None:
    """The key of an id; None if it is not ours (`_design/…`, a document of another application)."""
    try:
        return codec.key_of_id(id_)
    except interface.CodecError:
        return None


def parse_document(raw: object) -> tuple[Document, CouchDocument]:
    """A document as another database sends it; raises RefusedError."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("_id"), str):
        raise RefusedError("", "", "a document is an object with an '_id'")
    id_, rev = raw["_id"], str(raw.get("_rev", ""))
    if raw.get("_deleted"):
        raise RefusedError(id_, rev, "documents are immutable and cannot be deleted")
    extra = sorted(name for name in raw if name.startswith("_") and name not in _KNOWN_MEMBERS)
    if extra:
        raise RefusedError(id_, rev, f"documents have no member '{printable(shortened(extra[0]))}'")
    body = {name: value for name, value in raw.items() if not name.startswith("_")}
    document, couch = _decoded(id_, rev, body)
    if id_ != couch.id:
        raise RefusedError(id_, rev, f"its content is that of '{couch.id}'")
    # A newer agent may add fields. We do not read them, but they count in its revision.
    is_of_content = rev == couch.rev or rev == _revision(body)
    if not is_of_content or raw.get("_revisions", _history(rev)) != _history(rev):
        raise RefusedError(id_, rev, f"the revision of this content is {couch.rev}; documents are immutable")
    return document, couch


def _decoded(id_: str, rev: str, body: Mapping[str, Any]) -> tuple[Document, CouchDocument]:
    try:
        document = codec.from_json(body)
        if codec.is_shared(document):
            return document, couch_document(document)
    except interface.CodecError as error:
        raise RefusedError(id_, rev, str(error)) from None
    raise RefusedError(id_, rev, "documents of this kind are not shared between sites")


def _revision_of(document: Document, body: object) -> str:
    """Of a matrix it is that of the hash, not of the body: the same rules can be written in several ways."""
    return _revision([document.hash] if isinstance(document, Matrix) else body)


def _revision(content: object) -> str:
    if isinstance(content, dict):
        left_out = {_SIGNATURE, _OUTPUT} if content.get(_OUTPUT_HASH) else {_SIGNATURE}
        content = {name: value for name, value in content.items() if name not in left_out}
    return REVISION_PREFIX + hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:32]


def _history(rev: str) -> dict[str, Any]:
    return {"start": 1, "ids": [rev.removeprefix(REVISION_PREFIX)]}
