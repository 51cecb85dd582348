"""The whole state of a replicant, for `cheops repair --from`: read at one site, written at all of them.

The state is what a GET of the copy gives. The operation that carries it is a PUT: at a site whose service does not have
the resource any more, or never had it, it creates it. It runs at its own site first, so a state that the service does
not take back goes nowhere. Each site then reads what it has written: only if that is the same state has the operation
succeeded there.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.existing import Task, outcome_of
from cheops.backends.http.ids import Form, meta_ids_in, text_to_local, to_meta
from cheops.backends.http.interpretation import drop_members, meaning_of, rule_about_body
from cheops.backends.http.order import after, touched
from cheops.backends.http.paths import collection_of, last_segment, trimmed
from cheops.backends.http.payload import (
    BODY,
    CREATE_METHOD,
    MAX_INLINE_BYTES,
    KeptResponse,
    Request,
    command_of,
    is_in_doubt,
    is_json,
    request_of,
    with_body,
)
from cheops.backends.http.rules import check_rules
from cheops.backends.http.secrets import masked
from cheops.backends.http.sender import Identity, OperationSender, ServiceReply
from cheops.backends.http.submission import is_collection, is_deleted, operations
from cheops.backends.protocol import KeepFile
from cheops.config.service_rules import RuleKind
from cheops.config.services import ServiceConfig
from cheops.engine.events import Outcome, Result
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.gateway.interfaces import UpstreamError
from cheops.log.operation import Command
from cheops.text import in_words, listed, printable, shortened

PUT_METHOD, READ_METHOD = "PUT", "GET"
_GONE = (404, 410)
_NO_SUCH_METHOD = (405, 501)
_MOST_NAMED = 5
_MAY_BE_CREATED = (
    "an attempt before may have created it here, and its id is not known: if the service has it, delete it there, then "
    "repair again"
)
Load = Callable[[str], Awaitable[Replica]]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def comparable(body: bytes, without: frozenset[tuple[str, ...]]) -> bytes:
    """A state that can be compared between sites. JSON in one spelling, without what differs at each site."""
    try:
        content = msgspec.json.decode(body)
        drop_members(content, without)
        return msgspec.json.encode(content, order="sorted")
    except _UNREADABLE:
        return body


def shown_state(service: ServiceConfig, kept: KeptResponse, reply: ServiceReply) -> Outcome:
    """The state of a copy, for `cheops show` and `verify`."""
    if kept.cut_bytes and reply.status < 300:
        return _digest_of(service, reply)
    compared = service.replication.local_members | service.replication.ignore
    return Outcome(Result.OK if reply.status < 300 else Result.KO, _canonical(kept, compared))


def _digest_of(service: ServiceConfig, reply: ServiceReply) -> Outcome:
    """A state that is too large to be kept. In JSON, ids and members of one site differ, so its digest says nothing."""
    if is_json(reply.header("content-type")):
        what = f"its state has {reply.size:,} bytes of JSON, and services.{service.name}.keep_response is smaller"
        return Outcome(Result.KO, f"{what}: it cannot be compared")
    return Outcome(Result.OK, f"{reply.size} bytes, SHA-256 {reply.digest}")


def _canonical(kept: KeptResponse, without: frozenset[tuple[str, ...]]) -> str:
    """A state that can be compared between sites: sorted names, no spacing, and without what differs at each site."""
    if kept.status >= 300:
        return f"the service answers {kept.status}: {kept.text[:1000]}"
    try:
        return comparable(kept.body, without).decode()
    except UnicodeDecodeError:
        return kept.base64


class Restoration:
    """Reads and writes whole states at this site."""

    def __init__(self, site: str, sender: OperationSender, copies: Copies, load: Load) -> None:
        self._site = site
        self._load = load
        self._sender = sender
        self._copies = copies

    # -- read ----------------------------------------------------------------------------------------------

    async def capture(self, service: ServiceConfig, replica: Replica, identity: Identity, keep: KeepFile) -> Command:
        """The payload that writes this site's state at any site. Raises ClientError if there is none."""
        meta_id, copy = replica.resource, self._copies.index.copies.get(replica.resource)
        self.check(service, replica)
        if copy is None:
            raise _refused(f"{self._site} has no copy of it")
        reply = await self._read(service, copy, identity)
        if reply.status in _GONE:
            raise _refused(
                f"the service at {self._site} does not have it ({reply.status}). To delete it everywhere: "
                f"cheops delete {meta_id}"
            )
        if not 200 <= reply.status < 300:
            raise _refused(f"the service at {self._site} answers {reply.status} to a GET of it")
        if not reply.is_whole:
            raise _refused(f"its state at {self._site} has {reply.size:,} bytes, which is too large: PUT it")
        body, content_type = self._body_of(service, copy, reply), reply.header("content-type")
        if masked(body, content_type, service.replication.secret) != body:
            raise _refused(f"its state has members that are never written down (services.{service.name}.secret)")
        request = Request(
            method=PUT_METHOD,
            path=copy.path,
            item=copy.item,
            named=copy.is_named,
            headers=(("Content-Type", content_type),) if content_type else (),
            client=copy.client,
            state=True,
            made_at=_creation_path(replica, copy),
        )
        request = self._by_rule(service, request, meta_id, body)
        check_rules(service, request)
        named = meta_ids_in(body.decode("utf-8", "replace"))
        others = touched(self._copies.index, service.name, request, meta_id, named)
        befores = [after(await self._load(one)) for one in others]
        request = msgspec.structs.replace(request, after=tuple(filter(None, befores)))
        if len(body) <= MAX_INLINE_BYTES:
            return command_of(with_body(request, body))
        file = await keep(BODY, body)
        return command_of(msgspec.structs.replace(request, file_bytes=file.size), file.hash)

    def check(self, service: ServiceConfig, replica: Replica) -> None:
        """Raises ClientError for a resource whose state is not one document that a PUT could write."""
        copy = self._copies.index.copies.get(replica.resource)
        if is_deleted(replica):
            raise _refused("it is deleted")
        if not replica.history.effective and not replica.history.folded:
            raise _refused("nothing was created")
        if copy is None:
            return
        if is_collection(replica):
            raise _refused("it is a collection, which has no state of its own: repair what is in it")
        if parts := [str(op.id) for op in replica.history.effective if _is_about_a_part(request_of(op.payload), copy)]:
            raise _refused(
                f"{in_words(parts[:_MOST_NAMED])} changed parts of it, below its path, and a GET of it need not show "
                "them: --retry, or write the parts again through the gateway"
            )
        if rule_about_body(service.replication.rules, PUT_METHOD, copy.path, ()) is None:
            put = Request(method=PUT_METHOD, path=copy.path, item=copy.item, named=copy.is_named)
            self._by_rule(service, put, replica.resource, b"")

    @staticmethod
    def _by_rule(service: ServiceConfig, request: Request, meta_id: str, body: bytes) -> Request:
        """The request as the rules of the service explain it, if they do; raises ClientError if it is no PUT of it."""
        rules = service.replication.rules
        meaning = meaning_of(rules, PUT_METHOD, request.path, request.headers, body)
        if meaning is None:
            return request
        is_own = meaning.item == request.item if request.named else meaning.meta_id(service.name) == meta_id
        if not is_own or meaning.kind is not RuleKind.PUT or meaning.part:
            raise _refused(
                f"by services.{service.name}.rules, PUT {printable(shortened(request.path))} does not set its state"
            )
        return msgspec.structs.replace(request, kind=meaning.kind.value)

    # -- write ---------------------------------------------------------------------------------------------

    async def restore(self, task: Task) -> Outcome:
        """Write a state to this site's service, and see that it is there. Raises UpstreamError, NoCopyError."""
        content = task.body if isinstance(task.body, bytes) else task.body.read_bytes()
        copy = self._copies.index.copies.get(task.meta_id)
        if copy and copy.is_named and copy.item != trimmed(task.request.item):
            return await self._restore_elsewhere(task, copy, content)
        reply = await self._put(task, copy)
        if reply is None or (reply.status in _GONE and task.request.made_at):
            created = await self._create(task, content)
            if isinstance(created, Outcome):
                return created
            copy, reply = created
            if not await self._differences(task, copy, content):
                return self._done(task, copy, reply)
            again = await self._put(task, copy)
            reply = reply if again is None or again.status in _NO_SUCH_METHOD else again
        return await self._written(task, copy, content, reply)

    async def _restore_elsewhere(self, task: Task, before: Copy, content: bytes) -> Outcome:
        """Write a state of what was moved at the other site, and not here: it is written where it is there."""
        if why := await self._occupied(task, content):
            return Outcome(Result.KO, why)
        reply = await self._put(task, None)
        assert reply is not None  # noqa: S101 - clients name it
        if task.result(PUT_METHOD, reply.status) is Result.OK and (why := await self._remove(task, before)):
            return Outcome(Result.KO, why)
        return await self._written(task, None, content, reply)

    async def _written(self, task: Task, copy: Copy | None, content: bytes, reply: ServiceReply) -> Outcome:
        """The outcome, after a service has responded to a state."""
        result = task.result(PUT_METHOD, reply.status)
        if result is not Result.OK:
            path = self._sender.local_path(copy) if copy else task.request.path
            return outcome_of(task, result, self._sender.kept(task.service, path, reply))
        if copy is None:
            copy = _named_copy(task)
            await self._copies.bind(copy)
        if differences := await self._differences(task, copy, content):
            return Outcome(Result.KO, f"the service took the state, and has another one now: {differences}")
        return self._done(task, copy, reply)

    async def _occupied(self, task: Task, content: bytes) -> str:
        """Why a state cannot be written under a name that its resource does not have here; empty if it can."""
        copy, shown = _named_copy(task), printable(shortened(task.request.item))
        if other := self._copies.index.whose_place(copy):
            return f"{shown} is the path of {other}: two cannot be at one path"
        is_there = 200 <= (await self._read(task.service, copy, task.identity)).status < 300
        if is_there and await self._differences(task, copy, content):
            return f"the service has something else at {shown}, which is not replicated: remove it there, then repair"
        return ""

    async def _remove(self, task: Task, copy: Copy) -> str:
        """Delete what is under the name that a resource has here no more; why not, if the service refuses."""
        path = self._sender.local_path(copy)
        request = Request(method="DELETE", path=path, client=task.request.client)
        check_rules(task.service, request)
        reply = await self._sender.send(task.service, request, path, b"", task.identity)
        if 200 <= reply.status < 300 or reply.status in _GONE:
            return ""
        new = printable(shortened(task.request.item))
        return f"its state is at {new} now, and {printable(shortened(path))} cannot be deleted ({reply.status})"

    def _done(self, task: Task, copy: Copy, reply: ServiceReply) -> Outcome:
        return outcome_of(task, Result.OK, self._sender.kept(task.service, self._sender.local_path(copy), reply))

    async def _put(self, task: Task, copy: Copy | None) -> ServiceReply | None:
        """PUT, or PATCH where the service has no PUT; None if there is nothing that could be written to."""
        if copy is None and not task.request.named:
            return None
        local_of = self._copies.index.local_of
        path = self._sender.local_path(copy) if copy else text_to_local(task.request.item, local_of, Form.URL)
        for method in (PUT_METHOD, "PATCH"):
            check_rules(task.service, msgspec.structs.replace(task.request, method=method))
            reply = await self._sender.send(task.service, task.request, path, task.body, task.identity, method=method)
            if reply.status not in _NO_SUCH_METHOD:
                break
        return reply

    async def _create(self, task: Task, content: bytes) -> tuple[Copy, ServiceReply] | Outcome:
        """Create it at the service, which gives it an id; or the outcome, if that did not succeed."""
        if self._copies.has_tried(task.meta_id, task.op):
            return Outcome(Result.KO, _MAY_BE_CREATED)
        where = task.request.made_at
        request = msgspec.structs.replace(task.request, method=CREATE_METHOD, path=where, state=False, made_at="")
        check_rules(task.service, request)
        if request.kind and not _creates(task.service, request, content, task.meta_id):
            return Outcome(Result.KO, f"by the rules of this site, {CREATE_METHOD} {where} does not create it")
        path = text_to_local(where, self._copies.index.local_of, Form.URL)
        body = _without_mentions(content, task.meta_id) if request.is_json else content
        await self._copies.note_try(task.meta_id, task.op)
        try:
            reply = await self._sender.send(task.service, request, path, body, task.identity)
        except UpstreamError as error:
            if not error.may_have_had_effect:
                await self._copies.forget_try(task.meta_id)
                raise
            return Outcome(Result.KO, f"it may have been created, and its id is not known: {error}")
        result = task.result(CREATE_METHOD, reply.status)
        copy = self._sender.new_copy(task.service, task.meta_id, request, reply, body) if result is Result.OK else None
        if copy is None and not is_in_doubt(reply.status):
            await self._copies.forget_try(task.meta_id)
        if copy is None:  # a POST must not be repeated while nobody knows what the first one did
            result = Result.RETRY if result is Result.RETRY else Result.KO
            return outcome_of(task, result, self._sender.kept(task.service, path, reply))
        await self._copies.bind(copy)
        return copy, reply

    async def _differences(self, task: Task, copy: Copy, wanted: bytes) -> str:
        """Where the state of this site's copy differs from a state; empty if it does not."""
        service = task.service
        reply = await self._read(service, copy, task.identity)
        if not 200 <= reply.status < 300 or not reply.is_whole:
            return f"it cannot be read back ({reply.status}, {reply.size:,} bytes)"
        without = service.replication.local_members | service.replication.ignore
        states = [comparable(one, without) for one in (wanted, self._body_of(service, copy, reply))]
        if states[0] == states[1]:
            return ""
        try:
            places = sorted(set(_different(msgspec.json.decode(states[0]), msgspec.json.decode(states[1]), "$")))
        except _UNREADABLE:
            return "the bytes differ"
        return (
            f"{listed(places[:_MOST_NAMED])} {'differs' if len(places) == 1 else 'differ'}. What each site has of its "
            f"own belongs in services.{service.name}.ignore, or in 'local', at all sites"
        )

    # -- both ----------------------------------------------------------------------------------------------

    async def _read(self, service: ServiceConfig, copy: Copy, identity: Identity) -> ServiceReply:
        path = self._sender.local_path(copy)
        return await self._sender.send(service, Request(method=READ_METHOD, path=path), path, b"", identity)

    def _body_of(self, service: ServiceConfig, copy: Copy, reply: ServiceReply) -> bytes:
        """A body with meta-ids."""
        if not is_json(reply.header("content-type")):
            return reply.body
        return to_meta(reply.body, self._sender.response_ids(service, self._sender.local_path(copy), reply))


