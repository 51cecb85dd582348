"""What must hold at the end of every simulated history.

One check compares the merge with `reference_effective`: a second merge, written from docs/merging.md, slow, and without
shared code, so that a mistake in one is not in the other. It covers histories with one matrix.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

from msgspec.structs import replace

from cheops.engine import health, tombstones
from cheops.engine.documents import Ledger
from cheops.engine.replica import Replica
from cheops.engine.scheduler import has_deleted_copy
from cheops.engine.status import Phase, phase_at
from cheops.log.causality import contains, covers
from cheops.log.history import History
from cheops.log.matrix import Entry, Matrix
from cheops.log.operation import Kind, MatrixRef, Operation, OpId, Stamp, Status, Verdict
from cheops.log.rules import superseding_rule
from cheops.sim.apps import RefusedError, State
from cheops.sim.last_words import ExplanationChecker, client_problems, comes_on_top
from cheops.sim.lives import leftovers
from cheops.sim.node import Node
from cheops.sim.world import World, ever_listed_sites

_REPLACING = {"take-one", "take-both-reverse-order"}
_MIRRORED = {"take-one", "take-both-keep-order"}
_MOST_SENT, _SENT_ANYWAY = 1.5, 80  # documents per document that is new where it comes, and in short histories


def reference_effective(ops: Iterable[Operation], entries: Iterable[Entry]) -> list[OpId]:
    """The operations that have an effect, in their order."""
    ops = list(ops)
    silent = (Kind.SITES, Kind.SEAL)
    running = [op for op in ops if op.verdict is Verdict.OK and op.kind not in silent]  # rule 1
    running = [op for op in running if not _comes_too_late(op, ops)]
    replaces = _replaces(entries, {_name(op) for op in running})
    lenient = _lenient(entries)

    def supersedes(y: Operation, x: Operation) -> bool:  # rule 2
        key = (y.id, x.id)
        if key not in answers:
            past = [z for z in running if _is_before(z, x)]
            answers[key] = _beats(y, x, replaces, lenient) and not any(supersedes(z, y) for z in past)
        return answers[key]

    answers: dict[tuple[OpId, OpId], bool] = {}
    effective = [x for x in running if not any(supersedes(y, x) for y in running)]
    return [op.id for op in _in_order(effective, lenient)]


def _in_order(ops: list[Operation], lenient: set[tuple[str, str]]) -> list[Operation]:
    """Rule 6: always the earliest of those that need not come after another one that is left."""
    left, order = sorted(ops, key=lambda op: op.stamp), list[Operation]()
    while left:
        caused = [x for x in left if not any(_is_before(y, x) for y in left)]
        free = [x for x in caused if not any(_comes_first(y, x, lenient) for y in left)]
        left.remove(first := (free or caused)[0])
        order.append(first)
    return order


def _comes_first(y: Operation, x: Operation, lenient: set[tuple[str, str]]) -> bool:
    return (_name(y), _name(x)) in lenient and not _is_before(y, x) and not _is_before(x, y)


def _is_before(a: Operation, b: Operation) -> bool:
    return a.seq <= b.deps.get(a.origin, 0)


def _lenient(entries: Iterable[Entry]) -> set[tuple[str, str]]:
    """Pairs (y, x) such that y replaces x, but lets it stay if the two are concurrent."""
    both = [entry for entry in entries if entry.concurrent_both]
    return {(e.after, e.before) if e.result.value in _REPLACING else (e.before, e.after) for e in both}


def _name(op: Operation) -> str:
    return "*" if op.kind in (Kind.DELETE, Kind.FORCE) else op.type


def _comes_too_late(op: Operation, ops: list[Operation], *, excluded: frozenset[OpId] = frozenset()) -> bool:
    """Whether a seal orphans it: the seal's author did not know it, and it does not depend on what is sealed."""
    for other in ops:
        if other.seal is None or len(other.seal.origins) == 1 or other.id in excluded or other.id == op.id:
            continue
        if op.seq <= other.deps.get(op.origin, 0):
            continue
        if all(op.deps.get(origin, 0) >= n for origin, n in other.seal.stable.items()):
            continue
        if op.seal and (op.seal.root, op.stamp) < (other.seal.root, other.stamp):
            continue  # the seal that was there first stands
        if not _comes_too_late(other, ops, excluded=excluded | {op.id}):
            return True
    return False


