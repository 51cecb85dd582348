"""Joins a mesh with an invitation code.

Nobody in between can take part. The first connection is not verified, and brings nothing but the certificate of the
authority, which is compared with the fingerprint in the code. The second is verified by that authority, and must
be of the site that sent the invitation; only this one sees the secret.
"""

import http.client
import socket
import ssl
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cheops.client.target import UnreachableError, refusal
from cheops.errors import CheopsError, Fault
from cheops.security.certificate_requests import MAX_BYTES, JoinRequest, JoinResponse
from cheops.security.certificates import Authorities, Identity, dns_name, fingerprint
from cheops.security.invitations import Code

_TIMEOUT_S = 20.0
_MOST_BYTES = 8 * MAX_BYTES


class ImpostorError(CheopsError):
    """Somebody else is at the address of the site that invited, or on the way to it."""

    fault = Fault.PEER


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a new site was given, checked."""

    identity: Identity
    authorities: Authorities
    peers: dict[str, str]


class Inviter:
    """The site that a code comes from; raises UnreachableError or ImpostorError."""

    def __init__(self, code: Code) -> None:
        self._code = code
        parts = urlsplit(code.url)
        self._address = (parts.hostname or "", parts.port or 443)
        self.own_host = ""  # by which this machine reaches the other

    def authority(self) -> x509.Certificate:
        """The one whose fingerprint the code has."""
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname = False
        anybody.verify_mode = ssl.CERT_NONE  # what it brings is compared with the fingerprint
        found = self._ask(anybody, "GET", "/join/authority", None)
        try:
            shown = x509.load_pem_x509_certificates(found)
        except ValueError:
            shown = []
        for one in shown:
            if fingerprint(one) == self._code.fingerprint:
                return one
        raise ImpostorError(
            f"whoever answers at {self._code.url} is not of the mesh that invited: the authority's "
            "fingerprint is another one. Somebody may be in between. Nothing was sent. Find out first"
        )

    def join(self, authority: x509.Certificate, request: JoinRequest) -> Welcome:
        """Show the secret to the site that invited, and to nobody else."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=authority.public_bytes(Encoding.PEM).decode("ascii"))
        body = self._ask(context, "POST", "/join", msgspec.json.encode(request))
        try:
            joined = msgspec.json.decode(body, type=JoinResponse)
            authorities = Authorities(x509.load_pem_x509_certificates(joined.authorities.encode()))
            der = x509.load_pem_x509_certificate(joined.certificate.encode()).public_bytes(Encoding.DER)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ImpostorError(f"{self._code.inviter} answered something else than certificates: {error}") from None
        return Welcome(authorities.verify(der, None), authorities, joined.peers)

    def _ask(self, context: ssl.SSLContext, method: str, path: str, body: bytes | None) -> bytes:
        try:
            with closing(http.client.HTTPConnection(*self._address, timeout=_TIMEOUT_S)) as connection:
                plain = socket.create_connection(self._address, _TIMEOUT_S)
                self.own_host = plain.getsockname()[0]
                connection.sock = context.wrap_socket(plain, server_hostname=dns_name(self._code.inviter))
                connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                answer = connection.getresponse()
                content = answer.read(_MOST_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise ImpostorError(
                f"whoever answers at {self._code.url} is not {self._code.inviter}, which invited: "
                f"{error.verify_message}. Somebody may be in between. The secret was not sent"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            said = error or type(error).__name__
            raise UnreachableError(f"no answer from {self._code.inviter} at {self._code.url}: {said}") from None
        if answer.status >= 400:
            raise refusal(answer.status, content)
        return content
