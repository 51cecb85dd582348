"""The channels of a running site: which certificates they accept, which sites may relay, and what their end means."""

from functools import partial
from math import inf
from typing import TYPE_CHECKING

from cheops.peers.channel_pool import ChannelPool
from cheops.peers.client import PeerClient
from cheops.peers.enrollment import rejection_of
from cheops.peers.prober import now

if TYPE_CHECKING:
    from cheops.node.node import Node


def channel_pool(node: "Node") -> ChannelPool:
    """The channels of a site, which has a mesh by now."""
    mesh = node.mesh
    pool = ChannelPool(
        node.name,
        PeerClient(node.address_of, node.keyring),
        node.keyring,
        partial(rejection_of, mesh),
        lambda: mesh.decisions,
        node.refusal_log,
    )
    pool.on_lost = partial(_probe_lost, node)
    pool.relays.candidates = partial(relays_to, node)
    return pool


def _probe_lost(node: "Node", site: str) -> None:
    """A probe shows whether the site is gone, or only the connection."""
    if site in node.mesh.up:
        node.mesh.probe_now(site)


def relays_to(node: "Node", site: str) -> list[str]:
    """Sites that are up, and may reach a site that shares resources with this one; the nearest first."""
    if site not in node.interest or node.mesh.is_site_forgotten(site):
        return []
    distances = node.mesh.distances_from(node.name, now())
    others = [one for one in node.mesh.up if one != site]
    return sorted(others, key=lambda one: distances[one].rtt_ms if one in distances else inf)
