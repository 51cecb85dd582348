"""`Agent`: a blocking client of an agent, built on the standard library alone so that it starts fast."""

import http.client
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from cheops.api.models import (
    Accepted,
    AuditLog,
    Changes,
    ChangeSites,
    Checks,
    DryRun,
    Event,
    Explanation,
    Flows,
    Forgotten,
    Health,
    Invitation,
    InviteRequest,
    LocalId,
    LogView,
    MadeToken,
    MatrixView,
    NewToken,
    Operations,
    OperationView,
    Ping,
    ReplicantView,
    RequestView,
    Resolved,
    ResolveRequest,
    ResourceDetail,
    Resources,
    ResourceStatus,
    ResourceSummary,
    Session,
    SiteAnswer,
    Sites,
    SiteView,
    SubmitRequest,
    TokenList,
    TokenView,
    Verification,
    Wait,
    from_json,
)
from cheops.client import calls
from cheops.client.calls import Call
from cheops.client.target import DEFAULT_URL, AgentError, Target, UnixConnection, refusal, unreachable

_DATA = b"data:"


def event_in(line: bytes) -> Event | None:
    """The event that a line of a stream holds. Comments, which keep a connection alive, hold none."""
    return from_json(line[len(_DATA) :].strip(), Event) if line.startswith(_DATA) else None


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        if event := event_in(line):
            yield event


_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Form:
    """Fields and files, by name; the files are not read before they are sent."""

    fields: dict[str, str]
    files: dict[str, Path]
    boundary: str = field(default_factory=lambda: f"cheops-{secrets.token_hex(16)}")

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self.boundary}"

    @property
    def length(self) -> int:
        return sum(part.stat().st_size if isinstance(part, Path) else len(part) for part in self._parts())

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts():
            if isinstance(part, bytes):
                yield part
            else:
                with part.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        yield chunk

    def _parts(self) -> Iterator[bytes | Path]:
        for name, value in self.fields.items():
            yield self._head(f'name="{_quoted(name)}"') + value.encode() + b"\r\n"
        for name, path in self.files.items():
            yield self._head(f'name="{_quoted(name)}"; filename="{_quoted(name)}"')
            yield path
            yield b"\r\n"
        yield f"--{self.boundary}--\r\n".encode()

    def _head(self, disposition: str) -> bytes:
        return f"--{self.boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()


