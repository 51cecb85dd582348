"""New sites: invited, given their certificates, and new ones in time. Only where the authority's key is.

An invitation is used up before anything is given for it, and that is durable: it never works twice, whatever
happens in between. What a newcomer gets is for the name that was invited; of the addresses that it asks for
it gets none that another site of the mesh has, unless whoever invited it said so.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from cheops.config.address import is_loopback, place_of
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError, ClientError
from cheops.scope.names import name_problem
from cheops.security.invitations import Code, Invitation, Invitations, new_secret
from cheops.sync.mesh import Mesh
from cheops.text import listed, printable, shortened

if TYPE_CHECKING:
    from cheops.security.certificates import Authority, Identity
    from cheops.security.joining import Joined, JoinRequest, Renewal
    from cheops.security.keyring import Keyring

Keep = Callable[[dict[str, Any]], Awaitable[None]]


class NotInvitedError(ClientError):
    """Nobody can be invited under this name."""

    status = 409


class NoAuthorityError(CheopsError):
    """This site cannot issue certificates."""

    status = 409


class Admitting:
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
        from cheops.security.certificates import fingerprint  # noqa: PLC0415 - rarely needed
        from cheops.security.extensions import general_names  # noqa: PLC0415 - the same

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

    async def join(self, sent: "JoinRequest") -> "Joined":
        """What a newcomer is given; raises InvitationError, CertificateError or NoAuthorityError."""
        from cheops.security.joining import Joined, read_request  # noqa: PLC0415 - rarely needed

        keyring, authority = self._issuing()
        self._invitations.taken(sent.secret, _now_ms())  # for strangers, nothing is looked at
        wanted = read_request(sent)
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
        return Joined(
            invitation.site,
            issued.pem.decode("ascii"),
            keyring.folder.authorities.pem.decode("ascii"),
            self._peers(),
        )

    def renew(self, identity: "Identity") -> "Renewal":
        """A new certificate for a site in good standing; raises NoAuthorityError."""
        from cheops.security.joining import proved, renewal_of  # noqa: PLC0415 - rarely needed

        keyring, authority = self._issuing()
        made_ms = max(self._least_made_ms(identity.site), identity.made_ms + 1)
        valid_for_s = self._config.security.valid_for_s
        issued = authority.issue(renewal_of(identity), time.time(), valid_for_s, made_ms)
        return proved(authority, issued, keyring.folder.authorities)

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
        held = {place_of(url).host: name for name, url in urls.items() if not is_loopback(url)}
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
