"""Where to ask for a resource that is not at this site: only the sites of a resource hear of it.

A site that it has left still knows where it went, as of then. Beyond that nobody is asked: with many sites
that would cost more than the question is worth, and whoever asks can go from site to site as well.
"""

from collections.abc import Callable, Iterable

from cheops.api.views.operations import sites_of
from cheops.engine.replica import Replica
from cheops.text import in_words, printable, shortened

AddressOf = Callable[[str], str | None]
_MOST_NAMED = 5


def is_known(replica: Replica) -> bool:
    return bool(replica.history.roster or replica.history.ops or replica.drafts)


def is_here(replica: Replica) -> bool:
    """Whether this site has the resource: what one that it has left knows of it is not kept up to date."""
    return is_known(replica) and replica.site in (sites_of(replica) or (replica.site,))


def where_to_ask(replica: Replica, others: Iterable[str], address_of: AddressOf) -> str:
    """`others`: the sites that are known, best first."""
    id_, site = printable(shortened(replica.resource)), replica.site
    if is_known(replica):
        where = _named(sites_of(replica), address_of)
        return f"'{id_}' has left {site}, which has heard nothing of it since; ask {where}"
    said = f"no resource '{id_}' is known at {site}; only the sites of a resource know of it"
    where = _named(others, address_of)
    return f"{said}. Others to ask: {where}" if where else f"{said}, and no other site is known here"


def _named(sites: Iterable[str], address_of: AddressOf) -> str:
    named = [_with_address(site, address_of(site)) for site in sites]
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    shown = [*named[:_MOST_NAMED], *more]
    return in_words(shown) if shown else ""


def _with_address(site: str, address: str | None) -> str:
    return f"{printable(site)} ({address})" if address else printable(site)
