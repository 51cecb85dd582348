"""An operation from its submission to the response that its client gets.

`changes` has made the operation. The engine runs it here and at the other sites (`backend`); this module waits for
their replies as long as the client wants, and makes the response.
"""

import asyncio
from collections.abc import Iterator
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from cheops.backends.http.moves import current_name
from cheops.backends.http.paths import filled, trimmed
from cheops.backends.http.payload import (
    BASE_REQUEST,
    KeptResponse,
    PayloadError,
    Request,
    command_of,
    decode_response,
    request_of,
)
from cheops.backends.http.request import Preferences, Wait
from cheops.config.services import PUT
from cheops.engine.events import Answer, Stage, Submitted
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.gateway.headers import CUT, NOTE, OPERATION, REPLICAS, Header, Headers, without
from cheops.gateway.interfaces import Response, UpstreamError
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, FileRef, Kind, Operation, OpId, Status
from cheops.node.document_fetcher import fetch_outputs
from cheops.node.node import Node

_ACCEPTED_S = 5.0
_LOOK_S = 0.1
_BAD_REQUEST = 400
_UNEXPLAINED = 422  # the service has done it, and nobody knows what to make of its response
_FINAL = (Status.OK, Status.KO, Status.SUPERSEDED)


class Change(msgspec.Struct, frozen=True):
    """An operation to be submitted."""

    meta_id: str
    rtype: str
    type: str
    command: Command
    kind: Kind = Kind.NORMAL
    sites: tuple[str, ...] | None = None  # of a new resource
    matrix: Matrix | None = None


class SubmissionResult(msgspec.Struct):
    """What is known of an operation when its client gets a response."""

    op: OpId
    sites: tuple[str, ...]
    wait: Wait
    answers: dict[str, Answer] = msgspec.field(default_factory=dict)
    decided: Answer | None = None
    unknown: str | None = None  # why it is unknown whether it ran

    def take(self, answer: Answer) -> None:
        if answer.status not in _FINAL:
            return
        self.answers[answer.site] = answer
        if answer.stage is Stage.DECIDED:
            self.decided = answer

    @property
    def is_enough(self) -> bool:
        """An operation that failed at its first site runs nowhere else, so no other site will reply."""
        if self.decided is None:
            return False
        return self.has_failed or len(self.answers) >= self.wait.needed(len(self.sites))

    @property
    def has_failed(self) -> bool:
        """Whether its first site has decided, and not for it."""
        return self.decided is not None and self.decided.status is not Status.OK


async def submit(node: Node, change: Change, preferences: Preferences) -> SubmissionResult:
    """Submit an operation, and wait for it as long as the client wants."""
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
            raise ClientError(accepted.detail, status=409)
        answers.accepted(change.meta_id, accepted.op)
        replica = await node.pump.replica(change.meta_id)
        result = SubmissionResult(accepted.op, sites_of(replica), preferences.wait)
        while not result.is_enough and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            try:
                result.take(await asyncio.wait_for(answers.next(), min(left_s, _LOOK_S)))
            except TimeoutError:
                result.unknown = _unknown_reason(await node.pump.replica(change.meta_id), accepted.op)
                if result.unknown is not None:
                    break
    return result


async def wait_for_previous(node: Node, meta_id: str, op: OpId, preferences: Preferences) -> SubmissionResult:
    """The same for an operation that was submitted before."""
    deadline_s = asyncio.get_running_loop().time() + preferences.wait_s
    while True:
        replica = await node.pump.replica(meta_id)
        result = SubmissionResult(op, sites_of(replica), preferences.wait, unknown=_unknown_reason(replica, op))
        for answer in await _answers_in(node, replica, op):
            result.take(answer)
        if result.is_enough or result.unknown or asyncio.get_running_loop().time() >= deadline_s:
            return result
        await asyncio.sleep(_LOOK_S)


