"""The part of HAProxy's configuration for the application's own calls, at `services.NAME.outbound`. Pure.

The scope of a call is its own, or what its carriers stand for (carrying.py): all of them, in one key. Whoever
calls here is the application, so nobody is believed to be another gateway.
"""

from collections.abc import Iterator

from cheops.config.address import Address
from cheops.gateway.fast import naming
from cheops.gateway.fast.frontend import (
    MOVED,
    NAMES,
    about_client,
    at,
    exceptions,
    in_pattern,
    listed,
    logged,
    plain_acls,
    unusual,
)
from cheops.gateway.fast.layout import ServiceLayout

_TRACE = r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"  # see carriers.TRACEPARENT


def outbound_frontend(service: ServiceLayout, outbound: Address, carriers: tuple[str, ...]) -> Iterator[str]:
    """`carriers` are those of all services."""
    agent, flows = naming.calls_of(service.name), naming.map_of(service.name)
    yield f"frontend out.{naming.slug(service.name)}"
    yield f"  bind {at(outbound)}"
    yield MOVED
    yield f"  acl unusual req.hdrs -m reg '{_unusual_call(carriers)}'"
    yield from plain_acls()
    yield "  acl odd var(txn.odd) -m bool"
    yield "  acl scoped var(txn.scope) -m found"
    yield "  acl carried var(txn.carried) -m found"
    names = f"req.hdr_names -m reg '{listed(carriers)}'" if carriers else "always_false"
    yield f"  acl carrying {names}"
    yield from about_client(outbound)
    yield "  http-request set-var(txn.odd) bool(true) if unusual || !plain_line || !plain_target"
    yield "  http-request set-var(txn.scope) req.fhdr(scope),url_enc"
    if carriers:
        yield from _recovered(carriers)
    yield "  http-request set-var(txn.told) var(txn.scope)"
    yield f"  http-request set-var(txn.told) str({naming.RECOVERED}),concat(,txn.scope) if carried"
    yield from logged(service, "txn.told")
    yield f"  http-request set-var(txn.to) var(txn.scope),map({flows}) if !odd scoped"
    yield f"  http-request set-var(txn.to) str({naming.LOCAL_KEY}),map({flows}) if !odd !scoped !carrying"
    yield f"  http-request set-var(txn.to) str({agent}) if !{{ var(txn.to) -m found }}"
    yield from exceptions(service, agent)
    yield f"  acl is_agents var(txn.to) -m str {agent}"
    yield "  http-request set-header scope %[var(txn.scope),url_dec] if carried !is_agents"
    yield "  use_backend %[var(txn.to),field(1,|)]"
    yield f"  default_backend {agent}"


def _recovered(carriers: tuple[str, ...]) -> Iterator[str]:
    """The key is what carrying.key_of_call makes of the same call."""
    key = "str(|)"
    for number, name in enumerate(carriers):
        part = ",field(2,-)" if name.lower() == "traceparent" else ""
        yield (
            f'  http-request set-var(txn.c{number}) "req.fhdr({_argument(name)}){part},url_enc" '
            "if !odd !scoped carrying"
        )
        key += f",concat(,txn.c{number},|)"
    yield (f"  http-request set-var(txn.carried) {key},map({naming.CARRIED}) if !odd !scoped carrying")
    yield "  http-request set-var(txn.scope) var(txn.carried) if carried"


def _unusual_call(carriers: tuple[str, ...]) -> str:
    """As for every request; and carriers that are given twice, are long, or are not what they should be."""
    names = [*NAMES, *(rf"{in_pattern(name)}: .{{{naming.MOST_VALUE + 1}}}" for name in carriers)]
    if "traceparent" in {name.lower() for name in carriers}:
        names.append(rf"traceparent: (?!{_TRACE}\r$)")
    return unusual(tuple(names), ("scope", *map(in_pattern, carriers)))


def _argument(name: str) -> str:
    """The name of a header, which is a token, as an argument between double quotes."""
    return name.lower().replace("$", "\\$").replace("'", "\\\\'")
