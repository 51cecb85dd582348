"""Who is at the other end of a connection, by the certificate that was verified when it was made."""

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cheops.security.certificates import Identity

_MOST_KNOWN = 1_024


def identity_at(transport: asyncio.BaseTransport) -> "Identity | None":
    """None without TLS, or without a certificate; raises CertificateError where that is none of a site."""
    der = certificate_at(transport)
    return identity_in(der) if der else None


def certificate_at(transport: asyncio.BaseTransport) -> bytes | None:
    """The certificate of the other side, in DER."""
    connection = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True) if connection else None


@lru_cache(_MOST_KNOWN)
def identity_in(der: bytes) -> "Identity":
    """Whom a certificate is of; raises CertificateError where that is no site."""
    from cheops.security.certificates import identity_of  # noqa: PLC0415 - only where there is TLS

    return identity_of(der)
