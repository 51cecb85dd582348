"""Which resources of a site are in memory, and for how long they had no event: see `Site`."""

# A resource without events for this long is at rest, and its ledger says so. Less would write the ledger twice for each
# of several operations in a row; more would make a restart load more resources than necessary.
_REST_MS = 1_000


class Residency:
    """Resources in memory and the time of their last event, oldest first: before `_REST_MS`, and at rest."""

    def __init__(self) -> None:
        self._fresh: dict[str, int] = {}
        self._resting: dict[str, int] = {}

    def touch(self, resource: str, now_ms: int) -> None:
        """An event concerns a resource."""
        self.drop(resource)
        self._fresh[resource] = now_ms

    def drop(self, resource: str) -> None:
        for queue in (self._fresh, self._resting):
            queue.pop(resource, None)

    def rest(self, resource: str, touched_ms: int) -> None:
        self._resting[resource] = touched_ms

    def pop_quiet(self, now_ms: int) -> list[tuple[str, int]]:
        """Those that come to rest now, and the time of their last event. The caller keeps them or drops them."""
        return _pop(self._fresh, _REST_MS, now_ms)

    def pop_idle(self, idle_ms: int, now_ms: int) -> list[str]:
        """Those that were at rest for so long."""
        return [resource for resource, _ in _pop(self._resting, idle_ms, now_ms)]


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
