"""The channels of one site: at most one for each other site, opened by either of the two.

`channel(site)` returns the open channel to a site, whichever side opened it, or opens one. So a site behind NAT,
which nobody can reach, is reached through the channel that it has opened itself: it keeps one to each site that it
sends heartbeats to.

**Two at once.** Both sides may open one at the same moment. Then the site with the greater name closes the one that it
has opened, gracefully, when it sees both. The other site does nothing: it cannot know whether its peer still has both.
A second channel of the same opener replaces the first: its opener has lost that one, or has found a direct way.

**Relays.** Where no connection can be opened, a third site that both reach passes one on (tunnels.py), the nearest
first. A direct one is tried from time to time, and takes its place, whichever side has opened it: of a direct and a
relayed one, the opener of the relayed one closes that.

**Certificates** are checked when a channel begins, and again with each decision about membership and each second: a
site that is forgotten, whose certificates are ended, or whose certificate expires, loses its channel. With a new
certificate of its own, a site closes its channels gracefully: the next ones show it.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from cheops.errors import CheopsError
from cheops.peers.channel import Channel
from cheops.peers.client import Credentials, NoAddressError, PeerClient
from cheops.peers.frames import Answer, Opening
from cheops.peers.relays import Relays
from cheops.peers.requests import Peer, PeerRefusedError
from cheops.peers.streams import ChannelError, IncomingRequest, Response, SendBody
from cheops.peers.upgrade import UpgradeRefusedError, WrongSiteError, open_channel
from cheops.security.refusals import RefusalLog, reason_of
from cheops.security.tls import identity_at
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from cheops.peers.enrollment import Rejection
    from cheops.security.certificates import Identity

_TICK_S = 1.0
_OPEN_S = 5.0  # to open a channel
_DIRECT_S = 1.5  # until a relay is tried beside the direct way, which may just be slow
# Beyond so many channels those that rest are closed; those used last stay.
_MOST_RESTING, _REST_S = 20, 1.0
# Beyond so many, each new one closes another that is not in use. Not one used just now: its answer may be on its way.
_MOST_OPEN, _ANSWER_S = 40, 0.1
_MOST = 1_024  # channels that others have opened
_MOST_OF_ONE = 4  # of one site, with those that are about to end
_DIRECT_TICKS = 30  # between two attempts to replace a relayed channel
DUPLICATE, RENEWED, RESTING, STOPPED = "there are two", "a new certificate", "at rest", "the agent stops"
_log = logging.getLogger(__name__)


class Keys(Credentials, Protocol):
    @property
    def identity(self) -> "Identity": ...


class RequestServer(Protocol):
    """Answers what other sites ask through channels."""

    async def answer(self, request: IncomingRequest) -> None: ...

    async def take(self, channel: Channel, kind: str, body: bytes) -> None: ...


class _Restable(Protocol):
    is_opener: bool
    is_open: bool
    used_s: float

    @property
    def is_idle(self) -> bool: ...


_R = TypeVar("_R", bound=_Restable)


def surplus(channels: Iterable[_R], now_s: float) -> list[_R]:
    """The channels of one agent to close: few stay open, however many sites there are. Those that the other side opened
    go last: it may be out of reach."""
    open_ = [channel for channel in channels if channel.is_open]
    if len(open_) <= _MOST_RESTING:  # the usual case
        return []
    unused = [channel for channel in open_ if channel.is_idle and now_s - channel.used_s >= _ANSWER_S]
    unused.sort(key=lambda channel: (not channel.is_opener, channel.used_s))
    resting = [channel for channel in unused if now_s - channel.used_s >= _REST_S][: len(open_) - _MOST_RESTING]
    others = [channel for channel in unused if channel not in resting]
    return resting + others[: max(len(open_) - len(resting) - _MOST_OPEN, 0)]


class ChannelPool:
    """Belongs to one event loop. `serve` must be called before any request of another site is answered."""

    def __init__(  # noqa: PLR0913, PLR0917 - who we are, where others are, and who may connect
        self,
        own: str,
        http: PeerClient,
        keys: Keys | None,
        reject: "Callable[[Identity, float], Rejection | None]",
        decisions: Callable[[], int],
        refusal_log: RefusalLog,
    ) -> None:
        """`decisions` is a number that changes with each decision about membership, which `reject` knows."""
        self.http = http  # for what does not go through channels
        self._own = own
        self._address_of = http.address_of
        self._keys = keys
        self._reject = reject
        self._decisions = decisions
        self._refusal_log = refusal_log
        self._channels: dict[str, list[Channel]] = {}  # by site, the newest last
        self._identities: dict[Channel, object] = {}  # this site's own, when the channel began
        self._opening: dict[tuple[str, str], asyncio.Task[Channel]] = {}  # by site and address
        self._ticks = 0
        self._checked = -1  # the decisions that the channels were checked against
        self._server: RequestServer | None = None
        self._is_serving = asyncio.Event()
        self._is_closed = False
        self.relays = Relays(own, keys, self.get)
        self.on_ready: Callable[[str], None] = lambda _site: None  # one-way requests to a site can be sent
        self.on_lost: Callable[[str], None] = lambda _site: None  # there is no channel to a site any more

    def serve(self, server: RequestServer) -> None:
        self._server = server
        self._is_serving.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.check_certificates()
            for channel in list(self._all()):
                channel.tick()
            self._close_surplus()
            self._ticks += 1
            if self._ticks % _DIRECT_TICKS == 0:
                self._try_direct()

    def _try_direct(self) -> None:
        """Look for direct ways to the sites that are reached by a relay."""
        for channel in list(self._all()):
            if channel.via and channel.is_open and (at := self._address_of(channel.site)):
                self._start_opening(channel.site, at)

    def close(self) -> None:
        self._is_closed = True
        for task in self._opening.values():
            task.cancel()
        for channel in list(self._all()):
            channel.abort(STOPPED)
        self.relays.close()

    # -- look-ups and requests -----------------------------------------------------------------------------------

    @property
    def is_secure(self) -> bool:
        return self._keys is not None

    def _all(self) -> Iterator[Channel]:
        return (channel for channels in self._channels.values() for channel in channels)

    def __len__(self) -> int:
        return sum(map(len, self._channels.values()))

    def get(self, site: str) -> Channel | None:
        """The channel to a site; None if there is none that new requests may use."""
        channels = [channel for channel in reversed(self._channels.get(site, ())) if channel.is_open]
        return next((channel for channel in channels if not channel.via), channels[0] if channels else None)

    def can_reach(self, site: str) -> bool:
        """Whether there is a channel to a site, or an address to open one at."""
        return self.get(site) is not None or self._address_of(site) is not None

    async def channel(self, site: str, address: str = "") -> Channel:
        """The channel to a site, at this address if one must be opened; raises ChannelError and OSError."""
        if channel := self.get(site):
            return channel
        at = address or self._address_of(site)
        if not at:
            raise NoAddressError(f"there is no known address of '{printable(shortened(site))}'")
        # A caller that gives up does not end it: the next one finds the channel open.
        opened = await asyncio.shield(self._start_opening(site, at))
        return self.get(site) or opened  # of two that are opened at once, one closes as soon as it is open

    def _start_opening(self, site: str, at: str) -> asyncio.Task[Channel]:
        key = (site, at)
        if key not in self._opening:
            task = self._opening[key] = asyncio.get_running_loop().create_task(self._open(site, at))
            task.add_done_callback(lambda done: self._end_opening(key, done))
        return self._opening[key]

    async def request(  # noqa: PLR0913 - what, where and how much
        self, site: str, kind: str, body: bytes = b"", *, timeout_s: float, most_bytes: int, address: str = ""
    ) -> tuple[int, bytes]:
        """The status and the body of a site's response; raises as `channel` does."""
        async with asyncio.timeout(timeout_s):
            channel = self.get(site) or await self.channel(site, address)
            async with channel.open(Opening(kind, body)) as response:
                return response.status, await response.body.read(most_bytes)

    @asynccontextmanager
    async def open(self, site: str, opening: Opening, send_more: SendBody | None = None) -> AsyncIterator[Response]:
        channel = await self.channel(site)
        async with channel.open(opening, send_more) as response:
            yield response

    # -- begin and end -------------------------------------------------------------------------------------------

    async def _open(self, site: str, address: str) -> Channel:
        make = partial(self._verified, site)
        direct = asyncio.get_running_loop().create_task(
            open_channel(address, self._own, site, self._keys, make), name=f"a channel to {site}"
        )
        try:
            async with asyncio.timeout(_OPEN_S):
                await asyncio.wait({direct}, timeout=_DIRECT_S)
                # Not beside a channel that there is: another relayed one would take its place.
                is_enough = self.get(site) is not None or (direct.done() and not _is_unreachable(direct))
                relayed = None if is_enough else await self.relays.open(site, make)
                if relayed is not None and direct.done() and direct.exception() is None:
                    relayed.abort("there is a direct way")
                    relayed = None
                channel = relayed or await direct
        except BaseException:
            direct.add_done_callback(_abort_opened)  # it may be open by now, and nobody would know of it
            raise
        finally:
            if direct.done() and not direct.cancelled():
                direct.exception()  # so that asyncio does not log it as lost
            direct.cancel()
        if channel.is_lost:
            raise ChannelError(f"the connection to {site} was lost: {channel.why_closed}")
        self._register(channel)
        return channel

    def _verified(self, site: str, transport: asyncio.BaseTransport, via: str = "") -> Channel:
        """A channel on a connection to a site. With security on the other end has shown the certificate of this site:
        TLS has checked the name. Raises ChannelError if it may not be here."""
        if self._is_closed:
            raise ChannelError(STOPPED)
        try:
            identity = identity_at(transport) if self._keys else None
        except CheopsError as error:
            raise ChannelError(str(error)) from None
        if self._keys and (identity is None or identity.site != site):
            raise ChannelError(f"the other end is not {site}")
        if identity is not None and (rejection := self._reject(identity, time.time())):
            raise ChannelError(rejection.detail)
        peer = Peer(site if self._keys else None, identity)
        return Channel(site, peer, self, is_opener=True, address=_host(transport), via=via)

    def _end_opening(self, key: tuple[str, str], task: asyncio.Task[Channel]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # callers have it, unless all have given up

    def accept(self, site: str, peer: Peer, address: str, via: str = "") -> Channel:
        """A channel that another site opens; the caller gives it the connection, and then calls `accepted`. Raises
        PeerRefusedError."""
        if len(self) >= _MOST:
            raise PeerRefusedError("too many channels", "too many connections", 503, 1.0)
        return Channel(site, peer, self, is_opener=False, address=address, via=via)

    def accepted(self, channel: Channel) -> None:
        self._register(channel)

    def _register(self, channel: Channel) -> None:
        others = self._channels.setdefault(channel.site, [])
        for other in list(others):
            if other.is_opener == channel.is_opener and other.is_open:
                other.close("its opener has opened another one")
        for other in others[: -_MOST_OF_ONE + 1]:
            other.abort("its site has too many")  # they are about to end: nobody needs several
        others.append(channel)
        self._identities[channel] = self._keys.identity if self._keys else None
        theirs = [one for one in others if one.is_open and not one.is_opener]
        for own in [one for one in others if one.is_open and one.is_opener]:
            is_worse = own.via and any(not one.via for one in theirs)
            is_equal = any(bool(one.via) == bool(own.via) for one in theirs)
            if is_worse or (is_equal and self._own > channel.site):
                own.close(DUPLICATE)
        self._close_surplus()
        if channel.is_open:
            self.on_ready(channel.site)

    def check_certificates(self) -> None:
        """Cut off the sites that may not be here any more."""
        self._checked = self._decisions()
        if self._keys is None:
            return
        now_s, own = time.time(), self._keys.identity
        for channel in list(self._all()):
            identity = channel.peer.identity
            rejection = self._reject(identity, now_s) if identity is not None else None
            if rejection is not None:
                self._refusal_log.request(rejection.reason, channel.site, channel.address, rejection.detail)
                channel.abort(rejection.detail)
            elif self._identities.get(channel) is not own:
                channel.close(RENEWED)

    def _close_surplus(self) -> None:
        for channel in surplus(self._all(), asyncio.get_running_loop().time()):
            channel.close(RESTING)

    # -- what channels report ------------------------------------------------------------------------------------

    async def answer(self, request: IncomingRequest) -> None:
        server = await self._checked_server()
        if request.channel.is_lost:
            return
        try:
            await server.answer(request)
        except (ChannelError, asyncio.CancelledError):
            raise
        except Exception:
            _log.exception("a request of %s failed: %s", request.channel.site, request.opening.kind)
            request.respond(Answer(500, b"this is a bug in Cheops; the agent's log has the details"))

    async def take(self, channel: Channel, kind: str, body: bytes) -> None:
        server = await self._checked_server()
        if channel.is_lost:
            return
        try:
            await server.take(channel, kind, body)
        except Exception:  # one message must not end all that come after it
            _log.exception("messages of %s failed", channel.site)

    async def _checked_server(self) -> RequestServer:
        if self._checked != self._decisions():
            self.check_certificates()
        if self._server is None:
            await self._is_serving.wait()
        assert self._server is not None  # noqa: S101 - it serves
        return self._server

    def may_post(self, channel: Channel) -> None:
        self.on_ready(channel.site)

    def refused(self, channel: Channel, error: CheopsError) -> None:
        self._refusal_log.request(reason_of(error), channel.site, channel.address, str(error), error.status, "channel")

    def closing(self, channel: Channel, why: str) -> None:
        at = self._address_of(channel.site)
        if why == RENEWED and channel.is_opener and at and not self._is_closed and self.get(channel.site) is None:
            self._start_opening(channel.site, at)  # the other side may be unable to

    def closed(self, channel: Channel) -> None:
        channels = self._channels.get(channel.site, [])
        if channel in channels:
            channels.remove(channel)
        self._identities.pop(channel, None)
        if not channels:
            self._channels.pop(channel.site, None)
        _log.debug("the channel with %s has ended: %s", channel.site, channel.why_closed)
        if not self._is_closed and self.get(channel.site) is None:
            self.on_lost(channel.site)


def _is_unreachable(attempt: asyncio.Task[Channel]) -> bool:
    """Whether nobody was there. An agent that refuses, or shows the wrong certificate, would do so behind a relay."""
    error = attempt.exception()
    return isinstance(error, OSError) and not isinstance(error, UpgradeRefusedError | WrongSiteError | ssl.SSLError)


def _abort_opened(attempt: asyncio.Task[Channel]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort("it was opened too late")


def _host(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""
