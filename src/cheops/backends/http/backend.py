"""The HTTP backend: runs operations against this site's instance of a service.

A create gives the resource a local id here, which is saved (`copies`) before the engine gets the outcome. To run it
again does nothing: the copy exists. Everything sent to the service has local ids, everything kept of its responses has
meta-ids. If the service already has the resource that a create would make, `existing` decides.

**With whose rights.** An operation that no service has decided about (a draft, at the site that took it) is sent with
exactly the credentials of its client, perhaps none: it is the service that decides whether this client may do it, and
nothing is taken for its consent. Only after that do sites run it with credentials of their own. `_identity` is the one
place that chooses.
"""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.creations import MAY_EXIST, creation_in_doubt, response_to
from cheops.backends.http.credentials import CredentialProvider, CredentialsError, Tickets
from cheops.backends.http.deletions import MULTI_STATUS, failed_part, is_deleted_with, report_lost, waits_for_parts
from cheops.backends.http.exclusion import Exclusion
from cheops.backends.http.existing import ExistingResources, Task, may_exist, nothing_to_do, outcome_of
from cheops.backends.http.explanation import child_without_id, response_text, without_id
from cheops.backends.http.ids import Form, NoCopyError, text_to_local
from cheops.backends.http.interpretation import check_meaning, failure, rule_for
from cheops.backends.http.moves import occupant, path_now
from cheops.backends.http.order import at_site, creation_after, has_run, may_be_early, must_wait, unnamed_above
from cheops.backends.http.paths import joined, last_segment, trimmed
from cheops.backends.http.payload import (
    BODY,
    After,
    Header,
    PayloadError,
    Request,
    is_in_doubt,
    request_of,
    result_in_doubt,
)
from cheops.backends.http.reachability import service_finding
from cheops.backends.http.restoration import Restoration, shown_state
from cheops.backends.http.rules import check_place, check_rules
from cheops.backends.http.sender import Exchange, Identity, OfClient, OperationSender, ServiceReply, of_site
from cheops.backends.http.session_replay import send_session
from cheops.backends.http.signature import RequestSigner
from cheops.backends.http.submission import deletion_command
from cheops.backends.protocol import Backend, BackendContext, Finding, KeepFile
from cheops.bounded import BoundedMap
from cheops.config.service_rules import Success
from cheops.config.services import CREATE, READ, ServiceConfig, service_of
from cheops.config.types import HTTP_BACKEND
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.engine.replica import Replica
from cheops.errors import CheopsError, ClientError
from cheops.gateway.interfaces import RunGuard, UpstreamError
from cheops.log.operation import Command, Kind, Status
from cheops.node.node import Node
from cheops.text import printable, shortened

FILE = "replicas.db"
_MAX_WAITS = 1_000
_CREATED = 201
_CREDENTIALS_LOST = (
    "the client's credentials are not known any more, and without them nobody may run it: send the request again"
)
_COMPLETION_LOST = (
    "it completes a session, and the agent stopped before it knew the response: look whether the service has it"
)
_MAY_BE_OURS = (
    "it exists already, and may be of an attempt before, whose response was lost: look at it, and delete it or PUT it"
)
_THERE_IS_ONE = "there is a copy already: an earlier request with this Idempotency-Key created it"
_ID_UNKNOWN = (
    "nobody knows under which id the service has it, so it could not be changed or deleted. Record its local id first "
    "(PUT /api/v1/replicants/{id}/local-id); or delete it there, and say that it did not happen"
)
_GONE = (404, 410)
_ONLY_IF_NEW: tuple[Header, ...] = (("If-None-Match", "*"),)


class _LostAnswerError(CheopsError):
    """It is not known whether the service has completed a session. A second attempt could not tell."""


