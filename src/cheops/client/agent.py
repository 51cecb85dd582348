"""`Agent`: a blocking client of an agent, built on the standard library alone so that it starts fast."""

import http.client
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from cheops.api.endpoints import Endpoint
from cheops.api.endpoints.declaration import NDJSON
from cheops.api.endpoints.resources import LIST_RESOURCES, ResourceFilter
from cheops.api.models import from_json
from cheops.api.models.operations import Accepted, LogView, OperationView, SiteAnswer, SubmitRequest, Wait
from cheops.api.models.resources import Overall, ReplicantView, Resources, ResourceSummary
from cheops.client.methods import AgentMethods, Call, call_of, events_call, segment, submit_call
from cheops.client.target import DEFAULT_URL, AgentError, Target, UnixConnection, refusal, unreachable
from cheops.gateway.request_log import ServedRequest
from cheops.notify.event import Event

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
    """As browsers encode it: these three characters would end the name, or the line."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
B = TypeVar("B")
Progress = Callable[[int], None]  # called with the number of bytes that were sent since the last call
_CONNECT_S = 10.0
_STREAM_S = 60.0  # a stream of events that is silent for longer is broken: agents send comments


class Agent(AgentMethods):
    """An agent at an address."""

    def __init__(self, url: str | Target = DEFAULT_URL, *, token: str = "", ca: str = "") -> None:
        """`token` authenticates the client; `ca` is a file with the authority's certificate, if it is not public."""
        self.target = url if isinstance(url, Target) else Target(url.rstrip("/"), token, ca)

    @property
    def url(self) -> str:
        return self.target.url

    def call(self, endpoint: Endpoint[T, P, B], *names: str, parameters: P | None = None, body: B | None = None) -> T:
        """Send a request to an endpoint. `names` fill the parameters of its path, in order."""
        return self.send(call_of(endpoint, *names, parameters=parameters, body=body))

    # -- lists -------------------------------------------------------------------------------------------

    def resources(
        self,
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 100,
        overall: Overall | None = None,
        *,
        deleted: bool = False,
    ) -> Resources:
        wanted = ResourceFilter(prefix=prefix, cursor=cursor or "", limit=limit, overall=overall, deleted=deleted)
        return self.call(LIST_RESOURCES, parameters=wanted)

    def all_resources(
        self, prefix: str = "", overall: Overall | None = None, *, deleted: bool = False
    ) -> Iterator[ResourceSummary]:
        """The resources of all pages."""
        for page in _pages(lambda cursor: self.resources(prefix, cursor, overall=overall, deleted=deleted)):
            yield from page.resources

    def all_operations(self, id_: str) -> Iterator[OperationView]:
        for page in _pages(lambda cursor: self.operations(id_, cursor)):
            yield from page.operations

    def log_pages(self, id_: str) -> Iterator[LogView]:
        """The log of a resource, page by page."""
        # The other sites are asked once, before the first page.
        yield from _pages(lambda cursor: self.log(id_, cursor, fresh_s=0.0 if cursor else 0.5))

    def all_replicants(self) -> Iterator[ReplicantView]:
        for page in _pages(self.replicants):
            yield from page.replicants

    def all_requests(self, service: str = "") -> Iterator[ServedRequest]:
        """The requests of all pages, the latest first."""
        for page in _pages(lambda cursor: self.requests(service, cursor)):
            yield from page.requests

    # -- operations --------------------------------------------------------------------------------------

    def submit(  # noqa: PLR0913 - the properties of an operation
        self,
        id_: str,
        request: SubmitRequest,
        *,
        files: Mapping[str, Path] | None = None,
        wait: Wait = Wait.ALL,
        timeout_s: float = 30.0,
        sent: Progress | None = None,
    ) -> Accepted:
        """Submit an operation, and return the responses of the sites that came in time. `files` are those that the
        command names as `{name}`."""
        call = submit_call(id_, request, wait, timeout_s)
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
        """Submit an operation, and yield each site's response when it comes; at the end one with PENDING for each site
        that did not respond in time. The first is about the origin."""
        call = replace(submit_call(id_, request, wait, timeout_s), accept=NDJSON)
        with closing(self._connection(call.timeout_s)) as connection:
            for line in self._lines(self._send(connection, *_with_files(call, files, sent))):
                yield from_json(line, SiteAnswer)

    def events(self, id_: str | None = None, last: str = "") -> Iterator[Event]:
        """Events as they happen; with `last`, also those after that position. Ends when the agent is stopped, and with
        an error when the connection breaks: continue after the `place` of the last event."""
        with closing(self._connection(_STREAM_S)) as connection:
            yield from events_in(self._lines(self._send(connection, events_call(id_, last))))

    # -- the form API ------------------------------------------------------------------------------------

    def exec_lines(self, id_: str, form: Form, timeout_s: float) -> Iterator[dict[str, Any]]:
        """The responses of the sites to an operation, as they come."""
        with closing(self._connection(timeout_s + _CONNECT_S)) as connection:
            for line in self._lines(self._post_form(connection, f"/exec/{segment(id_)}", form)):
                yield json.loads(line)

    def show(self, id_: str, form: Form, timeout_s: float) -> dict[str, Any]:
        with closing(self._connection(timeout_s + _CONNECT_S)) as connection:
            response = self._post_form(connection, f"/show/{segment(id_)}", form)
            shown: dict[str, Any] = json.loads(b"".join(self._lines(response)))
            return shown

    # -- transport ---------------------------------------------------------------------------------------

    def send(self, call: Call[T]) -> T:
        """Send one request, and read its response; raises AgentError or UnreachableError."""
        with closing(self._connection(call.timeout_s)) as connection:
            return self._model(self._send(connection, call), call)

    def _model(self, response: http.client.HTTPResponse, call: Call[T]) -> T:
        try:
            return from_json(response.read(), call.response)
        except msgspec.MsgspecError as error:
            raise AgentError(f"the agent's response to {call.path} cannot be read: {error}") from error
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
            # The agent may refuse a request before it has read all of it, and its response can still be read.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(call.method, path, body or call.body, headers)
            response = connection.getresponse()
            if response.status >= 400 and response.status not in call.statuses:
                raise refusal(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.target, error) from error
        return response

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while line := response.readline():
                yield line
            # readline() returns nothing both at the end of a stream and where it breaks off.
            if response.length or (response.chunked and not response.isclosed()):
                raise http.client.IncompleteRead(b"", response.length)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.target, error) from error


class _Page(Protocol):
    @property
    def next(self) -> str | None: ...


PageT = TypeVar("PageT", bound=_Page)


def _pages(fetch: Callable[[str], PageT]) -> Iterator[PageT]:
    """All pages of a list; `fetch` gets the cursor of each."""
    cursor: str | None = ""
    while cursor is not None:
        page = fetch(cursor)
        yield page
        cursor = page.next


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
