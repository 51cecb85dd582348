"""Connections as they are accepted: who is at the other end is found out once, and told with each request.

`scope["state"]` has `peer`, the site whose certificate was verified, or None; `certificate`, what that says;
and `bad_certificate`, why one that the authority made is none of a site.
"""

import asyncio
from typing import Any

from cheops.api.bounded import Bounded
from cheops.errors import CheopsError
from cheops.security.connection import identity_at


class Connection(Bounded):
    """One of a client or of another site."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, **state_of(transport)}


def state_of(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """What a connection tells of its other end."""
    try:
        identity = identity_at(transport)
    except CheopsError as error:
        return {"peer": None, "certificate": None, "bad_certificate": str(error)}
    return {"peer": identity.site if identity else None, "certificate": identity}
