"""How sites get, renew and lose their certificates: invitations, joining, renewal, and the check of each connection.

Only a site with the authority's key invites and issues. An invitation is marked as used, durably, before its
certificate is issued: it never works twice, whatever happens in between. A new site gets a certificate for the name
that was invited. It gets no address that another site of the mesh has, unless the invitation names that address.

A certificate is renewed before it expires, by a site that has the authority's key, which may be the site itself. It is
also renewed when such a site trusts other authorities than this one: so one authority can replace another without a
visit to each site. The new certificate is used from the next connection on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from cheops.backoff import Backoff, jittered
from cheops.config.address import address_of_url, is_loopback
from cheops.config.security import SecurityConfig
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError, ClientError
from cheops.peers.client import PeerClient, read_response
from cheops.peers.heartbeat import MembershipRecord, SiteRecord
from cheops.peers.mesh import Mesh
from cheops.scope.names import name_problem
from cheops.security.invitations import Code, Invitation, Invitations, new_secret
from cheops.security.refusals import Refusals
from cheops.text import listed, printable, shortened

if TYPE_CHECKING:
    from cheops.security.certificate_requests import JoinRequest, JoinResponse, Renewal
    from cheops.security.certificates import Authority, Identity
    from cheops.security.keyring import Keyring


SaveNote = Callable[[dict[str, Any]], Awaitable[None]]


class Enrollment:
    """Invites and issues. Belongs to one event loop. `save` makes the note of open invitations durable, or raises
    StoreError."""

    def __init__(
        self,
        config: SiteConfig,
        keyring: "Keyring | None",
        mesh: Mesh,
        invitations: Invitations,
        save: SaveNote,
    ) -> None:
        self._config = config
        self._keyring = keyring
        self._mesh = mesh
        self._invitations = invitations
        self._save = save
        self._lock = asyncio.Lock()

    async def invite(self, site: str, addresses: tuple[str, ...], valid_for_s: float) -> tuple[Code, int]:
        """The code for a new site, and when it expires; raises CheopsError."""
        from cheops.security.certificates import (  # noqa: PLC0415
            fingerprint,
            general_names,
        )

        keyring, _ = self._issuing()
        self._check_name(site)
        general_names(addresses)
        issuer = keyring.folder.authorities.issuer_of(keyring.identity)
        if issuer is None:
            raise CheopsError("this site does not trust the authority of its own certificate", status=409)
        secret, now_ms = new_secret(), _now_ms()
        invitation = Invitation(site, now_ms + int(valid_for_s * 1000), addresses)
        async with self._lock:
            changed = self._invitations.add(secret, invitation, now_ms)
            await self._save(changed.note())
            self._invitations = changed
        code = Code(self._config.advertise, self._config.name, site, fingerprint(issuer), secret)
        return code, invitation.expires_ms

    async def join(self, request: "JoinRequest") -> "JoinResponse":
        """The response to a new site; raises InvitationError, CertificateError or CheopsError."""
        from cheops.security.certificate_requests import JoinResponse, verify_request  # noqa: PLC0415

        keyring, authority = self._issuing()
        # Before anything else of the request is read: without an invitation no client can make this site compute.
        self._invitations.take(request.secret, _now_ms())
        wanted = verify_request(request)
        async with self._lock:
            invitation, rest = self._invitations.take(request.secret, _now_ms())
            self._check_addresses(invitation, wanted.addresses)
            # Used, durably, before the certificate exists: after a crash the site must be invited again, which is
            # better than an invitation that works twice.
            await self._save(rest.note())
            self._invitations = rest
        issued = authority.issue(
            wanted.for_site(invitation.site),
            time.time(),
            self._config.security.valid_for_s,
            self._least_made_ms(invitation.site),
        )
        return JoinResponse(
            invitation.site,
            issued.pem.decode("ascii"),
            keyring.folder.authorities.pem.decode("ascii"),
            self._peers(),
        )

    def renew(self, identity: "Identity") -> "Renewal":
        """A new certificate for a site that was let in with its current one; raises CheopsError."""
        from cheops.security.certificate_requests import make_renewal, renewal_spec  # noqa: PLC0415

        keyring, authority = self._issuing()
        made_ms = max(self._least_made_ms(identity.site), identity.made_ms + 1)
        valid_for_s = self._config.security.valid_for_s
        issued = authority.issue(renewal_spec(identity), time.time(), valid_for_s, made_ms)
        return make_renewal(authority, issued, keyring.folder.authorities)

    def authorities(self) -> bytes:
        """The authorities as PEM: a new site compares them with the fingerprint in its code."""
        return self._issuing()[0].folder.authorities.pem

    def _issuing(self) -> "tuple[Keyring, Authority]":
        if self._keyring is None or self._keyring.authority is None:
            others = [name for name in self._mesh.up if _issues(self._mesh, name)]
            hint = f"ask {listed(others)}" if others else "ask a site that has it"
            raise CheopsError(
                f"{self._config.name} does not have the key of an authority (security.ca_key); {hint}", status=409
            )
        return self._keyring, self._keyring.authority

    def _check_name(self, site: str) -> None:
        if problem := name_problem(site):
            raise ClientError(problem)
        member = self._mesh.member_of(site)
        if member and member.forgotten:
            raise ClientError(f"'{site}' was forgotten; 'cheops site admit {site}' comes first", status=409)
        if site == self._config.name or self._mesh.entry_of(site) is not None:
            raise ClientError(
                f"'{site}' is part of the mesh already. If its machine or its keys are lost, have it "
                "forgotten and admitted again first, so that its old certificate ends",
                status=409,
            )

    def _check_addresses(self, invitation: Invitation, wanted: Iterable[str]) -> None:
        """No site gets a certificate for the address of another site."""
        urls = {self._config.name: self._config.advertise, **self._peers()}
        held = {address_of_url(url).host: name for name, url in urls.items() if not is_loopback(url)}
        for address in wanted:
            holder = held.get(address.lower())
            if holder not in (None, invitation.site) and address not in invitation.addresses:
                shown = printable(shortened(address))
                raise ClientError(
                    f"'{shown}' is the address of {holder}. If both sites have it, invite with --address {shown}"
                )

    def _least_made_ms(self, site: str) -> int:
        """A later time than any decision to forget the site, or its new certificate would be revoked at once."""
        member = self._mesh.member_of(site)
        return member.stamp_ms + 1 if member else 0

    def _peers(self) -> dict[str, str]:
        """The sites that a new site should know, this one included."""
        known = {name: entry.url for name in self._mesh.up if (entry := self._mesh.entry_of(name))}
        return {self._config.name: self._config.advertise, **self._config.peers, **known}


def _issues(mesh: Mesh, site: str) -> bool:
    entry = mesh.entry_of(site)
    return bool(entry and entry.issues)


def _now_ms() -> int:
    return int(time.time() * 1000)


FORGED_SENDER, NO_SITE = "forged sender", "certificate of no site"
FORGOTTEN, OUTDATED, EXPIRED = (
    "forgotten site",
    "certificate from before it was forgotten",
    "expired certificate",
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a connection is refused although its certificate is of the mesh. `reason` is the same for all of its kind."""

    reason: str
    detail: str
    site: str = ""
    member: MembershipRecord | None = None


