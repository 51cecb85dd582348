"""From the request of a client to an operation of the engine, for the API and the form API alike.

`submission_event` checks everything that can be known before the engine sees the operation: names, sites, rights, the
command, the policy of the type. `execute` submits it, and yields the responses of the sites as they come. `forward`
sends the request to a site that is involved if this one is not: at most one hop.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from secrets import token_hex
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.api import authenticator
from cheops.api.models import from_json
from cheops.api.models.site import Problem
from cheops.api.permissions import ForbiddenError, check_change, check_sites, may_forward, principal_of
from cheops.api.views import operations as views
from cheops.bounded import BoundedMap
from cheops.config.site import DEFAULT_TYPE
from cheops.engine.admission import policy_violation
from cheops.engine.events import Answer, Stage, Submitted
from cheops.engine.replica import Replica
from cheops.errors import CheopsError, ClientError
from cheops.log.matrix import Matrix
from cheops.log.names import resource_problem
from cheops.log.operation import Command, FileRef, Kind
from cheops.node.effects import Answers
from cheops.node.node import Node
from cheops.peers.client import REFUSED_CONNECTION, connection_problem
from cheops.peers.frames import HttpHead, Opening
from cheops.peers.requests import HTTP
from cheops.peers.streams import Response as ChannelResponse
from cheops.peers.streams import Write
from cheops.plugins import scope_functions
from cheops.scope.parser import parse
from cheops.scope.route import One, Replicas, resolve
from cheops.scope.snapshot import SiteInfo, Snapshot
from cheops.security.principal import NOBODY, Principal, Reach
from cheops.security.principal import Kind as ClientKind
from cheops.security.refusals import AGAINST_POLICY
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.text import listed, printable, shortened

NO_REPLY_YET = "no reply yet; delivery continues in the background"
_REFUSED_YET = "no reply yet (connection refused); delivery continues in the background"
SUPERSEDED = "superseded by another operation"
_ACCEPTANCE_S = 2.0  # an acceptance takes milliseconds; however short the client's timeout is, wait for it
MAX_COMMAND_BYTES = 128 * 1024  # Linux accepts no longer argument of a program (MAX_ARG_STRLEN)
MAX_TYPE_CHARACTERS = 100


class RequestError(ClientError):
    """The request is not valid, whatever the state of the system."""

    reason = "request"


class NotInvolvedError(CheopsError):
    """Only other sites can take the operation: the caller forwards it to one of them, or reports this error."""

    status = 503
    definite = False
    reason = "not involved"

    def __init__(self, sites: tuple[str, ...], name: str) -> None:
        super().__init__(f"this site, {name}, is not involved, and none of {listed(sites)} is reachable from here now")
        self.sites = sites


class OperationRequest(msgspec.Struct, frozen=True):
    """An operation that a client wants to submit."""

    resource: str
    type: str
    command: str
    sites: str = ""  # scope-lang, bare form; can be left out for a resource that exists
    rtype: str = ""
    matrix: Matrix | None = None
    files: tuple[FileRef, ...] = ()
    kind: Kind = Kind.NORMAL
    names: tuple[str, ...] = ()  # the sites, if they are resolved already; instead of `sites`
    by: Principal = NOBODY  # the client; the guard has checked its right to the route
    revision: str = ""  # of the resource when a backend of this site made the command of its state; see repair.py


def no_reply(node: Node, site: str) -> str:
    """What to say of a site that has not replied to an operation."""
    return _REFUSED_YET if node.mesh.problem_of(site) == REFUSED_CONNECTION else NO_REPLY_YET


def check_names(resource: str, type_: str = "-") -> None:
    """Raises RequestError for the id of a resource, or the type of an operation, that Cheops does not accept."""
    if problem := resource_problem(resource):
        raise RequestError(problem)
    if not type_ or type_ != type_.strip():
        raise RequestError("the type must not be empty, nor begin or end with a space")
    if len(type_) > MAX_TYPE_CHARACTERS:
        raise RequestError(f"the type has {len(type_)} characters; at most {MAX_TYPE_CHARACTERS} are accepted")
    if not type_.isprintable():
        raise RequestError(f"the type '{printable(shortened(type_))}' has characters that cannot be printed")
    if type_.startswith(("!", "*")):
        raise RequestError(f"the type '{printable(shortened(type_))}' begins with a reserved sign")


class _ResolvedSites:
    """The sites that scopes have named, as long as a site knows the same of the mesh: for up to a second. Clients send
    the same few scopes over and over."""

    def __init__(self) -> None:
        self._known: Snapshot | None = None
        self._sites: BoundedMap[str, tuple[str, ...]] = BoundedMap(_MOST_RESOLVED)

    def get(self, text: str, known: Snapshot) -> tuple[str, ...] | None:
        return self._sites.get(text) if self._known is known else None

    def put(self, text: str, known: Snapshot, sites: tuple[str, ...]) -> tuple[str, ...]:
        if self._known is not known:
            self._known = known
            self._sites.clear()
        if len(text) <= _MOST_RESOLVED_CHARACTERS:
            self._sites[text] = sites
        return sites


_MOST_RESOLVED, _MOST_RESOLVED_CHARACTERS = 100, 1_000
_resolved = _ResolvedSites()


def parse_sites(text: str, node: Node, also: Iterable[str] = ()) -> tuple[str, ...]:
    """The sites that a bare scope names; raises ScopeError, or CheopsError if no command can run there. Sites in `also`
    are accepted even if they were removed from the mesh: a client must be able to take them off the list of a resource.
    """
    known = node.snapshot()
    lost = {name: SiteInfo(name) for name in also if name not in known.sites}
    known = replace(known, sites={**known.sites, **lost}) if lost else known
    if (sites := _resolved.get(text, known)) is not None:
        return sites
    route = resolve(parse(text, scope_functions()), None, known, scope_functions())
    match route:
        case One():
            return _resolved.put(text, known, tuple(route.sites))
        case Replicas():
            route.check_level()
            return _resolved.put(text, known, tuple(route.sites))
    raise RequestError(
        f"'{shortened(text)}' does not name fixed sites: a command needs one site, or several joined by '&'"
    )


async def submission_event(node: Node, wanted: OperationRequest, request: str) -> Submitted:
    """The event for the engine; raises NotInvolvedError if another site must take it."""
    check_names(wanted.resource, wanted.type)
    if len(wanted.command.encode()) > MAX_COMMAND_BYTES:
        raise RequestError(f"the command is longer than {MAX_COMMAND_BYTES} bytes")
    named = wanted.names or (parse_sites(wanted.sites, node) if wanted.sites else ())
    replica = await node.pump.replica(wanted.resource)
    site_list = views.sites_of(replica)
    # The sites of an existing resource count, whatever the request names: only an operation of its own changes them.
    where = site_list or named
    if not where:
        id_ = printable(shortened(wanted.resource))
        raise RequestError(
            f"no resource '{id_}' is known at {node.name}. If it is new, add its sites: --sites 'site1 & site2'. If it "
            "exists elsewhere, add the sites that it has, or use --url of one of them ('cheops site list' shows the "
            "addresses)"
        )
    if node.name not in where:
        # Before it is forwarded, because only this site knows the token and its limits.
        check_sites(wanted.by, where)
        _check_forwarding(node, replica.type.name or wanted.rtype, where)
        raise NotInvolvedError(where, node.name)
    rtype = _type_of(node, replica, wanted)
    if problem := node.backends.resource_problem(rtype, wanted.resource):
        raise RequestError(problem)
    check_change(node, wanted.by, replica, rtype, dict.fromkeys((*where, *named)))
    runs_nothing = wanted.kind is Kind.SITES and not wanted.command
    payload = Command(wanted.command, wanted.files)
    if not runs_nothing and not wanted.revision:  # what a backend made itself is no client's command
        node.backends.of_type(rtype).check_payload(rtype, replica, wanted.kind, payload)
    event = Submitted(
        request,
        wanted.resource,
        wanted.type,
        payload,
        wanted.kind,
        rtype,
        named or None,
        wanted.matrix or (None if site_list else node.config.type_named(rtype).matrix),
        wanted.revision,
    )
    _check_policy(node, wanted.by, replica, event)
    return event


def _check_forwarding(node: Node, rtype: str, sites: tuple[str, ...]) -> None:
    """Raises ForbiddenError if other sites take no operations of this type from this one. The policy is the same at all
    sites, so this one knows; of a type that is not named only they know."""
    if rtype in node.pump.site.settings.types and not may_forward(node, node.name, rtype):
        reachable = [f"{site} ({url})" for site in sites if (url := node.address_of(site))]
        raise ForbiddenError(
            f"{node.name} is not one of the sites of this resource, and 'types.{rtype}.policy.operate' lets no other "
            f"site pass operations on to them; send it to {listed(reachable or sites)}",
            AGAINST_POLICY,
        )


def _check_policy(node: Node, by: Principal, replica: Replica, event: Submitted) -> None:
    """Raises ForbiddenError if the type's policy forbids the operation to this site, or to the site that forwards it.
    Otherwise a site could evade its policy by forwarding."""
    for site in (node.name, *((by.name,) if by.kind is ClientKind.PEER else ())):
        if problem := policy_violation(replica, event, site):
            raise ForbiddenError(f"{problem}; {_remedy(replica, site)}", AGAINST_POLICY)


def _remedy(replica: Replica, site: str) -> str:
    listing = replica.history.site_list_op
    creator = listing.origin.site if listing else ""
    remedy = f"submit it at {creator}, or change" if creator and creator != site else "change"
    return f"{remedy} 'types.{replica.type.name}.policy', which must be the same at all sites"


def _type_of(node: Node, replica: Replica, wanted: OperationRequest) -> str:
    """The resource's own type; for a new one that of the request, or the only one, or the default."""
    if replica.type.name:
        if wanted.rtype and wanted.rtype != replica.type.name:
            raise ClientError(f"the resource is of type '{replica.type.name}', not '{wanted.rtype}'", status=409)
        return replica.type.name
    types = node.config.types
    if not wanted.rtype and len(types) > 1 and DEFAULT_TYPE not in types:
        raise ClientError(f"a new resource needs a type at {node.name}: add --resource-type {'|'.join(types)}")
    only = next(iter(types)) if len(types) == 1 else DEFAULT_TYPE
    return node.config.type_named(wanted.rtype or only).name


