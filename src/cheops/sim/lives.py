"""The lives of simulated resources: one ends when a site drops its tombstone (cheops.engine.tombstones).

What was decided in a life that ended is taken out of what the checks at the end expect, if the life was complete: no
operation may build on what a site has dropped and be unknown there. At the end the application must hold nothing of it.

Some clients write just when a site has promised to add nothing to a deleted resource, or drops it, at a site that may
not have heard of that: these are the only moments at which the sites could disagree about the end of a life.
"""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from cheops.engine.documents import Ledger, key_of
from cheops.engine.events import Save, Submitted
from cheops.log.causality import NOTHING, Vector, contains, joined
from cheops.log.operation import Command, Kind, Operation, OpId
from cheops.sim.node import Node

if TYPE_CHECKING:
    from cheops.sim.world import World

_SOON_MS = 60


class Lives:
    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self.ended: dict[str, dict[OpId, Operation]] = {}  # by resource: the operations of lives that ended

        self.had: dict[tuple[str, str], Vector] = {}  # by site and resource: what it knew of what it has dropped

    def note_save(self, node: Node, save: Save) -> None:
        """A site is about to save something: perhaps that it has dropped a resource, or begun it anew."""
        closed = {d.resource for d in save.documents if isinstance(d, Ledger) and d.closed and not _is_closed(node, d)}
        dropped = {str(key[1]) for key in save.forget if key[0] == "ledger"}
        for resource in sorted(closed | dropped):
            if self._random.random() < self._world.profile.late_writes:
                self._write_elsewhere(node.name, resource)
        renewed = {d.resource for d in save.documents if isinstance(d, Ledger) and _is_of_later_life(node, d)}
        for resource in sorted(dropped | renewed):
            if resource in self._world.decided and (replica := node.replica_on_disk(resource)):
                had = self.had.get((node.name, resource), {})
                self.had[node.name, resource] = joined(had, replica.history.known)
                if not replica.is_involved:
                    continue  # it had left: the others go on
                self._world.inject("resource dropped", f"{node.name} drops {resource}")
                self._end(node.name, resource, replica.history.known)

    def _write_elsewhere(self, site: str, resource: str) -> None:
        """A client writes at another site, as if the resource were new or not."""
        world, random = self._world, self._random
        sites = world.last_sites(resource) if resource in world.decided else ()
        if world.calm or len(sites) == 1 or site not in sites:
            return
        app, other = world.apps[resource], random.choice([name for name in sites if name != site])
        type_, line = app.invent(random)
        request = f"{resource}#late {world.injected['late write']}"
        event = Submitted(request, resource, type_, Command(line), Kind.NORMAL, app.name, sites, app.matrix)
        world.inject("late write", f"{other} gets {type_} {line!r} for {resource}, which {site} is about to forget")
        world.after(random.randint(0, _SOON_MS), lambda: world.deliver(other, event))

    def _end(self, site: str, resource: str, known: Vector) -> None:
        world, decided = self._world, self._world.decided[resource]
        for op in list(decided.values()):
            if contains(known, op.id):
                self.ended.setdefault(resource, {})[op.id] = op
                del decided[op.id]
                world.acknowledged.get(resource, set()).discard(op.id)
            elif not known.keys().isdisjoint(op.deps):
                world.status_problems.append(f"{site} drops {resource}, and lacks {op.id}, which continues it")

    def had_at(self, site: str, resource: str) -> Vector:
        return self.had.get((site, resource), NOTHING)

    def is_ended(self, resource: str, known: Vector) -> bool:
        """Whether all that a site knows of a resource is of a life that has ended."""
        ended = self.ended.get(resource, {})
        return all(OpId(origin, n) in ended for origin, n in known.items())


def _is_closed(node: Node, ledger: Ledger) -> bool:
    before = node.disk.durable.get(key_of(ledger))
    return isinstance(before, Ledger) and before.closed


def _is_of_later_life(node: Node, ledger: Ledger) -> bool:
    before = node.disk.durable.get(key_of(ledger))
    return isinstance(before, Ledger) and before.generation < ledger.generation


def leftovers(world: "World", resource: str) -> Iterator[str]:
    """What is wrong with a resource that was dropped, and not begun again."""
    start = world.apps[resource].start
    lists = [op for op in world.lives.ended[resource].values() if op.sites]
    last = max(lists, key=lambda op: op.stamp)
    for name, node in world.nodes.items():
        replica = node.replica(resource)
        if replica is not None and replica.history.known and replica.is_involved:
            yield f"{name} still has {resource}, which others have dropped"
        # A site that left before may have kept its copy.
        if name in (last.sites or ()) and (state := node.states.get(resource, start)) != start:
            yield f"{name} has the state {state!r} of {resource}, which was deleted and dropped"
