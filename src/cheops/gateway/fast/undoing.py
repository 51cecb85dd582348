"""A request that the fast path tried in vain, as its client sent it: without what was added on the way. Pure.

HAProxy has no headers per server, so what is sent to the agent after an attempt that failed is what was made
for the service or the other gateway.
"""

from cheops.config.gateway import Told
from cheops.gateway.headers import at_the_edge, pseudonym
from cheops.gateway.seam import Head, Header

_ADDED = {Told.CLIENT: ("x-forwarded-for",), Told.ALL: ("x-forwarded-for", "forwarded"), Told.NOTHING: ()}


def as_it_came(head: Head, here: str, base: str, told: Told) -> Head:
    """`base` is the path that stands before every request to the service; `told` is which headers
    with the client's address were added. Each was added as a line of its own, and is the last."""
    headers = list(at_the_edge(head).headers)
    _drop_last(headers, "via", f"1.1 {pseudonym(here)}")
    for name in _ADDED[told]:
        _drop_last(headers, name)
    target = head.target
    if base and target.startswith(f"{base}/"):
        target = target[len(base) :]
    return Head(head.method, target, tuple(headers))


def _drop_last(headers: list[Header], name: str, value: str | None = None) -> None:
    for place in range(len(headers) - 1, -1, -1):
        given, found = headers[place]
        if given.lower() == name:
            if value is None or found == value:
                del headers[place]
            return
