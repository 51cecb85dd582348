"""An operation from its request to the answers of the sites, as far as its client waits for them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from cheops.backends.http_request import BASE_REQUEST, PayloadError, Request, request_of
from cheops.engine.events import Answer, Stage, Submitted
from cheops.engine.replica import Replica
from cheops.gateway.errors import UpstreamError
from cheops.gateway.replicas.errors import NotPossibleError, OtherRequestError
from cheops.gateway.replicas.preferences import Preferences, Wait
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Kind, Operation, OpId, Status
from cheops.node.node import Node

_ACCEPTED_S = 5.0
_LOOK_S = 0.1
_LAST_WORDS = (Status.OK, Status.KO, Status.SUPERSEDED)


@dataclass(frozen=True, slots=True)
class Change:
    """An operation to be made."""

    meta_id: str
    rtype: str
    type: str
    command: Command
    kind: Kind = Kind.NORMAL
    sites: tuple[str, ...] | None = None  # of a new resource
    matrix: Matrix | None = None


@dataclass(slots=True)
class Told:
    """What is known of an operation by the time its client is answered."""

    op: OpId
    sites: tuple[str, ...]
    wait: Wait
    answers: dict[str, Answer] = field(default_factory=dict)
    decided: Answer | None = None
    unknown: str | None = None  # nobody knows what became of it, and why

    def take(self, answer: Answer) -> None:
        if answer.status not in _LAST_WORDS:
            return
        self.answers[answer.site] = answer
        if answer.stage is Stage.DECIDED:
            self.decided = answer

    @property
    def is_enough(self) -> bool:
        """What failed at its first site runs nowhere else, so nobody else will answer."""
        if self.decided is None:
            return False
        return self.decided.status is not Status.OK or len(self.answers) >= self.wait.needed(len(self.sites))


async def submit(node: Node, change: Change, preferences: Preferences) -> Told:
    """Have it carried out, and wait as long as the client wants to."""
    deadline_s = asyncio.get_running_loop().time() + preferences.wait_s
    with node.answers() as answers:
        event = Submitted(
            answers.request,
            change.meta_id,
            change.type,
            change.command,
            change.kind,
            change.rtype,
            change.sites,
            change.matrix,
        )
        node.submit(event)
        try:
            accepted = await asyncio.wait_for(answers.next(), _ACCEPTED_S)
        except TimeoutError:
            why = node.pump.trouble or "its store is slow"
            text = f"{node.name} has not accepted it yet, and still may: {why}"
            raise UpstreamError(text, "not accepted", may_have_had_effect=True, status=503) from None
        if accepted.stage is Stage.REFUSED or accepted.op is None:
            raise NotPossibleError(accepted.detail)
        answers.accepted(change.meta_id, accepted.op)
        replica = await node.pump.replica(change.meta_id)
        told = Told(accepted.op, sites_of(replica), preferences.wait)
        while not told.is_enough and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            try:
                told.take(await asyncio.wait_for(answers.next(), min(left_s, _LOOK_S)))
            except TimeoutError:
                told.unknown = _doubt(await node.pump.replica(change.meta_id), accepted.op)
                if told.unknown is not None:
                    break
    return told


async def told_before(node: Node, meta_id: str, op: OpId, preferences: Preferences) -> Told:
    """The same of an operation that is there already."""
    deadline_s = asyncio.get_running_loop().time() + preferences.wait_s
    while True:
        replica = await node.pump.replica(meta_id)
        told = Told(op, sites_of(replica), preferences.wait, unknown=_doubt(replica, op))
        for answer in _said(replica, op):
            told.take(answer)
        if told.is_enough or told.unknown or asyncio.get_running_loop().time() >= deadline_s:
            return told
        await asyncio.sleep(_LOOK_S)


def _said(replica: Replica, op: OpId) -> Iterator[Answer]:
    """This site's answer counts as the one that decided it, or else that of the site that took it."""
    first = replica.site if (op, replica.site) in replica.by_op else op.origin.site
    for site in (first, *replica.sites):
        reply = replica.by_op.get((op, site))
        if reply is not None:
            stage = Stage.DECIDED if site == first else Stage.SITE
            yield Answer("", stage, op, site, reply.status, reply.detail, reply.output, reply.timing)


def _doubt(replica: Replica, op: OpId) -> str | None:
    if replica.unknown is None or replica.unknown.id != op:
        return None
    reply = replica.by_op.get((op, replica.site))
    return reply.detail if reply else "the site stopped while it was run"


def sites_of(replica: Replica) -> tuple[str, ...]:
    drafted = next((draft.sites for draft in replica.drafts if draft.sites), ())
    return replica.sites or drafted


def operations(replica: Replica) -> Iterator[Operation]:
    yield from replica.history.ops.values()
    yield from replica.drafts


def is_collection(replica: Replica) -> bool:
    """Whether a client made it as a collection of things that clients name."""
    return any(_request(op).creates_collection for op in operations(replica))


def _request(op: Operation) -> Request:
    """What an operation asks of a service: nothing, where it is none of HTTP."""
    try:
        return request_of(op.payload)
    except PayloadError:
        return BASE_REQUEST


def is_deleted(replica: Replica) -> bool:
    """Whether the last thing that counts is a deletion."""
    effective = replica.history.effective
    return bool(effective) and effective[-1].kind is Kind.DELETE


def same_before(replica: Replica, command: Command) -> OpId | None:
    """The operation that the same Idempotency-Key made before; raises OtherRequestError if it was another."""
    wanted = request_of(command)
    if not wanted.key:
        return None
    for op in operations(replica):
        found = _request(op)
        if found.key != wanted.key or op.why:  # what failed may be tried again
            continue
        if _content(found, op.payload) != _content(wanted, command):
            raise OtherRequestError("this Idempotency-Key came before, with another request")
        return op.id
    return None


def _content(request: Request, command: Command) -> tuple[Request, tuple[tuple[str, str], ...]]:
    """What makes two requests the same: not who tells of himself in which headers."""
    return msgspec.structs.replace(request, ticket="", headers=()), command.files
