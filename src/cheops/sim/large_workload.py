"""What happens in a large world: resources in regions, operations, crashes, cuts, sites that join and are forgotten."""

from collections.abc import Callable
from functools import partial

from cheops.engine.events import Submitted
from cheops.log.operation import Command, Kind
from cheops.sim.apps import ALL_APPS, App
from cheops.sim.large_world import REGION, LargeWorld, is_slow

LEAST_SITES = 2 * REGION + 10  # a region without faults, one by satellite, and some of another one
WARM_UP_MS = 16_000  # until the sites of a region have heard each other, and know how long their messages take
_MEET_MS, _MEET_EVERY_MS = 5_000, 200
_FEWEST, _MOST = 3, 20  # sites of a resource
_SPANNING = 0.05  # of the resources have sites in two regions
_CRASHES, _CUT_SITES, _CUT_REGIONS, _SPLITS = 0.04, 0.01, 0.05, 0.05  # of the sites, and of the regions
_CHANGES = 2  # sites that join, and as many that are forgotten
_SHORTEST_MS, _LONGEST_MS = 1_000, 6_000  # a crash or a cut


class _Resource:
    def __init__(self, name: str, app: App, sites: tuple[str, ...]) -> None:
        self.name = name
        self.app = app
        self.sites = sites
        self.operations = 0


def schedule(world: LargeWorld) -> None:
    """Schedule all of it, drawn from the seed of the world."""
    names = list(world.nodes)
    # Those that are forgotten have no resources: an operator moves them away before.
    leaving = names[-_CHANGES:]
    members = [name for name in names if name not in leaving]
    resources = [_resource(world, number, members) for number in range(world.profile.resources)]
    start_ms, duration_ms = WARM_UP_MS, world.profile.duration_ms
    for number in range(world.profile.operations):
        resource = resources[number] if number < len(resources) else world.random.choice(resources)
        # A resource begins in the first part of the time, so that others can follow.
        share = number / len(resources) * 0.6 if number < len(resources) else world.random.uniform(0.1, 1)
        world.after(start_ms + int(share * duration_ms), partial(_submit, world, resource))
    _schedule_meetings(world, members)
    _schedule_faults(world, members)
    for number, name in enumerate(leaving):
        at_ms = start_ms + duration_ms * (2 * number + 1) // (2 * _CHANGES)
        world.after(at_ms, partial(_forget, world, name, members))
    for number in range(_CHANGES):
        at_ms = start_ms + duration_ms * (2 * number) // (2 * _CHANGES)
        world.after(at_ms, partial(_join, world, number, members))


def _schedule_meetings(world: LargeWorld, members: list[str]) -> None:
    """By satellite the first message to a site counts as lost before its answer can be back: an agent learns how long
    that takes. So each site of such a region writes once before anything is counted."""
    app = ALL_APPS[world.profile.apps[0]]
    for region in {world.region[site] for site in members if world.is_slow((site,))}:
        sites = tuple(sorted(site for site in members if world.region[site] == region))
        resource = _Resource(f"{app.name}-of-region-{region}", app, sites)
        world.apps[resource.name] = app
        world.uncounted.add(resource.name)
        for number, site in enumerate(sites):
            at_ms = _MEET_MS + number * _MEET_EVERY_MS
            world.after(at_ms, partial(_submit, world, resource, site))


def _resource(world: LargeWorld, number: int, members: list[str]) -> _Resource:
    random = world.random
    app = ALL_APPS[random.choice(world.profile.apps)]
    regions = -(-len(members) // REGION)
    region = number % regions
    near = members[region * REGION : (region + 1) * REGION]
    other = random.randrange(regions)
    if random.random() < _SPANNING and not is_slow(region) and not is_slow(other):  # those would not have met
        near = sorted({*near[: REGION // 2], *members[other * REGION : other * REGION + REGION // 2]})
    count = min(len(near), random.randint(_FEWEST, _MOST))
    resource = _Resource(f"{app.name}-{number}", app, tuple(sorted(random.sample(near, count))))
    world.apps[resource.name] = app
    return resource


def _submit(world: LargeWorld, resource: _Resource, at: str | None = None) -> None:
    """A client writes, at this site or any of them."""
    up = [site for site in ((at,) if at else resource.sites) if world.is_running(site)]
    if not up:
        return
    random, number = world.random, resource.operations
    type_, line = resource.app.invent(random)
    if number and random.random() < world.profile.bad_command:
        line = "fail"
    site, is_new = random.choice(up), resource.name not in world.acknowledged
    sites, matrix = (resource.sites, resource.app.matrix) if is_new else (None, None)
    resource.operations += 1
    world.inject("operation submitted")
    request = f"{resource.name}#{number}"
    event = Submitted(request, resource.name, type_, Command(line), Kind.NORMAL, resource.app.name, sites, matrix)
    world.deliver(site, event)


def _schedule_faults(world: LargeWorld, members: list[str]) -> None:
    random, regions = world.random, -(-len(members) // REGION)

    def at_some_time(what: Callable[[], None], times: float) -> None:
        for _ in range(max(1, round(times))):
            world.after(WARM_UP_MS + random.randint(0, world.profile.duration_ms), what)

    at_some_time(lambda: _crash(world, random.choice(members)), _CRASHES * len(members))
    at_some_time(lambda: _cut(world, [random.choice(members)], "site cut off"), _CUT_SITES * len(members))
    # Not the first one, nor one by satellite: in a small mesh, too, some resources of both kinds must meet no fault.
    whole = [number for number in range(1, regions) if not is_slow(number)]
    at_some_time(lambda: _cut(world, _region(members, random.choice(whole)), "region cut off"), _CUT_REGIONS * regions)
    at_some_time(lambda: _cut(world, _region(members, random.choice(whole))[::2], "region split"), _SPLITS * regions)


def _region(members: list[str], number: int) -> list[str]:
    return members[number * REGION : (number + 1) * REGION]


def _crash(world: LargeWorld, site: str) -> None:
    if world.is_running(site):
        world.inject("crash")
        world.crash(site, world.random.randint(_SHORTEST_MS, _LONGEST_MS))


def _cut(world: LargeWorld, sites: list[str], kind: str) -> None:
    world.inject(kind, f"{kind}: {sites[0]} and {len(sites) - 1} more")
    world.part(sites, object(), world.random.randint(_SHORTEST_MS, _LONGEST_MS))


def _join(world: LargeWorld, number: int, members: list[str]) -> None:
    """A site joins, and soon has a resource with sites of its region."""
    peer = _undisturbed(world, members)
    name, region = f"newcomer{number + 1}", world.region[peer]
    world.inject("site joined", f"{name} joins, and knows {peer}")
    world.add(name, region, peer)
    near = [site for site in members if world.region[site] == region][:_FEWEST]
    app = ALL_APPS[world.profile.apps[0]]
    resource = _Resource(f"{app.name}-of-{name}", app, (name, *near))
    world.apps[resource.name] = app
    world.after(_SHORTEST_MS, lambda: _submit(world, resource))


def _forget(world: LargeWorld, name: str, members: list[str]) -> None:
    here = _undisturbed(world, members)
    world.inject("site forgotten", f"{here} forgets {name}")
    world.forget(name, here)


def _undisturbed(world: LargeWorld, members: list[str]) -> str:
    running = [site for site in members if world.is_running(site) and site not in world.side]
    return world.random.choice(running)
