"""What other sites say, on its way to the engine: what cannot be believed stays outside (trust.py)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Brought, Received
from cheops.engine.messages import Message
from cheops.errors import CheopsError, Fault
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Reply
from cheops.log.vector import contains
from cheops.node.fetching import Fetching
from cheops.node.pump import Pump
from cheops.node.trust import Trust


class NotYetError(CheopsError):
    """What was sent cannot be kept before other things are here: to be sent again."""

    fault = Fault.PEER
    definite = False
    status = 503


class Intake:
    """Belongs to one event loop."""

    def __init__(
        self, pump: Pump, fetching: Fetching, trust: Trust | None, check: Callable[[], None]
    ) -> None:
        """`check` raises where nothing can be taken now. Without `trust` everything is believed."""
        self._pump = pump
        self._fetching = fetching
        self._trust = trust
        self._check = check

    async def hear(self, peer: str, messages: Sequence[Message]) -> None:
        """Messages of another site's engine, as they came."""
        self._check()
        self.receive(peer, await self._trust.admitted(peer, messages) if self._trust else messages)

    def receive(self, peer: str, messages: Iterable[Message]) -> None:
        """Messages of another site's engine that can be believed."""
        self._check()
        for message in messages:
            for op in message.ops:
                for _, hash_ in op.payload.files if self._is_news(op) else ():
                    self._fetching.want(hash_, dict.fromkeys((peer, op.origin.site)))
            self._pump.post(Received(peer, message))

    def _is_news(self, op: Operation) -> bool:
        """Whether an operation is not known here yet: of what is known, the files may be gone already. Files
        of a stranger's operation wait until it is clear that it counts."""
        replica = self._pump.site.replicas.get(op.resource)
        if replica is None:
            return True
        is_strange = self._trust is not None and op.origin.site not in replica.history.former
        return not is_strange and not contains(replica.history.known, op.id)

    async def accept(self, documents: Sequence[Document]) -> dict[Key, str]:
        """Documents by way of another database; durable when this returns. Gives those that are refused for
        good, and why; raises NotYetError if some can only be taken later."""
        shared = [d for d in documents if isinstance(d, Operation | Reply)]
        bad = await self._trust.objections("", shared) if self._trust else {}
        refused = {key_of(d): bad[id(d)].detail for d in shared if id(d) in bad and not bad[id(d)].later}
        later = [bad[id(d)] for d in shared if id(d) in bad and bad[id(d)].later]
        shared = [d for d in shared if id(d) not in bad]
        matrices = tuple(d for d in documents if isinstance(d, Matrix))
        if matrices:
            self._pump.post(Brought(matrices))
        shared.sort(key=lambda document: document.resource)
        for resource, group in groupby(shared, key=lambda document: document.resource):
            own = list(group)
            message = Message(
                resource,
                "",
                tuple(d for d in own if isinstance(d, Operation)),
                tuple(d for d in own if isinstance(d, Reply)),
            )
            self.receive("", [message])
            replica = await self._pump.replica(resource)
            refused |= {key_of(op): replica.refused[op.id] for op in message.ops if op.id in replica.refused}
            if waits := [op.id for op in message.ops if op.id in replica.waiting]:
                raise NotYetError(f"{waits[0]} of '{resource}' depends on operations that have not come yet")
        await self._pump.flushed()
        if later:
            raise NotYetError(f"{len(later)} documents cannot be taken yet: {later[0].detail}")
        return refused