def _beats(y: Operation, x: Operation, replaces: set[tuple[str, str]], lenient: set[tuple[str, str]]) -> bool:
    if (_name(y), _name(x)) not in replaces:
        return False
    if _is_before(x, y):
        return True  # rule 3
    if _is_before(y, x):
        return False
    mutual = (_name(x), _name(y)) in replaces
    return y.stamp > x.stamp if mutual else (_name(y), _name(x)) not in lenient  # rules 5 and 4


def _replaces(entries: Iterable[Entry], names: set[str]) -> set[tuple[str, str]]:
    """Pairs (y, x) such that y replaces x, closed under transitivity."""
    pairs = {("*", name) for name in (*names, "*")}
    for entry in entries:
        if entry.result.value in _REPLACING:
            pairs.add((entry.after, entry.before))
        if entry.result.value in _MIRRORED:
            pairs.add((entry.before, entry.after))
    pairs |= {(y, y) for y, _ in pairs}
    while True:
        more = {(z, x) for z, y in pairs for w, x in pairs if w == y} - pairs
        if not more:
            return pairs
        pairs |= more


def problems(world: World, explanations: ExplanationChecker) -> list[str]:
    """All violations of an invariant; empty if there are none."""
    violations = list(world.status_problems)
    for resource in sorted(world.decided):
        if not world.decided[resource]:
            violations += leftovers(world, resource)
            continue
        oracle = oracle_of(world, resource)
        check = _apart_problems if _stay_apart(world, resource, oracle) else _resource_problems
        violations += (f"{resource}: {problem}" for problem in check(world, resource, oracle))
        violations += explanations.problems(oracle, resource)
    return violations


def _resource_problems(world: World, resource: str, oracle: History) -> Iterator[str]:
    ops = _with_possible_stamps(world, resource)
    if len({op.matrix.hash for op in ops}) == 1:
        by_rules = reference_effective(ops, oracle.matrix.entries)
        if by_rules != [op.id for op in oracle.effective]:
            yield f"the merge gives {_ids([op.id for op in oracle.effective])}, the rules {_ids(by_rules)}"
    replicas = {name: world.nodes[name].replica(resource) for name in oracle.site_list}
    yield from client_problems(world, resource)
    yield from _traffic_problems(world, resource)
    yield from _withdrawn_problems(world, resource)
    listed = ever_listed_sites(world.decided[resource] | world.lives.ended.get(resource, {}))
    listed |= {site for key, one in world.withdrawn.items() if key[0] == resource for site in one.op.sites or ()}
    for name in sorted(world.recipients.get(resource, set()) - listed):
        yield f"{name} is not involved and got a message about it"
    for name in oracle.site_list:
        replica = replicas[name]
        if replica is None:
            yield f"{name} is involved and knows nothing of it"
            continue
        yield from _replica_problems(world, name, replica, oracle)
    if not any(one and _cannot_undo(world, name, one, oracle) for name, one in replicas.items()):
        yield from _state_problems(world, resource, oracle)
    # A site whose disk was replaced may have run what its application had: there, the state at the end counts.
    for name in sorted(set(oracle.site_list) - world.replaced):
        yield from _run_problems(world, world.nodes[name], resource, oracle)
    for name in sorted(oracle.ever_listed.difference(oracle.site_list)):
        yield from _leaver_problems(world, name, resource, oracle)


def _stay_apart(world: World, resource: str, oracle: History) -> bool:
    """Whether two resources of one name were made, and stay apart: one was sealed by several sites, and others, which
    had made theirs without knowledge of it, refuse that seal. It would take the effect of what they made, and they are
    too many to be outvoted; but they would also refuse it if one of the signers were a stolen site (ADR 0020)."""
    for name in oracle.site_list:
        replica = world.nodes[name].replica(resource)
        for id_ in replica.inbox.refused if replica else ():
            sealing = world.decided[resource].get(id_)
            if sealing and sealing.seal and name not in sealing.seal.sites:
                return any(fate.by and fate.by.origin == id_.origin for fate in oracle.orphans.values())
    return False


def _apart_problems(world: World, resource: str, oracle: History) -> Iterator[str]:
    """What must hold where two resources of one name stay apart: every site says so, and keeps what it acknowledged."""
    for name in oracle.site_list:
        replica = world.nodes[name].replica(resource)
        if replica is None or replica.state != health.State.DIVERGED:
            yield f"{name} does not say that there are two resources of this name"
        for id_ in sorted(world.acknowledged.get(resource, ())):
            if replica and id_.origin == replica.origin and not contains(replica.history.known, id_):
                yield f"{name} lost {id_}, which it acknowledged"


