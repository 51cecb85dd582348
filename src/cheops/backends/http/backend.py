"""The HTTP backend: runs operations against this site's instance of a service.

A create gives the resource a local id here, which is saved (`copies`) before the engine gets the outcome. To run it
again does nothing: the copy exists. Everything sent to the service has local ids, everything kept of its responses has
meta-ids. If the service already has the resource that a create would make, the policy `exists` decides: abort, adopt
it as our copy, or overwrite it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.credentials import CredentialProvider, CredentialsError, Tickets
from cheops.backends.http.ids import Form, NoCopyError, text_to_local
from cheops.backends.http.paths import split_target
from cheops.backends.http.payload import (
    BODY,
    Header,
    KeptResponse,
    PayloadError,
    Request,
    encode_response,
    first_id_in,
    id_in,
    request_of,
    result_in_doubt,
    result_of,
)
from cheops.backends.http.sender import OperationSender, SentReply, ServiceReply
from cheops.backends.http.submission import deletion_command
from cheops.backends.protocol import Backend, BackendContext, Finding
from cheops.bounded import BoundedMap
from cheops.config.address import address_of_url
from cheops.config.services import READ, ServiceConfig, body_names, service_of
from cheops.config.types import HTTP_BACKEND
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.gateway.interfaces import RunGuard, UpstreamError
from cheops.log.operation import Command, Kind
from cheops.node.node import Node


@dataclass(frozen=True, slots=True)
class Task:
    """An operation and what is needed to run it."""

    service: ServiceConfig
    meta_id: str
    request: Request
    body: bytes | Path = b""


def nothing_to_do(note: str) -> Outcome:
    """The outcome of an operation that needs no request to the service."""
    return Outcome(Result.OK, encode_response(KeptResponse(status=200, note=note)))


def result_for(request: Request, method: str, sent: SentReply) -> Result:
    status, own = sent.reply.status, sent.own_credentials
    return result_of(method, status, may_repeat=bool(request.key), own_credentials=own)


_CONFLICTS = (409, 412)
_NO_SUCH_METHOD = (405, 501)
_MULTI_STATUS = 207


def may_exist(request: Request, status: int) -> bool:
    """Whether this status may mean that the resource to be created exists. WebDAV responds to MKCOL with "method not
    allowed" then; 409 can also mean that the collection above is missing."""
    if not request.creates:
        return False
    return status in _CONFLICTS or (request.creates_collection and status in _NO_SUCH_METHOD)


class ExistingResources:
    """Applies the policy `exists` to a create whose resource the service has already."""

    def __init__(self, sender: OperationSender, copies: Copies) -> None:
        self._sender = sender
        self._copies = copies

    async def resolve(self, task: Task, path: str, reply: ServiceReply) -> Outcome:
        """The service has the resource already: fail, adopt it as our copy, or overwrite it, as the policy says."""
        policy = task.request.exists or task.service.replication.exists
        kept = self._sender.kept(task.service, path, reply)
        if policy == "abort":
            return Outcome(Result.KO, encode_response(kept))
        copy = await self._existing(task, reply)
        if task.request.creates_collection and not await self._is_there(task, path):
            return Outcome(Result.KO, encode_response(kept))
        if copy is None:
            why = "it exists already, and nothing says under which id; 'find' of the service would"
            return Outcome(Result.KO, encode_response(msgspec.structs.replace(kept, note=why)))
        if other := self._copies.index.whose_place(copy):
            why = f"it exists already, as the copy of {other}"
            return Outcome(Result.KO, encode_response(msgspec.structs.replace(kept, note=why)))
        if policy == "adopt" or task.request.named:
            await self._copies.bind(copy)
            return nothing_to_do("it existed, and was adopted")
        return await self._overwrite(task, copy)

    async def _is_there(self, task: Task, path: str) -> bool:
        """Whether the service has this collection, by WebDAV's PROPFIND."""
        request = Request(method="PROPFIND", path=path, headers=(("Depth", "0"),), ticket=task.request.ticket)
        sent = await self._sender.send(task.service, request, path, b"")
        return sent.reply.status == _MULTI_STATUS

    async def _existing(self, task: Task, reply: ServiceReply) -> Copy | None:
        if copy := self._sender.new_copy(task.service, task.meta_id, task.request, reply):
            return copy
        found = await self._find(task)
        if found is None:
            return None
        is_number = isinstance(found, int)
        return Copy(task.meta_id, task.service.name, task.request.item, str(found), is_number)

    async def _find(self, task: Task) -> str | int | None:
        """The id of the one item that `find` of the configuration lists; None if it is not exactly one."""
        find = task.service.replication.find
        if not find or not isinstance(task.body, bytes):
            return None
        for name in body_names(find):
            value = id_in(task.body, tuple(name.split(".")))
            if value is None:
                return None
            find = find.replace(f"{{{name}}}", quote(str(value), safe=""))
        path, query = split_target(find)
        request = Request(method="GET", path=path, query=query, ticket=task.request.ticket)
        sent = await self._sender.send(task.service, request, path, b"")
        if sent.reply.status != 200:
            return None
        return first_id_in(sent.reply.body, task.service.replication.id or ("id",))

    async def _overwrite(self, task: Task, copy: Copy) -> Outcome:
        path = self._sender.local_path(copy)
        for method in ("PUT", "PATCH"):
            sent = await self._sender.send(task.service, task.request, path, task.body, method=method)
            if sent.reply.status not in _NO_SUCH_METHOD:
                break
        result = result_for(task.request, method, sent)
        if result is Result.OK:
            await self._copies.bind(copy)
        kept = self._sender.kept(task.service, path, sent.reply)
        return Outcome(result, encode_response(msgspec.structs.replace(kept, note="it existed, and was overwritten")))


