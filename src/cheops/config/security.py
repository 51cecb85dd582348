"""How a site shows who it is, and whom it believes, in the configuration file.

security: none                # plain HTTP; every address must be loopback

security:
  folder: tls                 # ca.pem, site.pem, site.key, signing.key; see `cheops site join`

Nobody gets an open agent by forgetting a line: without this entry the file can be read, but no agent starts.
docs/adr/0012-who-may-do-what.md has the reasons.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cheops.config.address import Address, is_loopback
from cheops.config.settings import SECURITY, duration_s, long_duration_s, optional, path_at
from cheops.documents import DocumentError, Value

NONE = "none"
DEFAULT_FOLDER = "tls"
_DAY_S = 86_400.0
MAX_VALID_FOR_S = 825 * _DAY_S  # what browsers accept; records that revoke are kept for a little longer
MISSING_SECURITY = (
    "'security' is missing, and no agent starts without it: "
    "write 'security: none' where all sites are on this machine, "
    "or let 'cheops site join' or 'cheops ca issue' make certificates (docs/security.md)"
)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Where keys and certificates are, and how much patience there is with clocks. No folder: plain HTTP."""

    folder: Path | None = None
    ca_key: Path | None = None  # the authority's key: this site admits others, and renews certificates
    clock_skew_s: float = 60.0
    renew_before_s: float = 30 * _DAY_S
    valid_for_s: float = 365 * _DAY_S  # of certificates that are issued here
    is_specified: bool = True  # whether the file says anything about it at all

    @property
    def is_on(self) -> bool:
        return self.folder is not None

    @property
    def scheme(self) -> str:
        return "https" if self.is_on else "http"


UNSPECIFIED = SecurityConfig(is_specified=False)


class ConfiguredAddress(NamedTuple):
    """An address of the configuration: what it is called, where it is written, and a URL that leads there."""

    key: str
    at: Value
    url: str
    is_wildcard: bool = False
    is_agent: bool = False  # whether agents use the URL, and so need its scheme to be right


def security_at(value: Value, folder: Path) -> SecurityConfig:
    if value.is_text:
        if value.string() != NONE:
            raise value.fail(f"expected 'none', or settings such as {{folder: {DEFAULT_FOLDER}}}")
        return SecurityConfig()
    record = SECURITY.read(value)
    default = SecurityConfig()
    return SecurityConfig(
        optional(record, "folder", lambda at: path_at(at, folder), folder / DEFAULT_FOLDER),
        optional(record, "ca_key", lambda at: path_at(at, folder), None),
        optional(record, "clock_skew", duration_s, default.clock_skew_s),
        optional(record, "renew_before", long_duration_s, default.renew_before_s),
        optional(record, "valid_for", _valid_for, default.valid_for_s),
    )


def _valid_for(value: Value) -> float:
    found = long_duration_s(value)
    if found > MAX_VALID_FOR_S:
        raise value.fail(f"a certificate is valid for at most {MAX_VALID_FOR_S / _DAY_S:.0f}d")
    return found


def configured_address(record: Mapping[str, Value], root: Value, key: str, address: Address) -> ConfiguredAddress:
    """Where a server listens, by the first part of its key."""
    return ConfiguredAddress(key, record.get(key.split(".", maxsplit=1)[0], root), address.url, address.is_wildcard)


def check_addresses(security: SecurityConfig, places: Iterable[ConfiguredAddress]) -> None:
    """All on this machine, or all of agents over TLS; raises DocumentError."""
    if not security.is_specified:
        return
    for one in places:
        if problem := _address_problem(security, one):
            raise problem


def _address_problem(security: SecurityConfig, one: ConfiguredAddress) -> DocumentError | None:
    if not security.is_on and (one.is_wildcard or not is_loopback(one.url)):
        return one.at.fail(
            f"'{one.key}' can be reached over a network, and 'security: none' is only for addresses of this "
            "machine (127.0.0.1, [::1]); let 'cheops site join' or 'cheops ca issue' make certificates "
            "(docs/security.md)"
        )
    if one.is_agent and not one.url.startswith(f"{security.scheme}:"):
        rest = one.url.partition("://")[2]
        why = "agents speak TLS with each other" if security.is_on else "there are no certificates"
        return one.at.fail(f"'{one.key}' must be {security.scheme}://{rest}, because {why} with this 'security'")
    return None
