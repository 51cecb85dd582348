"""Why a site does not accept an operation now: its disk is full, or its stamps are ahead of the clocks.

Requests of clients are refused before they fill the disk. Operations of other sites are still accepted, or the sites
would diverge: the rest of the disk is reserved for them, for the audit log, and for deleting.

A stamp is never earlier than any that this site has seen (see cheops.log.causality), so after a time with a wrong clock
it can lie ahead of the time that most sites agree on (see cheops.peers.common_clock). The other sites would refuse the
operation until their clocks reach the stamp, so this site refuses it at once.
"""

import time
from collections.abc import Callable
from pathlib import Path

from cheops.engine.events import StoreOutdated
from cheops.errors import CheopsError
from cheops.log.causality import Clock
from cheops.node.pump import Pump
from cheops.peers.mesh import Mesh
from cheops.peers.prober import now
from cheops.store.room import DiskFullError, DiskRoom
from cheops.store.space import file_bytes, log_of
from cheops.text import duration_text, size_text

_AGAIN_MS = 3_600_000  # a site ends wrong stamps by itself at most this often


def stamp_problem(newest_ms: int, common_ms: float, skew_ms: int) -> str | None:
    """Why other sites would not accept an operation yet; None if they would. `newest_ms` is the newest stamp that is
    known here, `common_ms` the time by most clocks."""
    ahead_ms = newest_ms - common_ms
    if ahead_ms <= skew_ms:
        return None
    return (
        f"the clock of this site was {duration_text(ahead_ms)} ahead when it made its last operations, and other sites "
        f"would take this one only in {duration_text(ahead_ms - skew_ms)}; set the clock right and run 'cheops clock "
        "--cure' here, or ask another site"
    )


class ClockCheck:
    """Compares stamps with the clocks of the sites that are up, as measured with heartbeats."""

    def __init__(self, mesh: Mesh, skew_s: float) -> None:
        self._mesh = mesh
        self._skew_ms = int(skew_s * 1000)

    def cure_if_due(self, pump: Pump) -> None:
        """If most sites agree that stamps of this one are ahead of the time: begin a new incarnation. Not again soon:
        if it did not help, another site has accepted such a stamp."""
        common, site = self._mesh.common_clock, pump.site
        if common.offset_ms is None or self.ahead_ms(pump) <= self._skew_ms:
            return
        closed = site.incarnations.closed
        if not closed or not 0 <= common.time_ms(now()) - closed[-1].at_ms < _AGAIN_MS:
            self.cure(pump, "its clock was wrong")

    def ahead_ms(self, pump: Pump) -> float:
        """How far the newest stamp that is known here is ahead of the time; at least 0."""
        return max(0.0, pump.site.clock.time_ms - self._mesh.common_clock.time_ms(now()))

    def cure(self, pump: Pump, why: str) -> None:
        """Take back what is stamped after the present time, and issue it again, under a new incarnation."""
        why = f"{why}: operations of this site are stamped {duration_text(self.ahead_ms(pump))} ahead, and issued again"
        pump.post(StoreOutdated(why, Clock(int(self._mesh.common_clock.time_ms(now()))), old_copy=False))

    def check(self, newest_ms: int) -> None:
        """Raises CheopsError if other sites would not accept an operation that is stamped now. While too few clocks are
        known, nobody knows that."""
        clock = self._mesh.common_clock
        if clock.offset_ms is None:
            return
        if problem := stamp_problem(newest_ms, clock.time_ms(now()), self._skew_ms):
            raise CheopsError(problem, status=503)


_LOOK_S = 1.0


class DiskQuota:
    """`store` is the file of the store, beside which SQLite has others of its own."""

    def __init__(
        self,
        store: Path,
        store_bytes: int,
        room: DiskRoom,
        free_bytes: Callable[[], int] = lambda: 0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`free_bytes`: how much of the file is used again before it grows."""
        self._store = store
        self._store_bytes = store_bytes
        self.room = room
        self._free_bytes = free_bytes
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
        return f"{size_text(self._used_bytes())} of {size_text(self._store_bytes)} (clients.store_size)"

    def _used_bytes(self) -> int:
        # The write-ahead log counts too: it can grow as large as the store while readers keep it open. Free pages do
        # not: otherwise a deletion would help only later, when the file has become smaller.
        return file_bytes(self._store, log_of(self._store)) - self._free_bytes()

    def _look(self) -> str | None:
        if problem := self.room.problem():
            return problem
        try:
            used = self._used_bytes()
        except OSError:
            return None  # the store reports what is wrong there
        if used > self._store_bytes:
            return (
                f"{self._store} has {size_text(used)}, more than clients.store_size allows "
                f"({size_text(self._store_bytes)}): delete resources, which is still accepted and frees space when all "
                "their sites have forgotten them, limits.tombstone after that, or raise clients.store_size"
            )
        return None
