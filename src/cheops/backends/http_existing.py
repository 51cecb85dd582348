"""A create whose target the service has already: leave it at that, take it for our copy, or write over it."""

from urllib.parse import quote

import msgspec

from cheops.backends.http_answer import first_id_in, id_in, written
from cheops.backends.http_copies import Copies
from cheops.backends.http_exchange import Reply
from cheops.backends.http_index import Copy
from cheops.backends.http_paths import split_target
from cheops.backends.http_request import Request
from cheops.backends.http_sending import Sending
from cheops.backends.http_task import Ended, Task, done, result_for
from cheops.config.replication import names_in
from cheops.engine.events import Result

_STATUSES = (409, 412)
_NO_SUCH_METHOD = (405, 501)
_MULTI_STATUS = 207


def may_exist(request: Request, status: int) -> bool:
    """Whether a service may mean by this that what is to be created is there. To MKCOL it says then that the
    method is not allowed; 409 can also be said of a collection that is missing above it."""
    if not request.creates:
        return False
    return status in _STATUSES or (request.creates_collection and status in _NO_SUCH_METHOD)


class Existing:
    def __init__(self, sending: Sending, copies: Copies) -> None:
        self._sending = sending
        self._copies = copies

    async def deal_with(self, task: Task, path: str, reply: Reply) -> Ended:
        """The service has it already: leave it at that, take it for our copy, or write over it."""
        policy = task.request.exists or task.service.replication.exists
        kept = self._sending.kept(task.service, path, reply)
        if policy == "abort":
            return Ended(Result.KO, written(kept))
        copy = await self._existing(task, reply)
        if task.request.creates_collection and not await self._is_there(task, path):
            return Ended(Result.KO, written(kept))
        if copy is None:
            why = "it exists already, and nothing says under which id; 'find' of the service would"
            return Ended(Result.KO, written(msgspec.structs.replace(kept, note=why)))
        if other := self._copies.index.whose_place(copy):
            why = f"it exists already, as the copy of {other}"
            return Ended(Result.KO, written(msgspec.structs.replace(kept, note=why)))
        if policy == "adopt" or task.request.named:
            await self._copies.bind(copy)
            return done("it existed, and was adopted")
        return await self._overwrite(task, copy)

    async def _is_there(self, task: Task, path: str) -> bool:
        """Whether the service has this collection: WebDAV's own question."""
        asked = Request(method="PROPFIND", path=path, headers=(("Depth", "0"),), ticket=task.request.ticket)
        answered = await self._sending.send(task.service, asked, path, b"")
        return answered.reply.status == _MULTI_STATUS

    async def _existing(self, task: Task, reply: Reply) -> Copy | None:
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

    async def _overwrite(self, task: Task, copy: Copy) -> Ended:
        path = self._sending.local_path(copy)
        for method in ("PUT", "PATCH"):
            answered = await self._sending.send(task.service, task.request, path, task.body, method=method)
            if answered.reply.status not in _NO_SUCH_METHOD:
                break
        result = result_for(task.request, method, answered)
        if result is Result.OK:
            await self._copies.bind(copy)
        kept = self._sending.kept(task.service, path, answered.reply)
        return Ended(result, written(msgspec.structs.replace(kept, note="it existed, and was overwritten")))
