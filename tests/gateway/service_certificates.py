"""Certificates of services and of their clients, from an authority that only a test knows."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Authority:
    """Writes certificates into a folder: `NAME.crt` and `NAME.key`; its own is `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        builder = self._builder(self._name, self._key, -DAY, 10 * DAY)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, ends_in: dt.timedelta = DAY) -> tuple[Path, Path]:
        """The files of a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, -5 * DAY, ends_in)
        names = [_general_name(host) for host in hosts or (name,)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
        for file, content in zip(
            files,
            (certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)),
            strict=True,
        ):
            file.write_bytes(content)
            file.chmod(0o600)
        return files

    def server(self, name: str, *hosts: str, clients: bool = False, **more: dt.timedelta) -> ssl.SSLContext:
        """A context for a service, which demands certificates of this authority if `clients` is set."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name, *hosts, **more))
        if clients:
            context.load_verify_locations(self.file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begin: dt.timedelta, end: dt.timedelta
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now + begin).not_valid_after(now + end)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
