"""Security in the configuration file: certificates and keys of the site, and the limits that clients must respect.

    security: none                # plain HTTP; every address must be loopback

    security:
      folder: tls                 # ca.pem, site.pem, site.key, signing.key; see `cheops site join`

A file without this entry can be read, but no agent starts with it: a forgotten line must not open an agent to all.
docs/adr/0012-who-may-do-what.md has the reasons.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from cheops.config.address import Address, is_loopback
from cheops.config.settings import Section, read_section, setting, settings_of
from cheops.config.values import (
    BOOLEAN,
    COUNT,
    DAY_S,
    DURATION,
    GIB,
    KIB,
    MIB,
    PATH,
    SIZE,
    ValueType,
    folder_of,
    long_duration,
    size,
)
from cheops.yaml_file import Value, YamlFileError

NONE = "none"
DEFAULT_FOLDER = "tls"
MAX_VALID_FOR_S = 825 * DAY_S  # the longest that browsers accept; revocations are kept a little longer than this
MISSING_SECURITY = (
    "'security' is missing, and no agent starts without it: "
    "write 'security: none' if all sites are on this machine, "
    "or create certificates with 'cheops site join' or 'cheops ca issue' (docs/security.md)"
)


@dataclass(frozen=True, slots=True)
class SecurityConfig(Section):
    """The site's keys and certificates. Without a folder, agents speak plain HTTP."""

    folder: Path | None = setting(
        PATH,
        None,
        "The directory with `ca.pem` (the certificate authorities that this site trusts), `site.pem` and `site.key` "
        "(its own certificate and key), and `signing.key`. `cheops site join` and `cheops ca issue` write it. Only the "
        "owner may have access to the keys.",
        shown=f"`{DEFAULT_FOLDER}`",
    )
    ca_key: Path | None = setting(
        PATH,
        None,
        "The certificate authority's key, at sites that admit others (`cheops site invite`), forget them and renew "
        "certificates. Keep it at few sites.",
    )
    clock_skew_s: float = setting(
        DURATION, 60.0, "How far in the future the timestamp of another site's operation, record or decision may be."
    )
    renew_before_s: float = setting(
        long_duration(),
        30 * DAY_S,
        "How long before its end a certificate is renewed, by a site with `ca_key`; but not before two thirds of its "
        "lifetime have passed.",
    )
    renew_grace_s: float = setting(
        long_duration(),
        90 * DAY_S,
        "How long after its end a certificate still gets its own renewal from this site, which has `ca_key`, and "
        "nothing else: so sites come back by themselves when no site with the key was reachable for a long time. "
        "After that, the site must rejoin (`cheops site rejoin`).",
    )
    valid_for_s: float = setting(
        long_duration(MAX_VALID_FOR_S), 365 * DAY_S, "The lifetime of the certificates that this site issues."
    )
    is_specified: bool = True  # whether the file has the entry at all

    @property
    def is_on(self) -> bool:
        return self.folder is not None

    @property
    def scheme(self) -> str:
        return "https" if self.is_on else "http"

    def complete(self, value: Value) -> Self:
        return replace(self, folder=self.folder or folder_of(value) / DEFAULT_FOLDER)


UNSPECIFIED = SecurityConfig(is_specified=False)


def _read_security(value: Value) -> SecurityConfig:
    if not value.is_text:
        return read_section(SecurityConfig, value)
    if value.string() != NONE:
        raise value.fail(f"expected 'none', or settings such as {{folder: {DEFAULT_FOLDER}}}")
    return SecurityConfig()


SECURITY = ValueType("`none` or section", _read_security, settings=settings_of(SecurityConfig))


@dataclass(frozen=True, slots=True)
class ClientsConfig(Section):
    """Limits for everything that connects to the agent's address, and the size of the audit log."""

    rate: int = setting(COUNT, 1_000, "Requests per second with one token, or from one address without a token.")
    burst: int = setting(COUNT, 2_000, "Requests that may come at once, above that rate.")
    site_rate: int = setting(COUNT, 5_000, "Requests per second from one other site.")
    reads: int = setting(
        COUNT,
        32,
        "Reads of the application (`cheops show`, `cheops verify`) that run at the same time. Operations have places "
        "of their own.",
    )
    reads_each: int = setting(COUNT, 8, "Of these, at most so many with one token, or from one other site.")
    connections: int = setting(COUNT, 2_000, "Open connections in total.")
    connections_each: int = setting(COUNT, 500, "Open connections from one address.")
    head_bytes: int = setting(
        size(minimum=4 * KIB), 64 * KIB, "Largest request line and headers together.", key="head_size"
    )
    upload_bytes: int = setting(SIZE, GIB, "Largest form, including its files.", key="upload_size")
    head_timeout_s: float = setting(DURATION, 10.0, "How long a client may take to send the headers of a request.")
    stall_timeout_s: float = setting(
        DURATION,
        30.0,
        "In this time a client must send at least 1 KiB of the body, and must read some of the response.",
    )
    store_bytes: int = setting(
        SIZE,
        64 * GIB,
        "Largest store, without its free pages. Above this size the agent refuses new operations from clients, and is "
        "not ready, until space is free again. It still accepts deletions, and what other sites send.",
        key="store_size",
    )
    free_bytes: int = setting(
        SIZE, 64 * MIB, "The same happens while less than this is free on the disk.", key="free_size"
    )
    open_metrics: bool = setting(BOOLEAN, False, "Whether `/metrics` needs no token.")
    audit_bytes: int = setting(SIZE, 16 * MIB, "Largest file of the audit log.", key="audit_size")
    audit_files: int = setting(COUNT, 10, "How many files of the audit log are kept.")


class ConfiguredAddress(NamedTuple):
    """An address of the configuration: its key, its position in the file, and its URL."""

    key: str
    at: Value
    url: str
    is_wildcard: bool = False
    is_agent: bool = False  # whether agents use the URL, so that its scheme must be right


def configured_address(record: Mapping[str, Value], root: Value, key: str, address: Address) -> ConfiguredAddress:
    """An address at which this site listens; error messages give the line of the first part of its key."""
    return ConfiguredAddress(key, record.get(key.split(".", maxsplit=1)[0], root), address.url, address.is_wildcard)


def check_addresses(security: SecurityConfig, addresses: Iterable[ConfiguredAddress]) -> None:
    """Without certificates, all addresses are on this machine; with them, agents use TLS. Raises YamlFileError."""
    if not security.is_specified:
        return
    for one in addresses:
        if problem := _address_problem(security, one):
            raise problem


def _address_problem(security: SecurityConfig, one: ConfiguredAddress) -> YamlFileError | None:
    if not security.is_on and (one.is_wildcard or not is_loopback(one.url)):
        return one.at.fail(
            f"'{one.key}' can be reached over a network, and 'security: none' is only for addresses of this "
            "machine (127.0.0.1, [::1]); create certificates with 'cheops site join' or 'cheops ca issue' "
            "(docs/security.md)"
        )
    if one.is_agent and not one.url.startswith(f"{security.scheme}:"):
        rest = one.url.partition("://")[2]
        why = "agents speak TLS with each other" if security.is_on else "there are no certificates"
        return one.at.fail(f"'{one.key}' must be {security.scheme}://{rest}, because {why} with this 'security'")
    return None
