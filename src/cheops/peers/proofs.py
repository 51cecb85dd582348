"""What proves the records of the mesh: a site signs its own record, and the authority signs decisions about sites.

    site record   signed by the site's signing key (Ed25519), and carries the certificate that names that key
    decision      signed by the key of an authority (ECDSA P-256): to forget a site, or to admit it again

Both are proved by themselves, so they may come from any site, by any way, and be saved. A name without a certificate of
the mesh has no record: the authority decides how many sites there are.

The period of validity of a record's certificate is not checked. A site that was off for a year should not disappear
from the list, and its record is no more than the address at which it may be found: each connection there checks the
certificate that the site shows, with its period. A certificate that was revoked proves nothing any more: the
caller compares `made_ms` with the last decision about the site (gossip.py).

With `security: none` there are no keys, and every program of the machine may be any site: `NoProofs`.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from cheops.bounded import BoundedMap
from cheops.errors import CheopsError, ClientError
from cheops.peers.heartbeat import MembershipRecord, MeshError, SiteRecord
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from cryptography import x509

    from cheops.security.certificates import Authority, Identity
    from cheops.security.keyring import Keyring

FORGED_RECORD, FORGED_DECISION = "forged site record", "forged membership decision"
_RECORD, _DECISION = b"cheops site record 1\x00", b"cheops membership 1\x00"  # no signature can pass for another kind
_REMEMBERED = 8_192  # twice the greatest number of sites
_AUTHORITY_DIGITS = 32


class RecordError(MeshError):
    """A record or a decision is not taken. `reason` is the same for all of its kind."""

    status = 403

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail, reason=reason)


class Proofs(Protocol):
    """Signs what this site writes, and checks what others wrote."""

    @property
    def may_decide(self) -> bool:
        """Whether this site can sign decisions about sites."""

    def sign_record(self, record: SiteRecord) -> SiteRecord: ...

    def made_ms(self, record: SiteRecord) -> int | None:
        """When the certificate was made that proves a record; None if it needs none. Raises RecordError."""

    def sign_decision(self, decision: MembershipRecord) -> MembershipRecord: ...

    def check_decision(self, decision: MembershipRecord) -> None:
        """Raises RecordError."""


class NoProofs:
    """For `security: none`: everything is taken as it is."""

    may_decide = True

    def sign_record(self, record: SiteRecord) -> SiteRecord:
        return record

    def made_ms(self, _record: SiteRecord) -> int | None:
        return None

    def sign_decision(self, decision: MembershipRecord) -> MembershipRecord:
        return decision

    def check_decision(self, decision: MembershipRecord) -> None:
        pass


def record_content(record: SiteRecord) -> bytes:
    """What a site signs of its record. The hash binds the certificate, so that no other one can be put beside it."""
    fields = (record.name, record.incarnation, record.url, record.revision, record.version, record.services)
    return _RECORD + msgspec.json.encode((*fields, record.issues, record.types, sha256(record.certificate).hexdigest()))


def decision_content(decision: MembershipRecord) -> bytes:
    return _DECISION + msgspec.json.encode((decision.name, decision.stamp_ms, decision.forgotten))


def sign_decision(decision: MembershipRecord, authority: "Authority") -> MembershipRecord:
    """The decision, signed by the key of an authority."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - the same

    signature = authority.key.sign(decision_content(decision), ECDSA(SHA256()))
    return replace(decision, authority=_authority_id(authority.certificate), signature=signature)


def _authority_id(certificate: "x509.Certificate") -> str:
    from cheops.security.certificates import fingerprint  # noqa: PLC0415 - slow to import

    return fingerprint(certificate).hex()[:_AUTHORITY_DIGITS]


