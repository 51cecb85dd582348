"""Submits operations and collects the responses of the sites; dry runs, deletions, site lists and resolutions."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from urllib.parse import quote

from msgspec import structs
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.api.forms import keep_files, read_form
from cheops.api.forwarder import HOP_HEADER, forward, post_to_site
from cheops.api.models import (
    Accepted,
    ChangeSites,
    DryRun,
    Resolution,
    Resolved,
    ResolveRequest,
    SiteAnswer,
    SitesChange,
    SubmitRequest,
    Wait,
    to_json,
)
from cheops.api.operations import (
    NO_ANSWER_YET,
    SUPERSEDED,
    NotInvolvedError,
    OperationRequest,
    RefusedError,
    RequestError,
    execute,
    parse_sites,
    submission_event,
)
from cheops.api.permissions import principal_of
from cheops.api.request import InvalidError, decode_body, json_response, load_resource, read_body, sites_up
from cheops.api.views import operations as views
from cheops.api.views.dry_run import dry_run, refused
from cheops.api.views.operations import find, time_text
from cheops.api.views.status import site_view
from cheops.engine.events import Answer, Stage
from cheops.engine.events import Resolved as ResolvedEvent
from cheops.engine.replica import Replica
from cheops.engine.status import status
from cheops.engine.submission import refusal
from cheops.errors import CheopsError
from cheops.log.matrix import Matrix
from cheops.log.operation import Kind, OpId, Status, Verdict
from cheops.matrix_file import parse_matrix
from cheops.node.node import Node
from cheops.node.pump import wall_ms
from cheops.peers.prober import now
from cheops.security.principal import Principal
from cheops.text import in_words, is_or_are


def deletion_line(node: Node, replica: Replica, command: str) -> str:
    """What deletes a resource: a command, or else what its type has for that."""
    of_type = node.backends.of_type(replica.type.name).deletion(replica)
    line = command.strip() or (of_type.line if of_type else "")
    if not line:
        raise RefusedError(f"the type '{replica.type.name}' has no 'reset', so say which command deletes the resource")
    return line


async def sites_change(node: Node, id_: str, asked: ChangeSites, by: Principal) -> OperationRequest:
    """The operation that changes where a resource is."""
    replica = await load_resource(node, id_)
    if asked.delete_with and not asked.delete_copy:
        raise RequestError("'delete_with' says how to delete the copy: it needs 'delete_copy'")
    before = replica.history.site_list or views.sites_of(replica)  # also those that are gone
    named = parse_sites(asked.sites, node, also=before)
    after = {
        SitesChange.SET: named,
        SitesChange.ADD: tuple(dict.fromkeys((*before, *named))),
        SitesChange.REMOVE: tuple(site for site in before if site not in named),
    }[asked.how]
    if not after:
        raise RefusedError("a resource must stay at one site at least; to be rid of it, delete it")
    line = deletion_line(node, replica, asked.delete_with) if asked.delete_copy else ""
    return OperationRequest(id_, "sites", line, kind=Kind.SITES, names=after, by=by)


async def resolve_operation(
    node: Node, request: Request, id_: str, asked: ResolveRequest, timeout_s: float
) -> Resolved:
    if asked.resolution is Resolution.FORCE:
        return await _forced(node, id_, asked, timeout_s, principal_of(request))
    if asked.site and asked.site != node.name:
        if request.headers.get(HOP_HEADER):
            raise RequestError(f"this is {node.name}, not {asked.site}")
        site_view(node.mesh, now(), asked.site)  # or it is not known
        reach = principal_of(request).reach
        return await post_to_site(node, asked.site, request.scope["path"], to_json(asked), Resolved, reach)
    replica = await load_resource(node, id_)
    op = _unknown(replica, asked)
    node.pump.post(ResolvedEvent(id_, op, asked.resolution is Resolution.HAPPENED))
    await node.pump.flushed()
    return Resolved(resource=id_, site=node.name, operation=str(op), resolution=asked.resolution)


def _unknown(replica: Replica, asked: ResolveRequest) -> OpId:
    """The operation that is UNKNOWN at this site; there is at most one."""
    unknown = replica.applied.unknown
    if unknown is None:
        raise RefusedError(f"nothing is UNKNOWN at {replica.site}{_elsewhere(replica)}")
    if asked.operation and find(replica, asked.operation).id != unknown.id:
        raise RefusedError(f"{unknown.id} is UNKNOWN at {replica.site}, not {asked.operation}")
    return unknown.id


def _elsewhere(replica: Replica) -> str:
    """What this site has heard to be UNKNOWN at others; of what is so where it was made nobody hears."""
    sites = [site for site in status(replica, set()).sites if site.unknown]
    heard = [f"{in_words(map(str, site.unknown))} at {site.site}" for site in sites]
    return f"; {in_words(heard)} {is_or_are(heard)}: say so with 'site'" if heard else ""


async def _forced(node: Node, id_: str, asked: ResolveRequest, timeout_s: float, by: Principal) -> Resolved:
    if not asked.command.strip():
        raise RequestError("'force' needs a 'command' that makes the state")
    await load_resource(node, id_)
    wanted = OperationRequest(id_, asked.type, asked.command.strip(), kind=Kind.FORCE, by=by)
    accepted, _sites, answers = await execute(node, wanted, timeout_s)
    async for _ in answers:
        break  # it was run here, or the time is over
    return Resolved(resource=id_, site=node.name, operation=str(accepted.op), resolution=asked.resolution)


LINES = "application/x-ndjson"
_FIELD = "operation"
_KINDS = (Kind.NORMAL, Kind.FORCE, Kind.DELETE)
_VERDICTS = {Status.OK: Verdict.OK, Status.KO: Verdict.VOID, Status.SUPERSEDED: Verdict.SUPERSEDED}


@dataclass(slots=True)
class Progress:
    """What the sites have said of one operation by now."""

    operation: str
    resource: str
    sites: tuple[str, ...]
    wait: Wait
    answers: dict[str, SiteAnswer] = field(default_factory=dict)
    verdict: Verdict | None = None

    def take(self, answer: Answer) -> SiteAnswer | None:
        """One more; None if it says nothing new."""
        if answer.status in (None, Status.PENDING):
            return None
        if answer.stage is Stage.DECIDED:
            self.verdict = _VERDICTS.get(answer.status, Verdict.OK)
        found = _site_answer(self.operation, answer)
        self.answers[answer.site] = found
        return found

    def is_enough(self) -> bool:
        """What is void runs nowhere else, so nobody else will answer. UNKNOWN is not the last word."""
        if self.verdict not in (None, Verdict.OK):
            return True
        last = sum(answer.status is not Status.UNKNOWN for answer in self.answers.values())
        return last >= _needed(self.wait, len(self.sites))

    @property
    def waiting_for(self) -> tuple[str, ...]:
        if self.verdict not in (None, Verdict.OK):
            return ()
        return tuple(site for site in self.sites if site not in self.answers)

    def accepted(self) -> Accepted:
        return Accepted(
            operation=self.operation,
            resource=self.resource,
            sites=self.sites,
            answers=tuple(self.answers.values()),
            verdict=self.verdict,
            waiting_for=self.waiting_for,
            satisfied=self.is_enough(),
        )


def _needed(wait: Wait, sites: int) -> int:
    return {Wait.NONE: 0, Wait.FIRST: 1, Wait.QUORUM: sites // 2 + 1, Wait.ALL: sites}[wait]


def _site_answer(operation: str, answer: Answer) -> SiteAnswer:
    timed = answer.timing.at_ms > 0
    said = SUPERSEDED if answer.status is Status.SUPERSEDED else ""
    return SiteAnswer(
        operation=operation,
        site=answer.site,
        status=answer.status or Status.PENDING,
        detail=answer.detail or said,
        output=answer.output,
        at=time_text(answer.timing.at_ms) if timed else None,
        took_ms=answer.timing.took_ms if timed else None,
    )


async def submit(node: Node, request: Request, wanted: OperationRequest, wait: Wait, timeout_s: float) -> Response:
    """Have it carried out, and answer as the client wants to be answered: at once as a whole, or in lines."""
    accepted, sites, answers = await execute(node, wanted, timeout_s)
    heard = Progress(str(accepted.op), wanted.resource, sites, wait)
    headers = _headers(heard)
    if LINES in request.headers.get("accept", ""):
        return StreamingResponse(_lines(heard, answers), 200, headers, media_type=LINES)
    async with aclosing(answers):
        if not heard.is_enough():
            async for answer in answers:
                heard.take(answer)
                if heard.is_enough():
                    break
    return json_response(heard.accepted(), 200 if heard.is_enough() else 202, headers)


async def _lines(heard: Progress, answers: AsyncGenerator[Answer, None]) -> AsyncIterator[bytes]:
    async with aclosing(answers):
        if not heard.is_enough():
            async for answer in answers:
                if found := heard.take(answer):
                    yield to_json(found) + b"\n"
                if heard.is_enough():
                    break
    for site in heard.waiting_for:
        yield to_json(_pending(heard.operation, site)) + b"\n"


def _pending(operation: str, site: str) -> SiteAnswer:
    return SiteAnswer(
        operation=operation,
        site=site,
        status=Status.PENDING,
        detail=NO_ANSWER_YET,
        output="",
        at=None,
        took_ms=None,
    )


def _headers(heard: Progress) -> dict[str, str]:
    id_, operation = quote(heard.resource, safe=""), quote(heard.operation, safe=":")
    return {
        "Cheops-Operation": operation,
        "Location": f"/api/v1/resources/{id_}/operations/{operation}",
        "Preference-Applied": "wait",
    }


# -- requests --------------------------------------------------------------------------------------------


async def submit_request(node: Node, request: Request, id_: str, wait: Wait, timeout_s: float) -> Response:
    """A SubmitRequest, as JSON or as a form with files; forwarded where this site is not involved."""
    content = request.headers.get("content-type", "")
    if not content.startswith("multipart/form-data"):
        raw = await read_body(request)
        wanted = operation_request(id_, decode_body(raw, SubmitRequest), {}, principal_of(request))
        return await _or_forward(node, request, wanted, wait, timeout_s, raw)
    node.disk_quota.check()
    form = await read_form(request, node.config.clients.upload_bytes)
    with ExitStack() as pins:
        try:
            asked = decode_body(_field(form), SubmitRequest)
            wanted = operation_request(id_, asked, await keep_files(node, form, pins), principal_of(request))
            return await _or_forward(node, request, wanted, wait, timeout_s, form)
        finally:
            await form.close()


async def _or_forward(  # noqa: PLR0913, PLR0917 - a request and all that is known of it
    node: Node, request: Request, wanted: OperationRequest, wait: Wait, timeout_s: float, content: FormData | bytes
) -> Response:
    try:
        return await submit(node, request, wanted, wait, timeout_s)
    except NotInvolvedError as elsewhere:
        path = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        return await forward(node, request, elsewhere, path, content, timeout_s)


def _field(form: FormData) -> bytes:
    value = form.get(_FIELD)
    if not isinstance(value, str):
        raise RequestError(f"the field '{_FIELD}' is missing: the operation, as JSON")
    return value.encode("utf-8", "surrogatepass")


def operation_request(id_: str, asked: SubmitRequest, files: dict[str, str], by: Principal) -> OperationRequest:
    if asked.kind not in _KINDS:
        raise InvalidError(f"'{asked.kind.value}' is not a kind of operation that a client submits so")
    if not asked.command.strip():
        raise InvalidError("'command' is missing: what is to be run")
    return OperationRequest(
        id_,
        asked.type,
        asked.command.strip(),
        asked.sites.strip(),
        asked.resource_type,
        matrix_of(asked),
        files,
        asked.kind,
        by=by,
    )


def matrix_of(asked: SubmitRequest) -> Matrix | None:
    """By way of its text, so that it is checked as a file is, and complaints say where."""
    return parse_matrix(to_json(asked.matrix).decode(), "matrix").matrix if asked.matrix is not None else None


async def try_out(node: Node, id_: str, asked: SubmitRequest, by: Principal) -> DryRun:
    """What is wrong with the request itself is refused as always; what the state forbids is the answer."""
    wanted = await _tried_request(node, id_, asked, by)
    try:
        event = await submission_event(node, wanted, "")
    except NotInvolvedError as elsewhere:
        why = f"{node.name} is not involved; it would be forwarded to one of these sites, which knows more"
        return refused(id_, wanted.command, elsewhere.sites, why)
    except CheopsError as error:
        if error.status != 409:
            raise
        return refused(id_, wanted.command, (), str(error))
    replica = await node.pump.replica(id_)
    if problem := refusal(replica, event):
        return refused(id_, wanted.command, event.sites or replica.history.site_list, problem)
    return dry_run(replica, event, sites_up(node), wall_ms())


async def _tried_request(node: Node, id_: str, asked: SubmitRequest, by: Principal) -> OperationRequest:
    if asked.kind is Kind.SITES:
        return await sites_change(node, id_, ChangeSites(sites=asked.sites), by)
    if asked.kind is Kind.DELETE and not asked.command.strip():
        asked = structs.replace(asked, command=deletion_line(node, await load_resource(node, id_), ""))
    return operation_request(id_, asked, {}, by)
