"""Channels to sites that cannot be reached, by way of a third site that both reach.

The relay passes bytes on, through its own channels to both (tunnels.py). TLS ends at the two sites, so each verifies
the other's certificate as on a direct connection, and the relay can only cut them off.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from cheops.bounded import BoundedMap
from cheops.peers.channel import Channel
from cheops.peers.client import Credentials
from cheops.peers.frames import Opening
from cheops.peers.requests import AGENT_TUNNEL
from cheops.peers.tunnels import carry
from cheops.peers.upgrade import open_channel_on

_OPEN_S = 3.0
_EVERY_S = 5.0  # between two attempts for a site: it may just be down
_FAILED_S = 300.0  # in which one that has failed comes last
_MOST_AT_ONCE = 2  # relays that are tried
_MOST_REMEMBERED = 1_024
_log = logging.getLogger(__name__)

MakeRelayed = Callable[[asyncio.BaseTransport, str], Channel]  # a connection, and the site that relays it


class Relays:
    """Belongs to one event loop. `get` gives the channel to a site that there is."""

    def __init__(self, own: str, keys: Credentials | None, get: Callable[[str], Channel | None]) -> None:
        self._own = own
        self._keys = keys
        self._get = get
        self._failed_s: BoundedMap[str, float] = BoundedMap(_MOST_REMEMBERED)  # when, by relay
        self._tried_s: BoundedMap[str, float] = BoundedMap(_MOST_REMEMBERED)  # when, by site
        self._tunnels: set[asyncio.Task[None]] = set()
        self.candidates: Callable[[str], Sequence[str]] = lambda _site: ()  # that may reach a site, the nearest first

    def close(self) -> None:
        for tunnel in self._tunnels:
            tunnel.cancel()

    async def open(self, site: str, make: MakeRelayed) -> Channel | None:
        """A channel to a site by way of another one; None if there is no way."""
        now_s = asyncio.get_running_loop().time()
        relays = [one for one in self.candidates(site) if (carrier := self._get(one)) and not carrier.via]
        if not relays or now_s - self._tried_s.get(site, -_EVERY_S) < _EVERY_S:
            return None
        self._tried_s[site] = now_s
        # One that does not relay takes most of the time that a caller waits: others come first for a while.
        relays.sort(key=lambda one: now_s - self._failed_s.get(one, -_FAILED_S) < _FAILED_S)
        for relay in relays[:_MOST_AT_ONCE]:
            try:
                async with asyncio.timeout(_OPEN_S):
                    return await self._open_by(relay, site, make)
            except OSError as error:
                self._failed_s[relay] = now_s
                _log.debug("%s does not relay to %s: %s", relay, site, error)
        return None

    async def _open_by(self, relay: str, site: str, make: MakeRelayed) -> Channel:
        carrier = self._get(relay)
        if carrier is None:
            raise ConnectionError(f"the channel to {relay} has ended")
        # TLS needs a socket: one end is the connection, the other end is carried through the relay.
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            one.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=theirs)
        opening = Opening(AGENT_TUNNEL, target=site)
        task = asyncio.get_running_loop().create_task(carry(carrier, opening, reader, writer))
        self._tunnels.add(task)
        task.add_done_callback(self._tunnels.discard)
        try:
            channel = await open_channel_on(
                ours, self._own, site, relay, self._keys, lambda transport: make(transport, relay)
            )
        except BaseException:
            task.cancel()  # the relay may never end it
            raise
        _log.info("%s is reached by way of %s", site, relay)
        return channel