def _traffic_problems(world: World, resource: str) -> Iterator[str]:
    """Where no message is lost, little is sent twice: some of a snapshot, to a site that comes back; and a reply that a
    site sends with its next operation, while the hub passes it on."""
    sent, taken = world.documents_sent[resource], world.documents_taken[resource]
    if world.profile.is_quiet and sent > _MOST_SENT * taken + _SENT_ANYWAY:
        yield f"{sent} documents were sent, and {taken} were new where they came"


def _withdrawn_problems(world: World, resource: str) -> Iterator[str]:
    """What was withdrawn is in the log again, or was issued again as the same command."""
    for (about, id_, _), one in world.withdrawn.items():
        has_effect = one.op.verdict is not Verdict.VOID and one.op.kind is not Kind.SEAL
        if about != resource or not has_effect or one.op.verdict is Verdict.SUPERSEDED:
            continue
        if one.problem and one.op.origin.site not in world.last_sites(resource):
            continue  # the resource is no longer at that site, and the operator knows
        held = world.decided[resource].get(id_)
        again = _issued_again(world, resource, one.again) if one.again else None
        if again is None and (held is None or (held.stamp, held.payload) != (one.op.stamp, one.op.payload)):
            yield f"{id_} was withdrawn, and not issued again"
        elif again is not None and again.payload != one.op.payload:
            yield f"{id_} was issued again as something else"


def _issued_again(world: World, resource: str, id_: OpId) -> Operation | None:
    """An operation of that id which was decided; or was withdrawn itself since, which is judged like any other."""
    withdrawn = (one.op for (about, op, _), one in world.withdrawn.items() if (about, op) == (resource, id_))
    return world.decided[resource].get(id_) or next(withdrawn, None)


def _leaver_problems(world: World, name: str, resource: str, oracle: History) -> Iterator[str]:
    """Sites that left the list know that, and have run the command that deletes their copy, if there was one."""
    by, replica = oracle.site_list_op, world.nodes[name].replica(resource)
    if replica is not None and replica.is_involved:
        yield f"{name} left, and does not know it"
    if by is None or by.kind is not Kind.SITES or not by.payload.line:
        return
    if replica is None or not contains(replica.history.known, by.id):
        return
    start = world.apps[resource].start
    state = world.nodes[name].states.get(resource, start)
    if not has_deleted_copy(replica, by):
        yield f"{name} left, and has not deleted its copy"
    elif replica.replies[by.id, name].status is Status.OK and state != start:
        yield f"{name} left, and its copy is still there"


def oracle_of(world: World, resource: str) -> History:
    """The merge of all operations that were ever decided, without forgetting anything."""
    history = History({Matrix().hash: Matrix(), **world.matrices}.__getitem__)
    for op in sorted(_with_possible_stamps(world, resource), key=lambda op: op.stamp):
        history.add(op)
    return history


def _with_possible_stamps(world: World, resource: str) -> list[Operation]:
    """All operations. What a site made under a wrong clock and forgot, because it was alone, cannot be withdrawn; the
    clock is put right all the same, and what depends on it has earlier stamps. That concerns no site: none has it any
    more. But the merge of everything needs stamps that extend causality: so it comes right before what depends on it.
    """
    ops = list(world.decided[resource].values())
    if not world.profile.wrong_clocks:
        return ops
    least = {op.id: min([op.stamp, *(o.stamp for o in ops if op.is_before(o))]) for op in ops}
    if all(op.stamp == least[op.id] for op in ops):
        return ops
    places = {op.stamp: (least[op.id], op.stamp == least[op.id], op.stamp) for op in ops}
    places = {op.matrix.introduced: (op.matrix.introduced, True, op.matrix.introduced) for op in ops} | places
    stamps = {stamp: Stamp(n, 0, stamp.origin) for n, stamp in enumerate(sorted(places, key=places.__getitem__))}
    return [
        replace(op, stamp=stamps[op.stamp], matrix=MatrixRef(op.matrix.hash, stamps[op.matrix.introduced]))
        for op in ops
    ]


def _stamp_problems(world: World, name: str, replica: Replica) -> Iterator[str]:
    """In the log of a site, stamps extend causality, also after a wrong clock was put right."""
    ops = sorted(replica.history.ops.values(), key=lambda op: op.stamp) if world.profile.wrong_clocks else []
    for earlier, later in combinations(ops, 2):
        if later.is_before(earlier):
            yield f"{name} has {later.id} stamped after {earlier.id}, which depends on it"


