"""Joins a mesh with an invitation code.

An attacker in between can neither read the secret nor send a certificate. The first connection is not verified, and
only fetches the certificate of the authority, which must have the fingerprint in the code. The second is verified by
that authority, and must end at the site that sent the invitation; only this one carries the secret.

Not part of `agent`, because cryptography is slow to import and only this needs it.
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
_MAX_BYTES = 8 * MAX_BYTES


def _impostor(text: str) -> CheopsError:
    """Another machine is at the address of the inviting site, or on the way to it."""
    return CheopsError(text, fault=Fault.PEER)


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a new site gets when it joins, verified."""

    identity: Identity
    authorities: Authorities
    peers: dict[str, str]


class Inviter:
    """The site that a code comes from; raises UnreachableError, or CheopsError for an impostor."""

    def __init__(self, code: Code) -> None:
        self._code = code
        parts = urlsplit(code.url)
        self._address = (parts.hostname or "", parts.port or 443)
        self.own_host = ""  # the address by which this machine reaches the inviting site

    def authority(self) -> x509.Certificate:
        """The certificate of the authority, which must have the fingerprint in the code."""
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE  # the certificate in the response is compared with the fingerprint
        content = self._send(unverified, "GET", "/join/authority", None)
        try:
            certificates = x509.load_pem_x509_certificates(content)
        except ValueError:
            certificates = []
        for one in certificates:
            if fingerprint(one) == self._code.fingerprint:
                return one
        raise _impostor(
            f"the server at {self._code.url} does not belong to the mesh of the invitation: the authority's "
            "fingerprint differs. Somebody may be in between. Nothing was sent. Find out why before you try again"
        )

    def join(self, authority: x509.Certificate, request: JoinRequest) -> Welcome:
        """Send the secret to the inviting site, and to no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=authority.public_bytes(Encoding.PEM).decode("ascii"))
        body = self._send(context, "POST", "/join", msgspec.json.encode(request))
        try:
            joined = msgspec.json.decode(body, type=JoinResponse)
            authorities = Authorities(x509.load_pem_x509_certificates(joined.authorities.encode()))
            der = x509.load_pem_x509_certificate(joined.certificate.encode()).public_bytes(Encoding.DER)
        except (msgspec.MsgspecError, ValueError) as error:
            raise _impostor(f"{self._code.inviter} did not respond with certificates: {error}") from None
        return Welcome(authorities.verify(der, None), authorities, joined.peers)

    def _send(self, context: ssl.SSLContext, method: str, path: str, body: bytes | None) -> bytes:
        try:
            with closing(http.client.HTTPConnection(*self._address, timeout=_TIMEOUT_S)) as connection:
                plain = socket.create_connection(self._address, _TIMEOUT_S)
                self.own_host = plain.getsockname()[0]
                connection.sock = context.wrap_socket(plain, server_hostname=dns_name(self._code.inviter))
                connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                response = connection.getresponse()
                content = response.read(_MAX_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise _impostor(
                f"the server at {self._code.url} is not the inviting site, {self._code.inviter}: "
                f"{error.verify_message}. Somebody may be in between. The secret was not sent"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = error or type(error).__name__
            raise UnreachableError(f"no response from {self._code.inviter} at {self._code.url}: {why}") from None
        if response.status >= 400:
            raise refusal(response.status, content)
        return content