def keyring_of(config: SiteConfig, refusals: Refusals) -> "Keyring | None":
    """None without security; raises CheopsError."""
    if not config.security.is_on:
        return None
    from cheops.security.keyring import Keyring  # noqa: PLC0415 - slow to import

    return Keyring(config.security, config.name, refusals)


def rejection_of(mesh: Mesh, identity: "Identity", now_s: float) -> Rejection | None:
    """Membership records are the revocation list. Each site has them, so this works while it is cut off."""
    site, member = identity.site, mesh.member_of(identity.site)
    if member and member.forgotten:
        return Rejection(FORGOTTEN, f"'{site}' was forgotten; 'cheops site admit' admits it again", site, member)
    if member and identity.made_ms <= member.stamp_ms:
        return Rejection(
            OUTDATED, f"'{site}' was forgotten after its certificate was made, so it needs a new one", site, member
        )
    if not identity.is_valid_at(now_s):
        return Rejection(EXPIRED, f"the certificate of '{site}' is no longer valid, or not yet", site)
    return None


def connection_rejection(mesh: Mesh, state: Mapping[str, Any], now_s: float) -> Rejection | None:
    """Why requests of a connection are refused. `state` is what the connection knows of its other end; without a
    certificate there is nothing to reject."""
    if (bad := state.get("bad_certificate")) is not None:
        return Rejection(NO_SITE, bad)
    identity = state.get("certificate")
    return rejection_of(mesh, identity, now_s) if identity is not None else None


