"""Intake: what every document of another site must satisfy, by whatever path it comes.

A signature proves who made a document, and nothing about what is in it. So before the engine takes a document, it
checks names and numbers that no correct site would send. The types themselves bound sizes and counts
(cheops.log.operation): the codec refuses what is beyond them. Here is what depends on several fields:

- the id of the resource, the types, and the names of sites are readable text;
- a stamp is one of the origin itself, with a time that a clock can show, and not before the matrix or the seal's root
  that the operation refers to: a reference to the future would outdo everything that is made until then;
- an operation follows the one that its origin made before it; its seal covers only what its author knows, and has the
  statement of every site that it names.

The engine screens every message (`screened`), so these rules hold for the channel between agents, for CouchDB's
protocol, for snapshots and in the simulator alike. What fails costs its sender that one document, and the count by
which this site would acknowledge it. The edge adds what needs keys or a clock (cheops.peers.intake): signatures, and
`future_objection`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from cheops.engine.admission import REFUSED
from cheops.engine.documents import Message, Report
from cheops.engine.events import Effects, Notify
from cheops.log import names
from cheops.log.causality import Vector, covers
from cheops.log.operation import Kind, Operation, Origin, Reply, Seal, hash_of_output
from cheops.log.seals import without_statement
from cheops.text import duration_text, in_words, is_invisible, printable, shortened

BAD_NAME, BAD_NUMBER, FUTURE_STAMP, FOREIGN_STAMP = "bad name", "bad number", "future stamp", "stamp of another site"
UNPROVEN_SEAL, WRONG_OUTPUT = "unproven seal", "wrong output"
LATEST_MS = 253_402_300_799_999  # the end of the year 9999: no clock is beyond it, and later times leave room to count
TOO_FAR_MS = 24 * 3600 * 1000  # stamps further ahead are refused for good
_MOST_NAMES = 1_024  # remembered, of at most 1,000 characters each
_RESERVED_MARKS = ("!", "*")  # of the keys of special kinds, and of "everything"; no type begins with them

SignedDocument = Operation | Reply
Said = TypeVar("Said", Message, Report)


class Objection(Struct, frozen=True):
    """Why a document is not taken."""

    reason: str  # the same for all of its kind
    detail: str
    later: bool = False  # it may be taken when it is sent again


# The edge and the engine check each document, and very many documents share few names: each name is looked at once.
resource_problem = lru_cache(maxsize=_MOST_NAMES)(names.resource_problem)


def document_objection(document: SignedDocument) -> Objection | None:
    """Why a document of another site is not taken, or None."""
    if problem := resource_problem(document.resource):
        return Objection(BAD_NAME, problem)
    if isinstance(document, Operation):
        return _name_objection(document) or _number_objection(document)
    if document.output and document.output_hash and hash_of_output(document.output) != document.output_hash:
        return Objection(WRONG_OUTPUT, "it has another output than its site has signed")
    return None if _is_readable(document.key) else Objection(BAD_NAME, "its key has an invisible character")


@lru_cache(maxsize=_MOST_NAMES)
def _is_readable(name: str) -> bool:
    return name.isprintable() if name.isascii() else not any(map(is_invisible, name))


def _name_objection(op: Operation) -> Objection | None:
    for name in (op.rtype, op.type, *op.sites) if op.sites else (op.rtype, op.type):
        if not _is_readable(name):
            return Objection(BAD_NAME, f"the name '{printable(shortened(name))}' has an invisible character")
    if op.kind is Kind.NORMAL and op.type.startswith(_RESERVED_MARKS):
        return Objection(BAD_NAME, f"the type '{shortened(op.type)}' begins with a reserved sign")
    if op.sites and len(set(op.sites)) < len(op.sites):
        return Objection(BAD_NAME, "it names a site twice")
    return None


def _number_objection(op: Operation) -> Objection | None:
    if op.deps.get(op.origin, 0) != op.seq - 1:
        return Objection(BAD_NUMBER, f"number {op.seq} of its origin does not follow the one before it")
    if op.is_silent and not op.deps:
        return Objection(BAD_NUMBER, "it begins a resource, and does nothing")
    if op.matrix.introduced > op.stamp:
        return Objection(BAD_NUMBER, "it names a matrix that was introduced after it")
    if op.stamp.origin != op.origin:
        return Objection(FOREIGN_STAMP, f"it has a stamp of '{op.stamp.origin.site}'")
    if op.stamp.time_ms > LATEST_MS:
        return Objection(BAD_NUMBER, "it is stamped after the year 9999")
    return None if op.seal is None else _seal_objection(op, op.seal)


def _seal_objection(op: Operation, seal: Seal) -> Objection | None:  # noqa: PLR0911 - one per reason
    if not covers(op.deps, seal.stable):
        return Objection(BAD_NUMBER, "it seals operations that its author did not know")
    if seal.root > op.stamp:
        return Objection(BAD_NUMBER, "its seal refers to a later one")
    if op.origin not in seal.origins or not all(map(_is_readable, seal.origins)):
        return Objection(BAD_NAME, "its seal does not name its author among the sites")
    if len(set(seal.sites)) < len(seal.origins):  # the number of sites decides what a seal may orphan
        return Objection(BAD_NAME, "its seal names a site twice")
    if len(seal.statements) >= len(seal.origins):  # each costs a signature to check
        return Objection(BAD_NUMBER, "its seal has more statements than it names other sites")
    if missing := without_statement(op):
        return Objection(UNPROVEN_SEAL, f"its seal lacks the statement of {in_words([one.site for one in missing])}")
    return None


def future_objection(document: SignedDocument, now_ms: int, skew_ms: int) -> Objection | None:
    """To an operation whose stamp is further ahead of the receiver's clock than clocks may differ."""
    ahead_ms = document.stamp.time_ms - now_ms if isinstance(document, Operation) else 0
    if ahead_ms <= skew_ms:
        return None
    detail = (
        f"the clock of {document.origin.site} was {duration_text(ahead_ms)} ahead of ours when it made "
        f"{_name(document)}, and security.clock_skew is {skew_ms / 1000:g} s; if it is right now, run 'cheops clock "
        "--cure' there"
    )
    return Objection(FUTURE_STAMP, detail, later=ahead_ms < TOO_FAR_MS)


