"""Routes: what a scope means for one service, in terms of sites.

One(site)                     send it there
Replicas(sites, consistency)  at each of them, kept equal
Cross(parts)                  one resource in parts; a part is a site, or replicas of that part
Fallback(alternatives)        the first that works
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from cheops.scope.tree import Consistency


@dataclass(frozen=True, slots=True)
class One:
    site: str

    @property
    def sites(self) -> tuple[str, ...]:
        return (self.site,)


@dataclass(frozen=True, slots=True)
class Replicas:
    sites: tuple[str, ...]
    consistency: Consistency = Consistency.EVENTUAL

    @property
    def majority(self) -> int:
        return len(self.sites) // 2 + 1


@dataclass(frozen=True, slots=True)
class Cross:
    parts: tuple[One | Replicas, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        return _distinct(site for part in self.parts for site in part.sites)


Direct: TypeAlias = One | Replicas | Cross


@dataclass(frozen=True, slots=True)
class Fallback:
    alternatives: tuple[Direct, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        return _distinct(site for route in self.alternatives for site in route.sites)


Route: TypeAlias = Direct | Fallback


def _distinct(sites: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sites))