class CertificateProofs:
    """With security on. Each record is verified once: what is remembered depends on the authorities, see `reset`."""

    def __init__(self, keyring: "Keyring") -> None:
        self._keyring = keyring
        # By a hash: a record may have 16 KiB, and any site can send false ones.
        self._records: BoundedMap[bytes, int | RecordError] = BoundedMap(_REMEMBERED)
        self._certificates: BoundedMap[bytes, Identity] = BoundedMap(_REMEMBERED)
        self._decisions: BoundedMap[MembershipRecord, RecordError | None] = BoundedMap(_REMEMBERED)
        self.verified = 0  # signatures; a number that tests compare

    def reset(self) -> None:
        """The authorities, or this site's certificate, may be others now."""
        for known in (self._records, self._certificates, self._decisions):
            known.clear()

    @property
    def may_decide(self) -> bool:
        return self._keyring.authority is not None

    # -- records of sites --------------------------------------------------------------------------------

    def sign_record(self, record: SiteRecord) -> SiteRecord:
        folder = self._keyring.folder
        unsigned = replace(record, certificate=folder.identity.der, signature=b"")
        return replace(unsigned, signature=folder.signing_key.sign(record_content(unsigned)))

    def made_ms(self, record: SiteRecord) -> int | None:
        key = sha256(record.signature + record_content(record)).digest()
        if key not in self._records:
            try:
                self._records[key] = self._verify_record(record)
            except RecordError as error:
                self._records[key] = error
        outcome = self._records[key]
        if isinstance(outcome, RecordError):
            raise RecordError(outcome.reason, str(outcome))
        return outcome

    def _verify_record(self, record: SiteRecord) -> int:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - slow to import
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - the same

        if not record.signature or not record.certificate:
            raise _forged(record, "is not signed")
        if not record.url.startswith("https://"):
            raise _forged(record, "has an address without TLS")
        self.verified += 1
        identity = self._identity(record)
        if identity.site != record.name:
            raise _forged(record, f"has the certificate of '{printable(shortened(identity.site))}'")
        try:
            Ed25519PublicKey.from_public_bytes(identity.signing_key).verify(record.signature, record_content(record))
        except (InvalidSignature, ValueError):
            raise _forged(record, "was altered, or another site signed it") from None
        return identity.made_ms

    def _identity(self, record: SiteRecord) -> "Identity":
        der = record.certificate
        if der not in self._certificates:
            try:
                self._certificates[der] = self._keyring.folder.authorities.verify(der, None)
            except CheopsError as error:
                raise _forged(record, f"cannot be verified: {error}") from None
        return self._certificates[der]

    # -- decisions ---------------------------------------------------------------------------------------

    def sign_decision(self, decision: MembershipRecord) -> MembershipRecord:
        """Raises ClientError where this site has no key of an authority."""
        authority = self._keyring.authority
        if authority is None:
            raise ClientError("this site does not have the key of an authority (security.ca_key)", status=409)
        return sign_decision(decision, authority)

    def check_decision(self, decision: MembershipRecord) -> None:
        if decision not in self._decisions:
            self._decisions[decision] = self._decision_problem(decision)
        if problem := self._decisions[decision]:
            raise RecordError(problem.reason, str(problem))

    def _decision_problem(self, decision: MembershipRecord) -> RecordError | None:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - slow to import
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

        about = f"the decision about '{printable(shortened(decision.name))}'"
        for certificate in self._keyring.folder.authorities.certificates:
            key = certificate.public_key()
            if _authority_id(certificate) != decision.authority or not isinstance(key, EllipticCurvePublicKey):
                continue
            self.verified += 1
            try:
                key.verify(decision.signature, decision_content(decision), ECDSA(SHA256()))
            except InvalidSignature:
                return RecordError(FORGED_DECISION, f"{about} was altered, or is not by the authority")
            return None
        return RecordError(FORGED_DECISION, f"{about} is not signed by an authority of this mesh")


def _forged(record: SiteRecord, problem: str) -> RecordError:
    return RecordError(FORGED_RECORD, f"the record of '{printable(shortened(record.name))}' {problem}")


def proofs_of(keyring: "Keyring | None", renewed: Callable[[], None]) -> Proofs:
    """What a site proves and checks, with security on or off. `renewed` is called when it has new certificates."""
    if keyring is None:
        return NoProofs()
    proofs = CertificateProofs(keyring)

    def use_new_certificates() -> None:
        proofs.reset()
        renewed()

    keyring.changed.append(use_new_certificates)
    return proofs
