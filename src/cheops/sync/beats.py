"""Hearsay: whose heart was seen to beat, and how long ago.

Each site counts its own periods; others pass the count on. Only the site itself can advance its count, so
however often old news goes round, a dead site's count stands still, and its silence is seen by everybody
without anybody having to say so.

A first sighting proves nothing: the count may be years old. A site counts as *live* when its count was
seen to advance; one that fell silent, only when it advanced twice (old news from a part of the mesh that
was cut off can advance it once). Counts of sites that fell silent are not passed on, those of all others
in turn.
"""

from collections.abc import Iterable
from itertools import chain, islice

_NEVER = -1


class Beats:
    """The counts of all sites in the catalogue but the own."""

    def __init__(self, turn: int = 0) -> None:
        self._counts: dict[str, int] = {}
        self._live: dict[str, float] = {}  # when it advanced
        self._silent: dict[str, float] = {}  # the same of sites that fell silent since
        self._lacking: dict[str, int] = {}  # how many advances a silent site needs to be live
        self._names: list[str] = []  # those that have a count
        self._turn = turn

    def watch(self, site: str) -> None:
        self._counts.setdefault(site, _NEVER)

    def drop(self, site: str) -> None:
        if self._counts.pop(site, _NEVER) != _NEVER:
            self._names.remove(site)
        for known in (self._live, self._silent, self._lacking):
            known.pop(site, None)

    def count(self, site: str) -> int:
        return max(self._counts.get(site, 0), 0)

    def age_ms(self, site: str, now_ms: float) -> float | None:
        """How long ago a site's heart was last seen to beat; None if it never was."""
        at_ms = self._live.get(site, self._silent.get(site))
        return None if at_ms is None else max(now_ms - at_ms, 0.0)

    def hear(self, beats: Iterable[tuple[str, int]], now_ms: float) -> list[str]:
        """Take counts; gives the sites that had fallen silent and are live again."""
        woken = []
        counts, live = self._counts, self._live
        for site, count in beats:
            before = counts.get(site)
            if before is None or count <= before:
                continue
            counts[site] = count
            if site in live:
                live[site] = now_ms
            elif before == _NEVER:
                self._names.append(site)
            elif self._wakes(site):
                live[site] = now_ms
                if self._silent.pop(site, None) is not None:
                    woken.append(site)
        return woken

    def _wakes(self, site: str) -> bool:
        """Whether this advance was the last that it lacked."""
        lacking = self._lacking.pop(site, 1) - 1
        if lacking > 0:
            self._lacking[site] = lacking
        return lacking <= 0

    def bury_silent(self, now_ms: float, limit_ms: float) -> None:
        """Sites silent for too long are not live until they advance twice."""
        for site in [name for name, at_ms in self._live.items() if now_ms - at_ms > limit_ms]:
            self._silent[site] = self._live.pop(site)
            self._lacking[site] = 2

    def gossip(self, most: int) -> list[tuple[str, int]]:
        """The next ones that may be alive, in turn."""
        names, counts, lacking = self._names, self._counts, self._lacking
        start = self._turn % len(names) if names else 0
        told = []
        for site in chain(islice(names, start, None), islice(names, start)):
            self._turn += 1
            if site not in lacking:
                told.append((site, counts[site]))
                if len(told) == most:
                    break
        return told
