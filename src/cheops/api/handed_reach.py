"""The limits of a client's token, on their way with what a site hands on for it.

The site that was asked knows the token; the one that carries it out knows the resource. So the limits travel,
and both keep to them. They can only narrow what the sender may do.
"""

from urllib.parse import quote, unquote

import msgspec

from cheops.errors import ClientError
from cheops.security.principal import EVERYWHERE, Reach

HEADER = "Cheops-Limits"
_MOST = 64 * 1024


class _Form(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    types: list[str] | None = None
    services: list[str] | None = None
    sites: list[str] | None = None


def written(reach: Reach) -> dict[str, str]:
    """As a header, where there are limits."""
    if reach.is_whole:
        return {}
    form = _Form(
        *(None if one is None else sorted(one) for one in (reach.types, reach.services, reach.sites))
    )
    return {HEADER: quote(msgspec.json.encode(form), safe="")}


def read(header: str | None) -> Reach:
    if header is None:
        return EVERYWHERE
    try:
        form = msgspec.json.decode(unquote(header[:_MOST]), type=_Form)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ClientError(f"the header {HEADER} cannot be read") from None
    return Reach(
        *(None if one is None else frozenset(one) for one in (form.types, form.services, form.sites))
    )
