"""The TLS contexts of services, for both directions, and what went wrong where a handshake failed.

Files are read when they are first needed, and again when they change: the next handshake uses the new ones. If the
new ones cannot be used (a certificate without its key, while somebody replaces both), the last good ones stay in use,
and `problem` says why.
"""

import logging
import ssl
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from cheops.config.service_tls import ListenerTls, UpstreamTls
from cheops.errors import CheopsError

_log = logging.getLogger(__name__)

UNKNOWN_AUTHORITY, WRONG_NAME, EXPIRED, NOT_YET = (
    "its certificate is of an unknown authority",
    "its certificate is for another name",
    "its certificate has expired",
    "its certificate is not valid yet",
)
NO_CLIENT_CERTIFICATE = "it requires a client certificate"
BAD_CLIENT_CERTIFICATE = "it refuses the client certificate"
NOT_TLS = "it does not speak TLS"
# OpenSSL's X509_V_ERR_… numbers.
_BY_CODE = {
    **dict.fromkeys((2, 18, 19, 20, 21, 24), UNKNOWN_AUTHORITY),
    **dict.fromkeys((62, 64), WRONG_NAME),
    9: NOT_YET,
    10: EXPIRED,
}
_BY_ALERT = (
    ("CERTIFICATE_REQUIRED", NO_CLIENT_CERTIFICATE),
    ("ALERT_UNKNOWN_CA", BAD_CLIENT_CERTIFICATE),
    ("ALERT_BAD_CERTIFICATE", BAD_CLIENT_CERTIFICATE),
    ("ALERT_CERTIFICATE", BAD_CLIENT_CERTIFICATE),
    ("ALERT_DECRYPT_ERROR", BAD_CLIENT_CERTIFICATE),
    ("WRONG_VERSION_NUMBER", NOT_TLS),
    ("UNEXPECTED_EOF", NOT_TLS),
    ("RECORD_LAYER_FAILURE", NOT_TLS),
    ("HTTP_REQUEST", NOT_TLS),
)


def tls_failure(error: ssl.SSLError, *, shows_certificate: bool = False) -> str:
    """Why a handshake with a service failed. A server without TLS 1.3 only says that it failed if it misses the
    client's certificate; `shows_certificate` says whether it got one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_CODE.get(error.verify_code, f"its certificate is refused ({error.verify_message})")
    reason = (error.reason or "").upper()
    if "HANDSHAKE_FAILURE" in reason and not shows_certificate:
        return f"it ends the handshake; perhaps {NO_CLIENT_CERTIFICATE}"
    found = next((text for mark, text in _BY_ALERT if mark in reason), None)
    return found or f"TLS failed ({error.reason or 'no reason given'})"


class CertificateFileError(CheopsError):
    """The certificate files of a service cannot be used."""


class TlsMaterial(Struct, frozen=True):
    """The content of the files, and a context made of it."""

    context: ssl.SSLContext
    certificate: bytes = b""  # with its key
    authorities: bytes = b""

    @property
    def ends_s(self) -> float:
        """When the certificate ends, in seconds since 1970."""
        from cryptography import x509  # noqa: PLC0415 - takes long to import, and only `cheops check` needs it

        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc.timestamp()

    @property
    def fingerprint(self) -> str:
        return sha256(self.certificate + b"\0" + self.authorities).hexdigest()


class TlsFiles:
    """The files of one direction of a service, as they were when they could be used last."""

    def __init__(self, files: tuple[Path, ...], load: Callable[[], TlsMaterial]) -> None:
        self._files = files
        self.load = load
        self._seen: object = None
        self._material: TlsMaterial | None = None
        self.problem = ""

    def current(self) -> TlsMaterial:
        """Raises CertificateFileError if the files could never be used."""
        now = tuple(_version(path) for path in self._files)
        if now != self._seen or (self._material is None and not self.problem):
            self._seen = now
            try:
                self._material, self.problem = self.load(), ""
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                self.problem = _file_problem(self._files, error)
                if self._material is not None:
                    _log.error("the certificates in use stay as they are: %s", self.problem)
        if self._material is None:
            raise CertificateFileError(self.problem)
        return self._material


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _file_problem(files: tuple[Path, ...], error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.filename:
        return f"{error.filename} cannot be read: {error.strerror}"
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if reason == "KEY_VALUES_MISMATCH":
        reason = "the key is not that of the certificate"
    return f"{', '.join(map(str, files))} cannot be used: {reason}"


@cache
def listener_files(tls: ListenerTls) -> TlsFiles:
    """Those that the gateway shows to clients."""

    def load() -> TlsMaterial:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        authorities = b""
        if tls.client_ca:
            authorities = tls.client_ca.read_bytes()
            context.load_verify_locations(cadata=authorities.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
        return TlsMaterial(context, _load_chain(context, tls.certificate, tls.key), authorities)

    return TlsFiles(tls.files, load)


@cache
def upstream_files(tls: UpstreamTls) -> TlsFiles:
    """Those for connections to the service itself."""

    def load() -> TlsMaterial:
        authorities = tls.ca.read_bytes() if tls.ca else b""
        context = ssl.create_default_context(cadata=authorities.decode("ascii") if tls.ca else None)
        certificate = b""
        if tls.client_cert and tls.client_key:
            certificate = _load_chain(context, tls.client_cert, tls.client_key)
        return TlsMaterial(context, certificate, authorities)

    return TlsFiles(tls.files, load)


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> bytes:
    content = certificate.read_bytes() + b"\n" + key.read_bytes()
    # A key with a password must be refused: OpenSSL would ask for it at the terminal.
    context.load_cert_chain(certificate, key, password=lambda: b"")
    return content


def listener_context(tls: ListenerTls) -> ssl.SSLContext:
    """A context for a listener, whose every handshake uses the current files. Raises CertificateFileError."""
    files = listener_files(tls)
    files.current()
    context = files.load().context  # one of its own, since the callback is set on it

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Python cannot replace the certificate of a context that serves, only the context of a connection.
        connection.context = files.current().context

    context.sni_callback = choose
    return context
