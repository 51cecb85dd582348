"""Parts of certificates that are the same for all of a kind, and addresses of sites as these have them."""

from collections.abc import Iterable
from ipaddress import ip_address

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cheops.errors import CheopsError
from cheops.security import names
from cheops.text import printable, shortened

MAX_ADDRESSES = 32


class CertificateError(CheopsError):
    """Something is not a certificate that can be used here; it says why."""

    status = 400


def general_names(addresses: Iterable[str]) -> list[x509.GeneralName]:
    """Host names and IP addresses, as a certificate has them; raises CertificateError."""
    found: list[x509.GeneralName] = []
    for address in addresses:
        try:
            found.append(x509.IPAddress(ip_address(address)))
        except ValueError:
            found.append(_host(address))
    if len(found) > MAX_ADDRESSES:
        raise CertificateError(f"a certificate is for at most {MAX_ADDRESSES} addresses, not {len(found)}")
    return found


def _host(address: str) -> x509.DNSName:
    if names.is_reserved(address) or not address:
        raise CertificateError(
            f"'{printable(shortened(address))}' cannot be the host name of a site: "
            f"names below {names.DOMAIN} and those with * are not given away"
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
    """For people; nothing is decided by it. 64 bytes are allowed."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text.encode()[:64].decode(errors="ignore"))])
