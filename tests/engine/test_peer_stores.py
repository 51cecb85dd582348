"""The resources of a peer with another store are all looked at, even after a crash while that goes on."""

from dataclasses import dataclass, field

from cheops.engine.documents import Peers
from cheops.engine.events import (
    Effect,
    Enumerate,
    Enumerated,
    Event,
    Loaded,
    PeerUp,
    Recovered,
    Save,
    SitesRemoved,
    Tick,
)
from cheops.engine.settings import Settings
from cheops.engine.site import Site
from cheops.log.causality import Clock
from cheops.log.operation import Origin


@dataclass
class _Agent:
    """A site whose store holds nothing but what it knows of its peers."""

    peers: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        self.site = Site(Origin("a", "1"), Settings({}))
        self.take(Recovered(Clock(), (), (), self.peers))

    def take(self, event: Event) -> list[Effect]:
        effects = self.site.step(event, 1_000)
        for save in (one for one in effects if isinstance(one, Save)):
            for document in (one for one in save.documents if isinstance(one, Peers)):
                self.peers = dict(document.incarnations)
        return effects

    def is_enumerating(self, incarnation: str) -> bool:
        return Enumerate("b") in self.take(PeerUp("b", incarnation))

    def look_at_all(self) -> None:
        self.take(Enumerated("b", ("n",)))
        self.take(Tick())
        assert self.peers["b"] != "2", "a resource is not loaded yet"
        self.take(Loaded("n", ()))
        self.take(Tick())


def test_a_crash_while_the_resources_of_a_new_store_are_looked_at_begins_that_again() -> None:
    agent = _Agent()
    agent.start()
    assert not agent.is_enumerating("1"), "nothing here can count as known to a peer that was never met"
    assert agent.is_enumerating("2")
    agent.start()
    assert agent.is_enumerating("2")
    agent.take(Enumerated("b", ("n",)))
    agent.start()
    assert agent.is_enumerating("2")
    agent.look_at_all()
    agent.start()
    assert not agent.is_enumerating("2")


def test_the_resources_of_a_site_that_is_admitted_again_are_looked_at_after_a_crash_too() -> None:
    agent = _Agent({"b": "1"})
    agent.start()
    agent.take(SitesRemoved(frozenset("b")))
    agent.start()
    agent.take(SitesRemoved(frozenset(), frozenset("b")))
    assert agent.is_enumerating("1")
    agent.look_at_all()
    agent.start()
    agent.take(SitesRemoved(frozenset(), frozenset("b")))
    assert not agent.is_enumerating("1")
