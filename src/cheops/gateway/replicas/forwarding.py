"""A change that belongs to other sites: handed to the nearest of them that can be reached, once."""

from collections.abc import AsyncIterator

from cheops.gateway.errors import UpstreamError
from cheops.gateway.replicas.errors import NoReplicaError
from cheops.gateway.replicas.whereabouts import nearest_first
from cheops.gateway.seam import Head, Incoming, Outgoing, Services
from cheops.node.node import Node
from cheops.text import in_words


class _Once:
    """A body that can be read once: whether anybody has begun."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self.is_begun = False

    async def pieces(self) -> AsyncIterator[bytes]:
        self.is_begun = True
        async for piece in self._incoming.body():
            yield piece


async def hand_on(  # noqa: PLR0913, PLR0917 - where from, where to, and what
    node: Node, services: Services, service: str, incoming: Incoming, head: Head, sites: tuple[str, ...]
) -> Outgoing:
    """To the next site only where the one before certainly did nothing, and the body is still to be had."""
    if incoming.is_forwarded:
        raise NoReplicaError(
            f"another site sent this to {node.name}, which is not among the sites of the resource: "
            f"{in_words(sites)}"
        )
    body, failed = _Once(incoming), []
    for site in nearest_first(node, sites):
        if site == node.name:
            continue
        try:
            pieces = body.pieces() if incoming.size != 0 else None
            return await services.at(site, service, head, pieces, incoming.passage)
        except UpstreamError as error:
            if error.may_have_had_effect or body.is_begun:
                raise
            failed.append(f"{site} ({error.why})")
    raise NoReplicaError(
        f"this site, {node.name}, is not involved, and no site that is can be reached: {in_words(failed)}"
    )
