"""What clients do in a simulated history, and its faults: operations, cuts, crashes, clocks that jump.

A profile says how much of each; the seed of the world says when and where.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cheops.engine import incarnation
from cheops.engine.documents import Ledger, key_of
from cheops.engine.events import Submitted
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.causality import contains, covers
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, Operation, Reply, content_hash
from cheops.sim.apps import ALL_APPS, APPS, OTHER_APPS, App
from cheops.sim.node import Backup, Node

if TYPE_CHECKING:
    from cheops.sim.world import World

_WAIT_MS = 150


@dataclass(frozen=True)
class Profile:
    """What a simulated history may hold. Numbers are probabilities, or counts per history."""

    name: str
    operations: int = 40
    resources: int = 2
    duration_ms: int = 12_000
    delay_ms: tuple[int, int] = (1, 60)
    loss: float = 0.05
    duplication: float = 0.05
    long_delay: float = 0.05  # far longer than usual: reordering
    partitions: int = 4
    one_way_cuts: int = 2
    crashes: int = 4
    crash_between_effects: float = 0.002
    skew_ms: int = 5_000
    clock_jumps: int = 3
    trouble: float = 0.03  # the application refuses the connection; half as often it times out
    bad_command: float = 0.05  # fails at every site
    deletes: float = 0.02
    forces: float = 0.02
    site_changes: float = 0.03
    matrix_changes: float = 0.02
    other_rules: bool = False  # matrices that differ in more than their hash
    rebirths: int = 0
    rot: int = 0  # stored operations that a disk changes
    patient: bool = False  # a rebirth waits until another site has all, rather than not to happen
    forgettings: int = 0  # of a site, which is admitted again later
    apps: tuple[str, ...] = tuple(APPS)
    batch: int = 500  # documents in a message
    waiting: int = 10_000  # operations that wait for others
    backups: int = 0  # an old copy of a site's disk is put back, sometimes with its application's state
    wrong_clocks: int = 0  # a clock is an hour ahead for seconds; sites refuse what is stamped in the future
    lost_stores: int = 0  # a site loses its disk, and its application keeps its state
    policed: bool = False  # with the policies that count where sites have identities
    byzantine: bool = False  # one site is hostile (byzantine.py)
    spared: frozenset[str] = frozenset()  # tactics that the hostile site does not use (mutator.py)
    tactics: frozenset[str] = frozenset()  # those that it uses, each of them; none: some, drawn from the seed
    tiny: float = 0.25  # of the histories in which messages and queues hold only a few documents
    http: bool = False  # the applications are HTTP services behind gateways (http_world.py)
    tombstone_ms: int = 3_600_000  # for which deleted resources are remembered; longer than most histories
    tombstones_vary: bool = False  # some sites remember them for longer
    late_writes: float = (
        0  # a client writes elsewhere just when a site has promised to add nothing to a deleted resource
    )
    large: bool = False  # a mesh of up to 1,000 sites (large_world.py); operations and resources are per site
    bursts: int = 0  # short periods with all the operations, long pauses between them; 0: operations at any time

    @property
    def is_quiet(self) -> bool:
        """Whether every message arrives, once, and every site is always up: then nothing need be sent twice."""
        lost = (self.loss, self.duplication, self.long_delay, self.partitions, self.one_way_cuts)
        return not any((*lost, self.crashes, self.crash_between_effects, self.skew_ms, self.clock_jumps))

    def chosen_tactics(self, drawn: Iterable[str], possible: Iterable[str]) -> list[str]:
        """What a hostile site uses of some tactics: those that the profile names, or those that were drawn."""
        return sorted((self.tactics.intersection(possible) if self.tactics else set(drawn)) - self.spared)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("hostile"),
        Profile(
            "calm", loss=0, duplication=0, long_delay=0, partitions=0, one_way_cuts=0, crashes=0,
            crash_between_effects=0, skew_ms=0, clock_jumps=0, trouble=0,
        ),
        Profile(
            "network", crashes=0, crash_between_effects=0, trouble=0, loss=0.2, duplication=0.2, partitions=8,
        ),
        Profile("crashes", crashes=12, crash_between_effects=0.01, trouble=0.1, partitions=1),
        Profile("long", operations=250, duration_ms=40_000, resources=3, partitions=10, crashes=10),
        Profile("moving", site_changes=0.15, rebirths=1, deletes=0.05),
        Profile("rot", rot=12, crashes=8, partitions=2, trouble=0.01),
        Profile(
            "joins", policed=True, operations=80, tiny=1, site_changes=0.1, rebirths=3, loss=0.1, partitions=2,
            crashes=2,
        ),
        Profile(
            "quiet", policed=True, operations=80, tiny=0.5, site_changes=0.1, loss=0, duplication=0,
            long_delay=0, partitions=0, one_way_cuts=0, crashes=0, crash_between_effects=0, skew_ms=0, clock_jumps=0,
            trouble=0,
        ),
        Profile("restored", backups=2, lost_stores=1, crashes=2, partitions=3, site_changes=0.02, matrix_changes=0.01),
        Profile("lost", lost_stores=3, operations=25, crashes=1, partitions=1, deletes=0, forces=0, matrix_changes=0),
        Profile("clocks", wrong_clocks=2, crashes=2, partitions=3, site_changes=0.02, matrix_changes=0.01),
        Profile("rules", matrix_changes=0.15, other_rules=True),
        Profile(
            "members", forgettings=3, site_changes=0.05, batch=2, waiting=5, operations=50,
            apps=("counter", "file", "set", "lenient-counter", "parallel-file"),
        ),
        Profile("reborn", rebirths=4, patient=True, site_changes=0.05, partitions=2, crashes=2),
        Profile(
            "remedies", apps=("stock", "drained", "pcounter"), crashes=20, crash_between_effects=0.01, trouble=0.2,
            partitions=10, forces=0.1, deletes=0,
        ),
        Profile("kinds", apps=tuple(OTHER_APPS), batch=3, matrix_changes=0.005),
        Profile("texts", apps=("text",), partitions=8),
        Profile("policed", policed=True, site_changes=0.25, partitions=8, matrix_changes=0.05),
        Profile(
            "byzantine", byzantine=True, policed=True, operations=30, duration_ms=8_000, loss=0.02, duplication=0.02,
            long_delay=0.02, partitions=1, one_way_cuts=0, crashes=1, crash_between_effects=0.0005, skew_ms=1_000,
            clock_jumps=1, trouble=0.005, bad_command=0.02,
        ),
        Profile(
            "deletions", tombstone_ms=24_000, tombstones_vary=True, late_writes=0.5, operations=60, duration_ms=130_000,
            bursts=3, resources=5, deletes=0.35,
            site_changes=0.03, partitions=8, crashes=8, skew_ms=1_000, bad_command=0.02,
        ),
        Profile(
            "large", large=True, operations=15, resources=10, duration_ms=30_000, loss=0, duplication=0, long_delay=0,
            skew_ms=500, clock_jumps=0, crash_between_effects=0, trouble=0, bad_command=0.01, tiny=0,
            apps=("counter", "file", "set"),
        ),
        Profile("http", http=True, operations=60, deletes=0.06, crashes=3, crash_between_effects=0.001),
    )
}  # fmt: skip


def drawn_limits(random: Random, profile: Profile) -> Limits:
    """Low ones; in some histories so low that a log takes many messages, and a snapshot many pieces."""
    limits = Limits(
        idle_ms=3_000,
        seal_after=3,
        parked=1,
        batch=profile.batch,
        waiting=profile.waiting,
        tombstone_ms=profile.tombstone_ms,
    )
    if random.random() >= profile.tiny:
        return limits
    batch, waiting = random.randint(2, 6), random.randint(4, 30)
    return dataclasses.replace(limits, batch=batch, batch_bytes=random.choice((1_500, 10_000)), waiting=waiting)


def vary_tombstones(nodes: Iterable[Node], random: Random) -> None:
    """Operators may configure sites differently."""
    for node in nodes:
        limits = node.settings.limits
        longer_ms = limits.tombstone_ms * random.choice((100, 100, 110, 180)) // 100
        node.settings = dataclasses.replace(node.settings, limits=dataclasses.replace(limits, tombstone_ms=longer_ms))


_HOUR_MS = 3_600_000


def schedule(world: "World") -> None:
    """Schedule operations and faults, all drawn from the seed of the world."""
    random, profile = world.random, world.profile
    names = list(world.nodes)
    if not profile.http:
        _schedule_operations(world)
    for _ in range(profile.partitions):
        world.after(random.randint(0, profile.duration_ms), lambda: _partition(world))
    for _ in range(profile.one_way_cuts):
        world.after(random.randint(0, profile.duration_ms), lambda: _one_way(world))
    for _ in range(profile.crashes):
        world.after(random.randint(0, profile.duration_ms), lambda: _crash(world, random.choice(names)))
    for _ in range(profile.clock_jumps):
        world.after(random.randint(0, profile.duration_ms), lambda: _jump(world, random.choice(names)))
    for _ in range(profile.rebirths):
        world.after(random.randint(3_000, profile.duration_ms), lambda: _lose_disk(world, random.choice(names)))
    for _ in range(profile.rot):
        world.after(random.randint(0, profile.duration_ms), lambda: _rot(world, random.choice(names)))
    for _ in range(profile.forgettings):
        world.after(random.randint(500, profile.duration_ms), lambda: world.membership.forget(random.choice(names)))
    _schedule_replacements(world, names)
    for node in world.nodes.values():
        node.skew_ms = random.randint(-profile.skew_ms, profile.skew_ms)


def _schedule_replacements(world: "World", names: list[str]) -> None:
    """Stores that are replaced or lost, and clocks that are wrong for long."""
    random, profile = world.random, world.profile
    for _ in range(profile.backups):
        taken_ms = random.randint(1_000, profile.duration_ms - 1_000)
        world.after(taken_ms, lambda: _back_up(world, random.choice(names)))
    for _ in range(profile.lost_stores):
        world.after(random.randint(3_000, profile.duration_ms), lambda: _lose_store(world, random.choice(names)))
    # Always the same site: two that are wrong together accept what the other one makes, and nobody can take that back.
    wrong = random.choice(names) if profile.wrong_clocks else ""
    for _ in range(profile.wrong_clocks):
        world.after(random.randint(1_000, profile.duration_ms), lambda: _set_wrong(world, wrong))


def _schedule_operations(world: "World") -> None:
    random, profile = world.random, world.profile
    resources = [_resource(world, number) for number in range(profile.resources)]
    for number in range(profile.operations):
        resource = resources[number] if number < len(resources) else random.choice(resources)
        at_ms = 5 if number < len(resources) else _time_of_operation(world)
        world.after(at_ms, lambda r=resource, n=number: _submit(world, r, n))  # type: ignore[misc]


_BURST_MS = 8_000


def _time_of_operation(world: "World") -> int:
    random, profile = world.random, world.profile
    if not profile.bursts:
        return random.randint(10, profile.duration_ms)
    begin_ms = random.randrange(profile.bursts) * profile.duration_ms // profile.bursts
    return begin_ms + random.randint(10, _BURST_MS)


class _Resource:
    def __init__(self, name: str, app: App, sites: tuple[str, ...]) -> None:
        self.name = name
        self.app = app
        self.sites = sites
        self.first = sites
        self.matrix = app.matrix
        self.changes = 0


def _resource(world: "World", number: int) -> _Resource:
    app = ALL_APPS[world.random.choice(world.profile.apps)]
    names = list(world.nodes)
    sites = tuple(sorted(world.random.sample(names, world.random.randint(min(2, len(names)), len(names)))))
    resource = _Resource(f"{app.name}-{number}", app, sites)
    world.apps[resource.name] = app
    return resource


def _submit(world: "World", resource: _Resource, number: int) -> None:
    random, profile = world.random, world.profile
    if profile.policed:  # no site accepts an operation of a site that was never on a list
        resource.sites = tuple(name for name in _last_list(world, resource) if name in world.nodes) or resource.first
    site = random.choice(resource.sites)
    kind, type_, line = Kind.NORMAL, *resource.app.invent(random)
    # A client may not know whether its site knows the resource: then it sends the sites and the matrix again.
    new = number < profile.resources or random.random() < 0.3
    sites: tuple[str, ...] | None = resource.sites if new else None
    matrix = resource.matrix if new else None
    luck = random.random()
    if number < profile.resources:
        pass
    elif luck < profile.bad_command:
        line = line if resource.app.type.parallel else "fail"  # it would fail everywhere after it was accepted
    elif luck < profile.bad_command + profile.deletes:
        kind, type_, line = Kind.DELETE, "delete", reset_line(resource.app)
    elif luck < profile.bad_command + profile.deletes + profile.forces:
        kind, type_, line = Kind.FORCE, "force", reset_line(resource.app)
    elif luck < profile.bad_command + profile.deletes + profile.forces + profile.site_changes:
        kind, type_, line = Kind.SITES, "sites", random.choice(("", reset_line(resource.app)))
        sites = resource.sites = _other_sites(world, resource)
    elif luck > 1 - profile.matrix_changes:
        matrix = resource.matrix = _other_matrix(resource, other_rules=profile.other_rules)
        world.inject("matrix changed")
    world.inject("operation submitted", f"{site} gets {type_} {line!r} for {resource.name} {sites or ''}".rstrip())
    request = f"{resource.name}#{number}"
    event = Submitted(request, resource.name, type_, Command(line), kind, resource.app.name, sites, matrix)
    world.deliver(site, event)


def _last_list(world: "World", resource: _Resource) -> tuple[str, ...]:
    """The newest list of sites that was ever decided, though not every site may know it yet."""
    return (world.last_sites(resource.name) if resource.name in world.decided else ()) or resource.first


def reset_line(app: App) -> str:
    """The command that takes an application back to its start."""
    return app.type.reset.line if app.type.reset else "wipe"


def _other_sites(world: "World", resource: _Resource) -> tuple[str, ...]:
    names = list(world.nodes)
    sites = set(resource.sites) ^ {world.random.choice(names)}
    # One site stays: a site that knows no site of a resource cannot distinguish it from another one of its name. Nor
    # can one that is alone on the list, and does not know that yet.
    if world.profile.policed:
        sites.add(resource.first[0])
    if len(sites) == 1:
        replica = world.nodes[next(iter(sites))].replica(resource.name)
        return tuple(sites) if replica and replica.history.known else tuple(names)
    return tuple(sorted(sites)) or tuple(names)


def _other_matrix(resource: _Resource, *, other_rules: bool) -> Matrix:
    """Another matrix that also fits the application: one with the same rules, or one without any, by which everything
    is ordered (which needs a type that has a reset)."""
    resource.changes += 1
    bare = other_rules and resource.app.type.reset is not None and resource.changes % 2
    entries = () if bare else resource.app.matrix.entries
    return Matrix((*entries, Entry("never", f"used-{resource.changes}", Result.TAKE_BOTH)))


def _partition(world: "World") -> None:
    names = list(world.nodes)
    side = set(world.random.sample(names, world.random.randint(1, max(1, len(names) - 1))))
    links = {(a, b) for a in names for b in names if (a in side) != (b in side)}
    world.inject("partition", f"partition: {', '.join(sorted(side))} | the others")
    _cut(world, links, world.random.randint(300, 4_000))


def _one_way(world: "World") -> None:
    a, b = world.random.sample(list(world.nodes), 2)
    world.inject("one-way cut", f"one-way cut: nothing from {a} to {b}")
    _cut(world, {(a, b)}, world.random.randint(300, 4_000))


def _cut(world: "World", links: set[tuple[str, str]], duration_ms: int) -> None:
    world.cut |= links
    world.after(duration_ms, lambda: world.cut.difference_update(links))


def _crash(world: "World", name: str) -> None:
    world.inject("crash")
    world.crash(name, world.random.randint(50, 3_000))


def _jump(world: "World", name: str) -> None:
    by_ms = world.random.randint(-world.profile.skew_ms, world.profile.skew_ms)
    world.nodes[name].skew_ms += by_ms
    world.inject("clock jump", f"the clock of {name} jumps by {by_ms} ms")


def _rot(world: "World", name: str) -> None:
    """The disk of a site changes the command of an operation. It shows when the operation is read again."""
    disk = world.nodes[name].disk
    ops = [d for d in disk.durable.values() if isinstance(d, Operation) and d.verdict and d.payload.line]
    if ops:
        op = world.random.choice(ops)
        _, line = world.apps[op.resource].invent(world.random)
        disk.rot(key_of(op), replace(op, payload=Command(line)))
        world.inject("bit rot", f"the disk of {name} changes {op.id} of {op.resource} to '{line}'")


def _set_wrong(world: "World", name: str) -> None:
    """The clock of a site is an hour ahead for a while, and then put right."""
    node = world.nodes[name]
    node.skew_ms += _HOUR_MS
    world.inject("clock wrong for long", f"the clock of {name} is an hour ahead")

    def put_right() -> None:
        node.skew_ms -= _HOUR_MS
        world.record(f"the clock of {name} is right again")

    world.after(world.random.randint(500, 4_000), put_right)


def _lose_disk(world: "World", name: str) -> None:
    """A site loses its disk, once everything that was acknowledged there is known elsewhere."""
    if world.profile.patient:
        if _has_nothing_of_its_own(world, name):
            world.lose_disk(name)
        elif not world.calm:
            world.after(_WAIT_MS, lambda: _lose_disk(world, name))
    elif _is_synced(world, name) and _is_replaceable(world, name):
        world.lose_disk(name)


def _is_synced(world: "World", name: str) -> bool:
    """Whether, by what a site knows itself, every other site has all that it has."""
    ledgers = [d for d in world.nodes[name].disk.durable.values() if isinstance(d, Ledger)]
    return not any(ledger.unsynced for ledger in ledgers)


def _has_nothing_of_its_own(world: "World", name: str) -> bool:
    """Whether for each resource at a site, another site that takes part in it has all that this one has."""
    node = world.nodes[name]
    for resource in world.decided:
        replica = node.replica(resource)
        if replica is None or not (replica.history.known or replica.drafts):
            continue
        others = (world.nodes[other].replica(resource) for other in replica.sites if other != name)
        if replica.drafts or not any(o and covers(o.history.known, replica.history.known) for o in others):
            return False
    return node.site is not None


def _lose_store(world: "World", name: str) -> None:
    # The application may hold the effect of a draft. If nothing is decided of the resource, all that is known of it
    # goes with the store, and another site may begin it anew (docs/limitations.md).
    drafts = any(replica.drafts for resource in world.apps if (replica := world.nodes[name].replica(resource)))
    if not drafts and _has_nothing_of_its_own(world, name) and _is_replaceable(world, name):
        world.lose_store(name)
    elif not world.calm:
        world.after(_WAIT_MS, lambda: _lose_store(world, name))


def _back_up(world: "World", name: str) -> None:
    """Copy the disk of a site, and put the copy back some seconds later."""
    backup, with_application = world.nodes[name].back_up(), world.random.random() < 0.5

    def restore() -> None:
        if world.calm or not _is_replaceable(world, name):
            return
        if _is_noticeable(world, name, backup):
            world.restore_backup(name, backup, with_application=with_application)
        else:
            world.after(_WAIT_MS, restore)

    world.after(world.random.randint(500, 5_000), restore)


def _is_noticeable(world: "World", name: str, backup: Backup) -> bool:
    """Whether the others will see that a copy is old, if it matters. A heartbeat shows them how far a store has come.
    What a site has got and reported after its last heartbeat, nobody would send again to a copy from before: agents
    have a second for that (docs/limitations.md)."""
    node = world.nodes[name]
    if any(backup.disk.starts.is_later(mark, backup.disk.saved) for (_, of), mark in world.marks.items() if of == name):
        return True
    new = (document for key, document in node.disk.durable.items() if key not in backup.disk.durable)
    return not any(isinstance(one, Operation | Reply) and one.origin.site != name for one in new)


def _is_replaceable(world: "World", name: str) -> bool:
    """Whether all operations that a site has are known elsewhere, and nothing waits to be issued again. Also those that
    other sites made: their stores may have been lost since."""
    node = world.nodes[name]
    if node.site is None:
        return False
    others = [other for other in world.nodes.values() if other is not node]
    for resource in world.decided:
        ops = [d for d in node.disk.of_resource(resource) if isinstance(d, Operation)]
        replicas = [replica for other in others if (replica := other.replica(resource))]
        if not all(any(_has(replica, op) for replica in replicas) for op in ops if op.verdict is not None):
            return False
        replica = node.replica(resource)
        if replica is None:
            continue
        if replica.sites == (name,) or incarnation.waiting(replica) or (replica.withdrawn and replica.drafts):
            return False  # nobody else has that resource, or what is issued again
    return True


def _has(replica: Replica, op: Operation) -> bool:
    held = replica.history.ops.get(op.id)
    return contains(replica.history.known, op.id) and (held is None or content_hash(held) == content_hash(op))
