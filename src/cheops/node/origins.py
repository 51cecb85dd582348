"""Whose keys are whose: the certificates of the sites whose documents come here, directly or by others.

That of a site that connects is shown by it. Any other is asked of whoever sent a document that needs it, then
of the site itself; the authority's signature says whether the answer is right, so it does not matter who
gives it. Each site's are kept for good in a note of the store.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp

from cheops.errors import CheopsError
from cheops.security.identities import MOST_BYTES, MOST_SITES, IdentityError, Known, known_of_note, verified
from cheops.store.base import Store
from cheops.store.errors import StoreError
from cheops.sync.asking import Asking
from cheops.sync.couch_json import decoded

if TYPE_CHECKING:
    from cheops.security.certificates import Identity
    from cheops.security.keyring import Keyring

PATH = "peer/identity"
_NOTE = "identity/"
_MOST_AT_ONCE = 16  # sites whose certificates are asked for because of one request
_TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=3)
_AGAIN_S = 2.0  # not before is the same asked again
_log = logging.getLogger(__name__)


class Origins:
    """Belongs to one event loop. `others` gives further sites that could be asked, the best first."""

    def __init__(
        self,
        keyring: "Keyring",
        asking: Asking,
        store: Store,
        writer: Executor,
        others: Callable[[], Iterable[str]],
    ) -> None:
        self._keyring = keyring
        self._asking = asking
        self._store = store
        self._writer = writer
        self._others = others
        self._known: dict[str, Known] = {}
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._asked_s: dict[tuple[str, str], float] = {}

    def get(self, site: str, key_id: str) -> "Identity | None":
        known = self._known.get(site)
        return known.get(key_id) if known else None

    async def note_of(self, site: str) -> dict[str, Any] | None:
        """What can be told of a site, as its note has it; None if nothing is known."""
        known = await self._loaded(site)
        return known.note() if known.certificates else None

    async def meet(self, identity: "Identity") -> None:
        """A site showed a certificate, which was verified."""
        known = self._known.get(identity.site) or await self._loaded(identity.site)
        await self._add(known, [identity])

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None:
        """Have the keys of these sites, as far as they can be had."""
        sites = list(wanted)[:_MOST_AT_ONCE]
        if sites:
            await asyncio.gather(*(self._learn(site, wanted[site], sender) for site in sites))

    async def _learn(self, site: str, key_ids: set[str], sender: str) -> None:
        known = await self._loaded(site)
        for asked in dict.fromkeys((sender, site, *self._others())):
            if all(known.get(key_id) for key_id in key_ids):
                return
            if asked and asked != self._keyring.site and self._is_time_to_ask(asked, site):
                await self._ask(asked, site)

    def _is_time_to_ask(self, asked: str, site: str) -> bool:
        """Unless it was asked just now: then its answer is waited for, if that is still to come."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s.get((asked, site), -_AGAIN_S) < _AGAIN_S:
            return (asked, site) in self._under_way
        if len(self._asked_s) > MOST_SITES:
            self._asked_s.clear()
        self._asked_s[asked, site] = now_s
        return True

    async def _ask(self, asked: str, site: str) -> None:
        """Once for all who want to know it at the same time."""
        key = (asked, site)
        if key not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._fetch(asked, site))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        await asyncio.shield(self._under_way[key])

    async def _fetch(self, asked: str, site: str) -> None:
        path = f"/{PATH}/{quote(site, safe='')}"
        try:
            async with self._asking.request(asked, "GET", path, timeout=_TIMEOUT) as answer:
                if answer.status != 200:
                    return
                told = decoded(await _read(answer), object)
            found = verified(site, told, self._keyring.folder.authorities)
            await self._add(await self._loaded(site), found)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, CheopsError) as error:
            _log.info("%s could not tell who %s is: %s", asked, site, error or type(error).__name__)

    async def _loaded(self, site: str) -> Known:
        if site not in self._known:
            note = await asyncio.get_running_loop().run_in_executor(
                self._writer, self._store.local, f"{_NOTE}{site}"
            )
            while len(self._known) >= MOST_SITES:
                del self._known[next(iter(self._known))]
            self._known.setdefault(site, known_of_note(site, note))
        return self._known[site]

    async def _add(self, known: Known, identities: "Iterable[Identity]") -> None:
        news = [identity for identity in identities if known.add(identity)]
        if news:
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(
                    self._writer, self._store.put_local, f"{_NOTE}{known.site}", known.note()
                )
            except StoreError as error:  # it can be asked for again
                _log.warning("the certificates of %s could not be kept: %s", known.site, error)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise IdentityError("more than anybody has to tell of a site")
    return bytes(body)
