"""The functions that come with scope-lang: `around`, and the four consistency levels."""

from cheops.scope.errors import ScopeResolutionError
from cheops.scope.functions import Context, Function, Functions, Kind, Parameter
from cheops.scope.tree import (
    Across,
    And,
    At,
    Call,
    Consistency,
    Duration,
    Leveled,
    Location,
    Nowhere,
    Otherwise,
)
from cheops.text import shortened


def around(context: Context, centre: At, radius: Duration) -> Location:
    """The sites that have the service within `radius` of `centre`, nearest first, as `a ; b ; c`.

    The centre itself is the nearest of all. A site whose distance is not known is not near.
    """
    snapshot = context.snapshot
    distances = [
        (rtt_ms, site.name)
        for site in snapshot.offering(context.service)
        if (rtt_ms := snapshot.rtt_ms(centre.site, site.name)) is not None
    ]
    near = [At(name) for rtt_ms, name in sorted(distances) if rtt_ms <= radius.ms]
    if not near:
        return _nothing_near(context, centre, radius, sorted(distances))
    return near[0] if len(near) == 1 else Otherwise(tuple(near))


def _nothing_near(
    context: Context, centre: At, radius: Duration, distances: list[tuple[float, str]]
) -> Nowhere:
    wanted = f"service '{context.service}'" if context.service else "site"
    hint = "No round-trip time from there is known."
    if distances:
        hint = f"The nearest is '{distances[0][1]}', {distances[0][0]:g} ms away."
    return Nowhere(f"no {wanted} is known within {radius} of '{centre.site}'", hint)


def _level(level: Consistency, summary: str) -> Function:
    def expand(_context: Context, location: Location) -> Location:
        return _leveled(level, location)

    return Function(level.value, (Parameter("replication", Kind.LOCATION),), summary, expand)


def _leveled(level: Consistency, location: Location) -> Location:
    match location:
        case And():
            return Leveled(level, location)
        case Otherwise(parts):
            return Otherwise(tuple(_leveled(level, part) for part in parts))
        case Leveled(other, _):
            raise ScopeResolutionError(
                f"'{shortened(str(location))}' has a level already: it is either {other} or {level}"
            )
        case Nowhere():
            return location
        case At() | Across() | Call():
            raise ScopeResolutionError(
                f"{level}(…) is a level of replication, and '{shortened(str(location))}' is not replicated",
                hint=f"Put it around a whole replication: {level}(site1 & site2).",
            )


BUILTIN = Functions(
    (
        Function(
            "around",
            (Parameter("site", Kind.SITE), Parameter("radius", Kind.DURATION)),
            "the sites within a round-trip time of a site, nearest first, as a ; b ; c",
            around,
        ),
        _level(Consistency.NONE, "replicas get each request once; nothing is repeated or repaired"),
        _level(
            Consistency.EVENTUAL, "replicas become equal as soon as they can reach each other (the default)"
        ),
        _level(Consistency.ATOMIC, "a write happens at every replica or at none"),
        _level(Consistency.STRONG, "a majority of the replicas agrees on one order of all writes"),
    )
)
