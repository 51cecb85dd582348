"""Handlers of operations: submit, delete, change sites, dry-run; the sites' responses are collected here."""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import ExitStack, aclosing
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field, structs
from starlette.datastructures import FormData
from starlette.responses import Response

from cheops.api.endpoints.declaration import (
    BASE,
    MAX_TIMEOUT_S,
    NDJSON,
    NoParameters,
    PageParameters,
    TimeoutParameters,
    WaitParameters,
)
from cheops.api.endpoints.resources import (
    CHANGE_SITES,
    DELETE_RESOURCE,
    DRY_RUN,
    GET_OPERATION,
    LIST_OPERATIONS,
    SET_SITES,
    SUBMIT_OPERATION,
    DeleteParameters,
)
from cheops.api.forms import keep_files, read_upload
from cheops.api.handlers.resources import load_resource, sites_up
from cheops.api.line_stream import Line, LineStream
from cheops.api.models import to_json
from cheops.api.models.operations import (
    Accepted,
    ChangeSites,
    DryRun,
    Operations,
    OperationView,
    ReplyView,
    SiteAnswer,
    SitesChange,
    SubmitRequest,
    Wait,
)
from cheops.api.request import ApiRequest, InvalidError, decode_body, handles, json_response, read_body
from cheops.api.submission import (
    SUPERSEDED,
    NotInvolvedError,
    OperationRequest,
    RequestError,
    execute,
    forward,
    no_reply,
    parse_sites,
    submission_event,
)
from cheops.api.views.dry_run import dry_run, refused
from cheops.api.views.log import operations_page
from cheops.api.views.operations import find, operation_view, sites_of, time_text
from cheops.config.fingerprint import difference_of
from cheops.engine.admission import refusal
from cheops.engine.events import Answer, Stage
from cheops.engine.replica import Replica
from cheops.errors import CheopsError, ClientError
from cheops.log.matrix import Matrix
from cheops.log.operation import FileRef, Kind, Operation, Status, Verdict
from cheops.matrix_file import parse_matrix
from cheops.node.document_fetcher import fetch_outputs, why_missing
from cheops.node.node import Node
from cheops.security.principal import Principal

DEFAULT_TIMEOUT_S = 30.0
_FIELD = "operation"
_KINDS = (Kind.NORMAL, Kind.FORCE, Kind.DELETE)  # SITES has its own endpoint, and sites create seals by themselves
_VERDICTS = {Status.OK: Verdict.OK, Status.KO: Verdict.VOID, Status.SUPERSEDED: Verdict.SUPERSEDED}
# `Prefer: wait=10` (RFC 7240), alone or among other preferences.
_PREFERRED_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*(\d{1,6})\s*(?:$|[,;])")


# -- submit -----------------------------------------------------------------------------------------------------


@handles(SUBMIT_OPERATION)
async def submit_operation(request: ApiRequest[WaitParameters, SubmitRequest]) -> Response:
    """JSON, or a form with files. Forwarded if this site is not involved."""
    node, http = request.node, request.http
    if not http.headers.get("content-type", "").startswith("multipart/form-data"):
        raw = await read_body(http)
        wanted = operation_request(request.id, decode_body(raw, SubmitRequest), (), request.principal)
        return await _submit_or_forward(request, wanted, raw)
    form = await read_upload(node, http)
    with ExitStack() as pins:  # they protect the files until an operation that names them is saved
        try:
            body = decode_body(_operation_field(form), SubmitRequest)
            files = await keep_files(node, form, pins)
            wanted = operation_request(request.id, body, files, request.principal)
            return await _submit_or_forward(request, wanted, form)
        finally:
            await form.close()


def _operation_field(form: FormData) -> bytes:
    value = form.get(_FIELD)
    if not isinstance(value, str):
        raise RequestError(f"the field '{_FIELD}' is missing: the operation, as JSON")
    return value.encode("utf-8", "surrogatepass")


def operation_request(id_: str, body: SubmitRequest, files: tuple[FileRef, ...], by: Principal) -> OperationRequest:
    if body.kind not in _KINDS:
        raise InvalidError(f"clients cannot submit operations of the kind '{body.kind.value}'")
    if not body.command.strip():
        raise InvalidError("'command' is missing: what to run")
    return OperationRequest(
        id_,
        body.type,
        body.command.strip(),
        body.sites.strip(),
        body.resource_type,
        _matrix_of(body),
        files,
        body.kind,
        by=by,
    )


def _matrix_of(body: SubmitRequest) -> Matrix | None:
    """Parsed from its text, so that it is checked like a file, and errors name the line."""
    return parse_matrix(to_json(body.matrix).decode(), "matrix").matrix if body.matrix is not None else None


