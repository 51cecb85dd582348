"""What each other site has to do with this one: resources that they share, and operations on their way.

To count the resources takes a while where there are many, and pages ask every other second: so what is told
is what was counted last, and who asks late enough has it counted anew in the background.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from cheops.api.views.status import Work
from cheops.engine.exchange import targets
from cheops.engine.replica import Replica
from cheops.log.causality import contains, covers
from cheops.node.node import Node

_LEAST_S = 1.0  # between two counts
_SHARE = 20  # and so many times as long as one takes
_PATIENCE_S = 0.05  # of who asks, where there is an older count


@dataclass(slots=True)
class _Counting:
    shares: dict[str, int] | None = None
    next_s: float = 0.0
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    async def count(self, node: Node) -> None:
        begun_s = time.monotonic()
        self.shares = await asyncio.to_thread(node.store.shares)
        took_s = time.monotonic() - begun_s
        self.next_s = time.monotonic() + max(_LEAST_S, _SHARE * took_s)


_counting: WeakKeyDictionary[Node, _Counting] = WeakKeyDictionary()


async def work_of_sites(node: Node) -> dict[str, Work]:
    shares, pending = await _shares(node), _pending(node)
    return {site: Work(shares.get(site, 0), pending[site]) for site in {*shares, *pending}}


async def _shares(node: Node) -> dict[str, int]:
    own = _counting.setdefault(node, _Counting())
    is_idle = own.task is None or own.task.done()
    if is_idle and time.monotonic() >= own.next_s:
        own.task = asyncio.create_task(own.count(node))
    if own.task is not None and not own.task.done():
        patience_s = None if own.shares is None else _PATIENCE_S
        await asyncio.wait((own.task,), timeout=patience_s)
    return own.shares or {}


def _pending(node: Node) -> Counter[str]:
    found: Counter[str] = Counter()
    for replica in node.pump.site.replicas.values():
        if not replica.is_saved_unsynced:
            continue  # all its sites have everything
        found[node.name] += len(replica.drafts)
        for site in targets(replica):
            found[site] += _lacking(replica, site)
    return found


def _lacking(replica: Replica, site: str) -> int:
    settled = replica.peer(site).settled
    if covers(settled, replica.history.known):
        return 0
    return sum(not contains(settled, id_) for id_ in replica.history.ops)
