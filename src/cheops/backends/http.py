"""Running an operation against this site's instance of a service: see http_answer for what its answers mean.

What creates a resource gives it a local id here, which is kept (http_copies) before anybody hears of the
outcome. To run it once more does nothing: the copy is there. Everything that goes to the service has local
ids, everything that is kept of its answers meta-ids.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cheops.backends.command import CommandRunner
from cheops.backends.http_answer import Said, in_doubt, written
from cheops.backends.http_auth import AuthError, Provider, Tickets
from cheops.backends.http_copies import Copies
from cheops.backends.http_exchange import InDoubtError, NotSentError
from cheops.backends.http_existing import Existing, may_exist
from cheops.backends.http_request import BODY, Header, PayloadError, Request, request_of
from cheops.backends.http_sending import Sending
from cheops.backends.http_task import Ended, Task, done, result_for
from cheops.backends.http_to_local import Form, NotHereError, text_to_local
from cheops.config.replication import service_of
from cheops.config.services import ServiceConfig
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.log.operation import OpId, Timing

_REMEMBERED = 1_000
_CREATED = 201
_FORGOTTEN = (
    "the client's credentials are not known any more, and the service never saw them: send the request again"
)
_UNLESS_THERE: tuple[Header, ...] = (("If-None-Match", "*"),)


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Files of operations: where one is, whether it is gone from all sites, and how to have it fetched."""

    path: Callable[[str], Path | None]
    is_gone: Callable[[str, str], bool]  # of a resource, by its hash
    fetch: Callable[[str, str], None]


class HttpRunner:
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
        providers = {name: Provider(name, auth, runner) for name, auth in auths.items() if auth}
        self.sending = Sending(copies, self.tickets, providers)
        self._existing = Existing(self.sending, copies)

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

    async def _step(self, run: Run, step: Step, *, is_base: bool, is_undecided: bool) -> Ended:
        service = self._services.get(service_of(run.rtype) or "")
        if service is None:
            return Ended(Result.RETRY, f"'{run.rtype}' is not a service of this site's configuration")
        try:
            request = request_of(step.payload)
            ended = self._without_asking(run.resource, request)
            if ended or (is_undecided and self._is_a_strangers(service.name, request)):
                return ended or Ended(Result.KO, _FORGOTTEN)
            body = self._body(run, step, request, is_base=is_base)
            return (
                body
                if isinstance(body, Ended)
                else await self._asked(Task(service, run.resource, request, body))
            )
        except PayloadError as error:
            return Ended(Result.KO, str(error))
        except (NotHereError, NotSentError, AuthError) as error:
            return Ended(Result.RETRY, str(error))
        except InDoubtError as error:
            return Ended(in_doubt(request.method, may_repeat=bool(request.key)), str(error))

    def _without_asking(self, meta_id: str, request: Request) -> Ended | None:
        """How it ends where there is nothing to be asked of the service."""
        has_copy = meta_id in self.copies.index.copies
        if request.base:
            return done("nothing is asked of the service")
        if has_copy and request.creates and (not request.named or request.creates_collection):
            return done("there is a copy already")
        if not has_copy and request.within and request.within not in self.copies.index.copies:
            raise NotHereError(request.within)
        if has_copy or request.creates:
            return None
        if request.deletes:
            return done("there is no copy")
        return Ended(Result.KO, f"there is no copy of {meta_id} at this site")

    def _is_a_strangers(self, service: str, request: Request) -> bool:
        """Whether it would be run with this site's own credentials, though nobody has seen that those of its
        client suffice: they are remembered for a while, and not over a restart."""
        return self.sending.has_own_credentials(service) and self.sending.is_forgotten(request.ticket)

    def _body(self, run: Run, step: Step, request: Request, *, is_base: bool) -> bytes | Path | Ended:
        """What to send; or how it ends without that."""
        if request.file_bytes is None:
            return request.inline
        hash_ = dict(step.payload.files).get(BODY, "")
        if path := self._files.path(hash_):
            return path
        if not self._files.is_gone(run.resource, hash_):
            self._files.fetch(run.resource, hash_)
            return Ended(Result.RETRY, "the body of the request is not here yet")
        later = (request_of(other.payload) for other in run.steps[1:])
        if (
            is_base
            and run.resource in self.copies.index.copies
            and all(other.is_repeatable for other in later)
        ):
            return done("it ran here before, and what follows leads to the same state without it")
        return Ended(Result.KO, "the body of the request is gone: every site that it was for had applied it")

    async def _asked(self, task: Task) -> Ended:
        request = task.request
        path = text_to_local(request.path, self.copies.index.local_of, Form.URL)
        only_if_new = request.named and request.exists in ("abort", "adopt")
        more = _UNLESS_THERE if only_if_new else ()
        answered = await self.sending.send(task.service, request, path, task.body, more=more)
        if may_exist(request, answered.reply.status):
            return await self._existing.deal_with(task, path, answered.reply)
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
        return Ended(result, written(kept))

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, rtype: str, meta_id: str) -> tuple[bool, str]:
        """The state of this site's copy, and whether there is one: JSON in one spelling, with meta-ids."""
        service, copy = self._services[service_of(rtype) or ""], self.copies.index.copies.get(meta_id)
        if copy is None:
            return False, f"there is no copy of {meta_id} at this site"
        path = self.sending.local_path(copy)
        try:
            answered = await self.sending.send(service, Request(method="GET", path=path), path, b"")
        except (NotHereError, NotSentError, InDoubtError, AuthError) as error:
            return False, str(error)
        kept = self.sending.kept(service, path, answered.reply)
        return answered.reply.status < 300, _canonical(kept)


def _canonical(kept: Said) -> str:
    """A state to be compared with that of other sites: names in order, no spacing."""
    if kept.status >= 300:
        return f"the service answers {kept.status}: {kept.text[:1000]}"
    if kept.cut_bytes:
        return f"{kept.cut_bytes} bytes"
    try:
        return msgspec.json.encode(msgspec.json.decode(kept.body), order="sorted").decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return kept.text or kept.base64
