"""Resources by what they are called, where they are, and how they are.

What an id holds and at which sites a resource is, the store finds by itself. Type, state and outcome are
only known of a resource that is in memory: for these, one page looks at so many resources and no more, and
may give fewer than were asked for, or none, and still have a next.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from cheops.api.models import Overall, Resources, ResourceSummary
from cheops.api.permissions import may_see
from cheops.api.request import page_of_ids, refresh_from_peers, sites_up
from cheops.api.views.status import is_here, summary
from cheops.log.operation import Status
from cheops.node.node import Node
from cheops.security.principal import Principal

_MOST_LOOKED_AT = 1_000
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Wish:
    """Which resources. What is empty does not matter."""

    prefix: str = ""
    search: str = ""
    site: str = ""
    type: str = ""
    overall: Overall | None = None
    outcome: Status | None = None

    @property
    def must_look(self) -> bool:
        """Whether the store alone does not tell."""
        searched = bool(self.search or self.site)
        return bool(self.type or self.overall or self.outcome or (searched and self.prefix))

    def fits(self, one: ResourceSummary) -> bool:
        return (
            one.id.startswith(self.prefix)
            and (not self.type or one.type == self.type)
            and (self.overall is None or one.overall == self.overall)
            and (self.outcome is None or one.last_outcome is self.outcome)
        )


async def found(  # noqa: PLR0913, PLR0917 - what, from where on, how many, how fresh, and by whom
    node: Node, wish: Wish, cursor: str, limit: int, fresh_s: float, who: Principal
) -> Resources:
    if not wish.must_look:
        ids, more = await _ids(node, wish, cursor, limit)
        return Resources(resources=await _fresh(node, ids, fresh_s, who), next=ids[-1] if ids and more else None)
    fitting: list[ResourceSummary] = []
    looked_at, more = 0, True
    while more and len(fitting) < limit and looked_at < _MOST_LOOKED_AT:
        ids, more = await _ids(node, wish, cursor, _AT_ONCE)
        looked_at += len(ids)
        for one in await _fresh(node, ids, fresh_s, who):
            if len(fitting) < limit and wish.fits(one):
                fitting.append(one)
        if len(fitting) == limit:  # the next page begins behind the last one that is shown
            more = more or fitting[-1].id != ids[-1]
            cursor = fitting[-1].id
        else:
            cursor = ids[-1] if ids else cursor
    return Resources(resources=tuple(fitting), next=cursor if more else None)


async def _ids(node: Node, wish: Wish, cursor: str, limit: int) -> tuple[list[str], bool]:
    if not wish.search and not wish.site:
        return await page_of_ids(node, wish.prefix, cursor, limit)
    # What is here has this site on its list: to search that is faster than to search all there is.
    ids = await asyncio.to_thread(node.store.search, wish.search, wish.site or node.name, cursor, limit + 1)
    return list(ids[:limit]), len(ids) > limit


async def _fresh(node: Node, ids: Sequence[str], fresh_s: float, who: Principal) -> tuple[ResourceSummary, ...]:
    in_doubt = [one.id for one in await _summaries(node, ids, who) if one.overall == "CONVERGING"]
    # What nobody asked for in a while has left memory, and with it what the other sites said of it.
    await refresh_from_peers(node, in_doubt, fresh_s)
    return await _summaries(node, ids, who)


async def _summaries(node: Node, ids: Sequence[str], who: Principal) -> tuple[ResourceSummary, ...]:
    replicas = await asyncio.gather(*map(node.pump.replica, ids))  # loaded together, where they must be
    seen = [replica for replica in replicas if is_here(replica) and may_see(who, replica)]
    return tuple(summary(replica, sites_up(node)) for replica in seen)
