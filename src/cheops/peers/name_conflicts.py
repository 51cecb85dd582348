"""Two agents that use the name of one site.

A site's own agent describes it by a record whose revision grows. Two agents of one name outbid each other: each sees a
greater record of "itself", and announces a still greater one. So every site sees records of both in turn, for as long
as both run. A record that was replaced by one of another agent, and then follows it, is such a turn. One turn proves
nothing: an operator may change an address and take that back, or old records may come late. Several in a short time do.

Certificate, incarnation of the store and address distinguish agents. An agent that restarts, moves,
renews its certificate or gets new keys changes these once, and does not go back and forth.
"""

from collections import deque
from hashlib import sha256

from msgspec import Struct, field

from cheops.bounded import BoundedMap
from cheops.peers.heartbeat import SiteRecord

WITHIN_MS = 600_000.0
_TURNS = 3
_AGENTS_PER_SITE = 4
_SITES = 1_024


class NamedAgent(Struct, frozen=True):
    """One of the agents that use a name, as its record describes it."""

    certificate: str  # hexadecimal digits of its fingerprint (SHA-256); empty with `security: none`
    incarnation: str
    url: str


class NameConflict(Struct, frozen=True):
    site: str
    agents: tuple[NamedAgent, ...]  # the latest first

    @property
    def has_several_certificates(self) -> bool:
        return len({agent.certificate for agent in self.agents}) > 1


class _Seen(Struct):
    agents: BoundedMap[NamedAgent, float] = field(default_factory=lambda: BoundedMap(_AGENTS_PER_SITE))
    last: NamedAgent | None = None
    turns_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_TURNS))


class NameConflicts:
    """Notices names that several agents use, from the records that a site takes, in their order."""

    def __init__(self) -> None:
        self._seen: BoundedMap[str, _Seen] = BoundedMap(_SITES)

    def note(self, record: SiteRecord, now_ms: float) -> None:
        """A record that was verified and replaces the one before."""
        seen = self._seen.get(record.name)
        if seen is None:
            seen = self._seen[record.name] = _Seen()
        agent = _agent(record)
        if agent in seen.agents and agent != seen.last:
            seen.turns_ms.append(now_ms)
        seen.agents[agent] = now_ms
        seen.last = agent

    def drop(self, site: str) -> None:
        """There was a decision about the site: what comes from now on counts."""
        self._seen.pop(site, None)

    def expire(self, now_ms: float) -> None:
        for seen in self._seen.values():
            while seen.turns_ms and seen.turns_ms[0] < now_ms - WITHIN_MS:
                seen.turns_ms.popleft()
            for agent, at_ms in list(seen.agents.items()):
                if at_ms < now_ms - WITHIN_MS and agent != seen.last:
                    del seen.agents[agent]

    def all(self) -> list[NameConflict]:
        """The names that several agents use now; sorted."""
        return [
            NameConflict(site, tuple(reversed(list(seen.agents))))
            for site, seen in sorted(self._seen.items())
            if len(seen.turns_ms) == _TURNS
        ]


def _agent(record: SiteRecord) -> NamedAgent:
    certificate = sha256(record.certificate).hexdigest()[:16] if record.certificate else ""
    return NamedAgent(certificate, record.incarnation, record.url)
