"""Carries out the engine's effects: runs, messages to peers, answers to clients, notifications."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from cheops.engine.admission import REFUSED
from cheops.engine.events import Answer, Notify, Run, Save, Send
from cheops.log.operation import OpId
from cheops.security.refusals import AGAINST_POLICY

if TYPE_CHECKING:
    from cheops.node.node import Node


_log = logging.getLogger(__name__)


class EffectExecutor:
    def __init__(self, node: "Node") -> None:
        self._node = node

    def run(self, effect: Run) -> None:
        self._node.start_run(effect)

    def send(self, effect: Send) -> None:
        if self._node.address_of(effect.peer):  # whom nobody knows, nobody answers
            self._node.note_interest((effect.peer,))
            self._node.links.send(effect.peer, effect.message)

    def answer(self, effect: Answer) -> None:
        self._node.pending_requests.take(effect)

    def notify(self, effect: Notify) -> None:
        _log.info("%s: %s %s %s", effect.resource, effect.what, effect.op or "", effect.detail)
        if effect.what == REFUSED:
            who = effect.op.origin.site if effect.op else ""
            what = str(effect.op or "a snapshot")
            self._node.refusal_log.document(AGAINST_POLICY, who, what, effect.resource, effect.detail)
        self._node.notifier.noticed(effect)

    def committed(self, saves: list[Save], last_seq: int) -> None:
        self._node.databases.committed(last_seq)
        self._node.notifier.committed(saves, last_seq)
        self._node.backends.committed(saves)
        for hash_ in self._node.file_references.committed(saves):
            self._node.files.forget(hash_)


class Answers:
    """What comes for one request, in order. To be used as a context, so that it does not stay for ever."""

    def __init__(self, waiting: "PendingRequests") -> None:
        self.request = uuid4().hex
        self._waiting = waiting
        self._queue: asyncio.Queue[Answer] = asyncio.Queue()
        self._op: tuple[str, OpId] | None = None

    def __enter__(self) -> Self:
        self._waiting.open[self.request] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.open.pop(self.request, None)
        if self._op is not None:
            self._waiting.left(*self._op)

    def accepted(self, resource: str, op: OpId) -> None:
        """Which operation it is about, so that the engine can hear when nobody waits any more."""
        self._op = (resource, op)

    def put(self, answer: Answer) -> None:
        self._queue.put_nowait(answer)

    async def next(self) -> Answer:
        return await self._queue.get()

    async def until(self, deadline_s: float) -> AsyncIterator[Answer]:
        """All that come until a time of the event loop's clock."""
        while True:
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                yield await asyncio.wait_for(self._queue.get(), max(left_s, 0))
            except TimeoutError:
                return


class PendingRequests:
    """All requests that somebody waits for."""

    def __init__(self, left: Callable[[str, OpId], None]) -> None:
        """`left` hears of each operation for which nobody waits any more."""
        self.open: dict[str, Answers] = {}
        self.left = left

    def take(self, answer: Answer) -> None:
        if answers := self.open.get(answer.request):
            answers.put(answer)