def _replica_problems(world: World, name: str, replica: Replica, oracle: History) -> Iterator[str]:
    yield from log_problems(world, name, replica, oracle)
    yield from phase_problems(world, name, replica)
    yield from _health_problems(world, name, replica)
    yield from _stamp_problems(world, name, replica)
    if replica.applied.order_not_enforced and not _cannot_undo(world, name, replica, oracle):
        yield f"{name} could not enforce the order"
    if replica.applied.failed:
        yield f"{name} diverged: {_ids(list(replica.applied.failed))} failed there"


def _cannot_undo(world: World, name: str, replica: Replica, oracle: History) -> bool:
    """Whether a site ran what nothing can undo, and says so. The statements that a seal needs bind a store. If that is
    lost, the next store of the site may write before it has heard of the seal: its operation is orphaned after it ran,
    and without a `reset` it cannot be taken back."""
    if not replica.applied.order_not_enforced or world.apps[replica.resource].type.reset is not None:
        return False
    late = [id_ for id_ in oracle.orphans if id_.origin.site in world.replaced or not _has_signed(oracle, id_)]
    return any((replica.resource, id_) in world.nodes[name].ran for id_ in late)


def _has_signed(oracle: History, id_: OpId) -> bool:
    """Whether the site that made an orphaned operation has signed the seal that orphans it. A site that was just added
    may write before it has heard of anything."""
    by = oracle.orphans[id_].by
    sealing = oracle.ops.get(by) if by else None
    return sealing is not None and sealing.seal is not None and id_.origin.site in sealing.seal.sites


def log_problems(world: World, name: str, replica: Replica, oracle: History) -> Iterator[str]:
    """What is wrong with a site's log, whatever its application has."""
    replaced = {id_ for resource, id_, _ in world.withdrawn if resource == replica.resource}
    for id_ in sorted(world.acknowledged.get(replica.resource, ())):
        if not contains(replica.history.known, id_) and id_ not in replaced:
            yield f"{name} lost {id_}, which was acknowledged"
    if not _knows_all(replica, oracle, replaced):
        yield f"{name} knows {_short(replica.history.known)}, not {_short(oracle.known)}"
    expected = [op.id for op in oracle.effective if not contains(replica.history.folded, op.id)]
    effective = [op.id for op in replica.history.effective]
    if effective != expected and not comes_on_top(oracle):
        yield f"{name} has {_ids(effective)} effective, not {_ids(expected)}"
    yield from _storage_problems(world, name, replica, oracle)


def _knows_all(replica: Replica, oracle: History, replaced: set[OpId]) -> bool:
    """Whether a site knows what it should, and no more. What was withdrawn after it was sealed counts as forgotten."""
    known = replica.history.known
    more = [OpId(origin, n) for origin, n in known.items() if n > oracle.known.get(origin, 0)]
    return covers(known, oracle.known) and all(id_ in replaced for id_ in more)


def phase_problems(world: World, name: str, replica: Replica) -> Iterator[str]:
    """What a site has not done yet."""
    if replica.is_closed:
        yield f"{name} refuses what clients submit: it waits until it can forget {replica.resource}"
    if replica.slot.running or replica.drafts or replica.applied.unknown or replica.inbox.waiting:
        yield f"{name} is not done: {_todo(replica)}"
        for id_, why in replica.inbox.refused.items():
            yield f"{name} refuses {id_} of an honest site: {why}"
    else:
        for id_ in world.decided[replica.resource]:
            if (phase := phase_at(replica, id_)) is not None and phase < Phase.SETTLED:
                yield f"{name} is at rest, and {id_} is only {phase.name}"


def _storage_problems(world: World, name: str, replica: Replica, oracle: History) -> Iterator[str]:
    gone = [one.op for one in world.withdrawn.values() if one.resource == replica.resource]
    withdrawn = {op.matrix.hash for op in gone if op.matrix.introduced == op.stamp}
    if replica.matrix.hash != oracle.matrix.hash and oracle.matrix.hash not in withdrawn:
        yield f"{name} goes by another matrix than the newest"
    kept = {d.id for d in world.nodes[name].disk.of_resource(replica.resource) if isinstance(d, Operation)}
    if kept != replica.history.ops.keys() | {draft.id for draft in replica.drafts}:
        yield f"{name} keeps {len(kept)} operations on disk, and {len(replica.history.ops)} in memory"


