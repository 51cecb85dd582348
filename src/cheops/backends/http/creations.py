"""Creations of which nobody knows whether the service has done them.

A creation is noted, durably, before it is sent, and the note goes with the copy that it makes, or with a response that
says that nothing was done. Mostly it is sent again, and then its outcome is known. But if a deletion takes its effect
first, it is not run any more: then the service may have what its site has no copy of, and the deletion must reach it.
"""

from collections.abc import Awaitable, Callable

from cheops.backends.http.copies import Copies
from cheops.backends.http.existing import Task
from cheops.backends.http.payload import Request, is_in_doubt, request_of
from cheops.backends.http.sender import ServiceReply
from cheops.engine.replica import Replica
from cheops.errors import CheopsError
from cheops.gateway.interfaces import may_have_had_effect
from cheops.log.operation import Operation

MAY_EXIST = (
    "an attempt to create it here may have had an effect, and its id is not known: if the service has it, delete it "
    "there, or record its local id; then say with cheops resolve whether the create happened"
)
_FAILED = 400  # and above


async def response_to(task: Task, copies: Copies, send: Callable[[], Awaitable[ServiceReply]]) -> ServiceReply:
    """What the service answers to a creation. An earlier attempt that may have had an effect stays noted."""
    had_tried = copies.may_have_created(task.meta_id)
    await copies.note_try(task.meta_id, task.op)
    try:
        reply = await send()
    except CheopsError as error:
        if not had_tried and not may_have_had_effect(error):
            await copies.forget_try(task.meta_id)
        raise
    if not had_tried and reply.status >= _FAILED and not is_in_doubt(reply.status):
        await copies.forget_try(task.meta_id)
    return reply


def creation_in_doubt(replica: Replica | None, copies: Copies, request: Request) -> Operation | None:
    """What has to run again before a deletion, which could not name what the service has: the service knows what it
    repeats, and says which id it gave. What clients name, the deletion names, too."""
    if replica is None or not request.deletes or request.named or not copies.may_have_created(replica.resource):
        return None
    tried = (op for op in replica.history.ops.values() if copies.has_tried(op.resource, str(op.id)))
    return next((op for op in tried if request_of(op.payload).may_repeat), None)
