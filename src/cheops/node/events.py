"""What happened at this site lately: a bounded ring, and a bell for those who wait for more.

Everything in it is durable when it is noted. Numbers go up by one; an *epoch*, new with every start of the
agent, says which numbers they are. Who asks from a place that is gone (the ring went on, or the agent was
restarted) is told so, and looks at the state anew. A slow reader costs no memory: it reads from the ring.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple
from uuid import uuid4

from cheops.engine.documents import Document
from cheops.engine.events import Notify, PeerDown, PeerUp, Save
from cheops.log.operation import Operation, OpId, Reply

KEPT = 10_000
_SEPARATOR = "-"


class Happened(NamedTuple):
    """One thing that happened. `what` is documented with the API's `Event`."""

    n: int
    at_ms: int
    what: str
    resource: str | None = None
    op: OpId | None = None
    site: str | None = None
    status: str | None = None
    detail: str = ""


class Read(NamedTuple):
    """What a reader gets: how far it has read, what was there, and whether some of it is gone."""

    last: int
    events: tuple[Happened, ...]
    lost: bool = False


class Events:
    """The ring of one agent. Belongs to one event loop."""

    def __init__(self, kept: int = KEPT) -> None:
        self.epoch = uuid4().hex[:8]
        self.last = 0
        self.counts: Counter[tuple[str, str]] = Counter()  # per what and status, since the start
        self._ring: deque[Happened] = deque(maxlen=kept)
        self._bell = asyncio.Event()
        self._closed = False

    # -- writing -----------------------------------------------------------------------------------------

    def add(  # noqa: PLR0913 - an event's fields
        self,
        what: str,
        resource: str | None = None,
        op: OpId | None = None,
        *,
        site: str | None = None,
        status: str | None = None,
        detail: str = "",
    ) -> None:
        self.last += 1
        at_ms = time.time_ns() // 1_000_000
        self._ring.append(Happened(self.last, at_ms, what, resource, op, site, status, detail))
        self.counts[what, status or ""] += 1
        self._ring_bell()

    def committed(self, saves: Iterable[Save]) -> None:
        """What was saved, for those who follow resources."""
        for save in saves:
            for document in save.documents:
                self._note(document)

    def notified(self, effect: Notify) -> None:
        self.add(effect.what, effect.resource, effect.op, detail=effect.detail)

    def peer(self, event: PeerUp | PeerDown) -> None:
        self.add("site-up" if isinstance(event, PeerUp) else "site-down", site=event.peer)

    def close(self) -> None:
        """Nothing more will happen: whoever waits goes home."""
        self._closed = True
        self._ring_bell()

    def _note(self, document: Document) -> None:
        if isinstance(document, Operation):
            what = "accepted" if document.verdict is None else "operation"
            self._of(what, document.id, document, document.verdict, document.why)
        elif isinstance(document, Reply):
            what = "replay" if document.replay else "reply"
            self._of(what, document.op, document, document.status, document.detail)

    def _of(
        self, what: str, op: OpId | None, document: Operation | Reply, status: str | None, detail: str
    ) -> None:
        site = document.origin.site
        self.add(what, document.resource, op, site=site, status=status, detail=detail)

    # -- reading -----------------------------------------------------------------------------------------

    def name(self, n: int) -> str:
        """The id of an event, by which a reader goes on later."""
        return f"{self.epoch}{_SEPARATOR}{n}"

    def place(self, name: str) -> int | None:
        """The number that an id stands for; None where it is not of this agent's run, or is no id."""
        epoch, _, number = name.rpartition(_SEPARATOR)
        if epoch != self.epoch or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return int(number) if int(number) <= self.last else None

    def after(self, n: int, resource: str | None = None, limit: int = 1000) -> Read:
        """What came after a number, perhaps of one resource only."""
        first = self._ring[0].n if self._ring else self.last + 1
        fresh = islice(self._ring, max(n + 1 - first, 0), None)
        found: list[Happened] = []
        for event in fresh:
            if resource is None or event.resource == resource:
                found.append(event)
                if len(found) >= limit:
                    return Read(event.n, tuple(found), lost=n + 1 < first)
        return Read(self.last, tuple(found), lost=n + 1 < first)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def more(self, n: int, timeout_s: float) -> bool:
        """Wait until something came after a number; gives False when nothing did in time."""
        end_s = asyncio.get_running_loop().time() + timeout_s
        while self.last <= n and not self._closed:
            left_s = end_s - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._bell.wait(), left_s)
            except TimeoutError:
                return False
        return self.last > n

    def _ring_bell(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()
