"""What a site knows at one moment: sites, their services, which are up, and how far apart they are.

A frozen value, so that resolving a scope is a function of it and can be tested without a network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct


class SiteInfo(Struct, frozen=True):
    """A site as the catalogue and the heartbeats show it."""

    name: str
    services: frozenset[str] = frozenset()
    up: bool = True
    has_reported: bool = True  # its services; a configured peer that never answered has not

    def lacks(self, service: str) -> bool:
        """Whether the site is known not to have a service. One that has not reported gets the benefit of the doubt."""
        return self.has_reported and service not in self.services


@dataclass(frozen=True)
class Snapshot:
    """The known sites by name, and the known round-trip times.

    `here` is the site that resolves; None outside of any site (`cheops scope explain` without a configuration).
    """

    here: str | None
    sites: Mapping[str, SiteInfo]
    # By unordered pair: one measurement serves both directions.
    rtts_ms: Mapping[frozenset[str], float] = field(default_factory=dict)

    @cached_property
    def services(self) -> frozenset[str]:
        return frozenset().union(*(site.services for site in self.sites.values()))

    def offering(self, service: str | None) -> Iterator[SiteInfo]:
        """The sites that have a service; all sites if the service is None."""
        return (site for site in self.sites.values() if service is None or service in site.services)

    def rtt_ms(self, one: str | None, other: str) -> float | None:
        """The round-trip time between two sites, or None where it is not known."""
        if one is None:
            return None
        return 0.0 if one == other else self.rtts_ms.get(frozenset((one, other)))

    def is_up(self, site: str) -> bool:
        return self.sites[site].up
