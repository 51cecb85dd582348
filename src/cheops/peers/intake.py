"""Document intake: checks what other sites send before the engine sees it.

Each document must carry the signature of its origin. One that does not is dropped and counted; the rest is taken. This
site never acknowledges a dropped document, so the sender sends it again: a document that only came too early (its stamp
lies in the future, the certificate of its origin is not here yet) is taken later.

Documents that a forgotten site made before it was forgotten are taken from every sender. Later ones, signed with a key
from before, are taken only from a site of the resource: it took them before it learned of the decision, and whatever it
made in knowledge of them would otherwise wait here for ever.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from cheops.engine.documents import Document, Key, Message, Report, key_of
from cheops.engine.events import Event, MatricesReceived, Received
from cheops.engine.intake import (
    BAD_NAME,
    FUTURE_STAMP,
    Objection,
    SignedDocument,
    document_objection,
    future_objection,
    without,
)
from cheops.engine.replica import Replica
from cheops.engine.site import Site
from cheops.errors import CheopsError, Fault
from cheops.log.causality import contains
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Reply, Statement
from cheops.peers import reports
from cheops.peers.heartbeat import MembershipRecord
from cheops.security import signatures
from cheops.security.refusals import RefusalLog
from cheops.security.signatures import Signature
from cheops.store.codec import content_of

if TYPE_CHECKING:
    from cheops.security.certificates import Identity


NOT_SIGNED, WRONG_SIGNATURE, UNKNOWN_KEY = "not signed", "wrong signature", "unknown key"
FORGOTTEN_ORIGIN = "operation of a forgotten site"
_PACE = 50  # signatures checked in a row before other tasks of the event loop get a turn
_PACE_SEEN = 500  # likewise, documents that need no such check
_PACE_TAKEN = 20  # likewise, messages that the engine takes
_MOST_WRONG = 200  # in one request; a sender of more has checked none of them, or is hostile

_TOO_MANY_WRONG = Objection(WRONG_SIGNATURE, "too many documents of this request failed the check", later=True)

IsInvolved = Callable[[str, str], Awaitable[bool]]  # a site, a resource
ResourceProblem = Callable[[str, str], str | None]  # a type, a resource


class KeySource(Protocol):
    """Where the certificates of sites come from (site_keys.py)."""

    def get(self, site: str, key_id: str) -> "Identity | None": ...

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None: ...


class _Progress:
    """How far the check of one request is. Checking is pure computation, and the sender decides how much: without
    pauses a large request would delay heartbeats."""

    def __init__(self, verifier: signatures.Verifier) -> None:
        self._verifier = verifier
        self._checked = verifier.checked
        self._seen = 0
        self._wrong = 0

    @property
    def has_failed(self) -> bool:
        """Whether so much was wrong that the rest is not worth a look."""
        return self._wrong >= _MOST_WRONG

    async def note(self, problem: Objection | None) -> None:
        """One more was checked."""
        self._seen += 1
        self._wrong += problem is not None
        if self._seen >= _PACE_SEEN or self._verifier.checked - self._checked >= _PACE:
            self._seen, self._checked = 0, self._verifier.checked
            await asyncio.sleep(0)


class DocumentVerifier:
    """Checks signatures, stamps and origins. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - keys, records and limits
        self,
        keys: KeySource,
        refusal_log: RefusalLog,
        member_of: Callable[[str], MembershipRecord | None],
        is_involved: IsInvolved,
        *,
        clock_skew_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._refusal_log = refusal_log
        self._member_of = member_of
        self._is_involved = is_involved
        self._skew_ms = int(clock_skew_s * 1000)
        self._now_s = now_s
        self._verifier = signatures.Verifier()

    async def verify(self, sender: str, messages: Sequence[Message]) -> list[Message]:
        """The messages of a site, without the documents that fail the check."""
        documents: list[SignedDocument] = []
        for message in messages:
            documents += [*message.ops, *message.replies]
        statements = [one for message in messages for one in message.statements]
        reported = [one for message in messages for one in (*reports.own_report(message, sender), *message.reports)]
        bad = await self.objections(sender, documents, [*statements, *reported])
        messages = [without(message, bad) for message in messages] if bad else list(messages)
        progress = _Progress(self._verifier)
        if reported:
            messages = [await self._with_true_reports(sender, message, progress) for message in messages]
        if statements:
            messages = [await self._with_true_statements(sender, message, progress) for message in messages]
        return messages

    async def _with_true_reports(self, sender: str, message: Message, progress: _Progress) -> Message:
        """A message without reports that their origins have not signed."""
        bad: set[int] = set()
        for number, report in enumerate((*reports.own_report(message, sender), *message.reports)):
            problem = _TOO_MANY_WRONG if progress.has_failed else self._report_objection(message.resource, report)
            if problem is not None:
                bad.add(number)
                self._refusal_log.document(problem.reason, sender, _name(report), message.resource, problem.detail)
            await progress.note(problem)
        return reports.without(message, sender, bad)

    def _report_objection(self, resource: str, report: Report) -> Objection | None:
        signature, content = _signature(report), reports.content_of(resource, report)
        return self._signature_objection(report, signature, content) or self._old_key(report, signature)

    async def _with_true_statements(self, sender: str, message: Message, progress: _Progress) -> Message:
        """A message without statements that their origins have not signed: a seal with one of them would be refused."""
        true = []
        for one in message.statements:
            problem = _TOO_MANY_WRONG if progress.has_failed else self._signature_objection(one, _signature(one))
            if problem is None:
                true.append(one)
            else:
                self._count(sender, one, problem)
            await progress.note(problem)
        return replace(message, statements=tuple(true))

    async def objections(
        self, sender: str, documents: Sequence[SignedDocument], others: Sequence[Statement | Report] = ()
    ) -> dict[int, Objection]:
        """The objections to documents, by the `id` of the object. Each is counted as a refusal. The keys for the others
        are learned with those of the documents, in one request."""
        read = [_signature(document) for document in documents]
        stated = [*others, *_statements(documents)]
        signed = [*documents, *stated]
        await self._keys.learn(self._missing_keys(signed, [*read, *map(_signature, stated)]), sender)
        objections: dict[int, Objection] = {}
        progress = _Progress(self._verifier)
        for document, signature in zip(documents, read, strict=True):
            problem = _TOO_MANY_WRONG if progress.has_failed else self._objection(document, signature)
            if problem is None and (member := self._member_of(document.origin.site)) is not None:
                problem = await self._objection_to_forgotten(sender, document, member)
            if problem is not None:
                objections[id(document)] = problem
                self._count(sender, document, problem)
            await progress.note(problem)
        return objections

    def _count(self, sender: str, document: SignedDocument | Statement, problem: Objection) -> None:
        origin = document.origin.site
        # A wrong clock is the fault of the origin, anything else of the site that passed the document on.
        culprit = origin if problem.reason == FUTURE_STAMP else sender or origin
        self._refusal_log.document(problem.reason, culprit, _name(document), document.resource, problem.detail)

    def _missing_keys(
        self, documents: Sequence[SignedDocument | Statement | Report], read: Sequence[Signature | Objection]
    ) -> dict[str, set[str]]:
        """The keys that are not known yet, by site."""
        wanted = {
            (document.origin.site, signature.key_id)
            for document, signature in zip(documents, read, strict=True)
            if isinstance(signature, Signature)
        }
        missing: dict[str, set[str]] = {}
        # One request for all documents of a site, before the first is checked.
        for site, key in wanted:
            if self._keys.get(site, key) is None:
                missing.setdefault(site, set()).add(key)
        return missing

    def _objection(self, document: SignedDocument, signature: Signature | Objection) -> Objection | None:
        if objection := document_objection(document):  # before the signature, which costs far more
            return objection
        if objection := self._signature_objection(document, signature):
            return objection
        if isinstance(document, Operation) and document.seal is not None:
            for one in document.seal.statements:
                if objection := self._signature_objection(one, _signature(one)):
                    return objection
        # After the signature: a wrong clock is the fault of the origin, and only it can prove that.
        return future_objection(document, int(self._now_s() * 1000), self._skew_ms)

    def _signature_objection(
        self, document: SignedDocument | Statement | Report, signature: Signature | Objection, content: bytes = b""
    ) -> Objection | None:
        """`content` is what a report's signature covers; that of a document follows from it."""
        if isinstance(signature, Objection):
            return signature
        try:
            identity = self._keys.get(document.origin.site, signature.key_id)
            if identity is None:
                detail = f"no certificate of '{document.origin.site}' for the key {signature.key_id} is available"
                return Objection(UNKNOWN_KEY, detail, later=True)
            covered = content if isinstance(document, Report) else content_of(document)
            self._verifier.check(covered, signature, identity.signing_key)
        except signatures.SignatureError as error:
            return Objection(WRONG_SIGNATURE, str(error))
        return None

    def _old_key(self, report: Report, signature: Signature | Objection) -> Objection | None:
        """To a report with a key from before its site was forgotten: others may have that key. A site that was admitted
        again has another one, and reports again."""
        site, member = report.origin.site, self._member_of(report.origin.site)
        identity = self._keys.get(site, signature.key_id) if isinstance(signature, Signature) else None
        if member is None or identity is None or identity.made_ms > member.stamp_ms:
            return None
        return Objection(FORGOTTEN_ORIGIN, f"its key is from before '{site}' was forgotten")

    async def _objection_to_forgotten(
        self, sender: str, document: SignedDocument, member: MembershipRecord
    ) -> Objection | None:
        """To a document that a forgotten site made after it was forgotten."""
        site = document.origin.site
        identity = self._keys.get(site, signatures.read(document.signature).key_id)
        # An older key than the decision, and a document made after it.
        made_ms = document.stamp.time_ms if isinstance(document, Operation) else document.timing.at_ms
        if identity is None or identity.made_ms > member.stamp_ms or made_ms <= member.stamp_ms:
            return None
        if sender and sender != site and await self._may_pass_on(sender, document):
            return None
        return Objection(FORGOTTEN_ORIGIN, f"'{site}' made it after it was forgotten")

    async def _may_pass_on(self, sender: str, document: SignedDocument) -> bool:
        """Whether a site may have taken a document before it knew of the decision: it is one of its resource's sites
        as far as is known here, or by the operation that makes the resource. It could make the same itself."""
        if isinstance(document, Operation) and not document.deps and sender in (document.sites or ()):
            return True
        return await self._is_involved(sender, document.resource)


