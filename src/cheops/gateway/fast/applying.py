"""Changes of the maps on their way to HAProxy: in order, many at once, and again from the start if one fails.

Who withdraws something can wait until it is done at every worker. What cannot be told is not forgotten: the
map is then told as a whole, as soon as HAProxy answers.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cheops.gateway.fast.runtime import Runtime, RuntimeSocketError

_FEW = 200  # that are withdrawn, beyond which the whole map is told: one transaction for many commands
_AGAIN_S = 0.1
_GATHER_S = 0.02  # for new flows to be told together; what is withdrawn does not wait
_log = logging.getLogger(__name__)

Entries = Callable[[], Iterable[tuple[str, str]]]


@dataclass(slots=True)
class _Pending:
    is_whole: bool = False
    deleted: set[str] = field(default_factory=set)
    added: dict[str, str] = field(default_factory=dict)


class Applying:
    """`entries` says, for each map, what it is to hold as a whole."""

    def __init__(self, runtime: Runtime, entries: dict[str, Entries]) -> None:
        self._runtime = runtime
        self._entries = entries
        self._pending: dict[str, _Pending] = {}
        self._wake = asyncio.Event()
        self._told = asyncio.Condition()
        self._wanted = self._done = 0
        self._hurry = asyncio.Event()
        self.lock = asyncio.Lock()  # held while HAProxy is reloaded
        self.trouble = ""

    def put(self, name: str, key: str, value: str | None, *, was_there: bool, is_urgent: bool = True) -> None:
        """Have an entry, or (None) have it no more; what is new is never urgent."""
        pending = self._pending.setdefault(name, _Pending())
        if was_there or value is None:
            pending.deleted.add(key)
        pending.added.pop(key, None)
        if value is not None:
            pending.added[key] = value
        pending.is_whole = pending.is_whole or len(pending.deleted) > _FEW
        self._wish(is_urgent=is_urgent and (value is None or was_there))

    def put_whole(self, *names: str) -> None:
        for name in self._entries.keys() & names or self._entries:  # not every site has every map
            self._pending[name] = _Pending(is_whole=True)
        self._wish(is_urgent=True)

    def _wish(self, *, is_urgent: bool) -> None:
        self._wanted += 1
        self._wake.set()
        if is_urgent:
            self.hurry()

    def hurry(self) -> None:
        """Somebody waits for what is wished for."""
        self._hurry.set()

    @property
    def wished(self) -> int:
        """The number of the latest wish."""
        return self._wanted

    def has_done(self, wish: int) -> bool:
        return self._done >= wish

    async def settled(self, wish: int | None = None) -> None:
        """Until all that was wished for up to then, or up to now, is so."""
        wanted = self._wanted if wish is None else wish
        async with self._told:
            await self._told.wait_for(lambda: self._done >= wanted)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), _GATHER_S)
            self._hurry.clear()
            async with self.lock:
                try:
                    await self.tell()
                except Exception as error:  # what is withdrawn must not stay: all is told again
                    _log.exception("flows cannot be told to HAProxy")
                    self.trouble = f"a mistake in Cheops: {error!r}"
                    self.put_whole()
            if self.trouble:
                await asyncio.sleep(_AGAIN_S)

    async def tell(self) -> None:
        """All that waits. The lock must be held."""
        pending, self._pending, wanted = self._pending, {}, self._wanted
        try:
            for name, changes in pending.items():
                if changes.is_whole:
                    await self._runtime.replace_map(name, self._entries[name]())
                else:
                    await self._runtime.change_map(name, changes.deleted, changes.added.items())
        except RuntimeSocketError as error:
            if not self.trouble:
                _log.warning("flows cannot be told to HAProxy: %s", error)
            self.trouble = str(error)
            for name in pending:
                self._pending[name] = _Pending(is_whole=True)
            self._wake.set()
            return
        self.trouble = ""
        async with self._told:
            self._done = max(self._done, wanted)
            self._told.notify_all()
