"""A site's certificate is renewed before it ends, by a site that has the authority's key: maybe by itself.

Also when such a site believes other authorities than this one: so one authority takes over from another,
without anybody going from site to site. The new certificate holds from the next connection on.
"""

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from cheops.config.security import SecurityConfig
from cheops.errors import CheopsError
from cheops.sync.asking import Asking, read_answer
from cheops.sync.heartbeat import Entry
from cheops.sync.mesh import Mesh

if TYPE_CHECKING:
    from cheops.security.certificates import Authority, Identity
    from cheops.security.keyring import Keyring

PATH = "peer/renewal"  # below the address of an agent
_LOOK_S, _AGAIN_S, _AGAIN_MOST_S = 2.0, 1.0, 60.0
_AVOIDED_S = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


class NobodyToAskError(CheopsError):
    """A certificate cannot be renewed now."""


def left_until_due_s(identity: "Identity", now_s: float, renew_before_s: float) -> float:
    """Seconds; none left means that it is due. With a third of its time left it is, at the latest."""
    lasts_s = identity.until_s - identity.made_ms / 1000
    return identity.until_s - min(renew_before_s, lasts_s / 3) - now_s


class Renewing:
    """Looks after one site's certificate."""

    def __init__(self, config: SecurityConfig, keyring: "Keyring", mesh: Mesh, asking: Asking) -> None:
        self._config = config
        self._keyring = keyring
        self._mesh = mesh
        self._asking = asking
        self._avoided: dict[str, float] = {}  # sites that failed to renew, and until when nobody asks them

    async def run(self) -> None:
        """Until cancelled. After a failure it is tried less and less often."""
        rest_s = _AGAIN_S
        while True:
            await asyncio.sleep(rest_s * random.uniform(0.8, 1.2))  # noqa: S311 - only to spread them
            try:
                await self.look()
                rest_s = _LOOK_S
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError, CheopsError) as error:
                said = f"{error or type(error).__name__}"
                _log.warning("the certificate of this site was not renewed, it will be tried again: %s", said)
                rest_s = min(2 * rest_s, _AGAIN_MOST_S)  # less and less often, while others are tried in turn

    async def look(self) -> None:
        """Renew the certificate if that is due."""
        keyring, now_s = self._keyring, time.time()
        left_s = left_until_due_s(keyring.identity, now_s, self._config.renew_before_s)
        authority = keyring.authority
        if authority is not None:
            if left_s <= 0 or keyring.folder.authorities.issuer_of(keyring.identity) != authority.certificate:
                self._renew_by_oneself(authority, now_s)
            return
        issuer = self._issuer(now_s)
        if issuer and (left_s <= 0 or issuer.issues != keyring.folder.authorities.digest):
            await self._ask(issuer.name, now_s)
        elif left_s <= 0 and issuer is None:
            raise NobodyToAskError("no site that has the key of an authority is up, or gives what it should")

    def _issuer(self, now_s: float) -> Entry | None:
        """A site that is up and says that it has the authority's key. All take the first, so that two that
        believe different authorities do not take turns; but not one that did not give what it said."""
        entries = (self._mesh.entry_of(site) for site in sorted(self._mesh.up))
        for entry in entries:
            if entry and entry.issues and self._avoided.get(entry.name, 0.0) <= now_s:
                return entry
        return None

    def _renew_by_oneself(self, authority: "Authority", now_s: float) -> None:
        from cheops.security.joining import renewal_of  # noqa: PLC0415 - rarely needed

        current = self._keyring.identity
        issued = authority.issue(renewal_of(current), now_s, self._config.valid_for_s, current.made_ms + 1)
        self._keyring.install(issued)
        _log.info("the certificate of this site was renewed, by its own authority")

    async def _ask(self, issuer: str, now_s: float) -> None:
        self._avoided = {site: end_s for site, end_s in self._avoided.items() if end_s > now_s}
        self._avoided[issuer] = now_s + _AVOIDED_S  # unless it goes well
        await self._renew_by(issuer)
        del self._avoided[issuer]

    async def _renew_by(self, issuer: str) -> None:
        from cheops.security.joining import Renewal, accepted  # noqa: PLC0415 - rarely needed

        async with self._asking.request(issuer, "POST", f"/{PATH}", timeout=_TIMEOUT) as answer:
            body = await read_answer(answer, _MOST_BYTES)
            if answer.status != 200:
                raise aiohttp.ClientError(f"{issuer} answered {answer.status}: {body[:300]!r}")
        renewal = msgspec.json.decode(body, type=Renewal)
        keyring = self._keyring
        identity, authorities = accepted(renewal, keyring.identity, keyring.folder.authorities)
        keyring.install(identity, authorities)
        _log.info("the certificate of this site was renewed by %s", issuer)
