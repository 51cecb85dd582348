"""Run operations against this site's instance of a service.

A create gives the resource a local id here, which is kept (`copies`) before the engine learns the outcome. To run
it again does nothing: the copy is there. Everything that goes to the service has local ids, everything that is
kept of its responses has meta-ids. Where the service already has what a create would make, the policy `exists`
decides: abort, adopt it as our copy, or overwrite it.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from cheops.backends.command.runner import CommandRunner
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
from cheops.backends.http.upstream import OperationSender, SentReply, ServiceReply
from cheops.config.services import ServiceConfig, names_in, service_of
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.gateway.interfaces import InDoubtError, NotSentError
from cheops.log.operation import OpId, Timing


@dataclass(frozen=True, slots=True)
class Task:
    """An operation, with all that is needed to run it."""

    service: ServiceConfig
    meta_id: str
    request: Request
    body: bytes | Path = b""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """For the engine: the text is an answer in short (`Said`), or says why there is none."""

    result: Result
    text: str


def nothing_to_do(note: str) -> TaskResult:
    """There was nothing to be asked of the service."""
    return TaskResult(Result.OK, encode_response(KeptResponse(status=200, note=note)))


def result_for(request: Request, method: str, answered: SentReply) -> Result:
    status, own = answered.reply.status, answered.own_credentials
    return result_of(method, status, may_repeat=bool(request.key), own_credentials=own)


_CONFLICTS = (409, 412)
_NO_SUCH_METHOD = (405, 501)
_MULTI_STATUS = 207


def may_exist(request: Request, status: int) -> bool:
    """Whether a service may mean by this that what is to be created is there. To MKCOL it says then that the
    method is not allowed; 409 can also be said of a collection that is missing above it."""
    if not request.creates:
        return False
    return status in _CONFLICTS or (request.creates_collection and status in _NO_SUCH_METHOD)


class ExistingResources:
    def __init__(self, sending: OperationSender, copies: Copies) -> None:
        self._sending = sending
        self._copies = copies

    async def resolve(self, task: Task, path: str, reply: ServiceReply) -> TaskResult:
        """The service has it already: leave it at that, take it for our copy, or write over it."""
        policy = task.request.exists or task.service.replication.exists
        kept = self._sending.kept(task.service, path, reply)
        if policy == "abort":
            return TaskResult(Result.KO, encode_response(kept))
        copy = await self._existing(task, reply)
        if task.request.creates_collection and not await self._is_there(task, path):
            return TaskResult(Result.KO, encode_response(kept))
        if copy is None:
            why = "it exists already, and nothing says under which id; 'find' of the service would"
            return TaskResult(Result.KO, encode_response(msgspec.structs.replace(kept, note=why)))
        if other := self._copies.index.whose_place(copy):
            why = f"it exists already, as the copy of {other}"
            return TaskResult(Result.KO, encode_response(msgspec.structs.replace(kept, note=why)))
        if policy == "adopt" or task.request.named:
            await self._copies.bind(copy)
            return nothing_to_do("it existed, and was adopted")
        return await self._overwrite(task, copy)

    async def _is_there(self, task: Task, path: str) -> bool:
        """Whether the service has this collection: WebDAV's own question."""
        asked = Request(method="PROPFIND", path=path, headers=(("Depth", "0"),), ticket=task.request.ticket)
        answered = await self._sending.send(task.service, asked, path, b"")
        return answered.reply.status == _MULTI_STATUS

    async def _existing(self, task: Task, reply: ServiceReply) -> Copy | None:
        if copy := self._sending.new_copy(task.service, task.meta_id, task.request, reply):
            return copy
        found = await self._found(task)
        if found is None:
            return None
        is_number = isinstance(found, int)
        return Copy(task.meta_id, task.service.name, task.request.item, str(found), is_number)

    async def _found(self, task: Task) -> str | int | None:
        """The id of what `find` finds: exactly one item, by what the request says of it."""
        find = task.service.replication.find
        if not find or not isinstance(task.body, bytes):
            return None
        for name in names_in(find):
            value = id_in(task.body, tuple(name.split(".")))
            if value is None:
                return None
            find = find.replace(f"{{{name}}}", quote(str(value), safe=""))
        path, query = split_target(find)
        request = Request(method="GET", path=path, query=query, ticket=task.request.ticket)
        answered = await self._sending.send(task.service, request, path, b"")
        if answered.reply.status != 200:
            return None
        return first_id_in(answered.reply.body, task.service.replication.id or ("id",))

    async def _overwrite(self, task: Task, copy: Copy) -> TaskResult:
        path = self._sending.local_path(copy)
        for method in ("PUT", "PATCH"):
            answered = await self._sending.send(task.service, task.request, path, task.body, method=method)
            if answered.reply.status not in _NO_SUCH_METHOD:
                break
        result = result_for(task.request, method, answered)
        if result is Result.OK:
            await self._copies.bind(copy)
        kept = self._sending.kept(task.service, path, answered.reply)
        return TaskResult(
            result, encode_response(msgspec.structs.replace(kept, note="it existed, and was overwritten"))
        )


