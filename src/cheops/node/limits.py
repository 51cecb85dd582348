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

from cheops.errors import CheopsError
from cheops.peers.mesh import Mesh
from cheops.peers.prober import now
from cheops.store.room import DiskFullError, DiskRoom


def stamp_problem(newest_ms: int, common_ms: float, skew_ms: int) -> str | None:
    """Why other sites would not accept an operation yet; None if they would. `newest_ms` is the newest stamp that is
    known here, `common_ms` the time by most clocks."""
    ahead_ms = newest_ms - common_ms
    if ahead_ms <= skew_ms:
        return None
    return (
        f"operations are known here that are stamped {ahead_ms / 1000:,.0f} s in the future, since a clock "
        f"was wrong, and other sites would take this operation only in {(ahead_ms - skew_ms) / 1000:,.0f} s; "
        "until then ask another site"
    )


class ClockCheck:
    """Compares stamps with the clocks of the sites that are up, as measured with heartbeats."""

    def __init__(self, mesh: Mesh, skew_s: float) -> None:
        self._mesh = mesh
        self._skew_ms = int(skew_s * 1000)

    def check(self, newest_ms: int) -> None:
        """Raises CheopsError if other sites would not accept an operation that is stamped now. While too few clocks are
        known, nobody knows that."""
        clock = self._mesh.common_clock
        if clock.offset_ms is None:
            return
        if problem := stamp_problem(newest_ms, clock.time_ms(now()), self._skew_ms):
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