async def _answers_in(node: Node, replica: Replica, op: OpId) -> list[Answer]:
    """This site's reply counts as the decision; without one, that of the site that accepted the operation, with the
    response that is kept there."""
    first = replica.site if replica.replies.get(op, replica.site) else op.origin.site
    replies = {site: reply for site in (first, *replica.sites) if (reply := replica.replies.get(op, site))}
    decisive = replies.get(first)
    outputs = await fetch_outputs(node, [decisive] if decisive else [])
    answers = []
    for site, reply in replies.items():
        stage, output = Stage.DECIDED if site == first else Stage.SITE, outputs.get(reply, reply.output)
        answers.append(Answer("", stage, op, site, reply.status, reply.detail, output, reply.timing))
    return answers


def _unknown_reason(replica: Replica, op: OpId) -> str | None:
    if not replica.applied.is_unknown(op):
        return None
    reply = replica.replies.get(op, replica.site)
    return reply.detail if reply else "the site stopped while it was run"


def sites_of(replica: Replica) -> tuple[str, ...]:
    drafted = next((draft.sites for draft in replica.drafts if draft.sites), ())
    return replica.sites or drafted


def operations(replica: Replica) -> Iterator[Operation]:
    yield from replica.history.ops.values()
    yield from replica.drafts


def is_collection(replica: Replica) -> bool:
    """Whether a client created it as a collection in which clients choose the names."""
    return any(_request(op).creates_collection for op in operations(replica))


def _request(op: Operation) -> Request:
    """The request of an operation; an empty one if its payload is not HTTP."""
    try:
        return request_of(op.payload)
    except PayloadError:
        return BASE_REQUEST


class Creation(NamedTuple):
    """Where a resource was created, or moved to since: `item` as an operation has it (see `payload.Request`), and
    `path` for clients."""

    item: str
    path: str
    is_named: bool
    client: str  # that created it, with `replicate_as: mapped`


def creation_of(replica: Replica) -> Creation | None:
    """By the operation that began it; None if that is not known here."""
    for op in operations(replica):
        request = _request(op)
        if request.creates or request.state or _is_put_by_rule(request):
            item = request.item if not request.named else current_name(replica) or request.item
            path = item if request.named else filled(item, replica.resource)
            return Creation(item, trimmed(path), request.named, request.client)
    return None


def _is_put_by_rule(request: Request) -> bool:
    """Whether a rule says that a request puts what is at its path: then a DELETE of that path removes it."""
    return request.kind == PUT and not request.part and request.named and trimmed(request.path) == request.item


def deletion_command(replica: Replica) -> Command | None:
    """The operation that deletes a resource."""
    created = creation_of(replica)
    if created is None:
        return None
    return command_of(
        Request(method="DELETE", path=created.path, item=created.item, named=created.is_named, client=created.client)
    )


def is_deleted(replica: Replica) -> bool:
    """Whether the last effective operation is a deletion."""
    effective = replica.history.effective
    return bool(effective) and effective[-1].kind is Kind.DELETE


def find_previous(replica: Replica, command: Command) -> OpId | None:
    """The earlier operation with the same Idempotency-Key; raises ClientError if its request was another."""
    wanted = request_of(command)
    if not wanted.key:
        return None
    for op in operations(replica):
        found = _request(op)
        if found.key != wanted.key or op.why:  # what failed may be tried again
            continue
        if _content(found, op.payload) != _content(wanted, command):
            raise ClientError("this Idempotency-Key was used before, with another request", status=422)
        return op.id
    return None


def _content(request: Request, command: Command) -> tuple[Request, tuple[FileRef, ...]]:
    """What makes two requests the same; headers may differ."""
    changed = {"after": (), "contains": (), "earlier": (), "headers": (), "host": "", "ticket": ""}
    return msgspec.structs.replace(request, **changed), command.files


MEDIA_TYPE = "application/problem+json"
_MAX_NAMED = 64  # sites in a header


