"""Finds the sites of a replicated resource, even one that this site does not have.

Only the sites of a resource know it. Another site requests the list from them: first from the site that made the
meta-id, whose mark is in it, then from the rest, nearest first. The replies are cached for a while.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from cheops.backends.http.ids import may_be_made_at
from cheops.backends.http.submission import sites_of
from cheops.bounded import BoundedMap
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.client import decode_json
from cheops.peers.requests import RequestKind
from cheops.text import listed

_FOR_S, _NONE_FOR_S = 30.0, 2.0  # an unknown resource may be created at any moment
_REMEMBERED = 10_000
_AT_ONCE = 16
_MAX_SITES = 256
_TIMEOUT_S = 3.0
_MAX_BYTES = 1024 * 1024  # of a reply


class Locations:
    """The sites of resources, from this site's log or from other sites."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: BoundedMap[str, tuple[float, tuple[str, ...]]] = BoundedMap(_REMEMBERED)

    async def sites_of(self, meta_id: str, *, is_named: bool = False) -> tuple[str, ...]:
        """The sites of a replicant, nearest first; empty if it does not exist. Raises CheopsError if the sites that
        would know cannot be reached. With `is_named` a client chose its name, so no site has made its meta-id."""
        here = await self.known_here(meta_id)
        if here:
            return nearest_first(self._node, here)
        until_s, found = self._known.get(meta_id, (0.0, ()))
        if time.monotonic() >= until_s:
            found = await self._search(meta_id, is_named=is_named)
            self._remember(meta_id, found)
        return nearest_first(self._node, found)

    async def known_here(self, meta_id: str) -> tuple[str, ...]:
        """The sites of a replicant that this site knows of."""
        return sites_of(await self._node.pump.replica(meta_id))

    def forget(self, meta_id: str) -> None:
        self._known.pop(meta_id, None)

    def _remember(self, meta_id: str, sites: tuple[str, ...]) -> None:
        for_s = _FOR_S if sites else _NONE_FOR_S
        self._known[meta_id] = (time.monotonic() + for_s, sites)

    async def _search(self, meta_id: str, *, is_named: bool) -> tuple[str, ...]:
        node = self._node
        others = [site for site in nearest_first(node, node.snapshot().sites) if site != node.name]
        makers = [site for site in others if not is_named and may_be_made_at(meta_id, site)]
        rest = [site for site in others if site not in makers][:_MAX_SITES]
        silent: list[str] = []
        for group in (makers, *(rest[at : at + _AT_ONCE] for at in range(0, len(rest), _AT_ONCE))):
            replies = await asyncio.gather(*(self._sites_known_at(site, meta_id) for site in group))
            if found := next((sites for sites in replies if sites), None):
                return found
            silent += [site for site, sites in zip(group, replies, strict=True) if sites is None]
            if group is makers and makers and not silent:
                return ()  # the site that made it would know it
        if silent:
            raise CheopsError(
                f"{meta_id} is not known here, and {listed(silent)} cannot be reached now", status=503, definite=False
            )
        return ()

    async def _sites_known_at(self, site: str, meta_id: str) -> tuple[str, ...] | None:
        """The sites that another site reports; None if it cannot be reached."""
        if not self._node.channels.can_reach(site) or not self._node.snapshot().is_up(site):
            return None
        found = await _fetch(self._node, site, meta_id)
        sites = found.get("sites") if found else None
        return None if found is None else tuple(map(str, sites)) if isinstance(sites, list) else ()


async def local_id_at(node: Node, site: str, meta_id: str) -> str | None:
    """The local id of a replicant at another site; None if it has none, or cannot be reached."""
    found = await _fetch(node, site, meta_id) if node.channels.can_reach(site) else None
    local_id = found.get("local_id") if found else None
    return local_id if isinstance(local_id, str) else None


async def _fetch(node: Node, site: str, meta_id: str) -> dict[str, Any] | None:
    try:
        status, body = await node.channels.request(
            site, RequestKind.REPLICANT, meta_id.encode(), timeout_s=_TIMEOUT_S, most_bytes=_MAX_BYTES
        )
        return decode_json(body, dict[str, Any]) if status == 200 else {}
    except (OSError, ValueError):
        return None


def nearest_first(node: Node, sites: Iterable[str]) -> tuple[str, ...]:
    """This site, then those that are up by their distance, then the rest."""
    snapshot = node.snapshot()

    def distance(site: str) -> tuple[bool, bool, float, str]:
        known = snapshot.sites.get(site)
        rtt_ms = snapshot.rtt_ms(node.name, site)
        return site != node.name, known is None or not known.up, _FAR if rtt_ms is None else rtt_ms, site

    return tuple(sorted(dict.fromkeys(sites), key=distance))


_FAR = float("inf")
