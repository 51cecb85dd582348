"""Delivers events to one target, in order: each event until it is accepted, then the next.

A failed delivery is retried, later and later, without end: nothing is left out, and nothing overtakes. A target
that does not answer delays only itself. How far it has got is saved after each event; a crash between the two
makes the target receive one event twice, with the same id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from cheops.backoff import Backoff
from cheops.config.notify import EventKind, TargetConfig
from cheops.notify.derivation import of_dropped
from cheops.notify.event import Event
from cheops.notify.feed import Feed, Page
from cheops.notify.follower import wall_ms
from cheops.notify.journal import Journal
from cheops.notify.senders import DeliveryError, Sender
from cheops.store.interface import StoreError


def wants(target: TargetConfig, event: Event, site: str) -> bool:
    """Whether this site reports an event to the target. All filters must agree.

    Each site reports what happened there; a target with `others` also gets what happened elsewhere. So where all sites
    have the same targets, one of them reports each event.
    """
    if event.kind == EventKind.DROPPED:
        return True
    return (
        _is_wanted_kind(target, event.kind)
        and (target.others or event.site == site)
        and (not target.types or event.resource_type in target.types)
        and (not target.operations or event.type in target.operations)
        and (not target.resources or _matches(event.resource, target.resources))
        and (not target.statuses or event.status in target.statuses)
    )


def _is_wanted_kind(target: TargetConfig, kind: str) -> bool:
    return target.summary if kind == EventKind.SUMMARY else kind in target.on


def _matches(resource: str, patterns: tuple[str, ...]) -> bool:
    return bool(resource) and any(fnmatchcase(resource, pattern) for pattern in patterns)


_READ_S = 3600.0  # how long one read waits for something new; the feed wakes it, so this is no polling interval
_FIRST_WAIT_S = 0.2
_STORE_WAIT_S = 1.0
_log = logging.getLogger(__name__)
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
T = TypeVar("T")


class TargetStatus(msgspec.Struct, frozen=True):
    """The state of a delivery."""

    name: str
    channel: str  # web hook, command or mail
    position: int  # everything up to this number of the journal was accepted, or not wanted
    backlog: int  # events after it, some of which may not be wanted
    deliveries: int  # accepted since the start
    failures: int  # attempts since the start that failed
    failures_in_a_row: int  # of the current event
    failing_since_ms: int | None
    last_success_ms: int | None  # since the start
    started_ms: int
    problem: str  # of the last attempt; empty if it succeeded


class Delivery:
    """Belongs to one event loop; `in_thread` runs what blocks."""

    def __init__(  # noqa: PLR0913, PLR0917 - source, target and threads
        self,
        target: TargetConfig,
        sender: Sender,
        journal: Journal,
        site: str,
        in_thread: InThread,
        feed: Feed,
    ) -> None:
        self.target = target
        self._sender = sender
        self._journal = journal
        self._site = site
        self._in_thread = in_thread
        self._feed = feed
        self._position = self._start = journal.last
        self._earlier = 0  # events from before the start that are still to be looked at
        self._deliveries = self._failures = self._failures_in_a_row = 0
        self._failing_since_ms: int | None = None
        self._last_success_ms: int | None = None
        self._started_ms = wall_ms()
        self._problem = ""

    @property
    def status(self) -> TargetStatus:
        return TargetStatus(
            self.target.name,
            self.target.channel.word,
            self._position,
            self._backlog,
            self._deliveries,
            self._failures,
            self._failures_in_a_row,
            self._failing_since_ms,
            self._last_success_ms,
            self._started_ms,
            self._problem,
        )

    @property
    def _backlog(self) -> int:
        """Counted without the disk: from the start on, events have consecutive numbers; earlier ones have gaps."""
        return self._earlier + self._journal.last - max(self._position, self._start)

    async def run(self) -> None:
        """Deliver until cancelled, or until the feed is closed."""
        name = self.target.name
        self._position = await self._durably(lambda: self._in_thread(lambda: self._journal.cursor(name)))
        await self._count_earlier()
        while not self._feed.is_closed:
            await self._deliver_page(await self._durably(self._read_on))

    async def _read_on(self) -> Page:
        return await self._feed.read(self._feed.at(self._position), wait_s=_READ_S)

    async def _count_earlier(self) -> None:
        after, up_to = self._position, self._start
        self._earlier = await self._durably(lambda: self._in_thread(lambda: self._journal.count(after, up_to)))

    async def _deliver_page(self, page: Page) -> None:
        if page.reset:
            up_to = page.start.seq
            await self._deliver(of_dropped(self._site, self._journal.most_kept, up_to, wall_ms()))
            await self._move(up_to)
            await self._count_earlier()
        for event in page.events:
            if wants(self.target, event, self._site):
                await self._deliver(event)
                # Only after the delivery: after a crash between the two the target gets the event again, not never.
                await self._move(event.sequence)
            self._earlier -= event.sequence <= self._start
        await self._move(page.last.seq)

    async def _move(self, seq: int) -> None:
        if seq > self._position:
            self._position = seq
            name = self.target.name
            await self._durably(lambda: self._in_thread(lambda: self._journal.move(name, seq)))

    async def _deliver(self, event: Event) -> None:
        """Send an event until the target accepts it."""
        backoff = Backoff(min(_FIRST_WAIT_S, self.target.retry_most_s), self.target.retry_most_s)
        message = msgspec.structs.replace(event, teller=self._site)
        while (problem := await self._try(message)) is not None:
            self._note_failure(event, problem)
            await asyncio.sleep(backoff.next_s())
        if failures := self._failures_in_a_row:
            _log.warning("notify %s: works again after %d failures", self.target.name, failures)
        self._deliveries, self._last_success_ms = self._deliveries + 1, wall_ms()
        self._failures_in_a_row, self._failing_since_ms, self._problem = 0, None, ""

    async def _try(self, event: Event) -> str | None:
        try:
            await self._sender.send(event)
        except DeliveryError as error:
            return str(error)
        except Exception as error:  # a bug must not end the deliveries
            _log.exception("notify %s: sending %s failed", self.target.name, event.id)
            return f"this is a bug in Cheops: {error!r}; the agent's log has the details"
        return None

    def _note_failure(self, event: Event, problem: str) -> None:
        if problem != self._problem:  # one line in the log per problem, not per attempt
            what = EventKind(event.kind).value
            _log.warning("notify %s: %s was not accepted: %s", self.target.name, what, problem)
        self._failing_since_ms = self._failing_since_ms or wall_ms()
        self._failures += 1
        self._failures_in_a_row, self._problem = self._failures_in_a_row + 1, problem

    async def _durably(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry until the journal can be read and written."""
        trouble = ""
        while True:
            try:
                result = await work()
            except StoreError as error:
                self._problem = trouble = str(error)
                _log.warning("notify %s: %s", self.target.name, error)
                await asyncio.sleep(_STORE_WAIT_S)
            else:
                if trouble and self._problem == trouble:
                    self._problem = ""
                return result
