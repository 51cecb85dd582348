"""For which gateways of other sites HAProxy has backends: those that requests went to, as many as may be.

What was known of them is kept in a file, so that an agent that takes HAProxy over knows at once what that is
configured for, before it has heard of anybody.
"""

from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cheops.config.site import SiteConfig
from cheops.gateway.fast.laying_out import layout_of, peer_layout
from cheops.gateway.fast.layout import Layout, PeerLayout
from cheops.gateway.fast.table import Key, Target
from cheops.gateway.peers import PeerGateways

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring

_FILE = "peers.json"
_MOST = 256  # pairs of a service and a site


class Places:
    """`laid_out` are those that HAProxy has now."""

    def __init__(self, config: SiteConfig, peers: PeerGateways, keyring: "Keyring | None", most: int) -> None:
        """`most` is how many connections there can be."""
        self._config = config
        self._peers = peers
        self._keyring = keyring
        self._most = most
        self._wanted: OrderedDict[Key, PeerLayout | None] = OrderedDict()
        self.laid_out: dict[Key, PeerLayout] = {}

    def has(self, service: str, target: Target) -> bool:
        """Whether HAProxy has a backend for it."""
        return target.site is None or (service, target.site) in self.laid_out

    def want(self, service: str, site: str) -> None:
        self._wanted.setdefault((service, site), None)
        self._wanted.move_to_end((service, site))
        while len(self._wanted) > _MOST:
            self._wanted.popitem(last=False)

    def layout_now(self, folder: Path) -> Layout:
        """What HAProxy is to have."""
        changed = False
        for key, before in self._wanted.items():
            now = peer_layout(self._peers, self._keyring, *key)
            if now is not None and now != before:
                self._wanted[key], changed = now, True
        if changed:
            self._save(folder)
        known = [one for one in self._wanted.values() if one]
        peers = sorted(known, key=lambda one: (one.service, one.site))
        return layout_of(self._config, tuple(peers), self._keyring, self._most)

    def load(self, folder: Path, services: Collection[str]) -> None:
        try:
            told = msgspec.json.decode((folder / _FILE).read_bytes(), type=list[PeerLayout])
        except (OSError, msgspec.MsgspecError):
            return
        for one in told[:_MOST]:
            if one.service in services:
                self._wanted[one.service, one.site] = one

    def _save(self, folder: Path) -> None:
        known = [one for one in self._wanted.values() if one]
        (folder / _FILE).write_bytes(msgspec.json.encode(known))
