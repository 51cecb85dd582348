"""Which resources of a site are in memory, which are to be loaded, and what each of them waits for.

A resource in memory is *active* (it has something to do or to send, and each tick looks at it), *parked* (it can only
wait for sites that are down), or at rest. So memory and processor time depend on what is active, not on what exists.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice

from cheops.engine.events import Event, Load
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits

# A resource without events for this long is at rest, and its ledger says so. Less would write the ledger twice for each
# of several operations in a row; more would make a restart load more resources than necessary.
_REST_MS = 1_000
# Beyond `limits.resident` a resource leaves memory after this time instead of `limits.idle`. Not earlier: this is what
# the simulator tries.
_EARLIEST_MS = 3_000


class Residency:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.replicas: dict[str, Replica] = {}  # in memory
        self.active: set[str] = set()  # with something left to do or to send
        self._steady: set[str] = set()  # those of them where only an event or the time changes anything (steadiness.py)
        self.parked: dict[str, set[str]] = {}  # those that wait, and for which sites; they may be unloaded
        self.backlog: dict[str, None] = {}  # to be loaded, some with each tick
        self._loading: dict[str, list[Event]] = {}  # being loaded, with the events that wait
        # In memory, with the time of their last event, oldest first: before `_REST_MS`, and at rest.
        self._fresh: dict[str, int] = {}
        self._resting: dict[str, int] = {}

    def active_replicas(self) -> Iterator[Replica]:
        return (self.replicas[resource] for resource in sorted(self.active) if resource in self.replicas)

    # -- loading -------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether nothing is being loaded, or waits for that."""
        return not self.backlog and not self._loading

    def wait_for(self, resource: str, event: Event) -> list[Load]:
        """An event waits until its resource is loaded."""
        if resource in self._loading:
            self._loading[resource].append(event)
            return []
        self._loading[resource] = [event]
        return [Load(resource)]

    def add_to_backlog(self, resources: Iterable[str]) -> None:
        self.backlog |= dict.fromkeys(resources)

    def wake_some(self) -> list[Load]:
        """Load some resources of the backlog: memory must not grow with the number of resources."""
        # Not more than the store can keep up with: what clients want would wait behind all of them.
        some = list(islice(self.backlog, max(self._limits.wake - len(self._loading), 0)))
        loads: list[Load] = []
        for resource in some:
            del self.backlog[resource]
            if resource in self.replicas:
                self.active.add(resource)
            elif resource not in self._loading:
                self._loading[resource] = []
                loads.append(Load(resource))
        return loads

    def take_waiting(self, resource: str) -> list[Event]:
        """The events that waited for a resource, which is loaded now."""
        return self._loading.pop(resource, [])

    # -- waiting for others --------------------------------------------------------------------------------

    def place(self, replica: Replica, *, at_work: bool, behind: set[str], up: AbstractSet[str], steady: bool) -> None:
        """At the end of a step: whether the resource has something to do, or waits for the sites that are behind."""
        resource = replica.resource
        self.active.discard(resource)
        self._steady.discard(resource)
        self.parked.pop(resource, None)
        if at_work or not behind.isdisjoint(up):
            self.active.add(resource)
            if steady:
                self._steady.add(resource)
        elif behind:  # nothing can be done until one of them is up
            self.parked[resource] = behind

    def is_steady(self, replica: Replica) -> bool:
        """Whether nothing has happened to an active resource since a step after which only the time changes it."""
        return replica.resource in self._steady

    def unsettle(self, resource: str | None = None) -> None:
        """Something happens to a resource; or to the mesh, which concerns all."""
        if resource is None:
            self._steady.clear()
        else:
            self._steady.discard(resource)

    def unpark(self, sites: AbstractSet[str]) -> None:
        """Activate the resources that could only wait for one of these sites."""
        for resource in [resource for resource, peers in self.parked.items() if not sites.isdisjoint(peers)]:
            del self.parked[resource]
            if resource in self.replicas:
                self.active.add(resource)
            else:
                self.backlog[resource] = None

    def is_in_use(self, replica: Replica) -> bool:
        if replica.resource in self.parked:
            return bool(replica.clients) or len(self.replicas) <= self._limits.parked
        return bool(replica.clients) or replica.resource in self.active

    # -- leaving memory ------------------------------------------------------------------------------------

    def touch(self, resource: str, now_ms: int) -> None:
        """An event concerns a resource."""
        self._forget_time(resource)
        self._fresh[resource] = now_ms

    def rest(self, resource: str, touched_ms: int) -> None:
        self._resting[resource] = touched_ms

    def pop_quiet(self, now_ms: int) -> list[tuple[str, int]]:
        """Those that come to rest now, and the time of their last event. The caller keeps them or drops them."""
        return _pop(self._fresh, _REST_MS, now_ms)

    def unload_idle(self, now_ms: int) -> None:
        """Unload those that were at rest for long."""
        for resource, _ in _pop(self._resting, self._limits.idle_ms, now_ms):
            if self.is_in_use(self.replicas[resource]):
                self.touch(resource, now_ms)
            else:
                del self.replicas[resource]
        if (excess := len(self.replicas) - self._limits.resident) > 0:
            # Before their time: otherwise memory would follow the rate of new resources. A bounded look, because all
            # may be in use.
            for resource, touched_ms in list(islice(self._resting.items(), min(excess, self._limits.wake))):
                if now_ms - touched_ms > _EARLIEST_MS and not self.is_in_use(self.replicas[resource]):
                    del self._resting[resource], self.replicas[resource]

    def remove(self, resource: str) -> Replica | None:
        """The resource is neither in memory nor wanted there any more."""
        self._forget_time(resource)
        self.active.discard(resource)
        self._steady.discard(resource)
        for queue in (self.parked, self.backlog):
            queue.pop(resource, None)
        return self.replicas.pop(resource, None)

    def _forget_time(self, resource: str) -> None:
        for queue in (self._fresh, self._resting):
            queue.pop(resource, None)


def _pop(queue: dict[str, int], least_ms: int, now_ms: int) -> list[tuple[str, int]]:
    """Remove the resources at the front of a queue that had no event for so long. A time in the future means that the
    clock jumped back; such a resource counts as quiet."""
    quiet = []
    for resource, touched_ms in queue.items():
        if 0 <= now_ms - touched_ms <= least_ms:
            break
        quiet.append((resource, touched_ms))
    for resource, _ in quiet:
        del queue[resource]
    return quiet
