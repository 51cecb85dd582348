"""Joins a mesh with an invitation code, or gets new keys for a site of it.

An attacker in between can neither read the secret nor send a certificate. The first connection is not verified, and
only fetches the certificate of the authority, which must have the fingerprint in the code. The second is verified by
that authority, and must end at the site that sent the invitation; only this one carries the secret.

Certificates are compared with this machine's clock. If that differs from the clock of the inviting site, the error says
so. The other clock comes from the first connection, so it explains and refuses, and never makes anything acceptable.

Not part of `agent`, because cryptography is slow to import and only this needs it.
"""

import http.client
import socket
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cheops.client.target import UnreachableError, refusal
from cheops.errors import CheopsError, Fault
from cheops.security.certificate_requests import MAX_BYTES, JoinRequest, JoinResponse, make_request
from cheops.security.certificates import (
    Authorities,
    Identity,
    dns_name,
    fingerprint,
    make_key,
    make_signing_key,
    shown_time,
)
from cheops.security.invitations import Code
from cheops.security.keyring import KeyFolder
from cheops.security.tls import EXPIRED, reason_of

_TIMEOUT_S = 20.0
_MAX_BYTES = 8 * MAX_BYTES
_EQUAL_S = 5.0  # clocks that differ by less are not the reason of anything
_MAX_SKEW_S = 3_000.0  # a new certificate begins an hour in the past, so clocks may differ by that


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
        self._skew_s: float | None = None  # how far this clock is ahead of the inviting site's

    def get_certificate(
        self, authority: x509.Certificate, addresses: tuple[str, ...], path: Path
    ) -> tuple[KeyFolder, Welcome]:
        """Create keys for this machine, and have them certified. Uses up the invitation; nothing is written yet."""
        key, signing_key = make_key(), make_signing_key()
        request = make_request(self._code.site, key, signing_key, addresses, self._code.secret)
        if self._skew_s is not None and abs(self._skew_s) > _MAX_SKEW_S:
            # By now, because the certificate would not be valid here, and the invitation would be used up.
            raise self._wrong_clock("certificates would not be valid here")
        welcome = self.join(authority, request)
        if welcome.identity.site != self._code.site:
            raise _impostor(f"{self._code.inviter} sent the certificate of another site; nothing was written")
        return KeyFolder(path, welcome.authorities, welcome.identity, key, signing_key), welcome

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
                self._compare_clocks(response.getheader("Date"))
                content = response.read(_MAX_BYTES)
        except ssl.SSLCertVerificationError as error:
            if reason_of(error.verify_code) == EXPIRED:
                raise self._wrong_clock(f"the certificate of {self._code.inviter} is not valid by it") from None
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

    def _compare_clocks(self, date: str | None) -> None:
        try:
            self._skew_s = time.time() - parsedate_to_datetime(date).timestamp() if date else None
        except ValueError:
            self._skew_s = None

    def _wrong_clock(self, what: str) -> CheopsError:
        inviter, now = self._code.inviter, shown_time(time.time())
        if self._skew_s is None or abs(self._skew_s) < _EQUAL_S:
            return CheopsError(
                f"this machine's clock says {now}, and {what}: it has expired, or is not valid yet. If the clock is "
                f"right, look into the log of the agent of {inviter}, which renews its own certificate. The code was "
                "not used"
            )
        direction = "ahead of" if self._skew_s > 0 else "behind"
        return CheopsError(
            f"this machine's clock says {now}, and {what}. It is {_duration(abs(self._skew_s))} {direction} the clock "
            f"of {inviter}. Set the clock that is wrong (NTP), and try again: the code was not used"
        )


def _duration(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 1.9 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:,.0f} seconds"
