"""The lives of simulated resources: one ends when a site drops its tombstone (cheops.engine.tombstones).

What was decided in a life that ended is taken out of what the checks at the end expect, if the life was complete: no
operation may build on what a site has dropped and be unknown there. At the end the application must hold nothing of it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cheops.engine.documents import Ledger, key_of
from cheops.engine.events import Save
from cheops.log.causality import NOTHING, Vector, contains, joined
from cheops.log.operation import Operation, OpId
from cheops.sim.node import Node

if TYPE_CHECKING:
    from cheops.sim.world import World


class Lives:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.ended: dict[str, dict[OpId, Operation]] = {}  # by resource: the operations of lives that ended

        self.had: dict[tuple[str, str], Vector] = {}  # by site and resource: what it knew of what it has dropped

    def note_save(self, node: Node, save: Save) -> None:
        """A site is about to save something: perhaps that it has dropped a resource, or begun it anew."""
        dropped = {str(key[1]) for key in save.forget if key[0] == "ledger"}
        renewed = {d.resource for d in save.documents if isinstance(d, Ledger) and _is_of_later_life(node, d)}
        for resource in sorted(dropped | renewed):
            if resource in self._world.decided and (replica := node.replica_on_disk(resource)):
                had = self.had.get((node.name, resource), {})
                self.had[node.name, resource] = joined(had, replica.history.known)
                if not replica.is_involved:
                    continue  # it had left: the others go on
                self._world.inject("resource dropped", f"{node.name} drops {resource}")
                self._end(node.name, resource, replica.history.known)

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