def _quoted(name: str) -> str:
    """As browsers do: these three signs would end the name, or the line."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


T = TypeVar("T")
Progress = Callable[[int], None]  # is told how many bytes more were sent
_CONNECT_S = 10.0
_STREAM_S = 60.0  # a stream of events that is silent for longer is broken: agents send signs of life


class Agent:
    """An agent at an address."""

    def __init__(self, url: str | Target = DEFAULT_URL, *, token: str = "", ca: str = "") -> None:
        """`token` is shown to it; `ca` is a file with the authority's certificate, where it is not public."""
        self.target = url if isinstance(url, Target) else Target(url.rstrip("/"), token, ca)

    @property
    def url(self) -> str:
        return self.target.url

    # -- resources ---------------------------------------------------------------------------------------

    def resources(self, prefix: str = "", cursor: str | None = None, limit: int = 100) -> Resources:
        return self.ask(calls.resources(prefix, cursor, limit))

    def all_resources(self, prefix: str = "") -> Iterator[ResourceSummary]:
        """Those of all pages."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.resources(prefix, cursor)
            yield from page.resources
            cursor = page.next

    def all_replicants(self) -> Iterator[ReplicantView]:
        """Those of all pages."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.ask(calls.replicants(cursor, 100))
            yield from page.replicants
            cursor = page.next

    def all_requests(self, service: str = "") -> Iterator[RequestView]:
        """Those of all pages, the latest first."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.ask(calls.requests(service, cursor, 500))
            yield from page.requests
            cursor = page.next

    def flows(self, cursor: str = "", limit: int = 500) -> Flows:
        """The data plane, and a page of its flows."""
        return self.ask(calls.flows(cursor, limit))

    def replicant(self, id_: str, *, fresh_s: float = 0.5) -> ReplicantView:
        return self.ask(calls.replicant(id_, fresh_s))

    def set_local_id(self, id_: str, local_id: str, *, is_number: bool = False) -> ReplicantView:
        return self.ask(calls.set_local_id(id_, LocalId(local_id=local_id, is_number=is_number)))

    def resource(self, id_: str, *, fresh_s: float = 0.5) -> ResourceDetail:
        """`fresh_s`: how long to wait for what other sites say now; after that it is as last heard."""
        return self.ask(calls.resource(id_, fresh_s))

    def status(self, id_: str, *, fresh_s: float = 0.5) -> ResourceStatus:
        return self.ask(calls.status(id_, fresh_s))

    def explain(self, id_: str, *, fresh_s: float = 0.5) -> Explanation:
        return self.ask(calls.explain(id_, fresh_s))

    def log(self, id_: str, *, fresh_s: float = 0.5) -> LogView:
        return self.ask(calls.log(id_, fresh_s))

    def matrix(self, id_: str) -> MatrixView:
        return self.ask(calls.matrix(id_))

    def type_matrix(self, name: str) -> MatrixView:
        """Of a resource type in the configuration of the agent."""
        return self.ask(calls.type_matrix(name))

    def verify(self, id_: str, command: str = "", timeout_s: float = 30.0) -> Verification:
        """The real state everywhere, compared; `command` instead of the type's own `read`."""
        return self.ask(calls.verify(id_, command, timeout_s))

    # -- operations --------------------------------------------------------------------------------------

    def operations(self, id_: str, cursor: str | None = None, limit: int = 100) -> Operations:
        return self.ask(calls.operations(id_, cursor, limit))

    def all_operations(self, id_: str) -> Iterator[OperationView]:
        cursor: str | None = ""
        while cursor is not None:
            page = self.operations(id_, cursor)
            yield from page.operations
            cursor = page.next

    def operation(self, id_: str, op: str) -> OperationView:
        return self.ask(calls.operation(id_, op))

    def submit(  # noqa: PLR0913 - what can be said of an operation
        self,
        id_: str,
        request: SubmitRequest,
        *,
        files: Mapping[str, Path] | None = None,
        wait: Wait = Wait.ALL,
        timeout_s: float = 30.0,
        sent: Progress | None = None,
    ) -> Accepted:
        """Have an operation carried out; gives what the sites said in time. `files` are those that the
        command names as `{name}`."""
        call = calls.submit(id_, request, wait, timeout_s)
        with closing(self._connection(call.timeout_s)) as connection:
            return self._model(self._send(connection, *_with_files(call, files, sent)), call)

    def answers(  # noqa: PLR0913 - as for submit
        self,
        id_: str,
        request: SubmitRequest,
        *,
        files: Mapping[str, Path] | None = None,
        wait: Wait = Wait.ALL,
        timeout_s: float = 30.0,
        sent: Progress | None = None,
    ) -> Iterator[SiteAnswer]:
        """The same, but each site's answer as it comes; in the end one with PENDING for each that did not
        answer in time. The first is about the origin."""
        call = calls.submit(id_, request, wait, timeout_s, accept=calls.LINES)
        with closing(self._connection(call.timeout_s)) as connection:
            for line in self._lines(self._send(connection, *_with_files(call, files, sent))):
                yield from_json(line, SiteAnswer)

    def delete(self, id_: str, command: str = "", *, wait: Wait = Wait.ALL, timeout_s: float = 30.0) -> Accepted:
        """Delete a resource everywhere, by this command or by its type's `reset`."""
        return self.ask(calls.delete(id_, command, wait, timeout_s))

    def dry_run(self, id_: str, request: SubmitRequest) -> DryRun:
        return self.ask(calls.dry_run(id_, request))

    def resolve(self, id_: str, request: ResolveRequest) -> Resolved:
        return self.ask(calls.resolve(id_, request))

    def change_sites(
        self, id_: str, request: ChangeSites, *, wait: Wait = Wait.ALL, timeout_s: float = 30.0
    ) -> Accepted:
        return self.ask(calls.change_sites(id_, request, wait, timeout_s))

    # -- sites -------------------------------------------------------------------------------------------

    def sites(self) -> Sites:
        return self.ask(calls.sites())

    def site(self, name: str) -> SiteView:
        return self.ask(calls.site(name))

    def ping(self, name: str) -> Ping:
        return self.ask(calls.ping(name))

    def forget(self, name: str, *, force: bool = False) -> Forgotten:
        return self.ask(calls.forget(name, force=force))

    def admit(self, name: str) -> SiteView:
        """Take a forgotten site in again."""
        return self.ask(calls.admit(name))

    def invite(self, wish: InviteRequest) -> Invitation:
        """A code with which a new site gets its certificate, once."""
        return self.ask(calls.invite(wish))

    # -- who may ask -------------------------------------------------------------------------------------

    def tokens(self) -> TokenList:
        return self.ask(calls.tokens())

    def create_token(self, asked: NewToken) -> MadeToken:
        """Its secret is told this once."""
        return self.ask(calls.create_token(asked))

    def revoke_token(self, named: str) -> TokenView:
        """By id or name."""
        return self.ask(calls.revoke_token(named))

    def who_am_i(self) -> Session:
        return self.ask(calls.who_am_i())

    def audit(self, *, since: str = "", who: str = "", outcome: str = "", limit: int = 100) -> AuditLog:
        return self.ask(calls.audit(since, who, outcome, limit))

    # -- the agent ---------------------------------------------------------------------------------------

    def changes(self, id_: str | None = None, since: str = "", *, wait_s: float = 0.0, limit: int = 1000) -> Changes:
        """What happened after a place; waits for the first if there is nothing yet. All resources: None."""
        return self.ask(calls.changes(id_, since, wait_s, limit))

    def events(self, id_: str | None = None, last: str = "") -> Iterator[Event]:
        """What happens, as it happens; with `last` what came after that place, too. Ends when the agent is
        stopped, and with an error when the connection breaks; go on after the place of the last event."""
        call = calls.events(id_, last)
        with closing(self._connection(_STREAM_S)) as connection:
            yield from events_in(self._lines(self._send(connection, call)))

    def check(self) -> Checks:
        return self.ask(calls.check())

    def health(self) -> Health:
        return self.ask(calls.health())

    def ready(self) -> Health:
        return self.ask(calls.ready())

    # -- the form API ------------------------------------------------------------------------------------

    def exec_lines(self, id_: str, form: Form, timeout_s: float) -> Iterator[dict[str, Any]]:
        """What sites answer to an operation, as it comes."""
        with closing(self._connection(timeout_s + _CONNECT_S)) as connection:
            for line in self._lines(self._post_form(connection, f"/exec/{calls.segment(id_)}", form)):
                yield json.loads(line)

    def show(self, id_: str, form: Form, timeout_s: float) -> dict[str, Any]:
        with closing(self._connection(timeout_s + _CONNECT_S)) as connection:
            answer = self._post_form(connection, f"/show/{calls.segment(id_)}", form)
            shown: dict[str, Any] = json.loads(b"".join(self._lines(answer)))
            return shown

    # -- asking ------------------------------------------------------------------------------------------

    def ask(self, call: Call[T]) -> T:
        """One question, and its answer."""
        with closing(self._connection(call.timeout_s)) as connection:
            return self._model(self._send(connection, call), call)

    def _model(self, answer: http.client.HTTPResponse, call: Call[T]) -> T:
        try:
            return from_json(answer.read(), call.answer)
        except msgspec.MsgspecError as error:
            raise AgentError(f"the agent's answer to {call.path} cannot be read: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.target, error) from error

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if path := self.target.socket:
            return UnixConnection(path, timeout_s)
        parts = urlsplit(self.url)
        if context := self.target.ssl_context():
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def _post_form(self, connection: http.client.HTTPConnection, path: str, form: Form) -> http.client.HTTPResponse:
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        return self._send(connection, Call("POST", path, bytes, headers=headers), iter(form))

    def _send(
        self, connection: http.client.HTTPConnection, call: Call[Any], body: Iterator[bytes] | None = None
    ) -> http.client.HTTPResponse:
        path = urlsplit(self.target.base).path + call.target
        headers = {**call.all_headers, **self.target.headers}
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # what it refuses, it does not read to the end
                connection.request(call.method, path, body or call.body, headers)
            answer = connection.getresponse()
            if answer.status >= 400 and answer.status not in call.also_good:
                raise refusal(answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.target, error) from error
        return answer

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while line := answer.readline():
                yield line
            # readline takes a stream that breaks off for its end.
            if answer.length or (answer.chunked and not answer.isclosed()):
                raise http.client.IncompleteRead(b"", answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.target, error) from error


def _with_files(
    call: Call[T], files: Mapping[str, Path] | None, sent: Progress | None
) -> tuple[Call[T], Iterator[bytes] | None]:
    """The call as a form that the files are part of, if there are any."""
    if not files:
        return call, None
    form = Form({"operation": (call.body or b"").decode()}, dict(files))
    headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
    return replace(call, body=None, headers=headers), _with_progress(form, sent or (lambda _n: None))


def _with_progress(form: Form, sent: Progress) -> Iterator[bytes]:
    for chunk in form:
        yield chunk
        sent(len(chunk))
