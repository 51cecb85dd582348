"""TLS of services in the configuration file: towards clients, at `listen`, and towards the service itself.

services:
  image:
    url: https://10.0.0.7:9292
    ca: service-ca.pem
    server_name: image.internal
    listen: 10.0.0.1:9392
    tls: {certificate: gateway.crt, key: gateway.key}
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cheops.config.settings import REQUIRED, Section, is_set, place, setting
from cheops.config.values import PATH, ValueType
from cheops.text import printable, shortened
from cheops.yaml_file import Value

_MAX_NAME = 253


def _read_dns_name(value: Value) -> str:
    name = value.string().lower()
    labels = name.split(".")
    is_name = all(label and label.replace("-", "").replace("_", "").isalnum() for label in labels)
    if not is_name or not name.isascii() or len(name) > _MAX_NAME or labels[-1].isdigit():
        raise value.fail(f"expected a host name such as image.internal, found '{printable(shortened(name))}'")
    return name


@dataclass(frozen=True, slots=True)
class ListenerTls(Section):
    """The certificate that the gateway shows to clients of a service. Files are read again when they change."""

    certificate: Path = setting(
        PATH, REQUIRED, "The certificate that clients see, in PEM, followed by those of intermediate authorities."
    )
    key: Path = setting(PATH, REQUIRED, "Its private key, in PEM, without a password.")
    client_ca: Path | None = setting(
        PATH, None, "Clients must show a certificate of this authority (PEM). Without it they need none."
    )

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca else ()))


@dataclass(frozen=True, slots=True)
class UpstreamTls(Section):
    """How the certificate of an https service is verified, and which one the gateway shows to it."""

    ca: Path | None = setting(
        PATH,
        None,
        "The authority whose certificates the service may have (PEM, several one after the other).",
        shown="those of the system",
    )
    client_cert: Path | None = setting(PATH, None, "The certificate that the gateway shows to the service, in PEM.")
    client_key: Path | None = setting(PATH, None, "Its private key, in PEM, without a password.")
    server_name: str = setting(
        ValueType("host name", _read_dns_name),
        "",
        "The name that the certificate of the service must have, if it is not the host of `url`.",
        shown="the host of `url`",
    )

    def complete(self, value: Value) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            missing = "client_key" if self.client_key is None else "client_cert"
            raise place(value, "client_cert" if self.client_cert else "client_key").fail(
                f"'{missing}' is missing: the gateway needs both, the certificate and its key"
            )
        return self

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.ca, self.client_cert, self.client_key) if path)


def check_upstream_tls(url: str, value: Value) -> None:
    """Refuse settings that would have no effect."""
    if url.startswith("https://"):
        return
    for key in ("ca", "client_cert", "client_key", "server_name"):
        if is_set(value, key):
            raise place(value, key).fail(f"'{key}' is for a service with an https:// URL, and 'url' is {url}")