FILE = "replicas.db"
_MAX_WAITS = 1_000
_CONNECT_S = 2.0
_CREATED = 201
_CREDENTIALS_LOST = (
    "the client's credentials are not known any more, and the service never saw them: send the request again"
)
_ONLY_IF_NEW: tuple[Header, ...] = (("If-None-Match", "*"),)


class HttpBackend(Backend):
    """Runs operations that are HTTP requests, and owns this site's copies."""

    releases_files = True  # a body is needed only until every site has its copy: a create that ran is not run again

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._services = context.config.services
        self.copies = Copies(context.config.data / FILE)
        self.tickets = Tickets()
        self.waits: BoundedMap[str, str] = BoundedMap(_MAX_WAITS)  # why the next operation of a resource cannot run yet
        self.guard: RunGuard | None = None
        auths = {name: service.replication.auth for name, service in self._services.items()}
        providers = {name: CredentialProvider(name, auth, context.commands) for name, auth in auths.items() if auth}
        self.sender = OperationSender(self.copies, self.tickets, providers, context.config.gateway)
        self._existing = ExistingResources(self.sender, self.copies)

    async def start(self) -> None:
        await self.copies.open()

    async def close(self) -> None:
        self.sender.client.pool.close()
        await self.copies.close()

    async def run(self, run: Run) -> tuple[Outcome, ...]:
        service, guard = service_of(run.rtype), self.guard
        if service is None or guard is None:
            return await self._run(run)
        await guard.before_run(service)
        try:
            return await self._run(run)
        finally:
            guard.after_run(service)

    async def _run(self, run: Run) -> tuple[Outcome, ...]:
        await self.copies.welcome(run.resource)  # what runs here is at this site, perhaps again
        outcomes = await super().run(run)
        last = outcomes[-1] if outcomes else None
        if last and last.result in (Result.RETRY, Result.MAYBE):
            self.waits[run.resource] = last.output
        else:
            self.waits.pop(run.resource, None)
        return outcomes

    async def run_step(self, run: Run, step: Step) -> Outcome:
        service = self._services[service_of(run.rtype) or ""]
        replica = self.context.replica(run.resource)
        # Accepted here, and no service has approved it yet: it may run only with the credentials of its client.
        is_undecided = replica is not None and any(draft.id == step.op for draft in replica.drafts)
        is_base = run.replay and step is run.steps[0]
        try:
            request = request_of(step.payload)
            ended = self._result_without_request(run.resource, request)
            if ended or (is_undecided and self._needs_client_credentials(service.name, request)):
                return ended or Outcome(Result.KO, _CREDENTIALS_LOST)
            body = self._body(run, step, request, is_base=is_base)
            return body if isinstance(body, Outcome) else await self._send(Task(service, run.resource, request, body))
        except PayloadError as error:
            return Outcome(Result.KO, str(error))
        except (NoCopyError, CredentialsError) as error:
            return Outcome(Result.RETRY, str(error))
        except UpstreamError as error:
            in_doubt = result_in_doubt(request.method, may_repeat=bool(request.key))
            return Outcome(in_doubt if error.may_have_had_effect else Result.RETRY, str(error))

    def _result_without_request(self, meta_id: str, request: Request) -> Outcome | None:
        """The outcome, if no request to the service is needed."""
        has_copy = meta_id in self.copies.index.copies
        if request.base:
            return nothing_to_do("no request to the service is needed")
        if has_copy and request.creates and (not request.named or request.creates_collection):
            return nothing_to_do("there is a copy already")
        if not has_copy and request.within and request.within not in self.copies.index.copies:
            raise NoCopyError(request.within)
        if has_copy or request.creates:
            return None
        if request.deletes:
            return nothing_to_do("there is no copy")
        return Outcome(Result.KO, f"there is no copy of {meta_id} at this site")

    def _needs_client_credentials(self, service: str, request: Request) -> bool:
        """Whether the client's credentials are forgotten (they are kept for a while, and not across a restart). It
        must not run with this site's own credentials: no service has seen that the client may do it."""
        return self.sender.has_own_credentials(service) and self.sender.is_forgotten(request.ticket)

    def _body(self, run: Run, step: Step, request: Request, *, is_base: bool) -> bytes | Path | Outcome:
        """The body to send; or the outcome, if it is missing."""
        if request.file_bytes is None:
            return request.inline
        file = next((file for file in step.payload.files if file.name == BODY), None)
        if file is None:
            return Outcome(Result.KO, "the operation names no file for the body of its request")
        if path := self.context.files.path(file.hash):
            return path
        if not self.context.files.is_lost(run.resource, file.hash):
            self.context.files.fetch(run.resource, file)
            return Outcome(Result.RETRY, "the body of the request is not here yet")
        later = (request_of(other.payload) for other in run.steps[1:])
        if is_base and run.resource in self.copies.index.copies and all(other.is_repeatable for other in later):
            return nothing_to_do("it ran here before, and what follows leads to the same state without it")
        return Outcome(Result.KO, "the body of the request is gone: every site that it was for had applied it")

    async def _send(self, task: Task) -> Outcome:
        request = task.request
        path = text_to_local(request.path, self.copies.index.local_of, Form.URL)
        only_if_new = request.named and request.exists in ("abort", "adopt")
        more = _ONLY_IF_NEW if only_if_new else ()
        sent = await self.sender.send(task.service, request, path, task.body, more=more)
        if may_exist(request, sent.reply.status):
            return await self._existing.resolve(task, path, sent.reply)
        result = result_for(request, request.method, sent)
        if result is Result.OK and request.creates:
            copy = self.sender.new_copy(task.service, task.meta_id, request, sent.reply)
            if copy is not None:
                await self.copies.bind(copy)
                path = self.sender.local_path(copy)
        kept = self.sender.kept(task.service, path, sent.reply)
        if request.method == "POST" and not request.creates and kept.status == _CREATED:
            where = f"services.{task.service.name}.items"
            note = f"what was created has an id of its own at each site; {where} would make it a replicant"
            kept = msgspec.structs.replace(kept, note=note)
        if result is Result.OK and request.deletes:
            await self.copies.unbind(task.meta_id)
        return Outcome(result, encode_response(kept))

    # -- the rest of the protocol --------------------------------------------------------------------------

    async def read(self, rtype: str, resource: str, request: str) -> Outcome:
        """The state of this site's copy: JSON in one spelling, with meta-ids."""
        if request not in ("", READ):
            raise ClientError(f"the state of a replicant is shown by a {READ} of it, and by no command")
        service, copy = self._services[service_of(rtype) or ""], self.copies.index.copies.get(resource)
        if copy is None:
            return Outcome(Result.KO, f"there is no copy of {resource} at this site")
        path = self.sender.local_path(copy)
        try:
            sent = await self.sender.send(service, Request(method="GET", path=path), path, b"")
        except (NoCopyError, UpstreamError, CredentialsError) as error:
            return Outcome(Result.KO, str(error))
        kept = self.sender.kept(service, path, sent.reply)
        return Outcome(Result.OK if sent.reply.status < 300 else Result.KO, _canonical(kept))

    def check_payload(self, rtype: str, replica: Replica, kind: Kind, payload: Command) -> None:
        """Changes come through the gateway; without it a client may only delete, as the backend itself would."""
        if kind not in (Kind.DELETE, Kind.SITES) or payload.line != getattr(self.deletion(replica), "line", None):
            service = service_of(rtype)
            raise ClientError(f"resources of the service '{service}' are changed by HTTP requests to it", status=403)

    def deletion(self, replica: Replica) -> Command | None:
        return deletion_command(replica)

    def describe(self, payload: Command) -> str:
        try:
            request = request_of(payload)
        except PayloadError:
            return payload.line
        return f"{request.method} {request.path}"

    async def resource_moved(self, resource: str, *, is_here: bool) -> None:
        """What is no longer at this site is an ordinary resource of its service, until it is back."""
        if is_here:
            await self.copies.welcome(resource)
        else:
            await self.copies.send_away(resource)

    async def doctor(self) -> Sequence[Finding]:
        return await asyncio.gather(*(_accepts_connections(one.name, one.url) for one in self._services.values()))


async def _accepts_connections(name: str, url: str) -> Finding:
    place = address_of_url(url)
    try:
        _reader, writer = await asyncio.wait_for(asyncio.open_connection(place.host, place.port), _CONNECT_S)
        writer.close()
    except (OSError, TimeoutError) as error:
        hint = f"start the service, or fix 'services.{name}.url'"
        return Finding(f"{name} accepts connections", f"{url}: {error or 'no answer'}", hint, group="services")
    return Finding(f"{name} accepts connections", url, group="services")


def http_backend(node: Node) -> HttpBackend:
    """The HTTP backend of a running site."""
    backend = node.backends.named(HTTP_BACKEND)
    assert isinstance(backend, HttpBackend)  # noqa: S101 - it is built in under this name
    return backend


def _canonical(kept: KeptResponse) -> str:
    """A state that can be compared between sites: sorted names, no spacing."""
    if kept.status >= 300:
        return f"the service answers {kept.status}: {kept.text[:1000]}"
    if kept.cut_bytes:
        return f"{kept.cut_bytes} bytes"
    try:
        return msgspec.json.encode(msgspec.json.decode(kept.body), order="sorted").decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return kept.text or kept.base64
