"""Which gateways of other sites the fast path believes: what they show, and under which name they may ask.

With certificates the agent proves each the first time that it is shown, and looks at it again all the time:
one that was taken back or has ended is out at once. Without, sites are known by their addresses.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from cheops.gateway.headers import site_name
from cheops.gateway.peers import PeerGateways
from cheops.node.identity import banned
from cheops.node.node import Node

if TYPE_CHECKING:
    from cheops.security.certificates import Identity

_MOST_CERTIFICATES = 2_000
_ADDRESSES_S = 5.0


class Senders:
    """Belongs to one event loop. `on_change` is called when what is believed is another."""

    def __init__(self, node: Node, peers: PeerGateways, on_change: Callable[[], None]) -> None:
        self._node = node
        self._peers = peers
        self._on_change = on_change
        self._shown: OrderedDict[str, Identity] = OrderedDict()
        self._at: frozenset[str] = frozenset()
        peers.on_proved = self._proved

    def entries(self) -> list[tuple[str, str]]:
        """For HAProxy's map: a name and what is shown with it."""
        shown = (f"{site_name(one.site)}|{fingerprint}" for fingerprint, one in self._shown.items())
        return [(key, "1") for key in (*shown, *self._at)]

    def _proved(self, der: bytes, identity: "Identity") -> None:
        """A gateway showed this certificate, and it is good."""
        fingerprint = sha256(der).hexdigest().upper()  # as HAProxy writes it
        if fingerprint in self._shown:
            self._shown.move_to_end(fingerprint)
            return
        self._shown[fingerprint] = identity
        if len(self._shown) > _MOST_CERTIFICATES:
            self._shown.popitem(last=False)
        self._on_change()

    def look_again(self) -> None:
        """Take out whoever may not come in any more."""
        now_s = time.time()
        out = [key for key, one in self._shown.items() if banned(self._node.mesh, one, now_s)]
        for key in out:
            del self._shown[key]
        if out:
            self._on_change()

    async def know_addresses(self, soon_s: float) -> None:
        """From which addresses sites send requests on, where they prove it by nothing else. Until
        cancelled."""
        while self._node.keyring is None:
            found: set[str] = set()
            is_all_known = True
            for site in self._node.snapshot().sites:
                if site != self._node.name:
                    addresses = await self._peers.addresses_of(site)
                    is_all_known = is_all_known and bool(addresses)
                    found.update(f"{site_name(site)}|{address}" for address in addresses)
            if found != self._at:
                self._at = frozenset(found)
                self._on_change()
            await asyncio.sleep(_ADDRESSES_S if is_all_known else soon_s)