def _named_copy(task: Task) -> Copy:
    """The copy of what clients name, where a state says that it is."""
    item, client = trimmed(task.request.item), task.request.client
    return Copy(task.meta_id, task.service.name, item, last_segment(item), is_named=True, client=client)


def _refused(why: str) -> ClientError:
    return ClientError(f"this state cannot be taken: {why}", status=409)


def _creation_path(replica: Replica, copy: Copy) -> str:
    """Where it is created at a site that does not have it: where it was, as far as that is known. Empty if a PUT of it
    does that."""
    for op in operations(replica):
        request = request_of(op.payload)
        if request.made_at or (request.creates and request.method == CREATE_METHOD):
            return request.made_at or request.path
    return "" if copy.is_named else collection_of(copy.item)


def _creates(service: ServiceConfig, request: Request, content: bytes, meta_id: str) -> bool:
    """Whether a request creates a resource, by the rules of a service."""
    meaning = meaning_of(service.replication.rules, request.method, request.path, request.headers, content)
    if meaning is None:
        return not request.named  # plain REST: the service gives the id
    is_own = not meaning.item or meaning.meta_id(service.name) == meta_id
    return meaning.kind is RuleKind.CREATE and is_own


def _is_about_a_part(request: Request, copy: Copy) -> bool:
    """Whether an operation is about something below the resource, or does something to it that no state shows."""
    if request.base or request.creates or request.state or request.to:
        return False
    names = (copy.path, request.item) if copy.is_named else (copy.path,)  # it may have been moved since
    is_whole = request.path.rstrip("/").lower() in (name.rstrip("/").lower() for name in names)
    return bool(request.part) or not is_whole or request.method not in (PUT_METHOD, "PATCH")


def _different(one: Any, other: Any, place: str) -> Iterator[str]:
    """The places where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            if name in one and name in other:
                yield from _different(one[name], other[name], f"{place}.{name}")
            else:
                yield f"{place}.{name}"
    elif one != other:
        yield place


def _without_mentions(body: bytes, meta_id: str) -> bytes:
    """A JSON body without the resource's own id, which the service is yet to give, and without links to itself."""
    try:
        content = msgspec.json.decode(body)
    except _UNREADABLE:
        return body
    return msgspec.json.encode(_purged(content, meta_id))


def _purged(found: Any, meta_id: str) -> Any:
    def is_mention(value: Any) -> bool:
        return isinstance(value, str) and meta_id in value.lower()

    if isinstance(found, dict):
        return {name: _purged(value, meta_id) for name, value in found.items() if not is_mention(value)}
    if isinstance(found, list):
        return [_purged(value, meta_id) for value in found if not is_mention(value)]
    return found