def _name(document: SignedDocument) -> str:
    return str(document.id) if isinstance(document, Operation) else f"reply {document.n}"


# -- messages --------------------------------------------------------------------------------------------


def screened(message: Message, peer: str, out: Effects) -> Message:
    """A message of a peer without the documents that fail the checks. An operator is notified of each of them."""
    bad: dict[int, Objection] = {}
    documents: tuple[SignedDocument, ...] = (*message.ops, *message.replies)
    for document in documents:
        if objection := _objection_within(document, message.resource):
            bad[id(document)] = objection
            op = document.id if isinstance(document, Operation) else None
            out.others.append(Notify(message.resource, REFUSED, op, objection.detail, objection.reason, peer))
    return without(message, bad) if bad else message


def _objection_within(document: SignedDocument, resource: str) -> Objection | None:
    """Sites are admitted per resource: a document must not slip into another one with an admitted message."""
    if document.resource != resource:
        return Objection(BAD_NAME, "it belongs to another resource than its message")
    if isinstance(document, Operation) and document.verdict is None:
        return Objection(BAD_NUMBER, "it is a draft: an operation goes to others with its verdict")
    return document_objection(document)


def without(message: Message, bad: Mapping[int, object]) -> Message:
    """A message without these documents (by the `id` of the object), and without the counts that would acknowledge
    them."""
    ops = tuple(op for op in message.ops if id(op) not in bad)
    replies = tuple(reply for reply in message.replies if id(reply) not in bad)
    if len(ops) == len(message.ops) and len(replies) == len(message.replies):
        return message
    if message.snapshot or message.piece:  # it is valid only as a whole
        return replace(message, ops=(), replies=(), snapshot=None, piece=None, replies_after={})
    # A site acknowledges replies by their number, without gaps: those after a missing one must not be acknowledged.
    holes = {reply.origin for reply in message.replies if id(reply) in bad}
    after = {origin: n for origin, n in message.replies_after.items() if origin not in holes}
    return replace(message, ops=ops, replies=replies, replies_after=after)


def without_more_of(own: Origin, message: Said, known: Vector, known_replies: Vector) -> Said:
    """A message that says no more about this site's own operations and replies than this site has made: nobody else
    can know more, and a sender that says so could keep this site waiting for them for ever. How it sums up what it has
    then says nothing: it is about more than is left here."""
    most, most_replies = known.get(own, 0), known_replies.get(own, 0)
    has_same_ops = max(message.known.get(own, 0), message.settled.get(own, 0)) <= most
    if has_same_ops and message.known_replies.get(own, 0) <= most_replies:
        return message
    return replace(
        message,
        known=_bounded(message.known, own, most),
        settled=_bounded(message.settled, own, most),
        known_replies=_bounded(message.known_replies, own, most_replies),
        digest=message.digest if has_same_ops else "",
        summary=message.summary if has_same_ops else "",
    )


def _bounded(vector: Vector, origin: Origin, most: int) -> dict[Origin, int]:
    return {one: min(n, most) if one == origin else n for one, n in vector.items()}