def response_to(
    result: SubmissionResult, meta_id: str, agent: str, location: str, answer: KeptResponse | None = None
) -> Response:
    """`agent` is the URL of this site's agent, which serves the state of the operation; `location` the path of the new
    resource, or empty; `answer` the service's response, if it has secrets that were not kept."""
    where = f"{agent}/api/v1/resources/{quote(meta_id)}/operations/{quote(str(result.op), safe=':')}"
    own = _operation_headers(result, where)
    if result.unknown is not None:
        text = (
            f"{result.op} of {meta_id} may have had an effect at {result.op.origin.site}, and nobody knows: "
            f"{result.unknown}. See what the service there has, then say so: "
            f"cheops resolve {meta_id} --op {result.op} --happened yes (or no)"
        )
        raise UpstreamError(text, "unknown outcome", may_have_had_effect=True, status=504)
    if not result.is_enough or result.decided is None:
        return _pending(result, meta_id, where, (*own, *_location(location)))
    decided = result.decided
    if decided.status is Status.SUPERSEDED:
        raise ClientError(f"another operation superseded {result.op} before it ran; see {where}", status=409)
    kept = answer or decode_response(decided.output or decided.detail)
    if decided.status is Status.OK:
        return _ok(kept or KeptResponse(status=200), own, location)
    return _refused(kept, decided.detail, own)


def repeated_answer(result: SubmissionResult, *, has_copy: bool) -> KeptResponse | None:
    """The response to a client that repeats an Idempotency-Key, instead of the one in the log; None if it gets that
    one. With a copy here, the service has said that the client may read the resource. Without one nobody can say
    whether it may see what another client was answered, so it learns the status alone."""
    decided = result.decided
    if decided is None or has_copy:
        return None
    kept = decode_response(decided.output or decided.detail)
    if kept is not None:
        return KeptResponse(status=kept.status, note="the response is not repeated: this site has no copy")
    if decided.status is not Status.OK:
        return None
    return KeptResponse(status=200, note=f"the response is not repeated: it is kept at {decided.site} alone")


def _operation_headers(result: SubmissionResult, where: str) -> Headers:
    words = {site: answer.status.value for site, answer in result.answers.items() if answer.status}
    # What failed at its first site goes to no other one: nothing is pending there.
    named = [site for site in result.sites if site in words] if result.has_failed else list(result.sites)
    shown = (f"{quote(site)}; status={words.get(site, 'PENDING')}" for site in named[:_MAX_NAMED])
    sites = ", ".join([*shown, *(["..."] if len(named) > _MAX_NAMED else [])])
    return (
        (OPERATION, quote(str(result.op), safe=":")),
        (REPLICAS, sites),
        ("Link", f'<{where}>; rel="monitor"'),
    )


def _location(location: str) -> Headers:
    return (("Location", location),) if location else ()


def _ok(kept: KeptResponse, own: Headers, location: str) -> Response:
    more: list[Header] = [(NOTE, kept.note)] if kept.note else []
    more += _cut(kept)
    headers = kept.headers if not location else (*without(kept.headers, "Location"), *_location(location))
    return Response(kept.status, (*headers, *_dated(), *own, *more), kept.body)


def _cut(kept: KeptResponse) -> Headers:
    cut = [f"{kept.cut_bytes} bytes"] if kept.cut_bytes else []
    cut += [f"{kept.cut_headers} headers"] if kept.cut_headers else []
    return ((CUT, f"{' and '.join(cut)} of the response were not kept"),) if cut else ()


def _refused(kept: KeptResponse | None, detail: str, own: Headers) -> Response:
    if kept is None:
        return _problem(409, detail, own)
    if kept.note:
        status = kept.status if kept.status >= _BAD_REQUEST else _UNEXPLAINED
        return _problem(status, f"{kept.note}. The service responds: {kept.text[:1000]}", own)
    return Response(kept.status, (*kept.headers, *_dated(), *own, *_cut(kept)), kept.body)


def _pending(result: SubmissionResult, meta_id: str, where: str, own: Headers) -> Response:
    waiting = [site for site in result.sites if site not in result.answers]
    body = {"operation": str(result.op), "resource": meta_id, "waiting_for": waiting, "ask": where}
    return Response(202, (("Content-Type", "application/json"), *_dated(), *own), msgspec.json.encode(body))


def _problem(status: int, detail: str, own: Headers) -> Response:
    body = {"type": "about:blank", "title": "Not replicated", "status": status, "detail": detail}
    return Response(status, (("Content-Type", MEDIA_TYPE), *_dated(), *own), msgspec.json.encode(body))


def _dated() -> Headers:
    return (("Date", formatdate(usegmt=True)),)