async def execute(
    node: Node, wanted: OperationRequest, timeout_s: float
) -> tuple[Answer, tuple[str, ...], AsyncGenerator[Answer, None]]:
    """Submit an operation; returns the acceptance, the sites involved, and their responses until the time is over."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    with ExitStack() as stack:
        # Before the operation is submitted, so that no response is missed.
        answers = stack.enter_context(node.answers())
        node.submit(await submission_event(node, wanted, answers.request))
        accepted = await _first(answers, timeout_s, node)
        if accepted.stage is Stage.REFUSED:
            raise ClientError(accepted.detail, status=409)
        if accepted.op:
            answers.accepted(wanted.resource, accepted.op)
        replica = await node.pump.replica(wanted.resource)
        return accepted, views.sites_of(replica), _until(deadline_s, answers, stack.pop_all())


async def _first(answers: Answers, timeout_s: float, node: Node) -> Answer:
    """The acceptance. It takes milliseconds, unless the store cannot save."""
    try:
        return await answers.next(asyncio.get_running_loop().time() + max(timeout_s, _ACCEPTANCE_S))
    except TimeoutError:
        why = node.pump.trouble or "its store is slow"
        text = f"{node.name} has not accepted it yet, and still may: {why}"
        raise CheopsError(text, status=503, definite=False) from None


async def _until(deadline_s: float, answers: Answers, stack: ExitStack) -> AsyncGenerator[Answer, None]:
    with stack:
        while True:
            try:
                answer = await answers.next(deadline_s)
            except TimeoutError:
                return
            yield answer


# -- requests for other sites ----------------------------------------------------------------------------------


HOP_HEADER = "Cheops-Forwarded-By"
_CHUNK_BYTES = 64 * 1024
_EXTRA_TIMEOUT_S = 30.0  # beyond the client's own timeout
_FORWARDED_HEADERS = ("Cheops-Operation", "Location", "Preference-Applied")


async def forward(  # noqa: PLR0913, PLR0917 - where from, where to, and what
    node: Node,
    request: Request,
    elsewhere: NotInvolvedError,
    path: str,
    content: FormData | bytes,
    timeout_s: float,
) -> Response:
    """Send the request to the first involved site that is reachable. `path` is encoded, and may have a query."""
    if hop := request.headers.get(HOP_HEADER):
        raise RequestError(
            f"{unquote(hop)} forwarded this to {node.name}, which is not involved; "
            f"the resource is at {', '.join(elsewhere.sites)}"
        )
    # Sites that are up first; one that seems down may be back, and is better than none.
    for site in sorted(elsewhere.sites, key=lambda site: site not in node.mesh.up):
        if not node.channels.can_reach(site):
            continue
        if response := await _send(node, request, site, path, content, timeout_s):
            sent = dict(response.answer.headers)
            kept = {name: sent[name.lower()] for name in _FORWARDED_HEADERS if name.lower() in sent}
            headers = {"Cheops-Site": quote(site), **kept}
            return StreamingResponse(
                response.body(), response.answer.status, headers, media_type=sent.get("content-type")
            )
    raise elsewhere


class _ForwardedResponse:
    """The response of another site, while it comes."""

    def __init__(self, response: ChannelResponse, stack: AsyncExitStack, timeout_s: float) -> None:
        self.answer = response.answer
        self._response = response
        self._stack = stack
        self._timeout_s = timeout_s

    async def body(self) -> AsyncIterator[bytes]:
        async with self._stack:
            async for piece in self._response.pieces(1, self._timeout_s):
                yield piece


async def _send(  # noqa: PLR0913, PLR0917 - as above
    node: Node, request: Request, site: str, path: str, content: FormData | bytes, timeout_s: float
) -> _ForwardedResponse | None:
    """The response of a site; None if the site certainly did not get the request, so that another one can be tried."""
    headers = {HOP_HEADER: quote(node.name), "Accept": request.headers.get("Accept", "*/*")}
    headers |= authenticator.limits_header(principal_of(request).reach)
    body, send_more = b"", None
    if isinstance(content, FormData):
        boundary = f"cheops-{token_hex(16)}"
        headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
        send_more = partial(_write_form, content, boundary)
    else:
        headers["Content-Type"] = "application/json"
        body = content
    try:
        channel = await node.channels.channel(site)
    except OSError:
        return None  # there is no connection, so nothing was sent
    opening = Opening(HTTP, body, http=HttpHead(request.method, path, tuple(headers.items())))
    stack = AsyncExitStack()
    longest_s = timeout_s + _EXTRA_TIMEOUT_S
    try:
        async with asyncio.timeout(longest_s):
            response = await stack.enter_async_context(channel.open(opening, send_more))
    except OSError as error:
        problem = connection_problem(error)
        raise _lost(f"{site} got the request, but its response was lost: {problem}. It may have taken effect") from None
    return _ForwardedResponse(response, stack, longest_s)


async def _write_form(form: FormData, boundary: str, write: Write) -> None:
    for name, value in form.multi_items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_in_quotes(name)}"'
        if isinstance(value, UploadFile):
            head += f'; filename="{_in_quotes(value.filename or name)}"\r\nContent-Type: application/octet-stream'
            await write(f"{head}\r\n\r\n".encode())
            await value.seek(0)
            while chunk := await value.read(_CHUNK_BYTES):
                await write(chunk)
            await write(b"\r\n")
        else:
            await write(f"{head}\r\n\r\n{value}\r\n".encode())
    await write(f"--{boundary}--\r\n".encode())


def _in_quotes(name: str) -> str:
    """As browsers encode it: these three characters would end the name, or the line."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


