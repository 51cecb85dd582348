"""Why a site does not accept an operation now: its disk is full, or its clock is ahead of those of other sites.

Requests of clients are refused before they fill the disk. Operations of other sites are still accepted, or the sites
would diverge: the rest of the disk is reserved for them, for the audit log, and for deleting.

A stamp is never earlier than any that this site has seen (see cheops.log.causality), so it can lie ahead of the clock
of this site, and that clock itself can be wrong. A site whose clock is behind does no harm: its stamps follow those of
the others. If it is ahead, the other sites would refuse its operations until their clocks reach the stamps, so it
refuses them itself at once. No site knows the true time, so the median of the clocks of the sites that are up counts,
if there are at least two: no single site can keep another from working.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_low

from cheops.errors import CheopsError
from cheops.node.pump import wall_ms
from cheops.peers.mesh import Mesh
from cheops.peers.prober import now
from cheops.store.room import DiskFullError, DiskRoom

_MIN_CLOCKS = 2  # of other sites: with only one, nobody knows which of the two clocks is wrong
_LOOK_MS = 1_000  # how long the offsets are reused: with many sites, computing them takes a while


def stamp_problem(newest_ms: int, now_ms: int, offsets_ms: Sequence[float], skew_ms: int) -> str | None:
    """Why other sites would not accept an operation yet; None if they would, or if that is unknown.

    `newest_ms` is the newest stamp that is known here, `offsets_ms` how far the clocks of other sites are ahead.
    """
    if len(offsets_ms) < _MIN_CLOCKS:
        return None
    # The lower median: of two other clocks that which is further behind, since that site would refuse the operation.
    ahead_of_others_ms = -median_low(offsets_ms)
    ahead_ms = max(newest_ms, now_ms) - now_ms + ahead_of_others_ms
    if ahead_ms <= skew_ms:
        return None
    accepted_in = f"other sites would take this operation only in {(ahead_ms - skew_ms) / 1000:,.0f} s"
    if ahead_of_others_ms > skew_ms:
        return (
            f"the clock of this site is {ahead_of_others_ms / 1000:,.0f} s ahead of those of other sites, "
            f"and {accepted_in}: set it right (NTP), and see 'cheops check'"
        )
    return (
        f"operations are known here that are stamped {ahead_ms / 1000:,.0f} s in the future, since a clock "
        f"was wrong, and {accepted_in}; until then ask another site"
    )


class ClockCheck:
    """Compares the clock with those of the sites that are up, as measured with heartbeats."""

    def __init__(self, mesh: Mesh, skew_s: float) -> None:
        self._mesh = mesh
        self._skew_ms = int(skew_s * 1000)
        self._looked_ms = -float(_LOOK_MS)
        self._offsets_ms: list[float] = []

    def check(self, newest_ms: int) -> None:
        """Raises CheopsError if other sites would not accept an operation that is stamped now."""
        at = now()
        if at.mono_ms - self._looked_ms > _LOOK_MS:
            clocks = [one.clock for one in self._mesh.sites(at) if one.is_up and not one.here]
            self._looked_ms = at.mono_ms
            self._offsets_ms = [clock.offset_ms for clock in clocks if clock]
        if problem := stamp_problem(newest_ms, wall_ms(), self._offsets_ms, self._skew_ms):
            raise CheopsError(problem, status=503)


_LOOK_S = 1.0
_MIB = 1024 * 1024


class DiskQuota:
    """`store` is the file of the store, beside which SQLite has others of its own."""

    def __init__(
        self,
        store: Path,
        store_bytes: int,
        room: DiskRoom,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._store_bytes = store_bytes
        self.room = room
        self._now_s = now_s
        self._looked_s = -_LOOK_S
        self._problem: str | None = None

    def check(self) -> None:
        """Raises DiskFullError. Cheap: it looks at the disk once a second."""
        if problem := self.problem():
            raise DiskFullError(problem)

    def problem(self) -> str | None:
        """What is wrong, and what to do about it."""
        now_s = self._now_s()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s, self._problem = now_s, self._look()
        return self._problem

    def usage(self) -> str:
        """How much of the quota is used."""
        return f"{self._used_bytes() // _MIB:,} of {self._store_bytes // _MIB:,} MiB (clients.store_size)"

    def _used_bytes(self) -> int:
        # The write-ahead log counts too: it can grow as large as the store while readers keep it open.
        return sum(_size(self._store.with_name(self._store.name + end)) for end in ("", "-wal"))

    def _look(self) -> str | None:
        if problem := self.room.problem():
            return problem
        try:
            used = self._used_bytes()
        except OSError:
            return None  # the store reports what is wrong there
        if used > self._store_bytes:
            return (
                f"{self._store} has {used // _MIB} MiB, more than clients.store_size allows "
                f"({self._store_bytes // _MIB} MiB): delete resources, or allow more"
            )
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