class HttpBackend(Backend):
    """Runs operations that are HTTP requests, and owns this site's copies."""

    releases_files = True  # a body is needed only until every site has its copy: a create that ran is not run again

    def __init__(self, context: BackendContext, copies: Copies | None = None, exchange: Exchange | None = None) -> None:
        """`copies` and `exchange` are what touches a disk or a network; the simulator has its own."""
        super().__init__(context)
        self._services = context.config.services
        self.copies = copies or Copies(context.config.data / FILE)
        self.tickets = Tickets()
        self.waits: BoundedMap[str, str] = BoundedMap(_MAX_WAITS)  # why the next operation of a resource cannot run yet
        self._in_doubt: BoundedMap[str, None] = BoundedMap(_MAX_WAITS)  # operations that may have had an effect
        self.guard: RunGuard | None = None
        auths = {name: service.replication.auth for name, service in self._services.items()}
        providers = {name: CredentialProvider(name, auth, context.commands) for name, auth in auths.items() if auth}
        signs = {name: service.replication.sign for name, service in self._services.items()}
        signers = {name: RequestSigner(name, one.sigv4) for name, one in signs.items() if one}
        self.sender = OperationSender(self.copies, providers, context.config.gateway, signers, exchange)
        self._exclusion = Exclusion(self.copies)
        self._existing = ExistingResources(self.sender, self.copies)
        self._restoration = Restoration(context.config.name, self.sender, self.copies, context.load)

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
        request = request_of(step.payload)  # raises ClientError, like the rules: then it is refused, and reported
        if request.base:
            return nothing_to_do("no request to the service is needed")
        check_rules(service, request)
        copy, replica = self.copies.index.copies.get(run.resource), self.context.replica(run.resource)
        check_place(service, request, run.resource, copy, replica)
        if copy is None and (later := creation_after(replica, step.op)):
            created = await self.run_step(run, Step(later.id, later.payload))
            if created.result is not Result.OK:
                return created
            copy = self.copies.index.copies.get(run.resource)
        if copy is None and (doubtful := creation_in_doubt(replica, self.copies, request)):
            created = await self.run_step(run, Step(doubtful.id, doubtful.payload, again=True))
            if created.result in (Result.RETRY, Result.MAYBE):
                return created
            copy = self.copies.index.copies.get(run.resource)
        async with self._exclusion.held(service.name, request, copy):
            return await self._run_in_order(run, step, service, request)

    async def _run_in_order(self, run: Run, step: Step, service: ServiceConfig, request: Request) -> Outcome:
        is_decided = not self._is_undecided(run.resource, step)
        if is_decided and await is_deleted_with(self.context, self.copies.index, service.name, run, step):
            return nothing_to_do("it was deleted here with what contains it")
        if not is_decided and (
            above := await unnamed_above(self.context, self.copies.index, service.name, request, run.resource)
        ):
            return Outcome(Result.RETRY, f"{above}, which will contain it, is new, and not at all of its sites yet")
        if before := await self._unsettled(run, step, request.after):
            return Outcome(Result.RETRY, f"it comes after an operation on {before} that has not run here yet")
        outcome = await self._attempt(run, step, service, request)
        if may_be_early(outcome) and (before := await self._unsettled(run, step, request.earlier)):
            return Outcome(Result.RETRY, f"the service refuses it, and an operation on {before} has not run here yet")
        return outcome

    async def _attempt(self, run: Run, step: Step, service: ServiceConfig, request: Request) -> Outcome:
        op = str(step.op)
        again = step.again or op in self._in_doubt or self.copies.has_tried(run.resource, op)
        try:
            task = self._task(run, step, service, request)
            if isinstance(task, Outcome):
                return task
            tried = replace(task, again=again)
            outcome = await (self._restoration.restore(tried) if request.state else self._send(tried))
        except (NoCopyError, CredentialsError, _LostAnswerError) as error:
            is_lost = isinstance(error, _LostAnswerError)
            return Outcome(Result.MAYBE if is_lost else Result.RETRY, str(error), once=is_lost)
        except UpstreamError as error:
            if error.may_have_had_effect:
                self._in_doubt[str(step.op)] = None
            in_doubt = result_in_doubt(request.method, may_repeat=request.may_repeat)
            result = in_doubt if error.may_have_had_effect else Result.RETRY
            return Outcome(result, str(error), in_doubt=error.may_have_had_effect)
        if task.is_of_client and again and outcome.result is Result.KO:
            outcome = replace(outcome, output=response_text(outcome.output))  # people will read it, and decide
        if task.is_of_client and outcome.result in (Result.OK, Result.KO):
            self.tickets.forget(request.ticket)
        return outcome

    async def _unsettled(self, run: Run, step: Step, befores: Sequence[After]) -> str:
        """The resource that an operation of another site has to wait for; empty if there is none."""
        own, id_ = self.context.replica(run.resource), step.op
        if id_ is None or id_.origin.site == self.context.config.name:
            return ""
        if own is not None and (id_.origin.site in own.gone or has_run(own, id_)):
            return ""  # it may name what will never come; or what was settled then, and is deleted and forgotten since
        for before in at_site(self.context.config.name, befores):
            other = await self.context.load(before.resource)
            if must_wait(other, before, own, id_):
                return before.resource
        return ""

    def _task(self, run: Run, step: Step, service: ServiceConfig, request: Request) -> Task | Outcome:
        """What to send; or the outcome, if nothing can be sent, or need be. Raises NoCopyError, CredentialsError."""
        identity = self._identity(service, run.resource, step, request)
        if isinstance(identity, Outcome):
            return identity
        name = service.name
        if not request.state and (ended := self._result_without_request(name, run.resource, request, identity)):
            return ended
        body = self._body(run, step, request, is_base=run.replay and step is run.steps[0])
        if isinstance(body, Outcome):
            return body
        if problem := check_meaning(service, request, run.resource, body):
            raise PayloadError(problem)
        return Task(service, run.resource, request, identity, str(step.op), body)

    def _identity(self, service: ServiceConfig, resource: str, step: Step, request: Request) -> Identity | Outcome:
        """With whose credentials an operation runs; or its outcome, if those are gone. Raises CredentialsError."""
        # Without a ticket it is an operator's deletion, by the API: `check_payload` lets nothing else pass.
        if not request.ticket or not self._is_undecided(resource, step):
            return of_site(service, request.client)
        if self.copies.approvals.get(resource) == str(step.op):  # the agent stopped after the service had accepted it
            return nothing_to_do("the service accepted it before the agent stopped")
        headers = self.tickets.credentials(request.ticket)
        # They are kept for a while, and not across a restart. It must not run with any others: no service has seen
        # that the client may do it.
        if headers is None and request.session and not self._is_said_to_be_undone(resource, step):
            return Outcome(Result.MAYBE, _COMPLETION_LOST, once=True)
        return Outcome(Result.KO, _CREDENTIALS_LOST) if headers is None else OfClient(headers)

    def _is_said_to_be_undone(self, resource: str, step: Step) -> bool:
        """Whether the operator has looked, and says that an operation did not run."""
        replica = self.context.replica(resource)
        reply = replica.replies.get(step.op, self.context.config.name) if replica and step.op else None
        return reply is not None and reply.status is Status.PENDING

    def _is_undecided(self, resource: str, step: Step) -> bool:
        """Whether it was accepted here, and no service has decided about it yet."""
        if step.op is None or step.op.origin.site != self.context.config.name:
            return False
        replica = self.context.replica(resource)
        return replica is None or any(draft.id == step.op for draft in replica.drafts)

    def _result_without_request(
        self, service: str, meta_id: str, request: Request, identity: Identity
    ) -> Outcome | None:
        """The outcome, if no request to the service is needed. For a client's request one always is: only the service
        can say whether the client may do it."""
        of_client = isinstance(identity, OfClient)
        has_copy = meta_id in self.copies.index.copies
        if has_copy and request.creates and (not request.named or request.creates_collection):
            return Outcome(Result.KO, _THERE_IS_ONE) if of_client else nothing_to_do("there is a copy already")
        if not has_copy and request.within and request.within not in self.copies.index.copies:
            raise NoCopyError(request.within)
        if other := occupant(self.copies.index, service, meta_id, request):
            where = printable(shortened(request.to or request.item))
            return Outcome(
                Result.KO, f"{where} is the path of {other}, or may be the same to a service: two cannot be at one path"
            )
        if has_copy or (request.binds and (request.named or request.creates)):
            return None
        if request.deletes and not of_client:
            replica = self.context.replica(meta_id)
            if replica is not None and replica.applied.unknown is not None:
                return Outcome(Result.RETRY, MAY_EXIST)
            is_sent = request.named and self.copies.may_have_created(meta_id)
            return None if is_sent else nothing_to_do("there is no copy")
        return Outcome(Result.KO, f"there is no copy of {meta_id} at this site")

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
        copy = self.copies.index.copies.get(task.meta_id)
        if copy and request.kind == CREATE and not task.is_of_client:
            return await self._existing.overwrite(task, copy)  # it was created at two sites: this is the later one
        path = text_to_local(path_now(request, copy), self.copies.index.local_of, Form.URL)
        only_if_new = request.named and request.exists in ("abort", "adopt")
        more = _ONLY_IF_NEW if only_if_new else ()
        reply = await self._reply(task, path, more)
        if (outcome := await self._done_before(task, path, reply)) is not None:
            return outcome
        result, note = self._judged(task, reply)
        if result is Result.OK and request.binds:
            copy = self.sender.new_copy(task.service, task.meta_id, request, reply, task.body)
            if copy is not None:
                await self.copies.bind(copy, task.approved)
                path = self.sender.local_path(copy) if request.creates else path
            else:
                here = self.context.config.name
                result = Result.KO
                note = without_id(task.service, task.request, here, is_of_client=task.is_of_client)
        kept = self.sender.kept(task.service, path, reply)
        if result is Result.OK and self._creates_unknown(task, reply):
            result, note = Result.KO, child_without_id(task.service, request)
        kept = msgspec.structs.replace(kept, note=note or kept.note)
        if task.is_of_client and result in (Result.OK, Result.KO):
            whole = msgspec.structs.replace(self.sender.public(task.service, path, reply), note=kept.note)
            if whole != kept:
                self.tickets.keep_answer(answer_key(task.meta_id, task.op), whole)
        if request.deletes and (result is Result.OK or reply.status == MULTI_STATUS):
            await self._deleted(task.meta_id, request, task.approved, whole=result is Result.OK)
        return replace(outcome_of(task, result, kept), in_doubt=is_in_doubt(reply.status))

    async def _done_before(self, task: Task, path: str, reply: ServiceReply) -> Outcome | None:
        """The outcome, if what a request would create is there already, or what it would delete is gone."""
        if may_exist(task.request, reply.status):
            outcome = await self._existing.resolve(task, path, reply)
            if outcome.result is not Result.KO or not task.again:
                return outcome
            # What exists may be of the attempt before, or somebody else's: nobody knows, so nothing is overwritten.
            kept = msgspec.structs.replace(self.sender.kept(task.service, path, reply), note=_MAY_BE_OURS)
            return outcome_of(task, Result.KO, kept)
        if task.request.to and (moved := await self._existing.moved(task, path, reply)):
            return moved
        if not await self._is_gone(task, path, reply):
            return None
        if task.request.deletes:
            await self._deleted(task.meta_id, task.request, task.approved)
        return nothing_to_do("it is not there any more: an attempt before has deleted it")

    async def _deleted(self, meta_id: str, request: Request, approved: str = "", *, whole: bool = True) -> None:
        """The service has deleted a resource, or (not `whole`) some of what is in it. What follows from that is durable
        before the copies are gone: after a crash, this happens again."""
        await report_lost(self.context, self.copies.index, meta_id, request, whole=whole)
        if whole:
            await self.copies.unbind(meta_id, approved)

    async def _is_gone(self, task: Task, path: str, reply: ServiceReply) -> bool:
        """Whether a client's DELETE found nothing because an attempt before has deleted it. The service would answer
        the same to a client that may not see it, so this site looks with the credentials with which it runs changes."""
        request, copy = task.request, self.copies.index.copies.get(task.meta_id)
        if not (task.again and task.is_of_client and request.method == "DELETE" and reply.status in _GONE):
            return False
        look = Request(method="GET", path=request.path, query=request.query)
        identity = of_site(task.service, copy.client if copy else request.client)
        return (await self.sender.send(task.service, look, path, b"", identity)).status in _GONE

    async def _reply(self, task: Task, path: str, more: tuple[Header, ...]) -> ServiceReply:
        """The response of the service. Raises UpstreamError."""
        if task.request.to and not task.is_of_client:
            await self.copies.note_try(task.meta_id, task.op)
        if task.request.binds and task.meta_id not in self.copies.index.copies:
            return await response_to(task, self.copies, lambda: self._response(task, path, more))
        return await self._response(task, path, more)

    async def _response(self, task: Task, path: str, more: tuple[Header, ...]) -> ServiceReply:
        if not task.request.session:
            return await self.sender.send(task.service, task.request, path, task.body, task.identity, more=more)
        try:
            return await send_session(self.sender, task, path)
        except UpstreamError as error:
            if task.completes_own_session and error.may_have_had_effect:
                raise _LostAnswerError(str(error)) from error
            raise

    def _creates_unknown(self, task: Task, reply: ServiceReply) -> bool:
        """Whether a service gave an id to what was created below a replicant, and no rule and no `items` is about it:
        each site would give another one, by which later requests reach one site."""
        request = task.request
        if request.method != "POST" or request.binds or request.kind or reply.status != _CREATED:
            return False
        return self.sender.new_copy(task.service, task.meta_id, request, reply) is not None

    def _judged(self, task: Task, reply: ServiceReply) -> tuple[Result, str]:
        """What a response means, by the rule of the request if it has one; and a note for people."""
        request = task.request
        result = task.result(request.method, reply.status)
        if not task.is_of_client and waits_for_parts(self.copies.index, task.service.name, request, reply):
            return Result.RETRY, "the service does not delete it yet: something that is in it is still here"
        target, body = joined(request.path, request.query), None if request.session else task.body
        found = rule_for(task.service.replication.rules, request.method, target, request.headers, body)
        if result is Result.OK and (failed := failed_part(request.method, reply)):
            return Result.KO, "" if task.is_of_client else failed
        if found is None or found[0].ok == Success():
            return result, ""
        why = failure(found[0].ok, reply.status, reply.headers, reply.body)
        if why is None:
            return Result.OK, ""
        if result is not Result.OK:
            return result, ""
        # Its client gets the response as it is: it knows the service.
        return Result.KO, "" if task.is_of_client else f"by the rule '{found[0]}' it failed: {why}"

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
            # For `cheops show` and `verify`: who may read this is decided by the roles of this agent's own tokens.
            reply = await self.sender.send(
                service, Request(method="GET", path=path), path, b"", of_site(service, copy.client)
            )
        except (NoCopyError, UpstreamError, CredentialsError) as error:
            return Outcome(Result.KO, str(error))
        return shown_state(service, self.sender.kept(service, path, reply), reply)

    def check_capture(self, replica: Replica) -> None:
        self._restoration.check(self._services[service_of(replica.type.name) or ""], replica)

    async def capture(self, replica: Replica, keep: KeepFile) -> Command:
        service, copy = (
            self._services[service_of(replica.type.name) or ""],
            self.copies.index.copies.get(replica.resource),
        )
        identity = of_site(service, copy.client if copy else "")
        return await self._restoration.capture(service, replica, identity, keep)

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
            return printable(shortened(payload.line))
        return f"{request.method} {request.path}"

    async def resource_moved(self, resource: str, *, is_here: bool) -> None:
        """What is no longer at this site is an ordinary resource of its service, until it is back."""
        if is_here:
            await self.copies.welcome(resource)
        else:
            await self.copies.send_away(resource)

    async def forget(self, resources: Collection[str]) -> None:
        await self.copies.forget(one for one in resources if not self._is_known(one))

    def _is_known(self, resource: str) -> bool:
        """Whether a resource was created again: a name that clients chose has the same id then."""
        replica = self.context.replica(resource)
        return replica is not None and bool(replica.history.known or replica.drafts)

    async def resolved(self, rtype: str, resource: str, payload: Command, *, happened: bool) -> None:
        """What happened has made a copy here, or deleted it. An id that the service gave is not known to anybody."""
        request = request_of(payload)
        if not happened:
            return
        if request.deletes:
            await self._deleted(resource, request)
        elif resource in self.copies.index.copies and not request.to:
            return
        elif request.named and request.binds:
            item, service = trimmed(request.to or request.item), service_of(rtype) or ""
            await self.copies.bind(
                Copy(resource, service, item, last_segment(item), is_named=True, client=request.client)
            )
        elif request.creates:
            raise ClientError(_ID_UNKNOWN, status=409)

    async def doctor(self) -> Sequence[Finding]:
        return await asyncio.gather(*(service_finding(one) for one in self._services.values()))


def answer_key(meta_id: str, op: str) -> str:
    """Under which the response with secrets waits for its client (`Tickets`)."""
    return f"{meta_id} {op}"


def http_backend(node: Node) -> HttpBackend:
    """The HTTP backend of a running site."""
    backend = node.backends.named(HTTP_BACKEND)
    assert isinstance(backend, HttpBackend)  # noqa: S101 - it is built in under this name
    return backend
