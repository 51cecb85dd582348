"""Carries out the engine's effects: runs, messages to peers, answers to clients, notifications.

The pump calls the executor after the commit, so everything that happens here rests on durable decisions.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cheops.engine.admission import REFUSED
from cheops.engine.contents import BROKEN_STATEMENT, EQUIVOCATION
from cheops.engine.events import Answer, Fault, Notify, Restart, Run, Save, Send
from cheops.engine.incarnation import OF_INCARNATIONS
from cheops.log.operation import OpId
from cheops.security.refusals import AGAINST_POLICY
from cheops.store.interface import DamagedError
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from cheops.node.node import Node


_log = logging.getLogger(__name__)
# Requests of another start, whose drafts the store may still have, must have other names.
_PROCESS, _numbers = secrets.token_hex(12), count(1)


class EffectExecutor:
    """See `pump.EffectHandler`."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def run(self, effect: Run) -> None:
        self._node.start_run(effect)

    def send(self, effect: Send) -> None:
        # Without an address nothing can be sent. The engine sends it again when the peer comes up.
        if self._node.address_of(effect.peer):
            self._node.note_interest((effect.peer,))
            signer = self._node.report_signer
            self._node.links.send(effect.peer, signer.signed(effect.message) if signer else effect.message)

    def answer(self, effect: Answer) -> None:
        self._node.pending_requests.deliver(effect)

    def notify(self, effect: Notify) -> None:
        about = printable(f"{effect.resource}: {effect.what} {effect.op or ''} {effect.detail}")
        _log.info("%s", about)
        if effect.what == REFUSED:
            site = effect.by or (effect.op.origin.site if effect.op else "")
            document = str(effect.op or "a document")
            reason = effect.reason or AGAINST_POLICY
            self._node.refusal_log.document(reason, site, document, effect.resource, effect.detail)
        elif effect.what in (EQUIVOCATION, BROKEN_STATEMENT):
            self._node.alarms.add(effect, time.time_ns() // 1_000_000)
            self._node.refusal_log.document(effect.what, effect.by, str(effect.op), effect.resource, effect.detail)
        elif effect.what in OF_INCARNATIONS:
            _log.warning("%s", about)
        self._node.notifier.report(effect)

    def restart(self, effect: Restart) -> None:
        _log.warning("%s; this site starts again under a new incarnation of its store", effect.why)
        self._node.must_restart.set()

    def fault(self, effect: Fault) -> None:
        self._node.faults.add(effect)

    def damaged(self, error: DamagedError) -> None:
        self._node.damaged_documents.restore(error)

    def committed(self, saves: list[Save], last_seq: int) -> None:
        self._node.last_seq = last_seq
        self._node.databases.committed(last_seq)
        self._node.notifier.committed(saves, last_seq)
        self._node.backends.committed(saves)
        for hash_ in self._node.file_references.committed(saves):
            self._node.files.forget(hash_)


class Faults:
    """Bugs that an event ran into, since the agent started."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""  # the latest, for an operator

    def add(self, fault: Fault) -> None:
        self.count += 1
        about = f"'{printable(shortened(fault.resource))}': " if fault.resource else ""
        self.last = printable(shortened(f"{about}{type(fault.error).__name__}: {fault.error}", 300))
        _log.error("an event failed because of a fault in this agent: %s", self.last, exc_info=fault.error)


class Answers:
    """The answers to one request, in order. A context manager: at its end the request is not pending any more."""

    def __init__(self, pending: "PendingRequests") -> None:
        self.request = f"{_PROCESS}-{next(_numbers)}"
        self._pending = pending
        self._arrived: deque[Answer] = deque()
        self._waiter: asyncio.Future[None] | None = None  # one task reads them: a queue for many would cost more
        self._op: tuple[str, OpId] | None = None

    def __enter__(self) -> Self:
        self._pending.open[self.request] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pending.open.pop(self.request, None)
        if self._op is not None:
            self._pending.report_left(*self._op)

    def accepted(self, resource: str, op: OpId) -> None:
        """Remember the operation that the request became, so that the engine learns when its client has left."""
        self._op = (resource, op)

    def put(self, answer: Answer) -> None:
        self._arrived.append(answer)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, by_s: float | None = None) -> Answer:
        """Raises TimeoutError if none has arrived by this time of the event loop's clock."""
        while not self._arrived:
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            # A timer of our own: `asyncio.wait_for` would make a task for each answer.
            timer = None if by_s is None else loop.call_at(by_s, _expire, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
        return self._arrived.popleft()


def _expire(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class PendingRequests:
    """The requests whose clients wait for answers."""

    def __init__(self, report_left: Callable[[str, OpId], None]) -> None:
        """`report_left` gets each operation whose client waits no longer."""
        self.open: dict[str, Answers] = {}
        self.report_left = report_left

    def deliver(self, answer: Answer) -> None:
        if answers := self.open.get(answer.request):
            answers.put(answer)
