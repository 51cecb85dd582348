"""Authorities and the certificates of sites: create, issue, read, and verify.

An authority (ECDSA P-256) issues the certificates of sites itself, without intermediates, so that verifying one takes
one signature check. An `Identity` is the content of a certificate, which has it in subject alternative names:

    cheops://site/NAME      the site
    cheops://key/BASE64URL  its Ed25519 key for signatures
    cheops://made/MS        when the certificate was made, in milliseconds since 1970
    HASH.cheops.internal    the site again, in a form that TLS libraries check: a site has any address

`made` is exact to the millisecond, because forgetting a site revokes every certificate of it that was made before.
The start of validity cannot serve for that: it lies an hour in the past, for the sake of clocks that are behind.
"""

import base64
import binascii
import datetime as dt
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from cheops.errors import CheopsError
from cheops.text import printable, shortened

DOMAIN = "cheops.internal"
_SITE, _KEY, _MADE = "cheops://site/", "cheops://key/", "cheops://made/"


def dns_name(site: str) -> str:
    """The host name of a site in certificates. A hash, because the name of a site may have any characters."""
    digest = base64.b32encode(hashlib.sha256(site.encode()).digest()).decode()
    return f"{digest.rstrip('=').lower()}.{DOMAIN}"


def is_reserved(host: str) -> bool:
    """Whether a host name could be mistaken for that of a site."""
    plain = host.lower().rstrip(".")
    return plain == DOMAIN or plain.endswith(f".{DOMAIN}") or "*" in plain


def site_uri(site: str) -> str:
    return _SITE + quote(site, safe="")


def key_uri(public_key: bytes) -> str:
    return _KEY + base64.urlsafe_b64encode(public_key).decode().rstrip("=")


def made_uri(made_ms: int) -> str:
    return f"{_MADE}{made_ms}"


def site_in(uris: list[str]) -> str | None:
    """The site that these URIs name; None unless there is exactly one, in its only spelling."""
    quoted = _only(uris, _SITE)
    site = None if quoted is None else unquote(quoted)
    # One spelling per site: two programs that unquote differently must not see two sites.
    return site if site and site_uri(site) == f"{_SITE}{quoted}" else None


