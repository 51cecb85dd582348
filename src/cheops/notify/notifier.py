"""The notifications of one site: wraps its store, observes its engine, and delivers to its targets.

notifier = Notifier(config, runner)
store = notifier.journal_commits(store)  # blocks; from now on each commit is journalled
await notifier.start(pump, in_store_thread)
notifier.committed(saves, last_seq)      # after each commit, in the event loop
notifier.report(effect)                  # what the engine noticed
notifier.report_peer(event)              # a site went up or down
await notifier.journalled()              # the journal has all that is committed, if it can be written
await notifier.stop()                    # the journal itself is closed with the store
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from cheops.backends.command.runner import CommandRunner
from cheops.config.notify import CommandConfig, MailConfig, TargetConfig, WebhookConfig
from cheops.config.site import SiteConfig
from cheops.engine.events import Notify, PeerDown, PeerUp, Save
from cheops.log.operation import Operation, Reply
from cheops.notify.delivery import Delivery, TargetStatus
from cheops.notify.feed import Feed
from cheops.notify.follower import Follower, JournaledStore
from cheops.notify.journal import Journal
from cheops.notify.observer import Engine, EngineObserver
from cheops.notify.senders import CommandSender, Sender
from cheops.store.interface import Store, StoreError

if TYPE_CHECKING:
    import aiohttp

FILE = "notify.db"
FOLDER = "notify"
_EXAMINED = (Operation, Reply)  # a tuple, because `|` would make a new object in every check
# The commits of so long are journalled together: a transaction each would cost more than the events themselves.
_JOURNAL_WITHIN_S = 0.05
_READERS_WAIT_S = 1.0
_log = logging.getLogger(__name__)
T = TypeVar("T")
InStoreThread = Callable[[Callable[[], None]], Awaitable[None]]


class NotifierStatus(Struct, frozen=True):
    """The state of notifications, for the operator."""

    last: int  # the number of the newest event
    targets: tuple[TargetStatus, ...]
    summaries_awaited: int  # resources with operations of this site that some site has not finished


class Notifier:
    """Belongs to one event loop, except `journal_commits`, which is called in the thread that commits."""

    def __init__(self, config: SiteConfig, runner: CommandRunner) -> None:
        self._config = config
        self._runner = runner
        # One thread for the journal's reads and cursors: SQLite blocks, and one writer at a time suffices.
        self._thread = ThreadPoolExecutor(1, "notify")
        self._tasks: list[asyncio.Task[None]] = []
        self._deliveries: list[Delivery] = []
        self._http: aiohttp.ClientSession | None = None  # of web hooks
        self._observer: EngineObserver | None = None
        self._in_store_thread: InStoreThread | None = None
        self._committed: dict[str, None] = {}  # resources with commits that the observer does not know of yet
        self._committed_seq = 0  # up to this number of the feed
        self._journal_timer: asyncio.TimerHandle | None = None
        self._gone: dict[str, int] = {}  # targets that are no longer configured, and their undelivered events

    # -- starting and stopping -------------------------------------------------------------------------------

    def journal_commits(self, store: Store) -> Store:
        """The store, wrapped so that each commit is journalled. Blocks. Raises StoreError."""
        config = self._config
        self.journal = Journal(config.data / FILE)
        try:
            with_summaries = any(target.summary for target in config.notify)
            self._follower = Follower(store, self.journal, config.name, with_summaries=with_summaries)
            self._follower.follow()
            self._gone = self.journal.keep_targets([target.name for target in config.notify])
        except BaseException:
            self.journal.close()
            raise
        self._store = JournaledStore(store, self.journal, self._follower, _JOURNAL_WITHIN_S)
        return self._store

    async def start(self, engine: Engine, in_store_thread: InStoreThread) -> None:
        self._in_store_thread = in_store_thread
        for name, count in self._gone.items():
            _log.warning("notify %s: not configured any more; %d events were not delivered", name, count)
        self.feed = Feed(self.journal, self._in_thread)
        self._observer = EngineObserver(self.journal, self._follower, engine, self._in_thread, self.feed.announce)
        self._begin("observer", self._observer.run())
        for target in self._config.notify:
            sender = self._sender(target)
            delivery = Delivery(target, sender, self.journal, self._config.name, self._in_thread, self.feed)
            self._deliveries.append(delivery)
            self._begin(f"notify {target.name}", delivery.run())

    async def stop(self) -> None:
        """Stop the deliveries; undelivered events are delivered after the next start."""
        if self._journal_timer is not None:
            self._journal_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def _begin(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine, name=name))

    def _sender(self, target: TargetConfig) -> Sender:
        match target.channel:
            case WebhookConfig():
                from cheops.notify.webhook import WebhookSender, webhook_session  # noqa: PLC0415 - few sites need it

                if self._http is None:
                    self._http = webhook_session()
                return WebhookSender(target.channel, target.timeout_s, self._http)
            case CommandConfig():
                path = self._config.data / FOLDER / _file_name(target.name)
                return CommandSender(target.channel, target.timeout_s, self._runner, path)
            case MailConfig():
                from cheops.notify.mail import MailSender  # noqa: PLC0415 - as above

                return MailSender(target.channel, target.timeout_s, self._config.name)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # -- input -----------------------------------------------------------------------------------------------

    def committed(self, saves: Sequence[Save], last_seq: int) -> None:
        """These are durable. The observer examines them once they are in the journal, too."""
        resources = [
            document.resource for save in saves for document in save.documents if isinstance(document, _EXAMINED)
        ]
        if not resources or not self._observer:
            return
        self._committed |= dict.fromkeys(resources)
        self._committed_seq = last_seq
        if self._store.is_journalled:
            self._announce(self._observer)
        elif self._journal_timer is None:
            self._await_journal()

    def _announce(self, observer: EngineObserver) -> None:
        if self._committed:
            committed, self._committed = self._committed, {}
            observer.mark(committed, self._committed_seq)
        self.feed.announce()

    def _await_journal(self) -> None:
        """Mostly another commit comes in time, and takes along what waits."""
        loop = asyncio.get_running_loop()
        self._journal_timer = loop.call_later(2 * _JOURNAL_WITHIN_S, self._end_wait)

    def _end_wait(self) -> None:
        self._journal_timer = None
        self._journalling = asyncio.get_running_loop().create_task(self._journal_waiting())

    async def _journal_waiting(self) -> None:
        try:
            if not self._store.is_journalled and self._in_store_thread is not None:
                await self._in_store_thread(self._store.journal_waiting)
        except StoreError as error:
            _log.warning("events wait to be written: %s", error)
            if self._journal_timer is None:
                self._await_journal()
        else:
            if self._observer:
                self._announce(self._observer)

    async def journalled(self) -> None:
        """Journal what waits: readers must see what they have caused. A disk that does not respond, or has no space,
        must not keep them from the events before."""
        if not self._store.is_journalled:
            await asyncio.wait({asyncio.ensure_future(self._journal_waiting())}, timeout=_READERS_WAIT_S)

    def report(self, notice: Notify) -> None:
        if self._observer:
            self._observer.add_notice(notice)

    def report_peer(self, event: PeerUp | PeerDown, why: str = "") -> None:
        if self._observer:
            self._observer.add_peer_event(event, why)

    # -- status ----------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """None of them ends before the feed is closed, unless there is a bug."""
        return tuple(self._tasks)

    def status(self) -> NotifierStatus:
        awaited = self._follower.summaries
        return NotifierStatus(
            self.journal.last,
            tuple(delivery.status for delivery in self._deliveries),
            len(awaited.resources) if awaited else 0,
        )


def _file_name(target: str) -> str:
    """One file name per target, whatever characters its name has."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', target)[:50]}-{sha256(target.encode()).hexdigest()[:8]}.json"
