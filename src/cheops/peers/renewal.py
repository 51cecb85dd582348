"""Renewal of this site's certificate, before its end and for a while after it.

A certificate is renewed before it expires, by a site that has the authority's key, which may be the site itself. It is
also renewed when such a site trusts other authorities than this one: so one authority can replace another without a
visit to each site. The new certificate is used from the next connection on.

A certificate that has ended still gets its own renewal, within `security.renew_grace`, and nothing else
(`check_grace`). Its site is alone then: nobody answers its heartbeats, so no site is up. It tries the sites of which it
knows that they have the authority's key, and then the others in its configuration file. They verify it as ever, and it
verifies them: only its own time is over.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from cheops.backoff import Backoff, jittered
from cheops.config.security import SecurityConfig
from cheops.errors import CheopsError, ClientError
from cheops.peers.mesh import Mesh
from cheops.peers.requests import RequestKind
from cheops.text import listed, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Collection

    from cheops.peers.channel_pool import ChannelPool
    from cheops.security.certificates import Authority, Identity
    from cheops.security.keyring import Keyring


RENEWAL_PATH = f"peer/{RequestKind.RENEWAL}"  # below the address of an agent
_CHECK_S = 2.0  # a new authority should spread within seconds, and the check is a comparison of two texts
_RETRY_S, _RETRY_MOST_S = 1.0, 60.0
_ENDED_RETRY_MOST_S = 10.0  # a site without a valid certificate is cut off, and should be back soon
_AVOID_S = 60.0  # an issuer that failed
_TIMEOUT_S = 10.0
_MOST_BYTES = 256 * 1024
_REJOIN = "docs/certificates-trouble.md#a-certificate-has-expired"
_FAILURES = (OSError, msgspec.MsgspecError, CheopsError)
_log = logging.getLogger(__name__)


class GraceError(ClientError):
    """A certificate that has ended is not renewed; the text says why."""

    status = 403
    reason = "expired certificate"


def check_grace(identity: "Identity", now_s: float, grace_s: float, newest_ms: int) -> None:
    """Check that a certificate is valid, or ended so lately that it still gets a renewal; raises GraceError.

    `newest_ms` is when the newest certificate was made that the site has shown here. A site uses its newest one, so an
    older one that has ended is a copy from somewhere else.
    """
    if identity.is_valid_at(now_s):
        return
    from cheops.security.certificates import shown_time  # noqa: PLC0415 - slow to import

    site, again = identity.site, f"'cheops site invite {identity.site} --again' gives it a new one"
    if now_s < identity.from_s:
        raise GraceError(
            f"the certificate of '{site}' is valid from {shown_time(identity.from_s)}, and it is {shown_time(now_s)} "
            "here: one of both clocks is wrong"
        )
    if now_s > identity.until_s + grace_s:
        raise GraceError(
            f"the certificate of '{site}' ended at {shown_time(identity.until_s)}, longer ago than "
            f"security.renew_grace ({grace_s / 86_400:,.1f} days); {again}"
        )
    if newest_ms > identity.made_ms:
        raise GraceError(f"the certificate of '{site}' has ended, and '{site}' has shown a newer one since; {again}")


def left_until_due_s(identity: "Identity", now_s: float, renew_before_s: float) -> float:
    """Seconds until a certificate should be renewed: never with more than a third of its life left."""
    lasts_s = identity.until_s - identity.made_ms / 1000
    return identity.until_s - min(renew_before_s, lasts_s / 3) - now_s


class CertificateRenewal:
    """Renews this site's certificate. `peers` are the sites in the configuration file."""

    def __init__(
        self,
        config: SecurityConfig,
        keyring: "Keyring",
        mesh: Mesh,
        channels: "ChannelPool",
        peers: "Collection[str]",
    ) -> None:
        self._config = config
        self._keyring = keyring
        self._mesh = mesh
        self._channels = channels
        self._peers = peers
        self._avoided: dict[str, float] = {}  # issuers that failed, and until when they are skipped

    def start(self) -> None:
        """A site with the authority's key renews its own certificate before anything else: after a long time off, all
        others wait for it. On failure, `run` tries again and reports it."""
        authority, now_s = self._keyring.authority, time.time()
        if authority is not None and self._is_due(now_s):
            try:
                self._renew_by_own_authority(authority, now_s)
            except CheopsError as error:
                _log.warning("cannot renew the certificate of this site: %s", error)

    async def run(self) -> None:
        """Until cancelled. After a failure it waits longer and longer, and tries the next issuer."""
        backoff, ended_backoff = Backoff(_RETRY_S, _RETRY_MOST_S), Backoff(_RETRY_S, _ENDED_RETRY_MOST_S)
        wait_s = _RETRY_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.renew_if_due()
                backoff.reset()
                ended_backoff.reset()
                wait_s = jittered(_CHECK_S)
            except _FAILURES as error:
                _log.warning("cannot renew the certificate of this site yet: %s", error or type(error).__name__)
                wait_s = (ended_backoff if self._has_ended(time.time()) else backoff).next_s()

    async def renew_if_due(self) -> None:
        keyring, now_s = self._keyring, time.time()
        keyring.drop_ended_authorities(now_s)
        authority = keyring.authority
        if authority is not None:
            if self._is_due(now_s):
                self._renew_by_own_authority(authority, now_s)
            return
        if self._has_ended(now_s):
            await self._renew_after_end()
            return
        issuer = self._issuer(now_s)
        is_due = left_until_due_s(keyring.identity, now_s, self._config.renew_before_s) <= 0
        if issuer and (is_due or self._issues(issuer) != keyring.folder.authorities.digest):
            await self._request(issuer, now_s)
        elif is_due and issuer is None:
            raise CheopsError(
                "no site that has the key of an authority (security.ca_key) is up and responds as it should; known: "
                f"{listed(self._issuers()) or 'none'}"
            )

    def _is_due(self, now_s: float) -> bool:
        """Whether a site with the authority's key should renew: in time, or because the authority is another one."""
        keyring = self._keyring
        if left_until_due_s(keyring.identity, now_s, self._config.renew_before_s) <= 0:
            return True
        assert keyring.authority is not None  # noqa: S101 - for callers with an authority
        return keyring.folder.authorities.issuer_of(keyring.identity) != keyring.authority.certificate

    def _has_ended(self, now_s: float) -> bool:
        return now_s > self._keyring.identity.until_s

    def _issues(self, site: str) -> str:
        entry = self._mesh.entry_of(site)
        return entry.issues if entry else ""

    def _issuers(self) -> list[str]:
        """The sites that had the authority's key when they were last heard of."""
        names = (view for view in self._mesh.known_sites if self._issues(view))
        return sorted(name for name in names if name != self._keyring.site)

    def _issuer(self, now_s: float) -> str | None:
        """A site that is up and has the authority's key. Every site takes the first by name, so that two issuers that
        trust different authorities do not undo each other's work; but none that failed recently."""
        up = (name for name in sorted(self._mesh.up) if self._issues(name))
        return next((name for name in up if self._avoided.get(name, 0.0) <= now_s), None)

    def _renew_by_own_authority(self, authority: "Authority", now_s: float) -> None:
        from cheops.security.certificate_requests import renewal_spec  # noqa: PLC0415 - rarely needed

        current = self._keyring.identity
        issued = authority.issue(renewal_spec(current), now_s, self._config.valid_for_s, current.made_ms + 1)
        self._keyring.install(issued)
        _log.info("renewed the certificate of this site by its own authority")

    async def _renew_after_end(self) -> None:
        """Ask all that may have the key, one after the other, since it is unknown which of them runs."""
        from cheops.security.certificates import shown_time  # noqa: PLC0415 - rarely needed

        failures = []
        for site in dict.fromkeys((*self._issuers(), *self._peers)):
            try:
                await self._renew_by(site)
            except _FAILURES as error:
                failures.append(f"{site}: {printable(shortened(str(error) or type(error).__name__, 300))}")
            else:
                return
        ended = shown_time(self._keyring.identity.until_s)
        why = "; ".join(failures) or "no site is known that has the key of an authority"
        raise CheopsError(f"it ended at {ended}, and other sites refuse this one ({_REJOIN}). Tried {why}")

    async def _request(self, issuer: str, now_s: float) -> None:
        self._avoided = {site: end_s for site, end_s in self._avoided.items() if end_s > now_s}
        self._avoided[issuer] = now_s + _AVOID_S  # unless it succeeds
        await self._renew_by(issuer)
        del self._avoided[issuer]

    async def _renew_by(self, issuer: str) -> None:
        from cheops.security.certificate_requests import Renewal, accept_renewal  # noqa: PLC0415

        status, body = await self._ask(issuer)
        if status != 200:
            raise CheopsError(f"{issuer} responded with {status}: {_detail(body)}")
        renewal = msgspec.json.decode(body, type=Renewal)
        keyring = self._keyring
        identity, authorities = accept_renewal(renewal, keyring.identity, keyring.folder.authorities)
        keyring.install(identity, authorities)
        _log.info("%s renewed the certificate of this site", issuer)

    async def _ask(self, issuer: str) -> tuple[int, bytes]:
        """A site whose certificate has ended gets no channel: it asks by HTTP."""
        if not self._has_ended(time.time()):
            return await self._channels.request(
                issuer, RequestKind.RENEWAL, timeout_s=_TIMEOUT_S, most_bytes=_MOST_BYTES
            )
        return await self._channels.http.request(
            issuer, "POST", f"/{RENEWAL_PATH}", timeout_s=_TIMEOUT_S, most_bytes=_MOST_BYTES
        )


class _Problem(msgspec.Struct, frozen=True):
    """The part of an error response that is read."""

    detail: str


def _detail(body: bytes) -> str:
    try:
        return printable(shortened(msgspec.json.decode(body, type=_Problem).detail, 300))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return repr(body[:300])
