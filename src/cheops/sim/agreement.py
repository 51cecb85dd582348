"""What must hold at the honest sites at the end of a history with a hostile one.

The hostile site may do with its own signed operations what the policy of a type allows: set, delete, force, change the
list of sites of its own resources. Nothing else that it sends may have an effect. So all that honest sites keep is the
operations that honest sites made, unchanged, and operations of the hostile site. All keep the same. The state of each
application is what the rules give for these operations, without seals: a seal may take the effect of an operation of
the hostile site, and never that of one that an honest site acknowledged.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from cheops.engine.replica import Replica
from cheops.engine.status import Overall, status
from cheops.log.causality import contains
from cheops.log.names import command_problem
from cheops.log.operation import Operation, OpId, precedence
from cheops.log.plan import same_state
from cheops.log.seals import excluding_seal, standing
from cheops.sim.apps import App
from cheops.sim.byzantine import ByzantineWorld, app_of
from cheops.sim.forger import BAD_IDS
from cheops.sim.invariants import reference_effective, replayed
from cheops.sim.wire import CLOCK_SKEW_S

_MOST_MATRICES = 60  # that a site may keep: the histories have a handful
_MOST_ORIGINS = 60  # in a vector


def problems(world: ByzantineWorld) -> list[str]:
    """All violations of an invariant; empty if there are none."""
    assert world.meshes is not None  # noqa: S101 - set by the constructor
    violations = [f"{name} did not learn in time that {world.hostile} is forgotten" for name in world.late]
    violations += world.meshes.problems(world.honest)
    violations += _site_problems(world)
    violations += (f"{request} was not decided" for request in sorted(world.open_requests))
    for resource in sorted(world.contents):
        violations += (f"{resource}: {problem}" for problem in _resource_problems(world, resource))
    return violations


def _site_problems(world: ByzantineWorld) -> Iterator[str]:
    for name in world.honest:
        node = world.nodes[name]
        if node.site is None:
            continue
        ahead_ms = node.site.clock.time_ms - node.now_ms(world.now_ms)
        if ahead_ms > CLOCK_SKEW_S * 1_000 + 2 * world.profile.skew_ms:
            yield f"the clock of {name} is {ahead_ms:,} ms ahead"
        if len(node.site.matrices) > _MOST_MATRICES:
            yield f"{name} keeps {len(node.site.matrices)} matrices"
        for execution in node.log:
            if execution.resource in BAD_IDS:
                yield f"{name} ran a command on {execution.resource!r}"
                break
        for resource, replica in node.site.replicas.items():
            if len(replica.inbox.waiting) > replica.limits.waiting:
                yield f"{name} has {len(replica.inbox.waiting)} operations of {resource} that wait"
            if len(replica.history.known) > _MOST_ORIGINS:
                yield f"{name} has {len(replica.history.known)} origins in a vector of {resource}"


def _resource_problems(world: ByzantineWorld, resource: str) -> Iterator[str]:
    yield from _forgeries(world, resource)
    for name in sorted(world.recipients.get(resource, set())):
        if not _is_named(world, resource, name):
            yield f"{name} is not involved and got documents of it"
    replicas = {name: replica for name in world.honest if (replica := world.nodes[name].replica(resource))}
    # With two contents of the operation that makes a resource, sites that no list names together never meet.
    for site_list in sorted({replica.history.site_list for replica in replicas.values()}):
        involved = [name for name in replicas if replicas[name].history.site_list == site_list and name in site_list]
        if not involved:
            continue
        for name in world.honest:
            first = replicas[involved[0]]
            if (
                name in site_list
                and name not in involved
                and not (_is_apart(world, first, name) or _has_disputed_list(world, first))
                and not (name in replicas and _has_forked_list(world, replicas[name]))
            ):
                known = replicas[name].history.site_list if name in replicas else "nothing"
                yield f"{name} is involved according to {involved[0]}, and knows {known}"
        for name in involved:
            yield from _replica_problems(world, name, replicas[name])
        yield from _difference_problems(world, resource, {name: replicas[name] for name in involved})


def _is_apart(world: ByzantineWorld, replica: Replica, site: str) -> bool:
    """Whether another honest site has a different resource of this name. The hostile site may take names at sites that
    have nothing of that name yet: then these refuse what others begin later, and the two stay apart."""
    other = world.nodes[site].replica(replica.resource)
    begun, begun_there = _beginnings(world, replica), _beginnings(world, other) if other else set()
    # What the hostile site began says nothing, if an honest site began one of the two: it may have become part of both.
    honest = {id_ for id_ in begun | begun_there if id_.origin.site != world.hostile}
    shared = begun & begun_there & honest if honest else begun & begun_there
    is_of_hostile = any(id_.origin.site == world.hostile for id_ in begun | begun_there)
    if other is None or not is_of_hostile:
        return False
    refused = _refuses(world, other, replica) or _refuses(world, replica, other)
    return not shared or refused or _has_other_root(world, replica, other)


def _refuses(world: ByzantineWorld, replica: Replica, other: Replica) -> bool:
    """Whether one site refuses, visibly, the list of sites that the hostile one has set at another, or a seal there."""
    listing = other.history.site_list_op
    foreign = [listing] if listing is not None and listing.origin.site == world.hostile else []
    return any(op.id in replica.inbox.refused for op in (*foreign, *other.history.seals))


def _has_disputed_list(world: ByzantineWorld, replica: Replica) -> bool:
    """Whether a site has proof of two contents of the operation that set its list of sites, and says so."""
    listing = replica.history.site_list_op
    return listing is not None and listing.id in replica.proofs and _is_shown(world, replica)


def _has_forked_list(world: ByzantineWorld, replica: Replica) -> bool:
    """Whether the list of a site is one of two contents that the hostile site gave one operation, at honest sites that
    have not compared them. Who may set the list can do that: see docs/limitations.md."""
    listing = replica.history.site_list_op
    if listing is None or listing.origin.site != world.hostile:
        return False
    return len(world.contents[replica.resource].get(listing.id, ())) > 1


def _has_other_root(world: ByzantineWorld, replica: Replica, other: Replica) -> bool:
    """Whether one of two sites has what the hostile one sealed, and the other has not."""
    roots = {replica.history.root, other.history.root}
    return len(roots) > 1 and any(root is not None and root.origin.site == world.hostile for root in roots)


def _beginnings(world: ByzantineWorld, replica: Replica) -> set[OpId]:
    """The operations that begin what a site has, forgotten ones included, without those that a seal orphans."""
    known = {op.id: op for op in _standing(world, replica.resource, set()) if contains(replica.history.known, op.id)}
    seals = standing(op for op in known.values() if op.seal)
    return {id_ for id_, op in known.items() if not op.deps and not excluding_seal(op, seals)}


def _is_named(world: ByzantineWorld, resource: str, site: str) -> bool:
    """Whether a list names a site: one that counts, or a second content by the site that created the resource, which
    may set the list."""
    ops = [op for contents in world.contents[resource].values() for op in contents.values()]
    if site in world.named.get(resource, ()) or any(op.sites and site in op.sites for op in ops):
        return True
    if not any(op.origin.site == world.hostile and not op.deps for op in ops):
        return False
    replicas = (world.nodes[name].replica(resource) for name in world.honest)
    proofs = (proof for replica in replicas if replica for proof in replica.proofs.values())
    seconds = (op for proof in proofs for op in proof.operations)
    return any(op.sites and site in op.sites for op in seconds)


def _forgeries(world: ByzantineWorld, resource: str) -> Iterator[str]:
    """What honest sites ever kept in the name of an honest site is what that site made; and no file was too large."""
    most = world.settings(world.profile).limits.file_bytes
    for id_, contents in world.contents[resource].items():
        if any(sum(file.size for file in op.payload.files) > most for op in contents.values()):
            yield f"{id_} was accepted, whose files are larger than {most:,} bytes"
        if id_.origin.site == world.hostile:
            continue
        if len(contents) > 1:
            yield f"{id_} has {len(contents)} contents, and its origin is honest"
        made = world.made.get((resource, id_))
        if made is None or any(digest != made for digest in contents):
            yield f"{id_} is not what {id_.origin.site} made"


def _replica_problems(world: ByzantineWorld, name: str, replica: Replica) -> Iterator[str]:
    history = replica.history
    for id_ in sorted(world.acknowledged.get(replica.resource, ())):
        if not _is_shared(world, replica, id_.origin.site):
            continue
        if not contains(history.known, id_):
            yield f"{name} lost {id_}, which was acknowledged"
        elif id_ in history.orphans and not _is_reported(world, replica, id_):
            yield f"{name} set {id_} aside, which was acknowledged"
    made_here = max((id_.seq for id_ in world.contents[replica.resource] if id_.origin == replica.origin), default=0)
    if history.known.get(replica.origin, 0) > made_here:
        yield f"{name} believes that it made {history.known[replica.origin]} operations; it made {made_here}"
    if replica.slot.running or replica.drafts or replica.applied.unknown:
        yield f"{name} is not at rest"
    yield from _refusal_problems(world, name, replica)


def _refusal_problems(world: ByzantineWorld, name: str, replica: Replica) -> Iterator[str]:
    for id_ in (*replica.inbox.waiting, *replica.inbox.refused, *replica.applied.failed):
        if id_.origin.site == world.hostile or not _is_shared(world, replica, id_.origin.site):
            continue
        if not (id_ in replica.applied.failed and _is_shown(world, replica)):
            why = replica.inbox.refused.get(id_) or replica.applied.failed.get(id_) or "it waits"
            yield f"{name} does not take {id_} of an honest site: {why}"


def _is_shown(world: ByzantineWorld, replica: Replica) -> bool:
    """Whether a site has proof that the hostile one sent two contents, and does not say that all is well. With two
    contents of a beginning, say of two types, the command of an operation that fitted the one may fail by the other."""
    return bool(replica.proofs) and status(replica, set(world.honest)).overall is Overall.DIVERGED


def _is_shared(world: ByzantineWorld, replica: Replica, site: str) -> bool:
    """Whether another honest site has the resource with this one. Where the hostile site made a resource of that name
    elsewhere, which others refuse, the two stay apart."""
    other = world.nodes[site].replica(replica.resource)
    if other is None or replica.site not in other.history.site_list:
        return False
    return not _is_apart(world, replica, site)


def _is_reported(world: ByzantineWorld, replica: Replica, id_: OpId) -> bool:
    """A site that was not on the list may make the resource a second time, without knowledge of what the sites of the
    first one have sealed (docs/adr/0009-seals.md). These must have signed that, and it must report it."""
    by = replica.history.ops.get(replica.history.orphans[id_].by or id_)
    signed = by.seal.sites if by is not None and by.seal else ()
    return (
        id_ in _reported(world, replica.resource)
        and id_.origin.site not in signed
        and any(site in world.honest for site in signed)
    )


def _reported(world: ByzantineWorld, resource: str) -> set[OpId]:
    """The operations of which their own site has reported that they have no effect."""
    notices = ((site, one) for site, one in world.notices if one.resource == resource and one.what == "estranged")
    return {one.op for site, one in notices if one.op is not None and one.op.origin.site == site}


def _difference_problems(world: ByzantineWorld, resource: str, replicas: dict[str, Replica]) -> Iterator[str]:
    """All keep the same, and the application has the state that the rules give."""
    first, *others = replicas
    for name in others:
        if replicas[name].history.known != replicas[first].history.known:
            if _is_apart(world, replicas[first], name):
                return  # the hostile site made two resources of one name
            yield f"{name} knows {_short(replicas[name])}, {first} {_short(replicas[first])}"
            return
    known = replicas[first].history.known
    app = app_of(next(op.rtype for op in _standing(world, resource, set()) if contains(known, op.id)))
    states = {name: world.nodes[name].states.get(resource, app.start) for name in replicas}
    # A command of the hostile site may fail everywhere else although it says OK, and then in another state at each
    # site. That is for the operator, who must see it.
    applied = [replica.applied for replica in replicas.values()]
    failed = any(one.failed or one.order_not_enforced or one.dirty for one in applied)
    # A site that could not take back what lost its effect knows that it holds something else.
    failed = failed or any(not _holds_what_counts(replica) for replica in replicas.values())
    if any(state != states[first] for state in states.values()):
        if not failed:
            yield f"the application's states differ: {states}"
        for name, replica in replicas.items():
            if status(replica, set(world.honest)).overall is Overall.CONVERGED:
                yield f"{name} says that it is CONVERGED, and the states differ: {states}"
        return
    if not failed and (problem := _state_problem(world, resource, replicas, app, states[first])):
        yield f"{first} {problem}"


def _holds_what_counts(replica: Replica) -> bool:
    return same_state(replica.applied.entries, replica.history.effective, replica.matrix)


def _state_problem(
    world: ByzantineWorld, resource: str, replicas: dict[str, Replica], app: App, state: object
) -> str | None:
    """How a state differs from what the operations give; None if it does not, or if that cannot be said."""
    known = next(iter(replicas.values())).history.known
    orphans = {id_ for replica in replicas.values() for id_ in replica.history.orphans}
    held = _held(replicas.values())
    ops = [held.get(op.id, op) for op in _standing(world, resource, orphans) if contains(known, op.id)]
    # Seals take the effect of operations of the hostile site, and of those that their sites have reported. They may be
    # forgotten since.
    seals = standing(op for op in ops if op.seal)
    lost = {op.id for op in ops if op.origin.site == world.hostile} | _reported(world, resource)
    ops = [replace(op, seal=None) for op in ops if op.id not in lost or not excluding_seal(op, seals)]
    if len({op.matrix.hash for op in ops}) != 1 or app.name == "pcounter" or command_problem(resource):
        return None
    if len({op.rtype for contents in world.contents[resource].values() for op in contents.values()}) > 1:
        return None  # two contents of two types: which one a command ran by is not in the log
    effective = reference_effective(ops, next(iter(replicas.values())).matrix.entries)
    by_id = {op.id: op for op in ops}
    expected = replayed(app.start, [by_id[id_] for id_ in effective], app.run)
    return None if state == expected else f"has the state {state!r}, and the operations give {expected!r}"


def _standing(world: ByzantineWorld, resource: str, without: set[OpId]) -> list[Operation]:
    """Of each operation the content that stands, of those that an honest site has."""
    return [
        min(contents.values(), key=precedence)
        for id_, contents in world.contents[resource].items()
        if id_ not in without
    ]


def _held(replicas: Iterable[Replica]) -> dict[OpId, Operation]:
    """Of each operation that one of these sites keeps, the content that stands. A site that has left the resource may
    have another, which it does not send any more."""
    held: dict[OpId, Operation] = {}
    for replica in replicas:
        kept = replica.history.ops
        seconds = (op for id_, proof in replica.proofs.items() if id_ in kept for op in proof.operations)
        for op in (*kept.values(), *seconds):
            held[op.id] = min(held.get(op.id, op), op, key=precedence)
    return held


def _short(replica: Replica) -> str:
    return " ".join(f"{origin}:{n}" for origin, n in sorted(replica.history.known.items()))
