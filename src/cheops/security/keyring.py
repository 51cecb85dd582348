"""Keys and certificates of a site: the folder that holds them, and the keyring that a running agent uses.

    ca.pem        the authorities that this site trusts
    site.pem      its certificate
    site.key      its key (P-256) for TLS
    signing.key   its key (Ed25519) for signatures

Only their owner may read the keys. A folder in which others can read them is refused: they may have done so. Each file
is written under a temporary name and then renamed, so that a reader never sees half of one.

The keyring loads the folder once and reloads it while the agent runs. Code that connects takes `client` and
`host_of(site)` anew for each connection; servers hold on to `server` (for everybody) or `server_for_sites`, which
switch to the new certificate by themselves. So a new certificate, or another list of authorities, is used from the next
connection on, and open connections stay as they are.
"""

import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from msgspec import Struct

from cheops.config.security import SecurityConfig
from cheops.errors import CheopsError
from cheops.security.certificates import (
    Authorities,
    Authority,
    CertificateError,
    CertificateSpec,
    Identity,
    dns_name,
    identity_of,
    make_key,
    make_signing_key,
    raw_public_key,
)
from cheops.security.refusals import Refusals
from cheops.security.tls import ServerContext, client_context
from cheops.text import shortened

AUTHORITIES, CERTIFICATE, KEY, SIGNING_KEY = "ca.pem", "site.pem", "site.key", "signing.key"
FILES = (AUTHORITIES, CERTIFICATE, KEY, SIGNING_KEY)
CA_KEY = "ca.key"
MAX_BYTES = 256 * 1024
MAX_AUTHORITIES = 8
NO_AUTHORITIES = Authorities([])
_MOST_HOSTS = 10_000
_log = logging.getLogger(__name__)


class KeyFolder(Struct, frozen=True):
    """The content of the folder, checked to be consistent."""

    path: Path
    authorities: Authorities
    identity: Identity
    key: EllipticCurvePrivateKey
    signing_key: Ed25519PrivateKey

    @property
    def certificate_file(self) -> Path:
        return self.path / CERTIFICATE

    @property
    def key_file(self) -> Path:
        return self.path / KEY


def load_key_folder(path: Path, site: str | None = None) -> KeyFolder:
    """What the folder holds, checked; raises CheopsError. `site` is whose it should be."""
    authorities = Authorities(load_authorities(path / AUTHORITIES))
    identity = load_certificate(path)
    key = load_key(path / KEY)
    signing_key = _private(path / SIGNING_KEY)
    if not isinstance(signing_key, Ed25519PrivateKey):
        raise CheopsError(f"{path / SIGNING_KEY}: expected an Ed25519 key, found another kind")
    folder = KeyFolder(path, authorities, identity, key, signing_key)
    _check(folder, site)
    return folder


