"""Creates whose resource the service has already: the policy `exists` says what becomes of them.

`backend` runs an operation as a `Task`. If the response may mean that the resource exists, `ExistingResources` decides:
abort, adopt it as our copy, or overwrite it. Everything is asked with the credentials of the task itself, so a client
finds only what it may see.
"""

from pathlib import Path
from urllib.parse import quote

import msgspec

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.ids import Form, text_to_local
from cheops.backends.http.paths import split_target
from cheops.backends.http.payload import (
    KeptResponse,
    Request,
    encode_response,
    first_id_in,
    id_in,
    result_of,
)
from cheops.backends.http.sender import Identity, OfClient, OperationSender, ServiceReply
from cheops.config.services import EXISTS, ServiceConfig, body_names
from cheops.engine.events import Outcome, Result

_CONFLICTS = (409, 412)
_NO_SUCH_METHOD = (405, 501)
_GONE = (404, 410)
_MULTI_STATUS = 207
_UNAUTHORIZED = 401


class Task(msgspec.Struct, frozen=True):
    """An operation and what is needed to run it."""

    service: ServiceConfig
    meta_id: str
    request: Request
    identity: Identity
    op: str = ""
    body: bytes | Path = b""
    again: bool = False  # an attempt before may have had an effect

    @property
    def is_of_client(self) -> bool:
        """Whether it runs with the credentials of its client: no service has decided about it yet."""
        return isinstance(self.identity, OfClient)

    @property
    def completes_own_session(self) -> bool:
        """Whether it completes a session that is open here: to do so twice is an error, whatever its method."""
        return bool(self.request.session) and self.is_of_client

    @property
    def approved(self) -> str:
        """The operation, if it is a client's and so needs the service's approval; see `Copies.bind`."""
        return self.op if self.is_of_client else ""

    def result(self, method: str, status: int) -> Result:
        if self.completes_own_session and status >= 500:
            return result_of("POST", status, may_repeat=False, of_client=True)
        return result_of(method, status, may_repeat=self.request.may_repeat, of_client=self.is_of_client)


def nothing_to_do(note: str) -> Outcome:
    """The outcome of an operation that needs no request to the service."""
    return Outcome(Result.OK, encode_response(KeptResponse(status=200, note=note)))


def outcome_of(task: Task, result: Result, kept: KeptResponse) -> Outcome:
    """The outcome of a request that the service answered."""
    if result is Result.RETRY and kept.status == _UNAUTHORIZED:
        config = task.service.replication
        where = f"services.{task.service.name}.{'sign' if config.sign else 'auth'}"
        has_auth = config.auth is not None or config.sign is not None
        whose = f"the credentials of {where}" if has_auth else f"a request without credentials; {where} is not set"
        client = f" for '{task.request.client}'" if task.request.client else ""
        return Outcome(result, f"the service answers 401 to {whose}{client}; it is tried again with fresh ones")
    return Outcome(result, encode_response(kept))


def may_exist(request: Request, status: int) -> bool:
    """Whether this status may mean that the resource to be created exists. WebDAV responds to MKCOL with "method not
    allowed" then; 409 can also mean that the collection above is missing."""
    if not request.creates:
        return False
    return status in _CONFLICTS or (request.creates_collection and status in _NO_SUCH_METHOD)


def _policy(task: Task) -> str:
    """What the request says, but with the credentials of this site not more than its own configuration: what exists
    here may belong to another client than the one that created it elsewhere."""
    configured = task.service.replication.exists
    wanted = task.request.exists or configured
    is_limited = task.service.replication.auth is not None and not task.is_of_client
    return min(wanted, configured, key=EXISTS.index) if is_limited else wanted


class ExistingResources:
    """Applies the policy `exists` to a create whose resource the service has already."""

    def __init__(self, sender: OperationSender, copies: Copies) -> None:
        self._sender = sender
        self._copies = copies

    async def resolve(self, task: Task, path: str, reply: ServiceReply) -> Outcome:  # noqa: PLR0911 - one per case
        """The service has the resource already: fail, adopt it as our copy, or overwrite it, as the policy says."""
        policy = _policy(task)
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
            # The service has refused to create it, so it has not said yet that the client may have anything of it.
            if task.is_of_client and not task.request.creates_collection and not await self._may_read(task, copy):
                return Outcome(Result.KO, encode_response(kept))
            await self._copies.bind(copy, task.approved)
            return nothing_to_do("it existed, and was adopted")
        return await self.overwrite(task, copy)

    async def moved(self, task: Task, path: str, reply: ServiceReply) -> Outcome | None:
        """The outcome of a move that the service refuses because an attempt before has done it: nothing is at the old
        path any more, and something at the new one. None if it is not so, or there was none."""
        if reply.status < 300 or not task.again or task.is_of_client:
            return None
        new = text_to_local(task.request.to, self._copies.index.local_of, Form.URL)
        old_status, new_status = [await self._status_of(task, place) for place in (path, new)]
        copy = self._sender.new_copy(task.service, task.meta_id, task.request, reply)
        if old_status not in _GONE or not 200 <= new_status < 300 or copy is None:
            return None
        await self._copies.bind(copy)
        return nothing_to_do("an attempt before has moved it")

    async def _status_of(self, task: Task, path: str) -> int:
        request = Request(method="GET", path=path, host=task.request.host)
        return (await self._sender.send(task.service, request, path, b"", task.identity)).status

    async def _is_there(self, task: Task, path: str) -> bool:
        """Whether the service has this collection, by WebDAV's PROPFIND."""
        request = Request(method="PROPFIND", path=path, headers=(("Depth", "0"),), host=task.request.host)
        reply = await self._sender.send(task.service, request, path, b"", task.identity)
        return reply.status == _MULTI_STATUS

    async def _may_read(self, task: Task, copy: Copy) -> bool:
        return 200 <= await self._status_of(task, self._sender.local_path(copy)) < 300

    async def _existing(self, task: Task, reply: ServiceReply) -> Copy | None:
        if copy := self._sender.new_copy(task.service, task.meta_id, task.request, reply, task.body):
            return copy
        found = await self._find(task)
        if found is None:
            return None
        is_number = isinstance(found, int)
        item, client = task.request.item, task.request.client
        return Copy(task.meta_id, task.service.name, item, str(found), is_number, client=client)

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
        request = Request(method="GET", path=path, query=query, host=task.request.host)
        reply = await self._sender.send(task.service, request, path, b"", task.identity)
        if reply.status != 200:
            return None
        return first_id_in(reply.body, task.service.replication.id or ("id",))

    async def overwrite(self, task: Task, copy: Copy) -> Outcome:
        path = self._sender.local_path(copy)
        for method in ("PUT", "PATCH"):
            reply = await self._sender.send(task.service, task.request, path, task.body, task.identity, method=method)
            if reply.status not in _NO_SUCH_METHOD:
                break
        result = task.result(method, reply.status)
        if result is Result.OK:
            await self._copies.bind(copy, task.approved)
        kept = self._sender.kept(task.service, path, reply)
        return outcome_of(task, result, msgspec.structs.replace(kept, note="it existed, and was overwritten"))