T = TypeVar("T")
_TIMEOUT_S = 30.0
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _lost(text: str) -> CheopsError:
    """Not definite: the other site may have taken the operation."""
    return ClientError(text, status=502, definite=False)


def _unreachable(text: str) -> CheopsError:
    return CheopsError(text, status=503, definite=False)


async def post_to_site(  # noqa: PLR0913, PLR0917 - where, what, and on whose behalf
    node: Node, site: str, path: str, body: bytes, kind: type[T], reach: Reach, wait_s: float = 0.0
) -> T:
    """`wait_s` is how long the other site may take to do what it is asked for."""
    if not node.channels.can_reach(site):
        raise _unreachable(f"the address of '{site}' is not known")
    headers = {HOP_HEADER: quote(node.name), "Content-Type": "application/json"}
    headers |= authenticator.limits_header(reach)
    try:
        channel = await node.channels.channel(site)
    except OSError as error:
        raise _unreachable(f"{site} is unreachable: {connection_problem(error)}") from None
    opening = Opening(HTTP, body, http=HttpHead("POST", path, tuple(headers.items())))
    try:
        async with asyncio.timeout(_TIMEOUT_S + wait_s), channel.open(opening) as response:
            content = await response.body.read(MAX_MESSAGE_BYTES)
            if response.status >= 400:
                status = response.status if response.status in set(HTTPStatus) else 502
                raise CheopsError(from_json(content, Problem).detail, status=status)
            return from_json(content, kind)
    except (OSError, *_UNREADABLE) as error:
        raise _lost(f"the response of {site} was lost: {connection_problem(error)}") from None
