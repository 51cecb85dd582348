"""What must not be at a service at the same time: the creation or deletion of a thing, and a change of what is below.

If a service has both requests at once, nobody knows which came first. What was created may be deleted with what
contains it, and no copy of it was known when the deletion ended (`deletions.report_lost`). What a client puts into
something new may succeed although its operation does not name that, and so does not wait for it elsewhere (`order`). So
the one that comes later waits here until the other one has ended. All others run at the same time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec import Struct, field

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.ids import Form, NoCopyError, text_to_local
from cheops.backends.http.interpretation import WHOLE
from cheops.backends.http.moves import path_now
from cheops.backends.http.paths import canonical, folded
from cheops.backends.http.payload import Request


class _Entry(Struct, frozen=True, eq=False):
    service: str
    places: tuple[str, ...]
    decides: bool  # what is below: it creates or deletes the thing itself
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def excludes(self, other: "_Entry") -> bool:
        return self.service == other.service and (self.decides_about(other) or other.decides_about(self))

    def decides_about(self, other: "_Entry") -> bool:
        return self.decides and any(lower.startswith(f"{upper}/") for upper in self.places for lower in other.places)


class Exclusion:
    """The requests that this site sends to its services now, in the order in which they came. Each waits only for
    earlier ones, so no two wait for each other."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._entries: dict[_Entry, None] = {}

    @asynccontextmanager
    async def held(self, service: str, request: Request, copy: Copy | None) -> AsyncIterator[None]:
        """Send a request about what this site has as `copy`."""
        # Where the service gives the ids, nobody can know that of a new thing before it is there.
        decides = request.deletes or (request.named and request.binds and copy is None)
        entry = _Entry(service, self._places(request, copy), decides)
        before = [one for one in self._entries if one.excludes(entry)]
        self._entries[entry] = None
        try:
            for one in before:
                await one.ended.wait()
            yield
        finally:
            del self._entries[entry]
            entry.ended.set()

    def _places(self, request: Request, copy: Copy | None) -> tuple[str, ...]:
        """The local paths that a request is about. What clients name by something else than a path has a place, too."""
        places = path_now(request, copy), *((request.item, request.to) if request.named else ())
        return tuple(self._local(place) for place in places if place.startswith("/") and place != WHOLE)

    def _local(self, place: str) -> str:
        with suppress(NoCopyError):  # what it is part of is not here: the request will not be sent
            place = text_to_local(place, self._copies.index.local_of, Form.URL)
        return folded(canonical(place))
