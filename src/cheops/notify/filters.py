"""Which events a target wants. Pure."""

from fnmatch import fnmatchcase

from cheops.config.event_kinds import EventKind
from cheops.config.notify import TargetConfig
from cheops.notify.events import Event


def wants(target: TargetConfig, event: Event, site: str) -> bool:
    """Whether this site is to tell the target of an event. All filters must agree.

    What happened at another site is that site's to tell, unless the target asks for `others`. So where all
    sites have the same targets, each event is told by one of them.
    """
    if event.kind is EventKind.DROPPED:
        return True
    return (
        _is_wanted_kind(target, event.kind)
        and (target.others or event.site == site)
        and (not target.types or event.resource_type in target.types)
        and (not target.operations or event.type in target.operations)
        and (not target.resources or _matches(event.resource, target.resources))
        and (not target.statuses or event.status in target.statuses)
    )


def _is_wanted_kind(target: TargetConfig, kind: EventKind) -> bool:
    return target.summary if kind is EventKind.SUMMARY else kind in target.on


def _matches(resource: str, patterns: tuple[str, ...]) -> bool:
    return bool(resource) and any(fnmatchcase(resource, pattern) for pattern in patterns)
