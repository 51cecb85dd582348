"""The form API: `POST /exec/{id}` and `POST /show/{id}`, for clients of the original prototype.

    exec   fields command, sites, type; config: the matrix, as a field or as the file config.json; further files under
           their names. The response has status 200 and one JSON object per line, when each site responds.
    show   fields command, sites. The response is {site: {Status, Output}}.

Cheops adds the fields `resource-type`, `timeout` (in seconds) and `force`. A site that is not involved forwards the
request to one that is. A request that is not valid gets status 400 and the reason.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive

from cheops.api import small_forms
from cheops.api.line_stream import Line, LineStream
from cheops.api.permissions import check_sites, check_type, principal_of, require_role
from cheops.api.submission import (
    SUPERSEDED,
    NotInvolvedError,
    OperationRequest,
    RequestError,
    check_names,
    execute,
    forward,
    no_reply,
    parse_sites,
)
from cheops.engine.events import Answer, Result, Stage
from cheops.engine.replica import Replica
from cheops.errors import CheopsError, ClientError
from cheops.log.matrix import Matrix
from cheops.log.operation import FileRef, Kind, Status
from cheops.matrix_file import parse_matrix
from cheops.node.node import Node
from cheops.peers.client import connection_problem, read_object
from cheops.peers.probes import NO_RESPONSE
from cheops.peers.requests import RequestKind
from cheops.security.principal import Principal, Role
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.store.room import Reservation
from cheops.text import printable, shortened


class TooLargeError(ClientError):
    status = 413
    reason = "too large"


TIMEOUT_S = 30.0  # as in the original prototype
MAX_TIMEOUT_S = 3600.0
MAX_FIELD_BYTES = 1024 * 1024  # a field is held in memory; files go to disk
MAX_FILES = 100
MAX_FIELDS = 32
MAX_PLAIN_FORM_BYTES = 4 * 1024 * 1024  # of a form without files
MAX_FILE_NAME = 255
_CONFIG = ("config", "config.json")
_MOST_DIGITS = 16  # of Content-Length; the limits are far below
_TRUE = ("1", "true", "yes", "on")
_as_json = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for each line


def form_routes(node: Node) -> list[Route]:
    async def exec_(request: Request) -> Response:
        return await _exec(node, request)

    async def show(request: Request) -> Response:
        return await _show(node, request)

    return [
        Route("/exec/{id:path}", exec_, methods=["POST"]),
        Route("/show/{id:path}", show, methods=["POST"]),
    ]


# -- exec ------------------------------------------------------------------------------------------------


async def _exec(node: Node, request: Request) -> Response:
    form = await read_upload(node, request)
    with ExitStack() as pins:  # they protect the files until an operation that names them is saved
        try:
            wanted = await _operation_request(node, request, form, pins)
            timeout_s = _timeout(form)
            try:
                accepted, sites, answers = await execute(node, wanted, timeout_s)
            except NotInvolvedError as elsewhere:
                path = f"/exec/{quote(request.path_params['id'], safe='')}"
                return await forward(node, request, elsewhere, path, form, timeout_s)
        finally:
            await form.close()
    lines = _lines(node, wanted, sites, accepted, answers)
    headers = {"Cheops-Operation": quote(str(accepted.op), safe=":")} if accepted.op else {}
    return LineStream(lines, "application/json", headers)


async def _operation_request(node: Node, request: Request, form: FormData, pins: ExitStack) -> OperationRequest:
    command = _field(form, "command")
    sites = "&".join(str(value) for value in form.getlist("sites") if isinstance(value, str))
    if not command:
        raise RequestError("the field 'command' is missing: what to run")
    if not sites.strip():
        raise RequestError("the field 'sites' is missing: where, such as 'site1 & site2'")
    if not _field(form, "type"):
        raise RequestError("the field 'type' is missing: the operation's type, as the matrix names it")
    matrix = await _matrix(form)
    return OperationRequest(
        request.path_params["id"],
        _field(form, "type"),
        command,
        sites,
        _field(form, "resource-type"),
        matrix,
        await keep_files(node, form, pins),
        Kind.FORCE if _field(form, "force").lower() in _TRUE else Kind.NORMAL,
        by=principal_of(request),
    )


async def _matrix(form: FormData) -> Matrix | None:
    for name in _CONFIG:
        value = form.get(name)
        text = await _text_of(value) if isinstance(value, UploadFile) else value
        if text and text.strip():
            return parse_matrix(text, name).matrix
    return None


async def _text_of(upload: UploadFile) -> str:
    content = await upload.read(MAX_FIELD_BYTES + 1)
    if len(content) > MAX_FIELD_BYTES:
        raise RequestError(f"the matrix has more than {MAX_FIELD_BYTES} bytes")
    return content.decode("utf-8", "replace")


async def keep_files(node: Node, form: FormData, pins: ExitStack) -> tuple[FileRef, ...]:
    uploads = {n: v for n, v in form.multi_items() if isinstance(v, UploadFile) and n not in _CONFIG}
    total, most = sum(upload.size or 0 for upload in uploads.values()), node.config.limits.file_bytes
    if total > most:
        raise TooLargeError(f"the files have {total:,} bytes together; limits.file_size of this site is {most:,}")
    files = []
    for name, upload in uploads.items():
        _check_file_name(name)
        files.append(FileRef(name, await _keep_file(node, upload, pins), upload.size or 0))
    return tuple(files)


async def _keep_file(node: Node, upload: UploadFile, pins: ExitStack) -> str:
    """Before the pin is set, another operation with the same content may be discarded together with the file: so check
    again after that, and repeat if the file is gone."""
    while True:
        await upload.seek(0)
        hash_ = await asyncio.to_thread(node.files.put, _chunks(upload))
        pins.enter_context(node.file_references.pin([hash_]))
        if node.files.has(hash_):
            return hash_


def _check_file_name(name: str) -> None:
    if not name.isprintable() or not 0 < len(name) <= MAX_FILE_NAME:
        raise RequestError(f"a file's name has 1 to {MAX_FILE_NAME} printable characters")


def _chunks(upload: UploadFile) -> Iterator[bytes]:
    while chunk := upload.file.read(1 << 20):
        yield chunk


async def _lines(
    node: Node,
    wanted: OperationRequest,
    sites: tuple[str, ...],
    accepted: Answer,
    answers: AsyncGenerator[Answer, None],
) -> AsyncGenerator[Line, None]:
    responded: set[str] = set()
    async with aclosing(answers):
        async for answer in answers:
            if answer.status in (None, Status.PENDING, Status.UNKNOWN):
                continue
            responded.add(answer.site)
            # A void operation runs at no other site, so no other site will respond.
            is_void = answer.stage is Stage.DECIDED and answer.status is not Status.OK
            is_last = is_void or responded.issuperset(sites)
            yield Line(_line(wanted, sites, answer), is_last)
            if is_last:
                return
    for site in sites:
        if site not in responded:
            missing = Answer(accepted.request, Stage.SITE, accepted.op, site, None, no_reply(node, site))
            yield Line(_line(wanted, sites, missing))


def _line(wanted: OperationRequest, sites: tuple[str, ...], answer: Answer) -> bytes:
    at_s = answer.timing.at_ms / 1000 or time.time()
    reply = {
        "Locations": list(sites),
        "Site": answer.site,
        "RequestId": str(answer.op),
        "ResourceId": wanted.resource,
        "Status": {None: "TIMEOUT", Status.KO: "KO"}.get(answer.status, "OK"),
        "Input": wanted.command,
        "Output": answer.output or answer.detail or _default_text(answer),
        "ExecutionTime": datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z"),
        "Type": "REPLY",
    }
    return _as_json(reply).encode() + b"\n"


def _default_text(answer: Answer) -> str:
    return SUPERSEDED if answer.status is Status.SUPERSEDED else ""


# -- show ------------------------------------------------------------------------------------------------


async def _show(node: Node, request: Request) -> Response:
    id_ = request.path_params["id"]
    form = await read_form(request, MAX_PLAIN_FORM_BYTES)
    try:
        command = _field(form, "command")
        text = "&".join(str(value) for value in form.getlist("sites") if isinstance(value, str))
    finally:
        await form.close()
    check_names(id_)
    replica = await node.pump.replica(id_)
    sites = parse_sites(text, node) if text.strip() else replica.sites
    if not sites:
        raise RequestError(
            f"no resource '{printable(shortened(id_))}' is known at {node.name}; give its sites: --sites 'site2'"
        )
    who = principal_of(request)
    check_showing(node, who, replica, command, sites)
    states = await asyncio.gather(*(show_at(node, who, site, id_, command) for site in sites))
    return JSONResponse(dict(zip(sites, states, strict=True)))


TIMEOUT = "TIMEOUT"  # no response in time
UNREACHABLE = "UNREACHABLE"  # of the site, or of its application: certainly nothing was run
_READ_STATUSES = {Result.OK: "OK", Result.KO: "KO", Result.RETRY: UNREACHABLE, Result.MAYBE: TIMEOUT}
CUT = "Cut"  # the output is not the whole state: that two of them are equal says nothing


async def show_at(node: Node, who: Principal, site: str, id_: str, command: str) -> dict[str, str]:
    if site == node.name:
        return await show_here(node, who, id_, command)
    if node.address_of(site) is None:
        return {"Status": UNREACHABLE, "Output": f"the address of {site} is not known"}
    body = {"resource": id_, "command": command}
    try:
        async with node.remote_read_queue.place(str(who)):
            status_code, content = await node.channels.request(
                site, RequestKind.SHOW, msgspec.json.encode(body), timeout_s=TIMEOUT_S, most_bytes=MAX_MESSAGE_BYTES
            )
        state = read_object(content)
        if status_code != 200:
            return {
                "Status": "KO",
                "Output": str(state.get("detail", f"{site} responded with status {status_code}")),
            }
    except OSError as error:
        problem = connection_problem(error)
        status = TIMEOUT if problem == NO_RESPONSE else UNREACHABLE
        return {"Status": status, "Output": f"{site} is unreachable: {problem}"}
    shown = {name: str(state.get(name, "")) for name in ("Status", "Output")}
    return {**shown, CUT: "yes"} if state.get(CUT) else shown


def check_showing(node: Node, who: Principal, replica: Replica, command: str, sites: Collection[str]) -> None:
    """Raises ForbiddenError if a client may not have the state shown by this command. If a type does not list the
    commands that only show ('show'), the command may change something, and needs the role of an operator."""
    type_ = node.config.types.get(replica.type.name)
    if command and (type_ is None or (command != type_.read and type_.show is None)):
        require_role(who, Role.OPERATOR, "a command for a type without a list of commands that only show ('show')")
    if who.is_limited:
        check_type(who, replica.type.name)
        check_sites(who, sites)


async def show_here(node: Node, who: Principal, id_: str, command: str) -> dict[str, str]:
    """The state of the application at this site, read by the type's own command or by a given one. Raises BusyError if
    too many reads are running."""
    replica = await node.pump.replica(id_)
    types = node.config.types
    rtype = replica.type.name or (next(iter(types)) if len(types) == 1 else "")
    type_ = node.config.type_named(rtype)
    async with node.read_queue.place(str(who)):
        outcome = await node.backends.of_type(type_.name).read(type_.name, id_, command)
    status = _READ_STATUSES[outcome.result]
    return {"Status": status, "Output": outcome.output, **({CUT: "yes"} if outcome.cut else {})}


# -- fields ----------------------------------------------------------------------------------------------


async def read_upload(node: Node, request: Request) -> FormData:
    """A form with files. They come into the folder of files, and only as long as there is room; the caller closes the
    form, and with that its files are gone."""
    node.disk_quota.check()
    most, announced = node.config.clients.upload_bytes, _announced_bytes(request)
    if announced > most:
        raise TooLargeError(f"the form has {announced} bytes; clients.upload_size of this site is {most}")
    # Only compared: a client that announces much and sends nothing must not take the room of others.
    node.disk_quota.room.check(announced)
    with node.disk_quota.room.reserve(0) as room:
        return await read_form(request, most, Spool(node.files.folder, room))


def _announced_bytes(request: Request) -> int:
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0


class Spool(msgspec.Struct, frozen=True):
    """Where the files of a form are while it is read."""

    folder: Path
    room: Reservation


class _FormParser(MultiPartParser):
    """Has the files of a form in a given folder. Starlette would have them in that of temporary files, which may be in
    memory, or on a disk whose room nobody watches."""

    folder: Path | None = None

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self.folder is not None and self._current_part.file is not None:
            # A file without a name: however the request ends, nothing stays on the disk.
            spooled = SpooledTemporaryFile(max_size=self.spool_max_size, dir=str(self.folder))  # noqa: SIM115
            self._files_to_close_on_error.pop().close()
            self._files_to_close_on_error.append(spooled)
            self._current_part.file.file = spooled  # type: ignore[assignment]  # as Starlette does it


async def read_form(request: Request, most_bytes: int, spool: Spool | None = None) -> FormData:
    content = request.headers.get("content-type", "")
    if not content.startswith(("multipart/form-data", "application/x-www-form-urlencoded")):
        raise RequestError(f"expected a form (multipart/form-data), found '{printable(shortened(content))}'")
    is_plain = content.startswith("application/x-www-form-urlencoded")
    most_bytes = min(most_bytes, MAX_PLAIN_FORM_BYTES) if is_plain else most_bytes
    receive = _limited(request.receive, most_bytes, spool.room if spool else None)
    try:
        first = await receive()
        if not first.get("more_body") and first["type"] == "http.request":
            fields = small_forms.fields_of(content, first.get("body", b""), MAX_FIELDS)
            if fields is not None:
                return FormData(fields)
        limited = Request(request.scope, _continued(first, receive))
        if is_plain:
            return await limited.form(max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
        parser = _FormParser(
            limited.headers,
            limited.stream(),
            max_files=MAX_FILES,
            max_fields=MAX_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        )
        parser.folder = spool.folder if spool else None
        return await parser.parse()
    except (CheopsError, ClientDisconnect):
        raise
    except Exception as error:  # Starlette's and the parser's own, which are not one family
        raise RequestError(f"the form cannot be read: {getattr(error, 'message', error)}") from error


def _continued(first: Message, receive: Receive) -> Receive:
    """A message that was received already, and what comes after it."""
    is_first = True

    async def receive_continued() -> Message:
        nonlocal is_first
        if is_first:
            is_first = False
            return first
        return await receive()

    return receive_continued


def _limited(receive: Receive, most_bytes: int, room: Reservation | None) -> Receive:
    """The same messages, until the body has more bytes than that, or there is no room on the disk for them; then raises
    TooLargeError or DiskFullError."""
    left = most_bytes

    async def receive_limited() -> Message:
        nonlocal left
        message = await receive()
        size = len(message.get("body", b""))
        left -= size
        if left < 0:
            raise TooLargeError(f"the form has more than {most_bytes} bytes")
        if room is not None:
            room.use(size)
        return message

    return receive_limited


def _field(form: FormData, name: str) -> str:
    value: Any = form.get(name, "")
    if isinstance(value, UploadFile):
        raise RequestError(f"'{name}' must be a field, not a file")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"the field '{name}' is not valid UTF-8") from None
    return str(value).strip()


def _timeout(form: FormData) -> float:
    text = _field(form, "timeout")
    try:
        timeout_s = float(text or TIMEOUT_S)
    except ValueError:
        timeout_s = -1.0
    if not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise RequestError(f"'timeout' is a number of seconds up to {MAX_TIMEOUT_S:.0f}, not '{shortened(text)}'")
    return timeout_s
