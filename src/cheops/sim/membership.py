"""Sites that are forgotten (`cheops site forget`) and admitted again, in a simulated history.

A decision reaches each site after a while, also the one that it is about. Sites that know it exchange nothing with the
forgotten site. It survives a crash. Of two decisions about a site the later one counts, whichever comes last.
"""

from itertools import count
from typing import TYPE_CHECKING

from cheops.engine.events import SitesRemoved

if TYPE_CHECKING:
    from cheops.sim.world import World

_SLOWEST_MS = 1_500  # until a decision is known at a site
_LONGEST_MS = 5_000  # until a site is admitted again


class Membership:
    """What each site knows of decisions about sites."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._numbers = count(1)
        self._known: dict[str, dict[str, tuple[int, bool]]] = {name: {} for name in world.nodes}
        self._ever: set[str] = set()
        self._away: set[str] = set()  # forgotten, and not admitted again yet

    def forgotten_by(self, site: str) -> frozenset[str]:
        return frozenset(name for name, (_, forgotten) in self._known[site].items() if forgotten)

    def separates(self, one: str, other: str) -> bool:
        """Whether one of two sites refuses the other: it is forgotten, or was told that it is itself."""
        return any({one, other} & self.forgotten_by(site) for site in (one, other))

    def forget(self, site: str) -> None:
        """Forget a site, and admit it again later."""
        if self._away:
            return  # one at a time: a site must be left that has all
        self._away.add(site)
        self._ever.add(site)
        self._world.inject("site forgotten", f"{site} is forgotten")
        self._decide(site, forgotten=True)
        self._world.after(self._world.random.randint(500, _LONGEST_MS), lambda: self._admit(site))

    def _admit(self, site: str) -> None:
        if not self._world.calm:
            self._world.record(f"{site} is admitted again")
            self._decide(site, forgotten=False)
            self._world.after(_SLOWEST_MS, self._away.clear)

    def _decide(self, site: str, *, forgotten: bool) -> None:
        decision = (next(self._numbers), forgotten)
        for name in self._known:
            delay_ms = self._world.random.randint(0, _SLOWEST_MS)
            self._world.after(delay_ms, lambda name=name: self._learn(name, site, decision))  # type: ignore[misc]

    def _learn(self, name: str, site: str, decision: tuple[int, bool]) -> None:
        if not self._world.calm and self._known[name].get(site, (0, False)) < decision:
            self._known[name][site] = decision
            self.tell(name)

    def tell(self, name: str) -> None:
        """As an agent does: what its mesh knows to be forgotten is gone for its engine."""
        node, forgotten = self._world.nodes[name], self.forgotten_by(name)
        if node.site is not None and self._known[name]:
            self._world.deliver(name, SitesRemoved(forgotten, frozenset(self._known[name]) - forgotten))

    def heal(self) -> None:
        """Admit all again, and have all know it."""
        for name, known in self._known.items():
            known.update(dict.fromkeys(self._ever, (next(self._numbers), False)))
            self.tell(name)