_REMEMBERED = 1_000
_CREATED = 201
_CREDENTIALS_LOST = (
    "the client's credentials are not known any more, and the service never saw them: send the request again"
)
_ONLY_IF_NEW: tuple[Header, ...] = (("If-None-Match", "*"),)


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Files of operations: where one is, whether it is gone from all sites, and how to have it fetched."""

    path: Callable[[str], Path | None]
    is_gone: Callable[[str, str], bool]  # of a resource, by its hash
    fetch: Callable[[str, str], None]


class HttpBackend:
    """Runs what the engine wants run on replicants."""

    def __init__(
        self, services: Mapping[str, ServiceConfig], copies: Copies, files: FileAccess, runner: CommandRunner
    ) -> None:
        self._services = services
        self._files = files
        self.copies = copies
        self.tickets = Tickets()
        self.waits: dict[str, str] = {}  # replicants whose next operation cannot run yet, and why
        auths = {name: service.replication.auth for name, service in services.items()}
        providers = {name: CredentialProvider(name, auth, runner) for name, auth in auths.items() if auth}
        self.sending = OperationSender(copies, self.tickets, providers)
        self._existing = ExistingResources(self.sending, copies)

    async def start(self) -> None:
        await self.copies.open()
        self.sending.exchange.start()

    async def close(self) -> None:
        await self.sending.exchange.close()
        await self.copies.close()

    async def run(self, run: Run, undecided: Collection[OpId] = ()) -> tuple[Outcome, ...]:
        """The outcomes of the steps, up to the one at which the run ends. `undecided` are operations that
        were taken here and that no service has agreed to yet."""
        await self.copies.welcome(run.resource)  # what is run is here again, if it was away
        outcomes: list[Outcome] = []
        for place, step in enumerate(run.steps):
            began_ms, began_s = time.time_ns() // 1_000_000, time.monotonic()
            is_new = step.op in undecided
            ended = await self._step(run, step, is_base=run.replay and place == 0, is_undecided=is_new)
            timing = Timing(began_ms, round((time.monotonic() - began_s) * 1000))
            outcomes.append(Outcome(ended.result, ended.text, timing))
            if ended.result in (Result.RETRY, Result.MAYBE):
                self._note_wait(run.resource, ended.text)
                break
            self.waits.pop(run.resource, None)
            if run.until_failure and ended.result is Result.KO:
                break
        return tuple(outcomes)

    def _note_wait(self, resource: str, why: str) -> None:
        self.waits[resource] = why
        while len(self.waits) > _REMEMBERED:
            del self.waits[next(iter(self.waits))]

    async def _step(self, run: Run, step: Step, *, is_base: bool, is_undecided: bool) -> TaskResult:
        service = self._services.get(service_of(run.rtype) or "")
        if service is None:
            return TaskResult(Result.RETRY, f"'{run.rtype}' is not a service of this site's configuration")
        try:
            request = request_of(step.payload)
            ended = self._result_without_request(run.resource, request)
            if ended or (is_undecided and self._needs_client_credentials(service.name, request)):
                return ended or TaskResult(Result.KO, _CREDENTIALS_LOST)
            body = self._body(run, step, request, is_base=is_base)
            return (
                body if isinstance(body, TaskResult) else await self._asked(Task(service, run.resource, request, body))
            )
        except PayloadError as error:
            return TaskResult(Result.KO, str(error))
        except (NoCopyError, NotSentError, CredentialsError) as error:
            return TaskResult(Result.RETRY, str(error))
        except InDoubtError as error:
            return TaskResult(result_in_doubt(request.method, may_repeat=bool(request.key)), str(error))

    def _result_without_request(self, meta_id: str, request: Request) -> TaskResult | None:
        """How it ends where there is nothing to be asked of the service."""
        has_copy = meta_id in self.copies.index.copies
        if request.base:
            return nothing_to_do("nothing is asked of the service")
        if has_copy and request.creates and (not request.named or request.creates_collection):
            return nothing_to_do("there is a copy already")
        if not has_copy and request.within and request.within not in self.copies.index.copies:
            raise NoCopyError(request.within)
        if has_copy or request.creates:
            return None
        if request.deletes:
            return nothing_to_do("there is no copy")
        return TaskResult(Result.KO, f"there is no copy of {meta_id} at this site")

    def _needs_client_credentials(self, service: str, request: Request) -> bool:
        """Whether it would be run with this site's own credentials, though nobody has seen that those of its
        client suffice: they are remembered for a while, and not over a restart."""
        return self.sending.has_own_credentials(service) and self.sending.is_forgotten(request.ticket)

    def _body(self, run: Run, step: Step, request: Request, *, is_base: bool) -> bytes | Path | TaskResult:
        """What to send; or how it ends without that."""
        if request.file_bytes is None:
            return request.inline
        hash_ = dict(step.payload.files).get(BODY, "")
        if path := self._files.path(hash_):
            return path
        if not self._files.is_gone(run.resource, hash_):
            self._files.fetch(run.resource, hash_)
            return TaskResult(Result.RETRY, "the body of the request is not here yet")
        later = (request_of(other.payload) for other in run.steps[1:])
        if is_base and run.resource in self.copies.index.copies and all(other.is_repeatable for other in later):
            return nothing_to_do("it ran here before, and what follows leads to the same state without it")
        return TaskResult(Result.KO, "the body of the request is gone: every site that it was for had applied it")

    async def _asked(self, task: Task) -> TaskResult:
        request = task.request
        path = text_to_local(request.path, self.copies.index.local_of, Form.URL)
        only_if_new = request.named and request.exists in ("abort", "adopt")
        more = _ONLY_IF_NEW if only_if_new else ()
        answered = await self.sending.send(task.service, request, path, task.body, more=more)
        if may_exist(request, answered.reply.status):
            return await self._existing.resolve(task, path, answered.reply)
        result = result_for(request, request.method, answered)
        if result is Result.OK and request.creates:
            copy = self.sending.new_copy(task.service, task.meta_id, request, answered.reply)
            if copy is not None:
                await self.copies.bind(copy)
                path = self.sending.local_path(copy)
        kept = self.sending.kept(task.service, path, answered.reply)
        if request.method == "POST" and not request.creates and kept.status == _CREATED:
            where = f"services.{task.service.name}.items"
            note = f"what was created has an id of its own at each site; {where} would make it a replicant"
            kept = msgspec.structs.replace(kept, note=note)
        if result is Result.OK and request.deletes:
            await self.copies.unbind(task.meta_id)
        return TaskResult(result, encode_response(kept))

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, rtype: str, meta_id: str) -> tuple[bool, str]:
        """The state of this site's copy, and whether there is one: JSON in one spelling, with meta-ids."""
        service, copy = self._services[service_of(rtype) or ""], self.copies.index.copies.get(meta_id)
        if copy is None:
            return False, f"there is no copy of {meta_id} at this site"
        path = self.sending.local_path(copy)
        try:
            answered = await self.sending.send(service, Request(method="GET", path=path), path, b"")
        except (NoCopyError, NotSentError, InDoubtError, CredentialsError) as error:
            return False, str(error)
        kept = self.sending.kept(service, path, answered.reply)
        return answered.reply.status < 300, _canonical(kept)


def _canonical(kept: KeptResponse) -> str:
    """A state to be compared with that of other sites: names in order, no spacing."""
    if kept.status >= 300:
        return f"the service answers {kept.status}: {kept.text[:1000]}"
    if kept.cut_bytes:
        return f"{kept.cut_bytes} bytes"
    try:
        return msgspec.json.encode(msgspec.json.decode(kept.body), order="sorted").decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return kept.text or kept.base64
