"""Who this site is to others, and whether somebody who shows a certificate is a site that may take part."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cheops.config.site import SiteConfig
from cheops.security.refusals import Refusals
from cheops.sync.heartbeat import Member
from cheops.sync.mesh import Mesh

if TYPE_CHECKING:
    from cheops.security.certificates import Identity
    from cheops.security.keyring import Keyring

FORGED_SENDER, NO_SITE = "forged sender", "certificate of no site"
FORGOTTEN, OUTDATED, EXPIRED = (
    "forgotten site",
    "certificate from before it was forgotten",
    "expired certificate",
)


@dataclass(frozen=True, slots=True)
class Banned:
    """Why a site with a good certificate is not let in: the same few words for each kind, and all of it."""

    reason: str
    detail: str
    member: Member | None = None


def keyring_of(config: SiteConfig, refusals: Refusals) -> "Keyring | None":
    """None without security; raises FolderError."""
    if not config.security.is_on:
        return None
    from cheops.security.keyring import Keyring  # noqa: PLC0415 - it takes a while, and not all need it

    return Keyring(config.security, config.name, refusals)


def banned(mesh: Mesh, identity: "Identity", now_s: float) -> Banned | None:
    """The record of the mesh is the list of what was revoked: also while nobody else can be asked."""
    site, member = identity.site, mesh.member_of(identity.site)
    if member and member.forgotten:
        return Banned(FORGOTTEN, f"'{site}' was forgotten; 'cheops site admit' takes it in again", member)
    if member and identity.made_ms <= member.stamp_ms:
        return Banned(
            OUTDATED, f"'{site}' was forgotten after its certificate was made, so it needs a new one", member
        )
    if not identity.is_valid_at(now_s):
        return Banned(EXPIRED, f"the certificate of '{site}' is no longer valid, or not yet")
    return None