RENEWAL_PATH = "peer/renewal"  # below the address of an agent
_CHECK_S = 2.0  # a new authority should spread within seconds, and the check is a comparison of two texts
_RETRY_S, _RETRY_MOST_S = 1.0, 60.0
_AVOID_S = 60.0  # an issuer that failed
_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


def left_until_due_s(identity: "Identity", now_s: float, renew_before_s: float) -> float:
    """Seconds until a certificate should be renewed: never with more than a third of its life left."""
    lasts_s = identity.until_s - identity.made_ms / 1000
    return identity.until_s - min(renew_before_s, lasts_s / 3) - now_s


class CertificateRenewal:
    """Renews this site's certificate."""

    def __init__(self, config: SecurityConfig, keyring: "Keyring", mesh: Mesh, client: PeerClient) -> None:
        self._config = config
        self._keyring = keyring
        self._mesh = mesh
        self._client = client
        self._avoided: dict[str, float] = {}  # issuers that failed, and until when they are skipped

    async def run(self) -> None:
        """Until cancelled. After a failure it waits longer and longer, and tries the next issuer."""
        backoff = Backoff(_RETRY_S, _RETRY_MOST_S)
        wait_s = _RETRY_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.renew_if_due()
                backoff.reset()
                wait_s = jittered(_CHECK_S)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError, CheopsError) as error:
                _log.warning("cannot renew the certificate of this site yet: %s", error or type(error).__name__)
                wait_s = backoff.next_s()

    async def renew_if_due(self) -> None:
        keyring, now_s = self._keyring, time.time()
        left_s = left_until_due_s(keyring.identity, now_s, self._config.renew_before_s)
        authority = keyring.authority
        if authority is not None:
            if left_s <= 0 or keyring.folder.authorities.issuer_of(keyring.identity) != authority.certificate:
                self._renew_by_own_authority(authority, now_s)
            return
        issuer = self._issuer(now_s)
        if issuer and (left_s <= 0 or issuer.issues != keyring.folder.authorities.digest):
            await self._request(issuer.name, now_s)
        elif left_s <= 0 and issuer is None:
            raise CheopsError("no site that has the key of an authority is up and responds as it should")

    def _issuer(self, now_s: float) -> SiteRecord | None:
        """A site that is up and has the authority's key. Every site takes the first by name, so that two issuers that
        trust different authorities do not undo each other's work; but none that failed recently."""
        entries = (self._mesh.entry_of(site) for site in sorted(self._mesh.up))
        for entry in entries:
            if entry and entry.issues and self._avoided.get(entry.name, 0.0) <= now_s:
                return entry
        return None

    def _renew_by_own_authority(self, authority: "Authority", now_s: float) -> None:
        from cheops.security.certificate_requests import renewal_spec  # noqa: PLC0415 - rarely needed

        current = self._keyring.identity
        issued = authority.issue(renewal_spec(current), now_s, self._config.valid_for_s, current.made_ms + 1)
        self._keyring.install(issued)
        _log.info("renewed the certificate of this site by its own authority")

    async def _request(self, issuer: str, now_s: float) -> None:
        self._avoided = {site: end_s for site, end_s in self._avoided.items() if end_s > now_s}
        self._avoided[issuer] = now_s + _AVOID_S  # unless it succeeds
        await self._renew_by(issuer)
        del self._avoided[issuer]

    async def _renew_by(self, issuer: str) -> None:
        from cheops.security.certificate_requests import Renewal, accept_renewal  # noqa: PLC0415

        async with self._client.request(issuer, "POST", f"/{RENEWAL_PATH}", timeout=_TIMEOUT) as response:
            body = await read_response(response, _MOST_BYTES)
            if response.status != 200:
                raise aiohttp.ClientError(f"{issuer} responded with {response.status}: {body[:300]!r}")
        renewal = msgspec.json.decode(body, type=Renewal)
        keyring = self._keyring
        identity, authorities = accept_renewal(renewal, keyring.identity, keyring.folder.authorities)
        keyring.install(identity, authorities)
        _log.info("%s renewed the certificate of this site", issuer)
