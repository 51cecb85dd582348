"""An operation on its way: from a request to the engine, and from the sites' answers to the client."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.api.forms import keep_files, read_form
from cheops.api.forwarding import forwarded
from cheops.api.models import Accepted, SiteAnswer, SubmitRequest, Wait, to_json
from cheops.api.operations import (
    NO_ANSWER_YET,
    SUPERSEDED,
    ElsewhereError,
    RequestError,
    Wanted,
    carried_out,
)
from cheops.api.reach import principal_of
from cheops.api.v1.asking import InvalidError, answered, model_of, read_bytes
from cheops.api.views.naming import time_text
from cheops.engine.events import Answer, Stage
from cheops.log.matrix import Matrix
from cheops.log.operation import Kind, Status, Verdict
from cheops.matrix_file import parse_matrix
from cheops.node.node import Node
from cheops.security.principal import Principal

LINES = "application/x-ndjson"
_FIELD = "operation"
_KINDS = (Kind.NORMAL, Kind.FORCE, Kind.DELETE)
_VERDICTS = {Status.OK: Verdict.OK, Status.KO: Verdict.VOID, Status.SUPERSEDED: Verdict.SUPERSEDED}


@dataclass(slots=True)
class Heard:
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


async def submit(node: Node, request: Request, wanted: Wanted, wait: Wait, timeout_s: float) -> Response:
    """Have it carried out, and answer as the client wants to be answered: at once as a whole, or in lines."""
    accepted, sites, answers = await carried_out(node, wanted, timeout_s)
    heard = Heard(str(accepted.op), wanted.resource, sites, wait)
    headers = _headers(heard)
    if LINES in request.headers.get("accept", ""):
        return StreamingResponse(_lines(heard, answers), 200, headers, media_type=LINES)
    async with aclosing(answers):
        if not heard.is_enough():
            async for answer in answers:
                heard.take(answer)
                if heard.is_enough():
                    break
    return answered(heard.accepted(), 200 if heard.is_enough() else 202, headers)


async def _lines(heard: Heard, answers: AsyncGenerator[Answer, None]) -> AsyncIterator[bytes]:
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


def _headers(heard: Heard) -> dict[str, str]:
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
        raw = await read_bytes(request)
        wanted = wanted_of(id_, model_of(raw, SubmitRequest), {}, principal_of(request))
        return await _or_forward(node, request, wanted, wait, timeout_s, raw)
    node.room.check()
    form = await read_form(request, node.config.clients.upload_bytes)
    with ExitStack() as pins:
        try:
            asked = model_of(_field(form), SubmitRequest)
            wanted = wanted_of(id_, asked, await keep_files(node, form, pins), principal_of(request))
            return await _or_forward(node, request, wanted, wait, timeout_s, form)
        finally:
            await form.close()


async def _or_forward(  # noqa: PLR0913, PLR0917 - a request and all that is known of it
    node: Node, request: Request, wanted: Wanted, wait: Wait, timeout_s: float, content: FormData | bytes
) -> Response:
    try:
        return await submit(node, request, wanted, wait, timeout_s)
    except ElsewhereError as elsewhere:
        path = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        return await forwarded(node, request, elsewhere, path, content, timeout_s)


def _field(form: FormData) -> bytes:
    value = form.get(_FIELD)
    if not isinstance(value, str):
        raise RequestError(f"the field '{_FIELD}' is missing: the operation, as JSON")
    return value.encode("utf-8", "surrogatepass")


def wanted_of(id_: str, asked: SubmitRequest, files: dict[str, str], by: Principal) -> Wanted:
    if asked.kind not in _KINDS:
        raise InvalidError(f"'{asked.kind.value}' is not a kind of operation that a client submits so")
    if not asked.command.strip():
        raise InvalidError("'command' is missing: what is to be run")
    return Wanted(
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
