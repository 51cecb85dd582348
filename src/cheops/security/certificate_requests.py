"""Requests for certificates, and the responses: to join, and to renew. Private keys never leave their site.

A request to join is a certificate signing request (PKCS #10), which proves that its sender has the TLS key, and its
signature by the other key. The name of the site comes from the invitation, not from the request.

A renewal carries the list of authorities too, so that a new authority becomes known everywhere. An authority that is
trusted already signs the list together with the new certificate: so an old list cannot be replayed.
"""

import hashlib

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from cheops.security.certificates import (
    Authorities,
    Authority,
    CertificateError,
    CertificateSpec,
    Identity,
    UntrustedError,
    common_name,
    general_names,
    key_in,
    key_uri,
    raw_public_key,
)
from cheops.text import shortened

MAX_BYTES = 64 * 1024
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)


class JoinRequest(msgspec.Struct, frozen=True):
    """Sent by a new site; bytes are base64 in JSON."""

    secret: bytes
    request: bytes  # PKCS #10, DER
    signature: bytes  # of `request`, Ed25519

    def __repr__(self) -> str:
        return "<a request to join>"  # the secret must not get into logs


class JoinResponse(msgspec.Struct, frozen=True):
    """The response to a new site."""

    site: str
    certificate: str  # PEM
    authorities: str  # PEM, one or more
    peers: dict[str, str]


class Renewal(msgspec.Struct, frozen=True):
    """A new certificate for the same keys."""

    certificate: str
    authorities: str
    proof: bytes  # the authority's signature of both


class VerifiedRequest(msgspec.Struct, frozen=True):
    """The verified content of a request."""

    public_key: EllipticCurvePublicKey
    signing_key: bytes
    addresses: tuple[str, ...]

    def for_site(self, site: str) -> CertificateSpec:
        return CertificateSpec(site, self.public_key, self.signing_key, self.addresses)


def make_request(
    site: str,
    key: EllipticCurvePrivateKey,
    signing_key: Ed25519PrivateKey,
    addresses: tuple[str, ...],
    secret: bytes,
) -> JoinRequest:
    uri = x509.UniformResourceIdentifier(key_uri(raw_public_key(signing_key)))
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(common_name(site))
        .add_extension(x509.SubjectAlternativeName([uri, *general_names(addresses)]), critical=False)
        .sign(key, SHA256())
        .public_bytes(Encoding.DER)
    )
    return JoinRequest(secret, request, signing_key.sign(request))


def verify_request(join: JoinRequest) -> VerifiedRequest:
    """Check that the sender has both keys; raises CertificateError."""
    try:
        request = x509.load_der_x509_csr(join.request)
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        public_key = request.public_key()
        is_signed = request.is_signature_valid
    except (*_UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise CertificateError(f"not a request for a certificate: {shortened(str(error))}") from None
    signing_key = key_in(names.get_values_for_type(x509.UniformResourceIdentifier))
    # Only the kinds of keys that the other checks were written for: no RSA of 512 bits, no exotic curve.
    if signing_key is None or not is_signed or not _is_p256(public_key):
        raise CertificateError("the request is not signed, or its keys are not of the kind that sites have")
    try:
        Ed25519PublicKey.from_public_bytes(signing_key).verify(join.signature, join.request)
    except (InvalidSignature, ValueError):
        raise CertificateError("the request does not prove that its sender has the signing key") from None
    hosts = names.get_values_for_type(x509.DNSName)
    addresses = tuple(str(one) for one in names.get_values_for_type(x509.IPAddress))
    assert isinstance(public_key, EllipticCurvePublicKey)  # noqa: S101 - for the type checker
    return VerifiedRequest(public_key, signing_key, (*hosts, *addresses))


def _is_p256(key: object) -> bool:
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)


def renewal_spec(identity: Identity) -> CertificateSpec:
    """For a certificate of the same site, keys and addresses."""
    public_key = identity.certificate.public_key()
    if not isinstance(public_key, EllipticCurvePublicKey):
        raise CertificateError("the certificate has another kind of key than sites have")
    return CertificateSpec(identity.site, public_key, identity.signing_key, identity.addresses)


def make_renewal(authority: Authority, issued: Identity, trusted: Authorities) -> Renewal:
    """A new certificate with the list of authorities, and the proof that both belong together."""
    proof = authority.key.sign(_statement(issued.der, trusted.pem), ECDSA(SHA256()))
    return Renewal(issued.pem.decode("ascii"), trusted.pem.decode("ascii"), proof)


def accept_renewal(renewal: Renewal, current: Identity, trusted: Authorities) -> tuple[Identity, Authorities]:
    """Check a renewal; raises UntrustedError or CertificateError."""
    try:
        der = x509.load_pem_x509_certificate(renewal.certificate.encode()).public_bytes(Encoding.DER)
        authorities = Authorities(x509.load_pem_x509_certificates(renewal.authorities.encode()))
    except (ValueError, x509.InvalidVersion) as error:
        raise CertificateError(f"not certificates: {shortened(str(error))}") from None
    # By an authority that was trusted before this renewal, not by one that the renewal brings along.
    if not any(_signed(renewal.proof, _statement(der, authorities.pem), one) for one in trusted.certificates):
        raise UntrustedError("the renewal is not signed by an authority that this site trusts")
    identity = authorities.verify(der, None)
    same = identity.site == current.site and identity.signing_key == current.signing_key
    if not same or identity.certificate.public_key() != current.certificate.public_key():
        raise UntrustedError("the renewal is the certificate of another site, or of other keys")
    # An old renewal, replayed, would bring back an authority that was replaced since.
    if identity.made_ms <= current.made_ms:
        raise UntrustedError("the renewal is older than the certificate in use")
    return identity, authorities


def _statement(der: bytes, authorities: bytes) -> bytes:
    # Hashes of fixed length: no part can be moved from one to the other. The prefix keeps the signature from being
    # valid for anything else that the authority's key signs.
    parts = (hashlib.sha256(part).digest() for part in (der, authorities))
    return b"cheops renewal\0" + b"".join(parts)


def _signed(proof: bytes, statement: bytes, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        return False
    try:
        key.verify(proof, statement, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True
