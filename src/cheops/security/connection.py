"""Who is at the other end of a connection, by the certificate that was verified when it was made."""

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cheops.security.certificates import Identity

_MOST_KNOWN = 1_024


def identity_at(transport: asyncio.BaseTransport) -> "Identity | None":
    """None without TLS, or without a certificate; raises CertificateError where that is none of a site."""
    connection = transport.get_extra_info("ssl_object")
    der = connection.getpeercert(binary_form=True) if connection else None
    return _read(der) if der else None


@lru_cache(_MOST_KNOWN)
def _read(der: bytes) -> "Identity":
    from cheops.security.certificates import identity_of  # noqa: PLC0415 - only where there is TLS

    return identity_of(der)
