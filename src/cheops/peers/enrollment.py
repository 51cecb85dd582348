"""How sites get, keep and lose their certificates: invitations, joining, renewal, and the check at each request.

Only a site with the authority's key invites and issues. An invitation is used up, durably, before anything is
given for it: it never works twice, whatever happens in between. A newcomer gets a certificate for the name that
was invited; of the addresses that it asks for it gets none that another site of the mesh has, unless the
invitation says so.

A certificate is renewed before it ends, by a site that has the authority's key, perhaps by itself; also when such
a site trusts other authorities than this one, so that one authority can take over from another without a visit
to each site. The new certificate holds from the next connection on.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

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


Keep = Callable[[dict[str, Any]], Awaitable[None]]


class NotInvitedError(ClientError):
    """Nobody can be invited under this name."""

    status = 409


class NoAuthorityError(CheopsError):
    """This site cannot issue certificates."""

    status = 409


class Enrollment:
    """Belongs to one event loop. `keep` makes the note of open invitations durable, or raises StoreError."""

    def __init__(
        self,
        config: SiteConfig,
        keyring: "Keyring | None",
        mesh: Mesh,
        invitations: Invitations,
        keep: Keep,
    ) -> None:
        self._config = config
        self._keyring = keyring
        self._mesh = mesh
        self._invitations = invitations
        self._keep = keep
        self._one_at_a_time = asyncio.Lock()

    async def invite(self, site: str, addresses: tuple[str, ...], valid_for_s: float) -> tuple[Code, int]:
        """The code for a newcomer, and when it ends; raises NotInvitedError or NoAuthorityError."""
        from cheops.security.certificates import (  # noqa: PLC0415
            fingerprint,
            general_names,
        )

        keyring, _ = self._issuing()
        self._check_name(site)
        general_names(addresses)
        issuer = keyring.folder.authorities.issuer_of(keyring.identity)
        if issuer is None:
            raise NoAuthorityError("the certificate of this site is of no authority that it believes itself")
        secret, now_ms = new_secret(), _now_ms()
        invitation = Invitation(site, now_ms + int(valid_for_s * 1000), addresses)
        async with self._one_at_a_time:
            changed = self._invitations.invited(secret, invitation, now_ms)
            await self._keep(changed.note())
            self._invitations = changed
        code = Code(self._config.advertise, self._config.name, site, fingerprint(issuer), secret)
        return code, invitation.expires_ms

    async def join(self, sent: "JoinRequest") -> "JoinResponse":
        """What a newcomer is given; raises InvitationError, CertificateError or NoAuthorityError."""
        from cheops.security.certificate_requests import JoinResponse, verify_request  # noqa: PLC0415

        keyring, authority = self._issuing()
        self._invitations.taken(sent.secret, _now_ms())  # for strangers, nothing is looked at
        wanted = verify_request(sent)
        async with self._one_at_a_time:
            invitation, rest = self._invitations.taken(sent.secret, _now_ms())
            self._check_addresses(invitation, wanted.addresses)
            await self._keep(rest.note())
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
        """A new certificate for a site in good standing; raises NoAuthorityError."""
        from cheops.security.certificate_requests import make_renewal, renewal_spec  # noqa: PLC0415

        keyring, authority = self._issuing()
        made_ms = max(self._least_made_ms(identity.site), identity.made_ms + 1)
        valid_for_s = self._config.security.valid_for_s
        issued = authority.issue(renewal_spec(identity), time.time(), valid_for_s, made_ms)
        return make_renewal(authority, issued, keyring.folder.authorities)

    def authorities(self) -> bytes:
        """What a newcomer compares with the fingerprint that it was given."""
        return self._issuing()[0].folder.authorities.pem

    def _issuing(self) -> "tuple[Keyring, Authority]":
        if self._keyring is None or self._keyring.authority is None:
            others = [name for name in self._mesh.up if _issues(self._mesh, name)]
            hint = f"ask {listed(others)}" if others else "ask a site that has it"
            raise NoAuthorityError(
                f"{self._config.name} does not have the key of an authority (security.ca_key); {hint}"
            )
        return self._keyring, self._keyring.authority

    def _check_name(self, site: str) -> None:
        if problem := name_problem(site):
            raise ClientError(problem)
        member = self._mesh.member_of(site)
        if member and member.forgotten:
            raise NotInvitedError(f"'{site}' was forgotten; 'cheops site admit {site}' comes first")
        if site == self._config.name or self._mesh.entry_of(site) is not None:
            raise NotInvitedError(
                f"'{site}' is part of the mesh already. If its machine or its keys are lost, have it "
                "forgotten and admitted again first, so that its old certificate ends"
            )

    def _check_addresses(self, invitation: Invitation, wanted: Iterable[str]) -> None:
        """Nobody gets a certificate for an address by which people reach another site."""
        urls = {self._config.name: self._config.advertise, **self._peers()}
        held = {address_of_url(url).host: name for name, url in urls.items() if not is_loopback(url)}
        for address in wanted:
            holder = held.get(address.lower())
            if holder not in (None, invitation.site) and address not in invitation.addresses:
                shown = printable(shortened(address))
                raise ClientError(
                    f"'{shown}' is the address of {holder}. If both are there, invite with --address {shown}"
                )

    def _least_made_ms(self, site: str) -> int:
        member = self._mesh.member_of(site)
        return member.stamp_ms + 1 if member else 0

    def _peers(self) -> dict[str, str]:
        """All sites that a newcomer should know, this one included."""
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
    """Why a site with a good certificate is not let in: the same few words for each kind, and all of it."""

    reason: str
    detail: str
    site: str = ""
    member: MembershipRecord | None = None


def keyring_of(config: SiteConfig, refusals: Refusals) -> "Keyring | None":
    """None without security; raises FolderError."""
    if not config.security.is_on:
        return None
    from cheops.security.keyring import Keyring  # noqa: PLC0415 - it takes a while, and not all need it

    return Keyring(config.security, config.name, refusals)


def rejection_of(mesh: Mesh, identity: "Identity", now_s: float) -> Rejection | None:
    """The record of the mesh is the list of what was revoked: also while nobody else can be asked."""
    site, member = identity.site, mesh.member_of(identity.site)
    if member and member.forgotten:
        return Rejection(FORGOTTEN, f"'{site}' was forgotten; 'cheops site admit' takes it in again", site, member)
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
_LOOK_S, _AGAIN_S, _AGAIN_MOST_S = 2.0, 1.0, 60.0
_AVOIDED_S = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


class NoIssuerError(CheopsError):
    """A certificate cannot be renewed now."""


def left_until_due_s(identity: "Identity", now_s: float, renew_before_s: float) -> float:
    """Seconds; none left means that it is due. With a third of its time left it is, at the latest."""
    lasts_s = identity.until_s - identity.made_ms / 1000
    return identity.until_s - min(renew_before_s, lasts_s / 3) - now_s


class CertificateRenewal:
    """Looks after one site's certificate."""

    def __init__(self, config: SecurityConfig, keyring: "Keyring", mesh: Mesh, client: PeerClient) -> None:
        self._config = config
        self._keyring = keyring
        self._mesh = mesh
        self._client = client
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
            raise NoIssuerError("no site that has the key of an authority is up, or gives what it should")

    def _issuer(self, now_s: float) -> SiteRecord | None:
        """A site that is up and says that it has the authority's key. All take the first, so that two that
        believe different authorities do not take turns; but not one that did not give what it said."""
        entries = (self._mesh.entry_of(site) for site in sorted(self._mesh.up))
        for entry in entries:
            if entry and entry.issues and self._avoided.get(entry.name, 0.0) <= now_s:
                return entry
        return None

    def _renew_by_oneself(self, authority: "Authority", now_s: float) -> None:
        from cheops.security.certificate_requests import renewal_spec  # noqa: PLC0415 - rarely needed

        current = self._keyring.identity
        issued = authority.issue(renewal_spec(current), now_s, self._config.valid_for_s, current.made_ms + 1)
        self._keyring.install(issued)
        _log.info("the certificate of this site was renewed, by its own authority")

    async def _ask(self, issuer: str, now_s: float) -> None:
        self._avoided = {site: end_s for site, end_s in self._avoided.items() if end_s > now_s}
        self._avoided[issuer] = now_s + _AVOIDED_S  # unless it goes well
        await self._renew_by(issuer)
        del self._avoided[issuer]

    async def _renew_by(self, issuer: str) -> None:
        from cheops.security.certificate_requests import Renewal, accept_renewal  # noqa: PLC0415

        async with self._client.request(issuer, "POST", f"/{RENEWAL_PATH}", timeout=_TIMEOUT) as answer:
            body = await read_response(answer, _MOST_BYTES)
            if answer.status != 200:
                raise aiohttp.ClientError(f"{issuer} answered {answer.status}: {body[:300]!r}")
        renewal = msgspec.json.decode(body, type=Renewal)
        keyring = self._keyring
        identity, authorities = accept_renewal(renewal, keyring.identity, keyring.folder.authorities)
        keyring.install(identity, authorities)
        _log.info("the certificate of this site was renewed by %s", issuer)
