"""What must not be at a service at the same time: the deletion of a thing, and a change of what is below it.

A service deletes all that is below with it. If it has both requests at once, nobody knows which came first: what was
created may be gone, and no copy of it was known when the deletion ended (`deletions.report_lost`). So the one that
comes later waits here until the other one has ended. All others run at the same time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.ids import Form, NoCopyError, text_to_local
from cheops.backends.http.moves import path_now
from cheops.backends.http.paths import canonical, folded
from cheops.backends.http.payload import Request


@dataclass(frozen=True, eq=False, slots=True)
class _Entry:
    service: str
    places: tuple[str, ...]
    deletes: bool
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def excludes(self, other: "_Entry") -> bool:
        return self.service == other.service and (self.takes_away(other) or other.takes_away(self))

    def takes_away(self, other: "_Entry") -> bool:
        return self.deletes and any(lower.startswith(f"{upper}/") for upper in self.places for lower in other.places)


class Exclusion:
    """The requests that this site sends to its services now, in the order in which they came. Each waits only for
    earlier ones, so no two wait for each other."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._entries: dict[_Entry, None] = {}

    @asynccontextmanager
    async def held(self, service: str, request: Request, copy: Copy | None) -> AsyncIterator[None]:
        """Send a request about what this site has as `copy`."""
        entry = _Entry(service, self._places(request, copy), request.deletes)
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
        named = (request.item, request.to) if request.named else ()
        return tuple(self._local(place) for place in (path_now(request, copy), *named) if place.startswith("/"))

    def _local(self, place: str) -> str:
        with suppress(NoCopyError):  # what it is part of is not here: the request will not be sent
            place = text_to_local(place, self._copies.index.local_of, Form.URL)
        return folded(canonical(place)).rstrip("/")
