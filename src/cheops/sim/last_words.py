"""Compares the answers that clients and operators get with what the applications really ran.

Clients: the final status that the client of an operation gets for each site. Operators: what `explain` says at random
moments of each operation and site, and of replays. What it calls superseded must not have an effect later.
"""

from collections.abc import Iterator
from random import Random

from cheops.api.models.operations import Effect
from cheops.api.views.explanation import explanation
from cheops.api.views.operations import effect_of, fate_of, status_at
from cheops.engine.replica import Replica
from cheops.log.causality import contains, covers
from cheops.log.history import History
from cheops.log.matrix import is_wiped
from cheops.log.operation import Kind, Operation, OpId, Status, Verdict
from cheops.log.seals import is_of_one_site
from cheops.sim.node import Node
from cheops.sim.world import World

_EVERY_MS = 400
_MOST_PROBLEMS = 3  # of one history: the others follow from these


def client_problems(world: World, resource: str) -> Iterator[str]:
    """No client gets two final statuses of one site, or one that is not true."""
    ops = world.decided[resource]
    if len({op.matrix.hash for op in ops.values()}) > 1:
        return  # under other rules an operation that was skipped may run after all
    for (id_, site), statuses in world.final_statuses.get(resource, {}).items():
        if id_ is None or (id_ in ops and ops[id_].kind is Kind.SITES):
            continue  # a change of the list may be answered a second time, when a copy is deleted
        if (resource, id_) in world.given_twice or site in world.restored:
            continue  # there were two clients, each with an operation of this name; or an old copy replied as well
        if len(statuses) > 1:
            yield f"the client of {id_} got several final statuses of {site}: {', '.join(statuses)}"
        elif id_ in ops and (problem := _lie(world, ops[id_], site, statuses[0])):
            yield f"the client of {id_} got {statuses[0]} of {site}, {problem}"


def _lie(world: World, op: Operation, site: str, status: Status) -> str | None:
    """What is wrong with the status of an operation at a site, or None."""
    # What one store of a site skipped, the next one may run: then what was known at the time of the answer counts.
    succeeded = world.denied if site in world.replaced else world.succeeded
    if status is Status.SUPERSEDED and (op.resource, op.id, site) in succeeded:
        return "where it was OK"
    if status is Status.OK and not op.is_silent and not has_effect_of(world, op, world.nodes[site]):
        return "where it never ran"
    if status is Status.KO and op.verdict is Verdict.OK and (op.resource, op.id) not in world.nodes[site].refused:
        return "where it did not fail"
    return None


def has_effect_of(world: World, op: Operation, node: Node) -> bool:
    """Whether an operation ran at a site, in whatever way; or its effect came there with a checkpoint."""
    type_, key = world.apps[op.resource].type, (op.resource, op.id)
    if key in node.ran or type_.logic or (node.name, *key) in world.resolved:
        return True
    if (type_.decompose or type_.on_error) and key in node.refused:
        return True
    replica = node.replica(op.resource)
    return replica is None or contains(replica.history.folded, op.id)


def comes_on_top(oracle: History) -> bool:
    """Whether an operation comes too late for what a site sealed alone. It has an effect on top of the checkpoint of
    that site, if there is one: then the rules do not say what the state is, only that it is the same everywhere."""
    ops = oracle.ops.values()
    return any(
        not contains(sealing.deps, op.id) and op != sealing and not covers(op.deps, sealing.seal.stable)
        for sealing in ops
        if sealing.seal and is_of_one_site(sealing)
        for op in ops
    )


class ExplanationChecker:
    """Reads explanations while a history goes on."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = Random(seed)  # noqa: S311 - its own: a look must not change the history
        # By what, with the first site that said so.
        self._superseded: dict[tuple[str, OpId], dict[OpId | None, str]] = {}
        self._found: list[str] = []

    def start(self) -> None:
        self._world.after(_EVERY_MS, self._look)

    def problems(self, oracle: History, resource: str) -> Iterator[str]:
        """What was said of a resource and is not true; at the end of a history."""
        yield from (problem for problem in self._found if problem.startswith(f"{resource}:"))
        if oracle.orphans or len({op.matrix.hash for op in oracle.ops.values()}) > 1 or comes_on_top(oracle):
            return  # a seal took the effect of what superseded others, or other rules count now, or a checkpoint
        for op in oracle.effective:
            for by, site in self._superseded.get((resource, op.id), {}).items():
                if not self._is_withdrawn(resource, by):
                    yield f"{resource}: {site} said that {op.id} is superseded, and it has an effect"

    def _is_withdrawn(self, resource: str, by: OpId | None) -> bool:
        """Whether a site has taken back what superseded another operation, because its clock was wrong when it made it,
        or its store an old copy. It issues that again, if it still takes part: later, under another id."""
        return any((about, id_) == (resource, by) for about, id_, _ in self._world.withdrawn)

    def _look(self) -> None:
        world = self._world
        node = world.nodes[self._random.choice(sorted(world.nodes))]
        resource = self._random.choice(sorted(world.apps))
        replica = node.site.replicas.get(resource) if node.site else None
        if node.site is None or replica is None or not (replica.history.known or replica.drafts):
            pass  # a client would be told that there is no such resource
        elif len(self._found) < _MOST_PROBLEMS:
            explanation(replica, set(node.site.up), node.now_ms(world.now_ms))
            for problem in self._problems(node, replica):
                text = f"{resource}: at {world.now_ms - 1_000_000} ms {node.name} said that {problem}"
                world.record(text)
                self._found.append(text)
        world.after(_EVERY_MS, self._look)

    def _problems(self, node: Node, replica: Replica) -> Iterator[str]:
        for op in replica.history.ops.values():
            fate = fate_of(replica, op)
            if fate and effect_of(op, fate) is Effect.SUPERSEDED and op.verdict is Verdict.OK:
                self._superseded.setdefault((op.resource, op.id), {}).setdefault(fate.by, node.name)
            # Of what its checkpoint holds, a site does not know any more whether it was superseded before.
            for site in replica.sites if not contains(replica.history.folded, op.id) else ():
                status = status_at(replica, op, site)
                # For `explain` an operation that ran and was replaced since is superseded.
                if status is not Status.SUPERSEDED and (problem := _lie(self._world, op, site, status)):
                    yield f"{op.id} is {status} at {site}, {problem}"
        yield from self._replay_problems(replica)

    def _replay_problems(self, replica: Replica) -> Iterator[str]:
        if self._world.apps[replica.resource].type.logic:
            return  # its commands belong to no single operation
        for reply in replica.replies:
            ran = self._world.nodes[reply.origin.site].ran
            for applied in reply.applied if reply.replay else ():
                if is_wiped(reply.wiped, applied.key) and (replica.resource, applied.id) not in ran:
                    yield f"{reply.origin.site} ran {applied.id} in a replay, where it never ran"
