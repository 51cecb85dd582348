"""What HAProxy's maps of flows and services hold. Pure.

`allowed` is what flows to this site's own instance must not have (see guarding.py); None: there are none.
"""

from collections.abc import Iterable, Iterator, Mapping

from cheops.gateway.fast import naming
from cheops.gateway.fast.table import Flow, Kind
from cheops.gateway.headers import as_header, site_name

Entry = tuple[str, str]


def flow_entries(service: str, flows: Iterable[tuple[str, Flow]], allowed: str | None) -> Iterator[Entry]:
    """The map of a service: requests without a scope, and its flows."""
    if allowed is not None:
        yield naming.LOCAL_KEY, naming.value_of(naming.own_of(service), flags=allowed)
    for key, flow in flows:
        if (value := value_of_flow(service, key, flow, allowed)) is not None:
            yield key, value


def value_of_flow(service: str, key: str, flow: Flow, allowed: str | None) -> str | None:
    target, flags = flow.target, ""
    if target.site is None:
        if allowed is None:
            return None
        flags = allowed
        backend = (naming.own_of if target.kind is Kind.LOCAL else naming.own_or_of)(service)
    else:
        name_of = naming.peer_of if target.kind is Kind.FORWARD else naming.peer_or_of
        backend = name_of(service, target.site)
    text = as_header(str(flow.scope))
    return naming.value_of(backend, "" if naming.key_of(text) == key else text, flags)


def services_for_others(flags: Mapping[str, str | None]) -> Iterator[Entry]:
    """What other gateways may ask of this site's own instances without being looked at."""
    for service, allowed in flags.items():
        if allowed is not None:
            yield site_name(service), naming.value_of(naming.sent_of(service), flags=allowed)