def _statements(documents: Iterable[SignedDocument]) -> list[Statement]:
    """The statements of other sites that the seals among these documents carry."""
    seals = (document.seal for document in documents if isinstance(document, Operation) and document.seal)
    return [one for seal in seals for one in seal.statements]


def _signature(document: SignedDocument | Statement | Report) -> Signature | Objection:
    if not document.signature:
        return Objection(NOT_SIGNED, f"'{document.origin.site}' has not signed it")
    try:
        return signatures.read(document.signature)
    except signatures.SignatureError as error:
        return Objection(WRONG_SIGNATURE, str(error))


def _name(document: SignedDocument | Statement | Report) -> str:
    if isinstance(document, Operation):
        return str(document.id)
    if isinstance(document, Report):
        return f"report of {document.origin.site}"
    if isinstance(document, Statement):
        return f"statement of {document.origin.site}"
    return f"reply {document.origin.site}:{document.n}"


class Engine(Protocol):
    """The engine as the pump drives it (cheops/node/pump.py)."""

    site: Site

    def post(self, event: Event) -> None: ...

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica: ...

    async def flushed(self) -> None: ...


class DocumentIntake:
    """Belongs to one event loop."""

    def __init__(
        self,
        engine: Engine,
        verifier: DocumentVerifier | None,
        check: Callable[[], None],
        refusal_log: RefusalLog,
        resource_problem: ResourceProblem,
    ) -> None:
        """`check` raises an error while this site can take nothing. Without a verifier no document must be signed.
        `resource_problem` says why the backend of a type takes no resource with an id."""
        self._engine = engine
        self._verifier = verifier
        self._check = check
        self._refusal_log = refusal_log
        self._resource_problem = resource_problem

    async def take(self, peer: str, messages: Sequence[Message]) -> None:
        """Check messages of another site's engine, and pass them on."""
        self._check()  # first: a site that cannot save must not spend its time on signatures
        checked = await self._verifier.verify(peer, messages) if self._verifier else messages
        for start in range(0, len(checked), _PACE_TAKEN):
            if start:
                await asyncio.sleep(0)
            self.receive(peer, checked[start : start + _PACE_TAKEN])

    def receive(self, peer: str, messages: Iterable[Message]) -> None:
        """Pass on messages of another site's engine that were checked."""
        self._check()
        for message in messages:
            unfit = self._unfit(peer, message.ops)
            self._engine.post(Received(peer, without(message, unfit) if unfit else message))

    def _unfit(self, peer: str, documents: Iterable[Document]) -> dict[int, Objection]:
        """The operations on resources whose ids the backend that would run them here does not take, by the `id` of the
        object: a peer must not reach a backend under the name of a type that takes more elsewhere."""
        unfit = {}
        problems: dict[tuple[str, str], str | None] = {}  # the operations of a message have few types and resources
        for op in documents:
            if not isinstance(op, Operation):
                continue
            kind = (op.rtype, op.resource)
            if kind not in problems:
                problems[kind] = self._resource_problem(*kind)
            if problem := problems[kind]:
                unfit[id(op)] = Objection(BAD_NAME, problem)
                self._refusal_log.document(BAD_NAME, peer or op.origin.site, str(op.id), op.resource, problem)
        return unfit

    async def compare(self, documents: Sequence[Document]) -> None:
        """Let the engine compare operations whose ids are known here, and whose contents are not."""
        ops = [document for document in documents if isinstance(document, Operation)]
        bad = await self._verifier.objections("", ops) if self._verifier else _objections(ops)
        for op in ops:
            if id(op) not in bad:
                self._engine.post(Received("", Message(op.resource, "", (op,))))

    async def accept(self, documents: Sequence[Document]) -> dict[Key, str]:
        """Take documents that another database replicated here; durable when this returns. Returns those that are
        refused for good, and why; raises CheopsError if some can only be taken later."""
        shared = [d for d in documents if isinstance(d, Operation | Reply)]
        bad = await self._verifier.objections("", shared) if self._verifier else _objections(shared)
        bad |= self._unfit("", [d for d in shared if id(d) not in bad])
        refused = {key_of(d): bad[id(d)].detail for d in shared if id(d) in bad and not bad[id(d)].later}
        later = [bad[id(d)] for d in shared if id(d) in bad and bad[id(d)].later]
        shared = [d for d in shared if id(d) not in bad]
        matrices = tuple(d for d in documents if isinstance(d, Matrix))
        if matrices:
            self._engine.post(MatricesReceived(matrices))
        shared.sort(key=lambda document: document.resource)
        for resource, group in groupby(shared, key=lambda document: document.resource):
            own = list(group)
            message = Message(
                resource,
                "",
                tuple(d for d in own if isinstance(d, Operation)),
                tuple(d for d in own if isinstance(d, Reply)),
            )
            self.receive("", [message])
            replica = await self._engine.replica(resource)
            inbox = replica.inbox
            refused |= {key_of(op): inbox.refused[op.id] for op in message.ops if op.id in inbox.refused}
            known = replica.history.known  # what is not there waits, or found no place to wait
            if waits := [op.id for op in message.ops if not contains(known, op.id) and op.id not in inbox.refused]:
                raise _not_yet(f"{waits[0]} of '{resource}' depends on operations that have not arrived yet")
        await self._engine.flushed()
        if later:
            raise _not_yet(f"{len(later)} documents cannot be taken yet: {later[0].detail}")
        return refused


def _objections(documents: Iterable[SignedDocument]) -> dict[int, Objection]:
    """As `DocumentVerifier.objections`, where sites do not sign."""
    checked = ((id(document), document_objection(document)) for document in documents)
    return {number: objection for number, objection in checked if objection}


def _not_yet(text: str) -> CheopsError:
    """The sender is to send it again."""
    return CheopsError(text, status=503, definite=False, fault=Fault.PEER)
