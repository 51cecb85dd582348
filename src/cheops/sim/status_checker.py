"""Compares at random moments what a site says of the others with what is true there.

The truth about a report is what arrived: after each message, the checker notes what the sender said in it, if the
receiver took it. From then on the receiver may say "lacks" or "not known" of that only if a crash has lost it since;
and then only as of an earlier report. Likewise, that replicas differ is true as of the reports: whatever has made them
equal since may still be on its way.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from cheops.engine.documents import Ledger, Message
from cheops.engine.events import Send
from cheops.engine.evidence import Evidence, Presence, evidence_of
from cheops.engine.incarnation import doubt
from cheops.engine.intake import without_more_of
from cheops.engine.replica import Replica
from cheops.engine.status import Overall, ResourceStatus, status
from cheops.log.causality import NOTHING, Vector, contains, covers, joined
from cheops.log.operation import content_hash
from cheops.sim.last_words import has_effect_of
from cheops.sim.node import Node
from cheops.sim.world import World

_EVERY_MS = 400
_MOST_PROBLEMS = 5  # one is enough to fail; a few show whether they are the same


class _Report(NamedTuple):
    """What a site has said up to a message."""

    at_ms: int  # by the clock of the receiver
    incarnation: str  # of the sender's store
    life: int  # of the receiver
    store: str  # of the receiver: a lost store has not left its reports to the next one
    known: Vector
    settled: Vector


_NO_REPORT = _Report(0, "", 0, "", NOTHING, NOTHING)


class StatusChecker:
    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = Random(seed)  # noqa: S311 - its own: a look must not change the history
        self._heard: dict[tuple[str, str, str], list[_Report]] = {}  # by receiver, sender and resource
        # What a site had of a resource when it sent a sum of it while something was wrong there.
        self._troubled: dict[tuple[str, str, str], str] = {}
        # Messages of sites that were not on the list when they sent them, by id: those pass over what others run.
        self._off_the_list: dict[int, Message] = {}

    def start(self) -> None:
        self._world.before_departure = self._note_departure
        self._world.after_arrival = self._note
        self._world.after(_EVERY_MS, self._look)

    def _note_departure(self, node: Node, send: Send) -> None:
        replica = node.site.replicas.get(send.message.resource) if node.site else None
        if replica is not None and not replica.is_involved:
            self._off_the_list[id(send.message)] = send.message
        if replica is not None and send.message.digest and _is_troubled(replica):
            self._troubled[node.name, replica.resource, send.message.digest] = replica.revision

    def _note(self, sender: str, send: Send) -> None:
        node, message = self._world.nodes[send.peer], send.message
        replica = node.site.replicas.get(message.resource) if node.site else None
        view = replica.peers.get(sender) if replica else None
        now_ms = node.now_ms(self._world.now_ms)
        if replica is None or view is None or (view.last_contact_ms, view.incarnation) != (now_ms, message.incarnation):
            return  # it was not taken: the resource is still being loaded, or the sender's store was replaced
        if sender not in replica.history.ever_listed:
            return  # it is not kept: any site may send a message
        reports = self._heard.setdefault((send.peer, sender, message.resource), [])
        # A site that starts again has settled nothing until it has looked. So what a crash of the receiver has lost
        # must not be added to what it hears after that.
        is_next = bool(reports) and reports[-1][1:3] == (message.incarnation, node.life)
        last = reports[-1] if is_next else _NO_REPORT
        # Where an old copy was put back, a report may name operations that the receiver has not made, or makes anew.
        taken = without_more_of(node.origin, message, replica.history.known, replica.replies.known)
        is_listed = id(message) not in self._off_the_list
        known, settled = joined(last.known, taken.known), joined(last.settled, taken.settled) if is_listed else NOTHING
        reports.append(_Report(now_ms, message.incarnation, node.life, node.origin.incarnation, known, settled))

    def _look(self) -> None:
        world = self._world
        node = world.nodes[self._random.choice(sorted(world.nodes))]
        resource = self._random.choice(sorted(world.apps))
        if len(world.status_problems) < _MOST_PROBLEMS and (replica := _settled_replica(node, resource)):
            for problem in self._problems(node, replica):
                text = f"at {world.now_ms - 1_000_000} ms {node.name} says of {resource} that {problem}"
                world.record(text)
                world.status_problems.append(text)
        world.after(_EVERY_MS, self._look)

    def _problems(self, node: Node, replica: Replica) -> Iterator[str]:
        assert node.site is not None  # noqa: S101 - it has a replica
        for site in replica.sites:
            if site != node.name and site not in self._world.replaced:  # an old copy has less than was reported
                yield from self._report_problems(node, replica, site)
                had = self._world.lives.had_at(site, replica.resource)
                yield from _has_problems(self._world.nodes[site], evidence_of(replica, site), had)
            yield from self._done_problems(site, evidence_of(replica, site))
        found = status(replica, set(node.site.up))
        if found.overall is Overall.CONVERGED:
            yield from self._convergence_problems(node, replica)
        elif found.overall is Overall.DIVERGED and _is_by_digests_alone(replica, found):
            yield from self._divergence_problems(replica)

    def _report_problems(self, node: Node, replica: Replica, site: str) -> Iterator[str]:
        """What a site has reported is not missing there."""
        evidence, view = evidence_of(replica, site), replica.peers.get(site)
        incarnation = evidence.origin.incarnation if evidence.origin else ""
        reports = [
            one
            for one in self._heard.get((node.name, site, replica.resource), ())
            if (one.incarnation, one.store) == (incarnation, node.origin.incarnation)
        ]
        # Nothing is lost as long as a site runs. What a crash leaves is as of some report before.
        last = next((one for one in reversed(reports) if one.life == node.life), _NO_REPORT)
        as_of = next((one for one in reports if view and one.at_ms == view.last_contact_ms), _NO_REPORT)
        for op in replica.history.ops.values():
            received, settled = evidence.received(op), evidence.has_settled(op)
            if received is not Presence.HAS and contains(last.known, op.id):
                yield f"{site} {received} {op.id}, which it has reported"
            elif received is Presence.LACKS and contains(as_of.known, op.id):
                yield f"{site} lacks {op.id} at the time of its report, which names it"
            if settled is Presence.LACKS and (contains(last.settled, op.id) or contains(as_of.settled, op.id)):
                yield f"{op.id} is pending at {site}, which has reported that it is not"

    def _done_problems(self, site: str, evidence: Evidence) -> Iterator[str]:
        """What is said to be done at a site, and is in effect there, has run there."""
        node, resource = self._world.nodes[site], evidence.replica.resource
        there = node.replica(resource)
        if there is None or evidence.origin is None or not evidence.origin.shares_store(node.origin):
            return
        history = evidence.replica.history
        if not covers(history.known, evidence.settled):
            return  # it may have settled a list without it, of which this site has not heard yet
        for op in there.history.effective:
            if op.is_silent or op.id not in history.ops or op.id in history.fates or (resource, op.id) in node.refused:
                continue
            if evidence.has_settled(op) is Presence.HAS and not has_effect_of(self._world, op, node):
                yield f"{op.id} is done at {site}, where it has not run"

    def _divergence_problems(self, replica: Replica) -> Iterator[str]:
        """Sites that know the same, and have applied it differently, do not exist unless something failed somewhere, or
        a site from a backup gave an id twice."""
        is_troubled = any(self._is_troubled_at(site, replica) for site in replica.sites)
        if not is_troubled and not self._has_two_contents(replica.resource):
            yield "it is DIVERGED, and nothing failed anywhere"

    def _has_two_contents(self, resource: str) -> bool:
        """Whether sites hold different operations with one id."""
        replicas = [node.replica(resource) for node in self._world.nodes.values()]
        for id_ in (id_ for name, id_ in self._world.given_twice if name == resource):
            held = (one.history.ops.get(id_) for one in replicas if one is not None)
            if len({content_hash(op) for op in held if op is not None}) > 1:
                return True
        return False

    def _is_troubled_at(self, site: str, replica: Replica) -> bool:
        """Whether something is wrong at a site; or was, when it sent its last report, and it has gone on since."""
        there, view = self._world.nodes[site].replica(replica.resource), replica.peers.get(site)
        if there is not None and _is_troubled(there):
            return True
        then = self._troubled.get((site, replica.resource, view.digest)) if view else None
        return then is not None and (there is None or there.revision != then)

    def _convergence_problems(self, node: Node, replica: Replica) -> Iterator[str]:
        assert node.site is not None  # noqa: S101 - it has a replica
        if self._world.lives.is_ended(replica.resource, replica.history.known):
            return  # others have dropped it since: all had deleted it
        for site in replica.sites:
            other = self._world.nodes[site]
            there = other.replica(replica.resource)
            # A site that has lost its disk since its last heartbeat is not known to have; nor is an old copy, which has
            # the incarnation that it had, until the next heartbeat shows what it was.
            if site == node.name or other.site is None or node.site.up.get(site) != other.origin.incarnation:
                continue
            if (mark := self._world.marks.get((node.name, site))) and other.has_lost(mark):
                continue
            if there is None or not covers(there.history.known, replica.history.known):
                yield f"it is CONVERGED, and {site} lacks something"
            elif (
                node.name in replica.sites  # a site that has left has nothing to compare with
                and there.history.known == replica.history.known
                and there.applied.digest() not in ("", replica.applied.digest())
            ):
                yield f"it is CONVERGED, and {site} has applied it differently"


def _is_troubled(replica: Replica) -> bool:
    applied = replica.applied  # of one that is not in memory, nobody has asked yet whether the order can be enforced
    return bool(applied.failed or applied.unknown or applied.order_not_enforced or doubt(replica))


def _is_by_digests_alone(replica: Replica, found: ResourceStatus) -> bool:
    """Whether a resource is called DIVERGED only because the sites sum up differently what they have applied."""
    shown = any(site.failed or site.unknown for site in found.sites) or found.order_not_enforced or found.last_known
    return not (shown or found.drift or replica.inbox.refused or replica.proofs)


def _settled_replica(node: Node, resource: str) -> Replica | None:
    """A resource as a client of the site would see it now; None if the site must first look what is left to run."""
    if node.site is None:
        return None
    if resource not in node.site.replicas:
        ledgers = [d for d in node.disk.of_resource(resource) if isinstance(d, Ledger)]
        if not ledgers or ledgers[0].unsynced:
            return None
    return node.replica(resource)


def _has_problems(other: Node, evidence: Evidence, had: Vector) -> Iterator[str]:
    """What a site is said to have, it has; or had, before it dropped the resource."""
    there = other.replica(evidence.replica.resource)
    if other.site is None or evidence.origin is None or not evidence.origin.shares_store(other.origin):
        return
    known = joined(had, there.history.known if there else NOTHING)
    for op in evidence.replica.history.ops.values():
        if evidence.received(op) is Presence.HAS and not contains(known, op.id):
            yield f"{evidence.site} has {op.id}, which it never got"
