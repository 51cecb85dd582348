"""How sites get and lose their certificates: invitations, joining, issuing, and the check of each connection.

Only a site with the authority's key invites and issues. An invitation is marked as used, durably, before its
certificate is issued: it never works twice, whatever happens in between. A new site gets a certificate for the name
that was invited. It gets no address that another site of the mesh has, unless the invitation names that address.

Each invitation ends the certificates that the name had before (the caller decides so): if somebody else used an earlier
code, a new one is enough. A site of the mesh that needs new keys is invited again. Renewal (renewal.py) keeps the keys.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cheops.config.address import address_of_url, is_loopback
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError, ClientError
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.mesh import Mesh
from cheops.peers.renewal import check_grace
from cheops.scope.names import name_problem
from cheops.security.invitations import Code, Invitation, Invitations, new_secret
from cheops.security.refusals import Refusals
from cheops.text import listed, nearest, printable, shortened

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
        """The code for a new site, and when it expires; raises CheopsError. The caller then ends the certificates that
        earlier codes for this name gave."""
        self._issuing()
        self._check_name(site)
        member = self._mesh.member_of(site)
        if member and member.forgotten:
            raise ClientError(
                f"'{site}' was forgotten. To have it back, with new keys: 'cheops site invite {site} --again'",
                status=409,
            )
        if self._mesh.entry_of(site) is not None:
            raise ClientError(
                f"'{site}' is part of the mesh already. If it needs new keys, or a certificate that is not expired: "
                f"'cheops site invite {site} --again'",
                status=409,
            )
        return await self._code(site, addresses, valid_for_s)

    async def invite_again(self, site: str, addresses: tuple[str, ...], valid_for_s: float) -> tuple[Code, int]:
        """The code for new keys of a site that is, or was, part of the mesh; raises CheopsError. The caller then ends
        its certificates, and so admits it if it was forgotten."""
        self._issuing()
        self._check_name(site)
        known = {*self._mesh.known_sites, *self._mesh.forgotten, *self._config.peers}
        # After a restart a site may be known by the last decision about it only: its record ended with its certificate.
        if site not in known and self._mesh.member_of(site) is None:
            meant = nearest(site, known)
            hint = f"did you mean '{meant}'? " if meant else ""
            raise ClientError(
                f"unknown site '{shortened(site)}'; {hint}A site that is not known here is invited without --again",
                status=404,
            )
        return await self._code(site, addresses, valid_for_s)

    async def _code(self, site: str, addresses: tuple[str, ...], valid_for_s: float) -> tuple[Code, int]:
        from cheops.security.certificates import fingerprint, general_names  # noqa: PLC0415 - slow to import

        keyring, _ = self._issuing()
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

    def renew(self, identity: "Identity", newest_ms: int) -> "Renewal":
        """A new certificate for a site that shows its current one; raises CheopsError. `newest_ms` is when the newest
        certificate was made that the site has shown here."""
        from cheops.security.certificate_requests import make_renewal, renewal_spec  # noqa: PLC0415

        keyring, authority = self._issuing()
        check_grace(identity, time.time(), self._config.security.renew_grace_s, newest_ms)
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
        if site == self._config.name:
            raise ClientError(
                f"'{site}' is part of the mesh already: it is this site. It has the authority's key, so "
                "'cheops site rejoin --ca FOLDER' gives it new keys",
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


class Rejection(Struct, frozen=True):
    """Why a connection is refused although its certificate is of the mesh. `reason` is the same for all of its kind."""

    reason: str
    detail: str
    site: str = ""
    member: MembershipRecord | None = None
    is_renewable: bool = False  # it may ask for its own renewal all the same, and for nothing else


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
        return Rejection(
            FORGOTTEN, f"'{site}' was forgotten; 'cheops site invite {site} --again' admits it again", site, member
        )
    if member and identity.made_ms <= member.stamp_ms:
        return Rejection(
            OUTDATED,
            f"'{site}' was forgotten or invited again after its certificate was made, so it needs a new one",
            site,
            member,
        )
    if not identity.is_valid_at(now_s):
        return Rejection(EXPIRED, _expiry(identity, now_s), site, is_renewable=now_s > identity.until_s)
    return None


def _expiry(identity: "Identity", now_s: float) -> str:
    from cheops.security.certificates import shown_time  # noqa: PLC0415 - rarely needed

    site, now = identity.site, shown_time(now_s)
    if now_s < identity.from_s:
        begin = shown_time(identity.from_s)
        return f"the certificate of '{site}' is valid from {begin}, and it is {now} here: one of both clocks is wrong"
    return (
        f"the certificate of '{site}' ended at {shown_time(identity.until_s)}, and it is {now} here. Its agent renews "
        "it at a site that has the authority's key; if it cannot, 'cheops site rejoin' gets a new one"
    )


def connection_rejection(mesh: Mesh, state: Mapping[str, Any], now_s: float) -> Rejection | None:
    """Why requests of a connection are refused. `state` is what the connection knows of its other end; without a
    certificate there is nothing to reject."""
    if (bad := state.get("bad_certificate")) is not None:
        return Rejection(NO_SITE, bad)
    identity = state.get("certificate")
    return rejection_of(mesh, identity, now_s) if identity is not None else None