def _health_problems(world: World, name: str, replica: Replica) -> Iterator[str]:
    """The state that a site counts the resource in must be the one that it would compute; `converged` may be late."""
    ledgers = (d for d in world.nodes[name].disk.of_resource(replica.resource) if isinstance(d, Ledger))
    saved, computed = next((ledger.state for ledger in ledgers), ""), health.state_of(replica)
    if computed is health.State.CONVERGED and tombstones.is_tombstone(replica):
        computed = health.State.DELETED
    if saved != replica.state:
        yield f"{name} has saved the state {saved or 'none'}, and has {replica.state} in memory"
    if computed is health.State.UNKNOWN:
        return  # not in memory: nobody has reported to the copy that is looked at here
    is_late = computed in {health.State.CONVERGED, health.State.DELETED} and saved in {
        health.State.CONVERGING,
        health.State.UNKNOWN,
    }
    if saved != computed and not is_late:
        yield f"{name} counts it as {saved or 'nothing'}, and it is {computed}"


def _todo(replica: Replica) -> str:
    parts = {
        "running": replica.slot.running,
        "drafts": [str(draft.id) for draft in replica.drafts],
        "unknown": [str(unknown.id) for unknown in replica.applied.all_unknown],
        "waiting": [str(id_) for id_ in replica.inbox.waiting],
    }
    return ", ".join(f"{what}: {which}" for what, which in parts.items() if which)


def _state_problems(world: World, resource: str, oracle: History) -> Iterator[str]:
    app = world.apps[resource]
    states = {name: world.nodes[name].states.get(resource, app.start) for name in oracle.site_list}
    if any(state != states[oracle.site_list[0]] for state in states.values()):
        yield f"the application's states differ: {states}"
    elif not app.varies and not comes_on_top(oracle):
        ops = oracle.effective
        expected = app.expected(ops) if app.expected else replayed(app.start, ops, app.run)
        for name, state in states.items():
            if state != expected:
                yield f"{name} has the state {state!r}, and the operations give {expected!r}"
                return


def replayed(state: State, ops: list[Operation], run: object) -> State:
    """The state after these operations; one that fails changes nothing."""
    for op in ops:
        try:
            state = run(state, op.payload.line)  # type: ignore[operator]
        except (RefusedError, ValueError, TypeError):
            continue
    return state


def _run_problems(world: World, node: Node, resource: str, oracle: History) -> Iterator[str]:
    """Nothing is applied on top of itself, and causes run before their effects.

    A replace operation may run out of turn while something before it is UNKNOWN, and become UNKNOWN itself. If the
    first one is resolved by then, all of them run, and the replace operation once more: the last run counts. And what
    an operation superseded before it was orphaned has its effect again: it may run after others that depend on it, or
    are orphans now.
    """
    ops, matrix = world.decided[resource], world.apps[resource].matrix
    first: dict[OpId, int] = {}
    last: dict[OpId, int] = {}
    present: set[OpId] = set()  # operations that the application's state holds, by its own log
    for place, execution in enumerate(node.log):
        op = execution.op
        if execution.resource != resource or not execution.ok or execution.partial:
            continue
        if op is None or (op in ops and ops[op].kind is Kind.SITES):
            present.clear()  # a reset, a checkpoint written, or the copy of a site that left
        elif op in ops:
            present = {other for other in present if not matrix.replaces(ops[op].key, ops[other].key)}
            if op in present:
                yield f"{node.name} applied {op} twice"
            present.add(op)
            first.setdefault(op, place)
            last[op] = place
    if len({op.matrix.hash for op in ops.values()}) > 1:
        return  # under other rules an operation that was skipped before may have run
    orphans = [ops[id_] for id_ in oracle.orphans if id_ in ops]
    back = {id_ for id_ in first if any(superseding_rule(orphan, ops[id_], matrix) for orphan in orphans)}
    for later, place in ((op, place) for op, place in last.items() if op not in oracle.orphans):
        for earlier, earlier_place in ((op, place) for op, place in first.items() if op not in back):
            if ops[earlier].is_before(ops[later]) and place < earlier_place:
                yield f"{node.name} ran {later} before {earlier}, on which it depends"


def _ids(ids: list[OpId]) -> str:
    return "[" + " ".join(map(str, ids)) + "]"


def _short(vector: object) -> str:
    return " ".join(f"{origin.site}:{n}" for origin, n in sorted(vector.items()))  # type: ignore[attr-defined]
