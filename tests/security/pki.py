"""An authority and the folders of sites, for tests: all with the functions that users' commands use."""

import datetime as dt
import time
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from cheops.security.certificates import (
    Authorities,
    Authority,
    CertificateSpec,
    make_authority,
    make_key,
    make_signing_key,
    raw_public_key,
)
from cheops.security.keyring import AUTHORITIES, CA_KEY, KeyFolder, key_pem, write_file, write_key_folder

DAY_S = 86_400.0


@dataclass
class Pki:
    """An authority, a year old, so that it can have made what is expired. `Pki()` is another one than any before."""

    authority: Authority = field(default_factory=lambda: make_authority(time.time() - 365 * DAY_S))

    def site(
        self,
        path: Path,
        site: str,
        *addresses: str,
        valid_for_s: float = 30 * DAY_S,
        made_s: float | None = None,
    ) -> KeyFolder:
        """Make keys and a certificate for a site, and write its folder. `made_s` may be in the past."""
        key, signing_key = make_key(), make_signing_key()
        request = CertificateSpec(site, key.public_key(), raw_public_key(signing_key), addresses)
        identity = self.authority.issue(request, time.time() if made_s is None else made_s, valid_for_s)
        folder = KeyFolder(path, Authorities([self.authority.certificate]), identity, key, signing_key)
        write_key_folder(folder, force=True)
        return folder

    @staticmethod
    def days_ago(days: float) -> float:
        """A moment, for `made_s`."""
        return time.time() - days * DAY_S

    def bare(self, path: Path) -> KeyFolder:
        """A certificate of the authority for a host and no site, as somebody might make with other tools."""
        folder = self.site(path, "somebody")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "web")])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.authority.certificate.subject)
            .public_key(folder.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(dt.datetime.now(dt.UTC) - dt.timedelta(days=1))
            .not_valid_after(dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("web.example.org")]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.key.public_key()),
                critical=False,
            )
            .sign(self.authority.key, SHA256())
        )
        write_file(folder.certificate_file, made.public_bytes(Encoding.PEM), secret=False)
        return folder

    @property
    def pem(self) -> str:
        return Authorities([self.authority.certificate]).pem.decode("ascii")

    def write(self, path: Path) -> Path:
        """The authority itself, as `cheops ca init` has it; gives the file of its key."""
        path.mkdir(parents=True, exist_ok=True)
        write_file(path / AUTHORITIES, Authorities([self.authority.certificate]).pem, secret=False)
        write_file(path / CA_KEY, key_pem(self.authority.key), secret=True)
        return path / CA_KEY
