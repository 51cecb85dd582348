"""What answering costs, kept within bounds: a site that everybody shares resources with is probed by
everybody.

The first answers of a period carry gossip, the others only their head. And who comes regularly is asked
to come less often, the more there are; so probes that come in stay bounded too.
"""

from math import ceil

from cheops.sync.mesh_settings import MeshSettings


class Load:
    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._full_left = settings.full_answers_per_period
        self._regulars: dict[str, float] = {}

    def new_period(self, now_ms: float) -> None:
        """Regulars that did not come for twice as long as they may stay away are none any more."""
        self._full_left = self._settings.full_answers_per_period
        oldest_ms = now_ms - 2 * self._settings.max_every * self._settings.period_ms
        self._regulars = {site: at_ms for site, at_ms in self._regulars.items() if at_ms >= oldest_ms}

    def came(self, site: str, now_ms: float) -> None:
        self._regulars[site] = now_ms

    def may_gossip(self) -> bool:
        self._full_left -= 1
        return self._full_left >= 0

    @property
    def every(self) -> int:
        """After how many periods a regular should come back."""
        wanted = ceil(len(self._regulars) / self._settings.regulars_per_period)
        return min(max(wanted, 1), self._settings.max_every)
