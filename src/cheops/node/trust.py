"""What other sites sent, before the engine hears of it: is each document what its origin signed?

What is not is dropped and counted, and the rest is taken. Nothing says then that we have it, so whoever has
it sends it again: what only came too early (its stamp lies in the future, its origin is not known yet) is
taken when its time has come.

Of a site that was forgotten, what it made before is taken from everybody. What it made later, with a key from
before, is taken only from a site of the resource in question: that one took it when it had not heard yet,
and what it made in knowledge of it would otherwise wait here for ever. From then on it takes no more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from cheops.engine.messages import Message
from cheops.log.operation import Operation, Reply
from cheops.node.witness import Witness
from cheops.security import signatures
from cheops.store.codec import content_of
from cheops.sync.heartbeat import Member

if TYPE_CHECKING:
    from cheops.security.certificates import Identity

NOT_SIGNED, WRONG_SIGNATURE, UNKNOWN_KEY = "not signed", "wrong signature", "unknown key"
FUTURE_STAMP, FORGOTTEN_ORIGIN = "future stamp", "operation of a forgotten site"
FOREIGN_STAMP = "stamp of another site"
_PACE = 50  # signatures checked in a row, before others on this loop have their turn
_MOST_WRONG = 200  # in one request: whoever sends more has not checked any of them, or means harm
_TOO_FAR_MS = 24 * 3600 * 1000  # nobody waits so long for a stamp to come true

Document = Operation | Reply
IsInvolved = Callable[[str, str], Awaitable[bool]]  # a site, a resource


class Keys(Protocol):
    """Who knows the keys of sites: see origins.py."""

    def get(self, site: str, key_id: str) -> "Identity | None": ...

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Objection:
    reason: str  # the same for all of its kind
    detail: str
    later: bool = False  # it may be taken at another time


class Trust:
    """Belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - what it asks, and of whom
        self,
        keys: Keys,
        witness: Witness,
        member_of: Callable[[str], Member | None],
        is_involved: IsInvolved,
        *,
        clock_skew_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._witness = witness
        self._member_of = member_of
        self._is_involved = is_involved
        self._skew_ms = int(clock_skew_s * 1000)
        self._now_s = now_s
        self._verifier = signatures.Verifier()

    async def admitted(self, sender: str, messages: Sequence[Message]) -> list[Message]:
        """The messages of a site without what cannot be believed."""
        documents: list[Document] = []
        for message in messages:
            documents += [*message.ops, *message.replies]
        bad = await self.objections(sender, documents)
        return [_without(message, bad) for message in messages] if bad else list(messages)

    async def objections(self, sender: str, documents: Sequence[Document]) -> dict[int, Objection]:
        """What speaks against some of these, by the `id` of the object; all of it is counted."""
        await self._keys.learn(self._lacking(documents), sender)
        found: dict[int, Objection] = {}
        checked = self._verifier.checked
        for document in documents:
            if len(found) >= _MOST_WRONG:
                problem: Objection | None = Objection(
                    WRONG_SIGNATURE, "too much of this request was wrong", True
                )
            else:
                problem = self._objection(document) or await self._objection_to_late(sender, document)
            if problem is not None:
                found[id(document)] = problem
                self._count(sender, document, problem)
            if self._verifier.checked - checked >= _PACE:
                checked = self._verifier.checked
                await asyncio.sleep(0)
        return found

    def _count(self, sender: str, document: Document, problem: Objection) -> None:
        origin = document.origin.site
        who = origin if problem.reason == FUTURE_STAMP else sender or origin
        self._witness.refused(problem.reason, who, _name(document), document.resource, problem.detail)

    def _lacking(self, documents: Iterable[Document]) -> dict[str, set[str]]:
        """Of which sites which keys would be needed."""
        lacking: dict[str, set[str]] = {}
        for document in documents:
            try:
                wanted = signatures.read(document.signature).key_id
            except signatures.SignatureError:
                continue
            if self._keys.get(document.origin.site, wanted) is None:
                lacking.setdefault(document.origin.site, set()).add(wanted)
        return lacking

    def _objection(self, document: Document) -> Objection | None:
        if not document.signature:
            return Objection(NOT_SIGNED, f"'{document.origin.site}' has not signed it")
        try:
            signature = signatures.read(document.signature)
            identity = self._keys.get(document.origin.site, signature.key_id)
            if identity is None:
                what = f"no certificate of '{document.origin.site}' for the key {signature.key_id} can be had"
                return Objection(UNKNOWN_KEY, what, later=True)
            self._verifier.check(content_of(document), signature, identity.signing_key)
        except signatures.SignatureError as error:
            return Objection(WRONG_SIGNATURE, str(error))
        return self._objection_to_stamp(document) if isinstance(document, Operation) else None

    def _objection_to_stamp(self, op: Operation) -> Objection | None:
        if op.stamp.origin != op.origin:
            return Objection(FOREIGN_STAMP, f"it has a stamp of '{op.stamp.origin.site}'")
        ahead_ms = op.stamp.time_ms - int(self._now_s() * 1000)
        if ahead_ms <= self._skew_ms:
            return None
        what = (
            f"it is stamped {ahead_ms / 1000:,.0f} s ahead of our clock, and security.clock_skew is "
            f"{self._skew_ms / 1000:g} s"
        )
        return Objection(FUTURE_STAMP, what, later=ahead_ms < _TOO_FAR_MS)

    async def _objection_to_late(self, sender: str, document: Document) -> Objection | None:
        """To what a forgotten site made after it was forgotten."""
        site = document.origin.site
        member = self._member_of(site)
        if member is None:
            return None
        identity = self._keys.get(site, signatures.read(document.signature).key_id)
        made_ms = document.stamp.time_ms if isinstance(document, Operation) else document.timing.at_ms
        if identity is None or identity.made_ms > member.stamp_ms or made_ms <= member.stamp_ms:
            return None
        if sender and sender != site and await self._is_involved(sender, document.resource):
            return None
        return Objection(FORGOTTEN_ORIGIN, f"'{site}' made it after it was forgotten")


def _without(message: Message, bad: Mapping[int, Objection]) -> Message:
    """A message without these documents, and without what would say that we have them."""
    ops = tuple(op for op in message.ops if id(op) not in bad)
    replies = tuple(reply for reply in message.replies if id(reply) not in bad)
    if len(ops) == len(message.ops) and len(replies) == len(message.replies):
        return message
    if message.snapshot:  # it counts as a whole
        return replace(message, ops=(), replies=(), snapshot=None, replies_after={})
    holes = {reply.origin for reply in message.replies if id(reply) in bad}
    after = {origin: n for origin, n in message.replies_after.items() if origin not in holes}
    return replace(message, ops=ops, replies=replies, replies_after=after)


def _name(document: Document) -> str:
    if isinstance(document, Operation):
        return str(document.id)
    return f"reply {document.origin.site}:{document.n}"
