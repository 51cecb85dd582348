"""The certificates of sites, kept for good: a document outlives the certificate of the one who signed it.

A site has one for each signing key that it ever had; of those for one key the newest counts. Only those of
the mesh's authority come in here, so their number is the authority's affair; it is bounded all the same.
"""

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from typing import TYPE_CHECKING, Any

from cheops.errors import CheopsError, Fault
from cheops.security.signatures import key_id

if TYPE_CHECKING:
    from cheops.security.certificates import Authorities, Identity


MOST_KEYS = 64  # of one site
MOST_SITES = 4_096  # in memory
MOST_BYTES = 512 * 1024  # of what one site tells of another


class IdentityError(CheopsError):
    """What was told of a site cannot be taken."""

    fault = Fault.PEER
    status = 403


class SiteCertificates:
    """The keys of one site."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._by_key: dict[str, Identity] = {}

    def get(self, id_: str) -> "Identity | None":
        return self._by_key.get(id_)

    @property
    def certificates(self) -> list[bytes]:
        return [identity.der for identity in self._by_key.values()]

    def add(self, identity: "Identity") -> bool:
        """Whether it is news; raises IdentityError where there are too many already."""
        id_ = key_id(identity.signing_key)
        before = self._by_key.get(id_)
        if before is not None and before.made_ms >= identity.made_ms:
            return False
        if before is None and len(self._by_key) >= MOST_KEYS:
            raise IdentityError(f"'{self.site}' has had {MOST_KEYS} keys; no more of them are taken")
        self._by_key[id_] = identity
        return True

    def note(self) -> dict[str, Any]:
        return {"certificates": [b64encode(der).decode("ascii") for der in self.certificates]}


def certificates_of_note(site: str, note: object) -> SiteCertificates:
    """What was kept. It was verified when it came in: authorities may have gone since."""
    from cheops.security.certificates import identity_of  # noqa: PLC0415 - slow to import

    known = SiteCertificates(site)
    for der in certificates_in(note) if note is not None else ():
        known.add(identity_of(der))
    return known


def verify_certificates(site: str, told: object, authorities: "Authorities") -> "list[Identity]":
    """What was told of a site, if all of it is that site's and of the mesh; raises a CheopsError."""
    found = [authorities.verify(der, None) for der in certificates_in(told)]
    if strange := next((identity for identity in found if identity.site != site), None):
        raise IdentityError(f"asked for '{site}', and got a certificate of '{strange.site}'")
    return found


def certificates_in(told: object) -> list[bytes]:
    """The certificates in a note or an answer; raises IdentityError."""
    texts = told.get("certificates") if isinstance(told, dict) else None
    if not isinstance(texts, list) or len(texts) > MOST_KEYS:
        raise IdentityError("these are not the certificates of a site")
    try:
        return [b64decode(text, validate=True) for text in texts]
    except (BinasciiError, ValueError, TypeError):
        raise IdentityError("these are not the certificates of a site") from None
