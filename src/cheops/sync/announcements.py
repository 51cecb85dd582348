"""Who is up, as the engine was told: an event only where that changes."""

from typing import TypeAlias

from cheops.engine.events import PeerDown, PeerUp

PeerEvent: TypeAlias = PeerUp | PeerDown


class Announcements:
    """The peers that are up, with their incarnations, and the events not yet handed over."""

    def __init__(self) -> None:
        self.up: dict[str, str] = {}
        self._events: list[PeerEvent] = []

    def settle(self, site: str, incarnation: str | None) -> None:
        """A site is up with this incarnation, or not up (None)."""
        if self.up.get(site) == incarnation:
            return
        if incarnation is None:
            del self.up[site]
            self._events.append(PeerDown(site))
        else:
            self.up[site] = incarnation
            self._events.append(PeerUp(site, incarnation))

    def drain(self) -> list[PeerEvent]:
        events, self._events = self._events, []
        return events
