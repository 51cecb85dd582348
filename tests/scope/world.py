"""A small world for tests: four sites in a row, 4 ms apart, and the papers' names beside them."""

from cheops.scope import Route, SiteInfo, Snapshot, parse, resolve

SERVICES = frozenset({"compute", "image", "network", "s", "t", "A", "B", "Nova", "Glance", "serviceA"})


def world(*names: str, down: tuple[str, ...] = (), here: str | None = None, step_ms: float = 4) -> Snapshot:
    """Sites in a row: neighbours are `step_ms` apart. The first one is here."""
    names = names or ("site1", "site2", "site3", "site4")
    sites = {name: SiteInfo(name, SERVICES, up=name not in down) for name in names}
    rtts_ms = {
        frozenset((one, other)): abs(i - j) * step_ms
        for i, one in enumerate(names)
        for j, other in enumerate(names)
        if i < j
    }
    return Snapshot(here or names[0], sites, rtts_ms)


def routed(text: str, service: str | None = None, snapshot: Snapshot | None = None) -> Route:
    return resolve(parse(text), service, snapshot or world())
