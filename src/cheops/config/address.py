"""Addresses at which a site listens, and URLs at which agents and services are reached.

A URL is normalized (lower-case scheme and host, no default port, no slash at the end), so that two URLs with the same
meaning are equal texts.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from cheops.errors import ClientError
from cheops.text import has_invisible, printable, shortened

DEFAULT_PORT = 8079

_DEFAULT_PORTS = {"http": 80, "https": 443}
_ADDRESS = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*):(?P<port>[0-9]{1,5})")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?")
_NUMERIC = re.compile(r"[0-9.]+")  # 300.0.0.1 would pass as a host name, but is a mistyped IP address


class AddressError(ClientError):
    """A text is not a usable address or URL; the message says what to write."""

    reason = "address"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. The host is a name or an IP address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_in_url(self.host)}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it means all addresses of the machine: fine to listen at, but nothing that others can connect to."""
        return _is_ip(self.host) and ip_address(self.host).is_unspecified

    @property
    def url(self) -> str:
        """How to reach it; for a wildcard, from the same machine."""
        return self.url_as("http")

    def url_as(self, scheme: str) -> str:
        """The same with the scheme `http` or `https`."""
        host = self.host
        if self.is_wildcard:
            host = "::1" if ":" in host else "127.0.0.1"
        return _url(scheme, host, self.port, "")


DEFAULT_LISTEN = Address("127.0.0.1", DEFAULT_PORT)


def parse_address(text: str) -> Address:
    """The address in a text such as `10.0.0.1:8079` or `[::1]:8079`; raises AddressError."""
    parts = _ADDRESS.fullmatch(text)
    if not parts:
        raise AddressError(
            f"expected host:port, such as 127.0.0.1:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}, "
            f"found '{printable(shortened(text))}'"
        )
    if not parts["host"]:
        raise AddressError(f"the host is missing; for all addresses of the machine write 0.0.0.0{text}")
    return Address(_host(parts["host"]), _port(int(parts["port"])))


def parse_url(text: str, *, with_path: bool = False) -> str:
    """The normalized form of an http or https URL; raises AddressError."""
    shown = printable(shortened(text))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"'{shown}' is not a URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc:
        hint = f"write http://{shown}" if _ADDRESS.fullmatch(text) else "such as http://10.0.0.2:8079"
        raise AddressError(f"expected a URL that starts with http:// or https://, found '{shown}'; {hint}")
    if problem := _url_problem(text, parts, with_path=with_path):
        # A URL with @ may contain a password, which must not appear in a message or a log.
        raise AddressError(problem if "@" in text else f"{problem}: '{shown}'")
    address = Address(
        _host(_in_url(parts.hostname or "")),
        _DEFAULT_PORTS[parts.scheme] if port is None else _port(port),
    )
    if address.is_wildcard:
        raise AddressError(f"a URL needs one address, and {address.host} means all of a machine: '{shown}'")
    return _url(parts.scheme, address.host, address.port, parts.path.rstrip("/"))


def address_of_url(url: str) -> Address:
    """Host and port of a URL that `parse_url` returned. URLs with equal ones lead to the same server."""
    parts = urlsplit(url)
    return Address(parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme])


def is_loopback(url: str) -> bool:
    """Whether only this machine can use the URL."""
    host = address_of_url(url).host
    return ip_address(host).is_loopback if _is_ip(host) else host in ("localhost", "localhost.")


def _url_problem(text: str, parts: SplitResult, *, with_path: bool) -> str | None:
    if has_invisible(text) or any(map(str.isspace, text)):
        return "a URL cannot contain blanks or invisible characters"
    if parts.username is not None or parts.password is not None:
        return "a URL must not contain a user name or password"
    if "?" in text or "#" in text:
        return "a URL must not have a query (?) or a fragment (#) here"
    if parts.path.rstrip("/") and not with_path:
        return "the URL of an agent has no path"
    return None


def _host(spelling: str) -> str:
    """A normalized host: an IP address in its shortest form, or a name in lower case."""
    host = spelling.lower()
    inner = host[1:-1] if host.startswith("[") else host
    if _is_ip(inner) and (":" in inner) == (inner != host):
        return str(ip_address(inner))
    if inner != host or _NUMERIC.fullmatch(host) or not _HOST.fullmatch(host) or len(host) > 253:
        raise AddressError(f"'{printable(shortened(spelling))}' is neither a host name nor an IP address")
    return host


def _port(number: int) -> int:
    if not 1 <= number <= 65_535:
        raise AddressError(f"a port is a number from 1 to 65535, not {number}")
    return number


def _is_ip(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # A zone (fe80::1%eth0) has a meaning on this machine only, so other sites could not use the address.
    return not (isinstance(address, IPv6Address) and address.scope_id)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _url(scheme: str, host: str, port: int, path: str) -> str:
    shown = "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{_in_url(host)}{shown}{path}"
