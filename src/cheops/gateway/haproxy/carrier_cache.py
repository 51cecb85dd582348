"""What values of carriers stand for, as HAProxy knows it by heart: for the application's own calls.

HAProxy must not say anything else than the agent would. An entry is installed only if the agent's memory says
the same at that moment, and leaves when that could change: a value is seen with another scope, is forgotten,
or ends. A request that makes a value mean something else goes on to the service only when HAProxy has been
told, so that none of the calls that it causes finds the old meaning.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from cheops.errors import CheopsError, Fault
from cheops.gateway.carriers import TRACEPARENT, Carrier, Carriers, KnownScope, RecoveredScope, carriers_in
from cheops.gateway.haproxy import identifiers
from cheops.gateway.haproxy.runtime import MapUpdater
from cheops.gateway.headers import RequestHead, every

_MOST_KEY = 2_000
_EARLY_S = 1.0  # before a value ends HAProxy is told
_SETTLED_S = 2.0
_At = TypeVar("_At", int, Carrier)


class NotSettledError(CheopsError):
    """HAProxy cannot be told that a value stands for something else now."""

    fault = Fault.US
    definite = False
    status = 503


def call_key(head: RequestHead, names: Iterable[str]) -> str | None:
    """The carriers of a call as HAProxy writes them (frontend.py); None for a call that it hands to the agent
    in any case."""
    values = []
    for name in names:
        given = every(head, name)
        value = given[0] if given else ""
        if len(given) > 1 or len(value) > identifiers.MOST_VALUE:
            return None
        if value and name.lower() == "traceparent":
            found = TRACEPARENT.fullmatch(value)
            if found is None:
                return None
            value = found[1]
        values.append(value)
    key = identifiers.carried_key(values)
    return key if len(key) <= _MOST_KEY else None


@dataclass(frozen=True, slots=True)
class _Entry:
    scope: str  # as it is remembered
    told: str  # as it is passed on, encoded
    marks: tuple[Carrier, ...]
    ends_s: int  # in which second it leaves


class CarrierCache:
    """See carriers.Follower. Belongs to one event loop."""

    def __init__(
        self,
        carriers: Carriers,
        names: tuple[str, ...],
        most: int,
        applying: MapUpdater,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carriers = carriers
        self._names = names
        self._most = most
        self._applying = applying
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._with: dict[Carrier, dict[str, None]] = {}  # keys, by the values in them
        self._ending: dict[int, dict[str, None]] = {}  # keys, by the second in which they leave
        self._looked_s = int(clock())
        self._leaving: OrderedDict[Carrier, int] = OrderedDict()  # by which wish HAProxy is told of it
        self._started = asyncio.Event()
        self._since = 0
        carriers.follower = self

    @property
    def count(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterable[tuple[str, str]]:
        """For HAProxy's map."""
        return [(key, one.told) for key, one in self._entries.items()]

    def started(self) -> None:
        """HAProxy was told to have no entries but these: what it knew of an earlier agent counts no more."""
        self._since = self._applying.wished
        self._started.set()

    def end(self) -> None:
        """There is no HAProxy any more."""
        self._carriers.follower = None
        self._started.set()

    # -- installing --------------------------------------------------------------------------------------

    def offer(self, recovered: RecoveredScope, passed_on: str) -> None:
        """A call had this scope, by its carriers. It may have been a while ago: what counts is now."""
        key = call_key(recovered.head, self._names)
        marks = tuple(carriers_in(recovered.head, self._names))
        if key is None or not marks:
            return
        until_s = self._carriers.surely_until_s(marks, recovered.scope)
        if until_s is None or until_s - _EARLY_S <= self._clock():
            return
        entry = _Entry(recovered.scope, identifiers.key_of(passed_on), marks, int(until_s - _EARLY_S))
        before = self._entries.get(key)
        self._remove(key)
        self._add(key, entry)
        if before is None or before.told != entry.told:
            self._applying.put(identifiers.CARRIED, key, entry.told, was_there=before is not None)
        while len(self._entries) > self._most:
            self._take_out([next(iter(self._entries))], is_urgent=False)

    def _add(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        self._ending.setdefault(entry.ends_s, {})[key] = None
        for mark in entry.marks:
            self._with.setdefault(mark, {})[key] = None

    def _remove(self, key: str) -> _Entry | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        _discard(self._ending, entry.ends_s, key)
        for mark in entry.marks:
            _discard(self._with, mark, key)
        return entry

    # -- withdrawing -------------------------------------------------------------------------------------

    def began(self, one: Carrier, scope: KnownScope) -> None:
        """See carriers.Follower."""
        others = [key for key in self._with.get(one, ()) if self._entries[key].scope != scope]
        self._take_out(others, is_urgent=True)
        if not self._applying.has_done(self._leaving.get(one, 0)):
            self._applying.hurry()

    def forgot(self, one: Carrier) -> None:
        """See carriers.Follower."""
        self._take_out(list(self._with.get(one, ())), is_urgent=False)

    def look(self) -> None:
        """Take out what ends."""
        now_s = int(self._clock())
        for second in range(self._looked_s, now_s + 1):
            self._take_out(list(self._ending.get(second, ())), is_urgent=False)
        self._looked_s = now_s

    def _take_out(self, keys: list[str], *, is_urgent: bool) -> None:
        for key in keys:
            entry = self._remove(key)
            if entry is None:
                continue
            self._applying.put(identifiers.CARRIED, key, None, was_there=True, is_urgent=is_urgent)
            for mark in entry.marks:
                self._leaving[mark] = self._applying.wished
                self._leaving.move_to_end(mark)
        while self._leaving and self._applying.has_done(next(iter(self._leaving.values()))):
            self._leaving.popitem(last=False)
        if len(self._leaving) > self._most:  # HAProxy has not answered for long: all wait for it
            self._leaving.clear()
            self._since = self._applying.wished

    async def settled(self, values: Iterable[Carrier]) -> None:
        """See carriers.Follower. An HAProxy that does not answer might believe the old meaning: then the
        request is not passed on, since what it causes could go astray."""
        await self._started.wait()
        wish = max((self._since, *(self._leaving.get(one, 0) for one in values)))
        if self._applying.has_done(wish):
            return
        try:
            async with asyncio.timeout(_SETTLED_S):
                await self._applying.settled(wish)
        except TimeoutError:
            raise NotSettledError(
                "HAProxy does not answer, and might take the calls that this request causes for those of "
                "another; try again later"
            ) from None


def _discard(index: dict[_At, dict[str, None]], at: _At, key: str) -> None:
    """Take a key out of an index that keeps nothing empty."""
    keys = index[at]
    keys.pop(key, None)
    if not keys:
        del index[at]
