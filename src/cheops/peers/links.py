"""What goes to peers: the messages of the engine, one-way, through the channel of each peer.

A message goes at once. What the engine sends in the same moment goes together, and so does what waits while the channel
is busy: under load few envelopes carry many messages. No timer is involved. Large envelopes are packed in a thread, so
that heartbeats and clients do not wait for that.

Nothing is kept for later: without a channel messages are dropped, and the peer is probed. The engine knows what a peer
has acknowledged, and sends the rest when it is up. So a slow or dead peer costs a bounded queue, and never slows the
others down.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from cheops.backoff import Backoff
from cheops.bounded import BoundedMap
from cheops.engine.documents import Message, size_of
from cheops.peers.client import connection_problem
from cheops.peers.envelope import EnvelopeError, Refused, Unpacked, compressed, is_larger, pack, unpack
from cheops.peers.origin_tables import OriginTables
from cheops.peers.requests import RequestKind
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.text import printable, shortened

__all__ = [
    "INVALID",
    "LARGE_BYTES",
    "EnvelopeError",
    "PeerLinks",
    "Refused",
    "Unpacked",
    "is_larger",
    "pack",
    "unpack",
]

MESSAGES_PATH = f"peer/{RequestKind.MESSAGES}"  # below the address of an agent
INVALID = "invalid document"  # the reason of a refusal
LARGE_BYTES = 200_000  # packed and unpacked in a thread: from here on it takes milliseconds
_MOST_WAITING = 5_000  # messages to one peer; the oldest goes first, since the engine repeats what is not acknowledged
_MOST_BYTES = 250_000  # in one envelope, roughly, of several messages; what comes after it waits for it
_COMPRESS_FROM = 150  # bytes; below, little is saved
_MOST_PEERS = 2_000  # whose lists of origins are kept
_PAUSE_S, _PAUSE_MOST_S = 0.05, 5.0  # after a channel that could not be opened
_log = logging.getLogger(__name__)


class MessageChannel(Protocol):
    """A channel, as links use it."""

    @property
    def can_post(self) -> bool: ...

    def post(self, kind: str, body: bytes) -> None: ...


class Channels(Protocol):
    """The channels of this site; see channel_pool.py."""

    def get(self, site: str) -> MessageChannel | None: ...

    async def channel(self, site: str) -> MessageChannel: ...

    def can_reach(self, site: str) -> bool: ...


class LinkCounts(Struct):
    """What was sent to one peer."""

    messages: int = 0
    documents: int = 0  # operations, replies and statements in them
    requests: int = 0
    bytes: int = 0
    failures: int = 0
    dropped: int = 0


class PeerLinks:
    """The links of one site. `report_unreachable` gets each peer that could not be reached."""

    def __init__(self, site: str, channels: Channels, report_unreachable: Callable[[str], None]) -> None:
        self._site = site
        self._channels = channels
        self._report_unreachable = report_unreachable
        self._links: dict[str, _PeerLink] = {}
        self._tables: BoundedMap[str, OriginTables] = BoundedMap(_MOST_PEERS)

    def send(self, peer: str, message: Message) -> None:
        self._link(peer).put(message)

    def _link(self, peer: str) -> "_PeerLink":
        if peer not in self._links:
            tables = partial(self.tables, peer)
            self._links[peer] = _PeerLink(self._site, peer, self._channels, self._report_unreachable, tables)
        return self._links[peer]

    def tables(self, peer: str) -> OriginTables:
        """The lists of origins that this site and a peer refer to."""
        return self._tables.setdefault(peer, OriginTables())

    def report_unknown(self, peer: str) -> None:
        """A peer has referred to a list of origins that is not known here: ask it to name them."""
        channel = self._channels.get(peer)
        if channel is not None and channel.can_post:  # otherwise it will refer to that list again
            channel.post(RequestKind.MESSAGES, pack(self._site, []))

    def flush(self, peer: str) -> None:
        """The channel of a peer takes messages again."""
        if peer in self._links:
            self._links[peer].flush()

    def counts(self) -> dict[str, LinkCounts]:
        return {peer: link.counts for peer, link in self._links.items()}

    def waiting(self, peer: str) -> int:
        return len(self._links[peer].queue) if peer in self._links else 0

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class _PeerLink:
    """The queue of one peer."""

    def __init__(
        self,
        site: str,
        peer: str,
        channels: Channels,
        report_unreachable: Callable[[str], None],
        tables: Callable[[], OriginTables],
    ) -> None:
        self.peer = peer
        self._tables = tables
        self._channel: MessageChannel | None = None  # the last one that was used
        self.queue: deque[Message] = deque()
        self.counts = LinkCounts()
        self._site = site
        self._channels = channels
        self._report_unreachable = report_unreachable
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._job: asyncio.Task[None] | None = None  # opens a channel, or packs something large
        self._backoff = Backoff(_PAUSE_S, _PAUSE_MOST_S)
        self._resume_at_s = 0.0

    def put(self, message: Message) -> None:
        if len(self.queue) >= _MOST_WAITING:
            self.queue.popleft()
            self.counts.dropped += 1
        self.queue.append(message)
        if not self._is_scheduled and self._job is None:
            # After everything that is ready now: the effects of one commit come one after the other.
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def close(self) -> None:
        self.queue.clear()
        if self._job is not None:
            self._job.cancel()

    def flush(self) -> None:
        """Send what waits, as far as the channel takes it."""
        self._is_scheduled = False
        while self.queue and self._job is None:
            channel = self._channels.get(self.peer)
            if channel is None:
                self._open()
                return
            if not channel.can_post:
                return  # the pool calls again
            if channel is not self._channel:  # the peer may have restarted, and knows no lists
                self._channel = channel
                self._tables().forget_shown()
            messages, size = self._take()
            if size > LARGE_BYTES:
                self._start(self._send_large(messages))
            else:
                self._post(messages, self._packed(messages))

    def _take(self) -> tuple[list[Message], int]:
        taken, size = [], 0
        while self.queue and size < _MOST_BYTES:
            message = self.queue.popleft()
            size += size_of(message)
            taken.append(message)
        return taken, size

    def _post(self, messages: list[Message], body: bytes) -> None:
        channel = self._channels.get(self.peer)
        if channel is None:
            self.counts.dropped += len(messages)
            return
        if len(body) > MAX_MESSAGE_BYTES:
            self._post_parts(messages, len(body))
            return
        channel.post(RequestKind.MESSAGES, body)
        self.counts.messages += len(messages)
        self.counts.documents += sum(len(one.ops) + len(one.replies) + len(one.statements) for one in messages)
        self.counts.requests += 1
        self.counts.bytes += len(body)

    def _post_parts(self, messages: list[Message], size: int) -> None:
        """Send messages that are too large together; one that is too large by itself is dropped."""
        if len(messages) == 1:
            self.counts.dropped += 1
            about = printable(shortened(messages[0].resource))
            _log.error(
                "a message to %s about '%s' is too large, and is not sent: it has %s bytes",
                *(self.peer, about, f"{size:,}"),
            )
            return
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            self._post(part, self._packed(part))

    def _packed(self, messages: list[Message]) -> bytes:
        return packed(self._site, messages, self.peer, self._tables())

    def _start(self, job: "asyncio._CoroutineLike[None]") -> None:
        self._job = self._loop.create_task(job)
        self._job.add_done_callback(self._end_job)

    def _end_job(self, task: asyncio.Task[None]) -> None:
        self._job = None
        if task.cancelled():
            return
        if error := task.exception():  # whatever it was, the next message must be sent
            _log.error("messages to %s could not be sent", self.peer, exc_info=error)
            self.counts.failures += 1
        self.flush()

    async def _send_large(self, messages: list[Message]) -> None:
        self._post(messages, await asyncio.to_thread(self._packed, messages))

    def _open(self) -> None:
        if not self._channels.can_reach(self.peer) or self._loop.time() < self._resume_at_s:
            # The engine sends it again when the peer comes up.
            self.counts.dropped += len(self.queue)
            self.queue.clear()
        else:
            self._start(self._open_channel())

    async def _open_channel(self) -> None:
        try:
            await self._channels.channel(self.peer)
        except OSError as error:  # also ChannelError, NoAddressError and TimeoutError
            self.counts.failures += 1
            self.counts.dropped += len(self.queue)
            self.queue.clear()
            self._resume_at_s = self._loop.time() + self._backoff.next_s()
            _log.info("%s did not take messages: %s", self.peer, connection_problem(error))
            self._report_unreachable(self.peer)
        else:
            self._backoff.reset()


def packed(site: str, messages: list[Message], to: str, tables: OriginTables) -> bytes:
    """Messages as they are sent to a site that knows these lists of origins."""
    body = pack(site, messages, to, tables)
    return compressed(body) if len(body) > _COMPRESS_FROM and len(body) <= MAX_MESSAGE_BYTES else body