def key_in(uris: list[str]) -> bytes | None:
    encoded = _only(uris, _KEY)
    try:
        key = base64.b64decode(f"{encoded or ''}=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == 32 else None


def made_in(uris: list[str]) -> int | None:
    text = _only(uris, _MADE)
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 15 else None


def _only(uris: list[str], start: str) -> str | None:
    """The rest of the one URI that starts so. Two would let the reader choose which counts."""
    rests = [uri.removeprefix(start) for uri in uris if uri.startswith(start)]
    return rests[0] if len(rests) == 1 else None


MAX_ADDRESSES = 32


class CertificateError(CheopsError):
    """This is not a certificate that can be used here; the text says why."""

    status = 400
    reason = "certificate"


def general_names(addresses: Iterable[str]) -> list[x509.GeneralName]:
    """Host names and IP addresses, as a certificate has them; raises CertificateError."""
    names: list[x509.GeneralName] = []
    for address in addresses:
        try:
            names.append(x509.IPAddress(ip_address(address)))
        except ValueError:
            names.append(_host(address))
    if len(names) > MAX_ADDRESSES:
        raise CertificateError(f"a certificate is for at most {MAX_ADDRESSES} addresses, not {len(names)}")
    return names


def _host(address: str) -> x509.DNSName:
    # TLS trusts these names: a site with the name of another in its certificate could pass for it.
    if is_reserved(address) or not address:
        raise CertificateError(
            f"'{printable(shortened(address))}' cannot be the host name of a site: "
            f"names below {DOMAIN} and names with * are reserved"
        )
    try:
        return x509.DNSName(address)
    except ValueError as error:
        raise CertificateError(f"'{printable(shortened(address))}' is not a host name: {error}") from None


PURPOSES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def common_name(text: str) -> x509.Name:
    """A subject, for people to read. No check uses it, so it is simply cut to the 64 bytes that X.509 allows."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text.encode()[:64].decode(errors="ignore"))])


AUTHORITY_VALID_FOR_S = 3650 * 86_400.0
_BACK = dt.timedelta(hours=1)  # a site whose clock is behind must accept a certificate that was issued just now


class UntrustedError(CertificateError):
    """A certificate is not of the mesh, or is not valid at this time."""

    status = 403
    reason = "untrusted"


@dataclass(frozen=True)
class Identity:
    """The content of a site's certificate, and the certificate itself in DER."""

    site: str
    signing_key: bytes  # Ed25519, 32 bytes
    made_ms: int
    from_s: float
    until_s: float
    der: bytes = field(repr=False)
    addresses: tuple[str, ...] = ()

    @cached_property
    def certificate(self) -> x509.Certificate:
        return x509.load_der_x509_certificate(self.der)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def is_valid_at(self, now_s: float) -> bool:
        return self.from_s <= now_s <= self.until_s


class CertificateSpec(Struct, frozen=True):
    """The content of a certificate to issue. Private keys stay at their site."""

    site: str
    public_key: EllipticCurvePublicKey
    signing_key: bytes
    addresses: tuple[str, ...] = ()


class Authority(Struct, frozen=True):
    """An authority that can issue: its certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    def issue(self, request: CertificateSpec, now_s: float, valid_for_s: float, least_made_ms: int = 0) -> Identity:
        """A certificate whose `made_ms` is at least `least_made_ms`, even if the clock is behind; raises
        CertificateError."""
        now = _moment(now_s)
        # A certificate that outlives its authority would be refused by all, without a hint at the reason.
        end = min(now + dt.timedelta(seconds=valid_for_s), self.certificate.not_valid_after_utc)
        if end <= now:
            raise CertificateError(
                f"the authority itself ended at {shown_time(end_s(self.certificate))}, so it issues nothing more. Make "
                "a new one, and let every site rejoin: docs/certificates-trouble.md#the-authoritys-key-is-lost"
            )
        made_ms = max(int(now_s * 1000), least_made_ms)
        builder = (
            x509.CertificateBuilder()
            .subject_name(common_name(request.site))
            .issuer_name(self.certificate.subject)
            .public_key(request.public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _BACK, self.certificate.not_valid_before_utc))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage(signs_certificates=False), critical=True)
            .add_extension(PURPOSES, critical=False)
            .add_extension(x509.SubjectAlternativeName(_names(request, made_ms)), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(request.public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return identity_of(builder.sign(self.key, SHA256()).public_bytes(Encoding.DER))


class Authorities:
    """The authorities that a site trusts: one, or two while one replaces another."""

    def __init__(self, certificates: Iterable[x509.Certificate]) -> None:
        self.certificates = tuple(certificates)

    @property
    def pem(self) -> bytes:
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.certificates)

    def verify(self, der: bytes, at_s: float | None) -> Identity:
        """The identity in a certificate of the mesh; raises UntrustedError or CertificateError.

        With `at_s` None the period of validity is not checked: documents outlive the certificates of their signers.
        """
        identity = identity_of(der)
        if self.issuer_of(identity) is None:
            raise UntrustedError(
                f"the certificate of '{printable(shortened(identity.site))}' is of an unknown authority"
            )
        if at_s is not None and not identity.is_valid_at(at_s):
            raise UntrustedError(
                f"the certificate of '{identity.site}' is valid from {shown_time(identity.from_s)} "
                f"to {shown_time(identity.until_s)}, and it is {shown_time(at_s)} now"
            )
        return identity

    def valid_at(self, now_s: float) -> "Authorities":
        """Those that are valid at this time."""
        return Authorities(one for one in self.certificates if _begin_s(one) <= now_s <= end_s(one))

    def followed_by(self, others: "Authorities") -> "Authorities":
        """These first, then those of the others that are not among them."""
        return Authorities(dict.fromkeys((*self.certificates, *others.certificates)))

    @property
    def digest(self) -> str:
        """Equal at all sites that trust the same authorities."""
        return hashlib.sha256(self.pem).hexdigest()[:32]

    def issuer_of(self, identity: Identity) -> x509.Certificate | None:
        """The authority that issued a certificate; None if it is none of these."""
        return next((one for one in self.certificates if _issued(identity.certificate, one)), None)


def make_authority(now_s: float, valid_for_s: float = AUTHORITY_VALID_FOR_S) -> Authority:
    key = make_key()
    name = common_name(f"Cheops authority {secrets.token_hex(4)}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now_s) - _BACK)
        .not_valid_after(_moment(now_s + valid_for_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return Authority(certificate, key)


def make_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


def make_signing_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def raw_public_key(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def end_s(certificate: x509.Certificate) -> float:
    """When a certificate ends, in seconds since 1970."""
    return certificate.not_valid_after_utc.timestamp()


def _begin_s(certificate: x509.Certificate) -> float:
    return certificate.not_valid_before_utc.timestamp()


def fingerprint(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the whole certificate."""
    return certificate.fingerprint(SHA256())


def identity_of(der: bytes) -> Identity:
    """The identity in a site's certificate, whatever its issuer; raises CertificateError."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = names.get_values_for_type(x509.DNSName)
        addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (ValueError, x509.InvalidVersion, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise CertificateError(f"this is not the certificate of a site: {shortened(str(error))}") from None
    site, key, made_ms = site_in(uris), key_in(uris), made_in(uris)
    # TLS checks the host name, everything else here the URI: they must name the same site.
    if site is None or key is None or made_ms is None or dns_name(site) not in hosts:
        raise CertificateError("this certificate is not that of a site: names are missing or contradictory")
    own = tuple(host for host in hosts if not is_reserved(host))
    return Identity(site, key, made_ms, begin.timestamp(), end.timestamp(), der, (*own, *addresses))


def _names(request: CertificateSpec, made_ms: int) -> list[x509.GeneralName]:
    uris = (site_uri(request.site), key_uri(request.signing_key), made_uri(made_ms))
    return [
        *(x509.UniformResourceIdentifier(uri) for uri in uris),
        x509.DNSName(dns_name(request.site)),
        *general_names(request.addresses),
    ]


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _moment(at_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(at_s), dt.UTC)


def shown_time(at_s: float) -> str:
    return f"{_moment(at_s):%Y-%m-%d %H:%M:%S} UTC"
