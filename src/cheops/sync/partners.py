"""Whom to probe: a bounded number per period, however many sites there are.

Sites that share resources come first, all of them if they are few, in turn if they are many. Then those
in doubt, where one more probe decides; one of the nearest, to keep `around` honest; and random ones: one
of any kind, which makes gossip spread like an epidemic, and one that seems absent, which finds the other
half of a mesh that was cut.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from cheops.sync.mesh_settings import MeshSettings

Draw = Callable[[int], int]  # a random number from 0 up to, not including, its argument
_MAX_WAITING = 64
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Field:
    """What the choice is made from."""

    names: Sequence[str]
    can_probe: Callable[[str], bool]  # known, and no probe is on its way
    is_due: Callable[[str], bool]  # has not asked to be left alone for longer
    is_absent: Callable[[str], bool]


class Partners:
    """Whose turn it is."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self.interest: frozenset[str] = frozenset()
        self._interested: list[str] = []
        self._interest_turn = 0
        self.near: list[str] = []
        self._near_turn = 0
        self._doubted: dict[str, None] = {}
        self._callers: dict[str, None] = {}
        self._hurried: dict[str, None] = {}

    def share_with(self, sites: Iterable[str]) -> None:
        """The sites that share resources with this one."""
        self.interest = frozenset(sites)
        self._interested = sorted(self.interest)

    def doubt(self, site: str) -> None:
        """One more probe decides about this site."""
        self._doubted[site] = None

    def called(self, site: str) -> None:
        """A site is heard of that was not reached lately: it may be back."""
        if len(self._callers) < _MAX_WAITING:
            self._callers[site] = None

    def hurry(self, site: str) -> None:
        """Somebody waits for news of this site: do not wait for the next period."""
        if len(self._hurried) < _MAX_WAITING:
            self._hurried[site] = None

    @property
    def has_hurried(self) -> bool:
        return bool(self._hurried)

    def drop(self, site: str) -> None:
        for waiting in (self._doubted, self._callers, self._hurried):
            waiting.pop(site, None)

    def at_once(self, field: Field, most: int) -> list[str]:
        hurried = list(islice(self._hurried, most))
        for site in hurried:
            del self._hurried[site]
        return [site for site in hurried if field.can_probe(site)]

    def choose(self, field: Field, draw: Draw) -> list[str]:
        """The partners of a period."""
        settings = self._settings
        chosen = dict.fromkeys(self._next_interested(field))
        chosen |= dict.fromkeys(islice(self._urgent(field, chosen), settings.urgent_probes))
        chosen |= dict.fromkeys(self._next_near(field, chosen))
        for turn in range(settings.random_probes):
            site = _random(field, chosen, draw, absent=turn % 2 == 1)
            if site is not None:
                chosen[site] = None
        return list(chosen)

    def _urgent(self, field: Field, chosen: dict[str, None]) -> Iterator[str]:
        """Those in doubt, first of them those that share resources; then those that may be back.

        Who cannot be probed now leaves the queue too: an answer is on its way, and puts it back if need be.
        """
        doubted = sorted(self._doubted, key=lambda site: site not in self.interest)
        for queue, sites in ((self._doubted, doubted), (self._callers, list(self._callers))):
            for site in sites:
                del queue[site]
                if site not in chosen and field.can_probe(site):
                    yield site

    def _next_interested(self, field: Field) -> Iterator[str]:
        count, sites, found = len(self._interested), self._interested, 0
        start = self._interest_turn
        for step in range(count):
            if found == self._settings.interest_probes:
                return
            site = sites[(start + step) % count]
            self._interest_turn = (start + step + 1) % count
            if field.can_probe(site) and field.is_due(site):
                found += 1
                yield site

    def _next_near(self, field: Field, chosen: dict[str, None]) -> Iterator[str]:
        free = [
            site for site in self.near if site not in chosen and field.can_probe(site) and field.is_due(site)
        ]
        self._near_turn += self._settings.near_probes
        for step in range(min(self._settings.near_probes, len(free))):
            yield free[(self._near_turn + step) % len(free)]


def _random(field: Field, chosen: dict[str, None], draw: Draw, *, absent: bool) -> str | None:
    """A random site of the wanted kind if a few draws find one, otherwise any that is free."""
    free = None
    for _ in range(min(_TRIES, len(field.names)) if field.names else 0):
        site = field.names[draw(len(field.names))]
        if site in chosen or not field.can_probe(site):
            continue
        free = site
        if field.is_absent(site) == absent:
            break
    return free