def load_certificate(path: Path) -> Identity:
    """The certificate of the site in its folder; raises CheopsError."""
    pem = _read(path / CERTIFICATE)
    try:
        return identity_of(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    except (ValueError, CertificateError) as error:
        shown = shortened(str(error))
        raise CheopsError(f"{path / CERTIFICATE}: not a certificate of a site: {shown}") from None


def load_authorities(path: Path) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(_read(path))
    except ValueError as error:
        raise CheopsError(f"{path}: no certificates in the PEM format: {shortened(str(error))}") from None
    if len(certificates) > MAX_AUTHORITIES:
        raise CheopsError(f"{path}: {len(certificates)} authorities; at most {MAX_AUTHORITIES} are possible")
    for one in certificates:
        if not _is_authority(one):
            raise CheopsError(f"{path}: '{one.subject.rfc4514_string()}' is not the certificate of an authority")
    return certificates


def known_authorities(folder: Path) -> Authorities:
    """The authorities that a site trusts; none if the file is lost. Raises CheopsError."""
    path = folder / AUTHORITIES
    return Authorities(load_authorities(path)) if path.exists() else NO_AUTHORITIES


def load_key(path: Path) -> EllipticCurvePrivateKey:
    key = _private(path)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise CheopsError(f"{path}: expected an ECDSA key, found another kind")
    return key


def load_authority(key_file: Path, among: Authorities) -> Authority:
    """The authority with this key, which must be a trusted one."""
    key = load_key(key_file)
    for certificate in among.certificates:
        if _public_bytes(certificate) == _public_bytes(key):
            return Authority(certificate, key)
    raise CheopsError(
        f"{key_file}: this is not the key of any authority in {AUTHORITIES}. If the right key is lost: "
        "docs/certificates-trouble.md#the-authoritys-key-is-lost"
    )


def load_authority_folder(path: Path) -> tuple[Authority, Authorities]:
    """The authority of a folder that 'cheops ca init' wrote, and all authorities in it; raises CheopsError."""
    if not (path / AUTHORITIES).exists():
        raise CheopsError(
            f"{path} is not the folder of an authority: it has no {AUTHORITIES}; 'cheops ca init' makes one"
        )
    authorities = Authorities(load_authorities(path / AUTHORITIES))
    return load_authority(path / CA_KEY, authorities), authorities


def write_authority_folder(path: Path, authority: Authority) -> None:
    """The folder of a new authority."""
    make_directory(path)
    write_authority_files(path / CA_KEY, authority, Authorities([authority.certificate]))


def write_authority_files(key_file: Path, authority: Authority, authorities: Authorities) -> None:
    """Write the key of an authority, and beside it the certificates of authorities, which are one file.

    The certificates come first. While one authority replaces another they are both, so that the folder is consistent
    even if this is cut short: with the old key, or with the new one.
    """
    write_file(key_file.with_name(AUTHORITIES), authorities.pem, secret=False)
    write_file(key_file, key_pem(authority.key), secret=True)


def issue_keys(  # noqa: PLR0913, PLR0917 - what a folder needs
    authority: Authority, trusted: Authorities, path: Path, site: str, addresses: tuple[str, ...], valid_for_s: float
) -> KeyFolder:
    """New keys for a site, with their certificate. Nothing is written yet."""
    key, signing_key = make_key(), make_signing_key()
    request = CertificateSpec(site, key.public_key(), raw_public_key(signing_key), addresses)
    return KeyFolder(path, trusted, authority.issue(request, time.time(), valid_for_s), key, signing_key)


def write_key_folder(folder: KeyFolder, *, force: bool = False) -> None:
    """Write all files; raises CheopsError where one is there already."""
    # The certificate is last: without it the folder is not taken for complete after a crash.
    files = {
        KEY: key_pem(folder.key),
        SIGNING_KEY: key_pem(folder.signing_key),
        AUTHORITIES: folder.authorities.pem,
        CERTIFICATE: folder.identity.pem,
    }
    if not force:
        refuse_to_overwrite(folder.path / name for name in files)
    make_directory(folder.path)
    # All are on the disk before the first takes its place: a full disk must not leave half of the old ones.
    for name, content in files.items():
        _write_beside(folder.path / name, content, secret=name in (KEY, SIGNING_KEY))
    for name in files:
        _put_in_place(folder.path / name)


def refuse_to_overwrite(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise CheopsError(f"{path} exists already, and nothing was written; --force overwrites it")


def make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CheopsError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def write_file(path: Path, content: bytes, *, secret: bool) -> None:
    """All or nothing, and durable. A secret file is never readable by others, not even for a moment."""
    _write_beside(path, content, secret=secret)
    _put_in_place(path)


def _write_beside(path: Path, content: bytes, *, secret: bool) -> None:
    beside = _beside(path)
    try:
        with suppress(FileNotFoundError):
            beside.unlink()
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
        with os.fdopen(handle, "wb") as file:
            if os.geteuid() == 0:
                # Root runs a command in the folder of the agent's user, who must be able to read the result.
                owner = path.parent.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from None


def _put_in_place(path: Path) -> None:
    try:
        _beside(path).replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise _unwritable(path, error) from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _unwritable(path: Path, error: OSError) -> CheopsError:
    return CheopsError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}")


def key_pem(key: EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _check(folder: KeyFolder, site: str | None) -> None:
    identity, path = folder.identity, folder.path
    if site is not None and identity.site != site:
        raise CheopsError(
            f"{path / CERTIFICATE}: this is the certificate of '{identity.site}', not of '{site}'. A site keeps its "
            "name: docs/certificates-trouble.md#rename-a-site"
        )
    if _public_bytes(identity.certificate) != _public_bytes(folder.key):
        raise CheopsError(
            f"{path / KEY}: this key does not belong to the certificate in {CERTIFICATE}. Put back the file that "
            "belongs to it, or get new ones with 'cheops site rejoin'"
        )
    if identity.signing_key != raw_public_key(folder.signing_key):
        raise CheopsError(
            f"{path / SIGNING_KEY}: this key is not the one that {CERTIFICATE} names. Put back the file that belongs "
            "to it, or get new ones with 'cheops site rejoin'"
        )
    try:
        folder.authorities.verify(identity.der, None)
    except CertificateError as error:
        raise CheopsError(
            f"{path / CERTIFICATE}: {error}; {AUTHORITIES} has the trusted authorities. If that file is right, get a "
            "new certificate with 'cheops site rejoin'"
        ) from None


def _private(path: Path) -> PrivateKeyTypes:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _missing(path, error) from None
    if mode & 0o077:
        raise CheopsError(
            f"{path}: others than its owner can read or change this key (mode {mode & 0o777:04o}), and may "
            f"have done so. If not: chmod 600 {path}"
        )
    try:
        return load_pem_private_key(_read(path), None)
    except (ValueError, TypeError) as error:
        raise CheopsError(f"{path}: not a private key in the PEM format: {shortened(str(error))}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _missing(path, error) from None
    if len(content) > MAX_BYTES:
        raise CheopsError(f"{path}: larger than {MAX_BYTES // 1024} KiB")
    return content


def _missing(path: Path, error: OSError) -> CheopsError:
    hint = ""
    if isinstance(error, FileNotFoundError):
        hint = (
            "; 'cheops site join' or 'cheops ca issue' makes it. If it is lost: 'cheops site rejoin' "
            "(docs/certificates-trouble.md)"
        )
        if path.name == CA_KEY:
            hint = (
                "; copy the authority's key here from its safe place. If it is lost: "
                "docs/certificates-trouble.md#the-authoritys-key-is-lost"
            )
    return CheopsError(f"{path}: {(error.strerror or str(error)).lower()}{hint}")


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except (x509.ExtensionNotFound, ValueError):
        return False


def _public_bytes(holder: x509.Certificate | EllipticCurvePrivateKey) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class Keyring:
    """The certificate that this site shows, and the authorities that it trusts."""

    def __init__(self, config: SecurityConfig, site: str, refusals: Refusals) -> None:
        if config.folder is None:
            raise ValueError("there is no keyring without security")
        self.site = site
        self._config = config
        self._path = config.folder
        self._refusals = refusals
        self._hosts: dict[str, str] = {}  # names of sites, by their host names in certificates
        self.changed: list[Callable[[], None]] = []  # called after each reload
        self._use(load_key_folder(self._path, site))
        self.server = ServerContext(self.folder, self._refused_caller)
        self.server_for_sites = ServerContext(self.folder, self._refused_caller, sites_only=True)

    @property
    def identity(self) -> Identity:
        return self.folder.identity

    @property
    def authority(self) -> Authority | None:
        """The authority whose key this site has, if it has one."""
        return self._authority

    @property
    def issues(self) -> str:
        """What the other sites learn of that, in this site's record (`SiteRecord.issues`)."""
        return self.folder.authorities.digest if self._authority else ""

    def host_of(self, site: str) -> str:
        """The host name that a connection to a site must be verified by."""
        host = dns_name(site)
        if len(self._hosts) < _MOST_HOSTS:
            self._hosts[host] = site
        return host

    def reload(self) -> None:
        """Use the current content of the folder; on CheopsError nothing changes."""
        self._use(load_key_folder(self._path, self.site))
        self.server.replace(self.folder)
        self.server_for_sites.replace(self.folder)
        for listener in self.changed:
            listener()

    def drop_ended_authorities(self, now_s: float) -> None:
        """Reload if an authority has ended, or begun, since the folder was loaded: contexts have the valid ones."""
        if self.folder.authorities.valid_at(now_s).certificates != self._valid:
            self.reload()

    def install(self, renewed: Identity, authorities: Authorities | None = None) -> None:
        """Save and use a new certificate of the same keys, and perhaps another list of authorities.

        The certificate comes first: its authority was trusted before and will be, that of the old certificate may
        not be. So the folder is consistent even if this is cut short.
        """
        write_file(self._path / CERTIFICATE, renewed.pem, secret=False)
        if authorities is not None and authorities.digest != self.folder.authorities.digest:
            write_file(self._path / AUTHORITIES, authorities.pem, secret=False)
        self.reload()

    def _use(self, folder: KeyFolder) -> None:
        # Everything that can fail comes before the first assignment, so that a failed reload changes nothing.
        ca_key = self._config.ca_key
        authority = load_authority(ca_key, folder.authorities) if ca_key else None
        client = client_context(folder, self._refused_site)
        self._valid = folder.authorities.valid_at(time.time()).certificates
        self.folder: KeyFolder = folder
        self.client: ssl.SSLContext = client
        self._authority = authority

    def _refused_caller(self, reason: str, detail: str, _host: str | None) -> None:
        self._refusals.count(reason, detail=detail)

    def _refused_site(self, reason: str, detail: str, host: str | None) -> None:
        site = self._hosts.get(host or "", host or "")
        _log.info("%s was not reached: %s (%s)", site, reason, detail)
        self._refusals.count(reason, site, detail)