async def _submit_or_forward(
    request: ApiRequest[WaitParameters, SubmitRequest], wanted: OperationRequest, content: FormData | bytes
) -> Response:
    http = request.http
    try:
        return await _submit(request, wanted)
    except NotInvolvedError as elsewhere:
        path = http.scope["path"] + (f"?{http.url.query}" if http.url.query else "")
        return await forward(request.node, http, elsewhere, path, content, timeout_of(request.parameters))


@handles(DELETE_RESOURCE)
async def delete_resource(request: ApiRequest[DeleteParameters]) -> Response:
    replica = await load_resource(request.node, request.id)
    line = _deletion_line(request.node, replica, request.parameters.command)
    wanted = OperationRequest(request.id, "delete", line, kind=Kind.DELETE, by=request.principal)
    return await _submit(request, wanted)


def _deletion_line(node: Node, replica: Replica, command: str) -> str:
    """The command that deletes a resource: as requested, or that of its type."""
    of_type = node.backends.of_type(replica.type.name).deletion(replica)
    line = command.strip() or (of_type.line if of_type else "")
    if not line:
        text = f"the type '{replica.type.name}' has no 'reset': name the command that deletes the resource"
        raise ClientError(text, status=409)
    return line


@handles(SET_SITES)
async def set_sites(request: ApiRequest[WaitParameters, ChangeSites]) -> Response:
    change = structs.replace(await request.body(), how=SitesChange.SET)
    return await _submit(request, await _sites_request(request.node, request.id, change, request.principal))


@handles(CHANGE_SITES)
async def change_sites(request: ApiRequest[WaitParameters, ChangeSites]) -> Response:
    change = await request.body()
    return await _submit(request, await _sites_request(request.node, request.id, change, request.principal))


async def _sites_request(node: Node, id_: str, change: ChangeSites, by: Principal) -> OperationRequest:
    """The operation that changes the site list of a resource."""
    replica = await load_resource(node, id_)
    if change.delete_with and not change.delete_copy:
        raise RequestError("'delete_with' names the command that deletes the copy: it needs 'delete_copy'")
    before = replica.history.site_list or sites_of(replica)  # including sites that are gone
    named = parse_sites(change.sites, node, also=before)
    after = {
        SitesChange.SET: named,
        SitesChange.ADD: tuple(dict.fromkeys((*before, *named))),
        SitesChange.REMOVE: tuple(site for site in before if site not in named),
    }[change.how]
    if not after:
        raise ClientError("a resource must stay at one site at least; to remove it everywhere, delete it", status=409)
    line = _deletion_line(node, replica, change.delete_with) if change.delete_copy else ""
    return OperationRequest(id_, "sites", line, kind=Kind.SITES, names=after, by=by)


# -- responses of the sites -------------------------------------------------------------------------------------


class Progress(Struct):
    """The responses of the sites to one operation so far."""

    operation: str
    resource: str
    sites: tuple[str, ...]
    wait: Wait
    notes: Mapping[str, str] = field(default_factory=dict)  # on sites
    answers: dict[str, SiteAnswer] = field(default_factory=dict)
    verdict: Verdict | None = None

    def add(self, answer: Answer) -> SiteAnswer | None:
        """Add one response; None if it brings nothing new."""
        if answer.status in (None, Status.PENDING):
            return None
        if answer.stage is Stage.DECIDED:
            self.verdict = _VERDICTS.get(answer.status, Verdict.OK)
        view = _site_answer(self.operation, answer)
        if note := self.notes.get(answer.site):
            view = structs.replace(view, detail="; ".join(filter(None, (view.detail, note))))
        self.answers[answer.site] = view
        return view

    def is_enough(self) -> bool:
        """A void operation runs nowhere else, so no other site will respond. UNKNOWN is not final."""
        if self.verdict not in (None, Verdict.OK):
            return True
        final = sum(answer.status is not Status.UNKNOWN for answer in self.answers.values())
        return final >= _needed(self.wait, len(self.sites))

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
    is_timed = answer.timing.at_ms > 0
    default = SUPERSEDED if answer.status is Status.SUPERSEDED else ""
    return SiteAnswer(
        operation=operation,
        site=answer.site,
        status=answer.status or Status.PENDING,
        detail=answer.detail or default,
        output=answer.output,
        at=time_text(answer.timing.at_ms) if is_timed else None,
        took_ms=answer.timing.took_ms if is_timed else None,
    )


def timeout_of(parameters: TimeoutParameters) -> float:
    if parameters.timeout is not None:
        return parameters.timeout
    preferred = _PREFERRED_WAIT.search(parameters.prefer or "")
    return min(float(preferred[1]), MAX_TIMEOUT_S) if preferred else DEFAULT_TIMEOUT_S


