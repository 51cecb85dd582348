"""Whether an operation that is made now would get a stamp that other sites take.

A stamp is never earlier than any that this site has seen (see cheops.log.clock), so it can lie ahead of the
clock of this site, and that clock itself can be wrong. A site that is behind harms nobody: its stamps follow
those of the others. One that is ahead would have its operations refused by all others until their clocks
come up to them, and so would one that has ever been. It should hear of it before it takes an operation, not
after.

What time it really is, no site knows. So the clocks of the sites that are up are asked, and the one in the
middle is believed, if there are two at the least: no single site can keep another from working.
"""

from collections.abc import Sequence
from statistics import median_low

from cheops.errors import CheopsError
from cheops.node.pump import wall_ms
from cheops.sync.heart import now
from cheops.sync.mesh import Mesh

_FEWEST = 2
_LOOK_MS = 1_000  # for so long what the others' clocks said is good enough


class ClockError(CheopsError):
    """The stamps of this site lie in the future."""

    status = 503


def stamp_problem(newest_ms: int, now_ms: int, offsets_ms: Sequence[float], skew_ms: int) -> str | None:
    """Why others would not take an operation yet; None if they would, or nobody can tell.

    `newest_ms` is the newest stamp that is known here, `offsets_ms` how far the clocks of others are ahead.
    """
    if len(offsets_ms) < _FEWEST:
        return None
    ahead_of_others_ms = -median_low(offsets_ms)
    ahead_ms = max(newest_ms, now_ms) - now_ms + ahead_of_others_ms
    if ahead_ms <= skew_ms:
        return None
    taken_in = f"other sites would take this operation only in {(ahead_ms - skew_ms) / 1000:,.0f} s"
    if ahead_of_others_ms > skew_ms:
        return (
            f"the clock of this site is {ahead_of_others_ms / 1000:,.0f} s ahead of those of other sites, "
            f"and {taken_in}: set it right (NTP), and see 'cheops check'"
        )
    return (
        f"operations are known here that are stamped {ahead_ms / 1000:,.0f} s in the future, since a clock "
        f"was wrong, and {taken_in}; until then ask another site"
    )


class Clocks:
    """The clocks of the sites that are up, as heartbeats tell them."""

    def __init__(self, mesh: Mesh, skew_s: float) -> None:
        self._mesh = mesh
        self._skew_ms = int(skew_s * 1000)
        self._looked_ms = -float(_LOOK_MS)
        self._offsets_ms: list[float] = []

    def check(self, newest_ms: int) -> None:
        """Raises ClockError where what is made now would not be taken elsewhere."""
        at = now()
        if at.mono_ms - self._looked_ms > _LOOK_MS:
            clocks = [one.clock for one in self._mesh.sites(at) if one.is_up and not one.here]
            self._looked_ms = at.mono_ms
            self._offsets_ms = [clock.offset_ms for clock in clocks if clock]
        if problem := stamp_problem(newest_ms, wall_ms(), self._offsets_ms, self._skew_ms):
            raise ClockError(problem)