async def _submit(request: ApiRequest[Any, Any], wanted: OperationRequest) -> Response:
    """Execute an operation and respond as the client prefers: once, or with a line for each site."""
    parameters: WaitParameters = request.parameters
    wait = parameters.wait or parameters.cheops_wait or Wait.ALL
    accepted, sites, answers = await execute(request.node, wanted, timeout_of(parameters))
    notes = _configuration_notes(request.node, wanted.resource, sites)
    progress = Progress(str(accepted.op), wanted.resource, sites, wait, notes)
    headers = _headers(progress)
    if NDJSON in request.http.headers.get("accept", ""):
        return LineStream(_lines(request.node, progress, answers), NDJSON, headers)
    async with aclosing(answers):
        if not progress.is_enough():
            async for answer in answers:
                progress.add(answer)
                if progress.is_enough():
                    break
    return json_response(progress.accepted(), 200 if progress.is_enough() else 202, headers)


def _configuration_notes(node: Node, id_: str, sites: Iterable[str]) -> dict[str, str]:
    """What to say of sites that configure the type of a resource differently, by site."""
    replica = node.pump.site.replicas.get(id_)
    entries = {site: node.mesh.entry_of(site) for site in sites if replica is not None}
    notes = {}
    for site, entry in entries.items():
        if entry and replica and (found := difference_of(replica.type.name, node.mesh.own.types, entry.types)):
            notes[site] = f"{site} and {node.name} configure the type {found} differently: see 'cheops check'"
    return notes


async def _lines(node: Node, progress: Progress, answers: AsyncGenerator[Answer, None]) -> AsyncGenerator[Line, None]:
    async with aclosing(answers):
        if not progress.is_enough():
            async for answer in answers:
                if view := progress.add(answer):
                    yield Line(to_json(view) + b"\n")
                if progress.is_enough():
                    break
    for site in progress.waiting_for:
        yield Line(to_json(_pending(progress.operation, site, no_reply(node, site))) + b"\n")


def _pending(operation: str, site: str, detail: str) -> SiteAnswer:
    return SiteAnswer(
        operation=operation,
        site=site,
        status=Status.PENDING,
        detail=detail,
        output="",
        at=None,
        took_ms=None,
    )


def _headers(progress: Progress) -> dict[str, str]:
    id_, operation = quote(progress.resource, safe=""), quote(progress.operation, safe=":")
    return {
        "Cheops-Operation": operation,
        "Location": f"{BASE}/resources/{id_}/operations/{operation}",
        "Preference-Applied": "wait",
    }


# -- look up and try out ----------------------------------------------------------------------------------------


@handles(LIST_OPERATIONS)
async def list_operations(request: ApiRequest[PageParameters]) -> Operations:
    page = request.parameters
    return operations_page(await load_resource(request.node, request.id), page.cursor, page.limit)


@handles(GET_OPERATION)
async def get_operation(request: ApiRequest) -> OperationView:
    replica = await load_resource(request.node, request.id)
    op = find(replica, request.segment("op"))
    return await _with_outputs(request.node, replica, op, operation_view(replica, op))


async def _with_outputs(node: Node, replica: Replica, op: Operation, view: OperationView) -> OperationView:
    """A view of an operation with the outputs that are at other sites, as far as those can be reached."""
    replies = {one.site: replica.replies.get(op.id, one.site) for one in view.replies}
    cut = {site: reply for site, reply in replies.items() if reply and reply.op == op.id and reply.is_cut}
    if not cut:
        return view
    outputs = await fetch_outputs(node, cut.values())

    def complete(one: ReplyView) -> ReplyView:
        if (reply := cut.get(one.site)) is None:
            return one
        output = outputs.get(reply, "")
        return structs.replace(one, output=output, output_missing=None if output else why_missing(node, reply))

    return structs.replace(view, replies=tuple(map(complete, view.replies)))


@handles(DRY_RUN)
async def try_operation(request: ApiRequest[NoParameters, SubmitRequest]) -> DryRun:
    """An invalid request is refused as usual; what the state forbids is part of the result."""
    node, id_ = request.node, request.id
    wanted = await _dry_run_request(node, id_, await request.body(), request.principal)
    try:
        event = await submission_event(node, wanted, "")
    except NotInvolvedError as elsewhere:
        why = f"{node.name} is not involved; it would forward this to one of these sites, which decides"
        return refused(id_, wanted.command, elsewhere.sites, why)
    except CheopsError as error:
        if error.status != 409:
            raise
        return refused(id_, wanted.command, (), str(error))
    replica = await node.pump.replica(id_)
    if problem := refusal(replica, event):
        return refused(id_, wanted.command, event.sites or replica.history.site_list, problem)
    return dry_run(replica, event, sites_up(node), node.now_ms())


async def _dry_run_request(node: Node, id_: str, body: SubmitRequest, by: Principal) -> OperationRequest:
    if body.kind is Kind.SITES:
        return await _sites_request(node, id_, ChangeSites(sites=body.sites), by)
    if body.kind is Kind.DELETE and not body.command.strip():
        body = structs.replace(body, command=_deletion_line(node, await load_resource(node, id_), ""))
    return operation_request(id_, body, (), by)
