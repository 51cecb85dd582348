"""The names that a site's certificate carries, all as subject alternative names.

    cheops://site/NAME      who it is
    cheops://key/BASE64URL  its Ed25519 key for signatures
    cheops://made/MS        when it was made, in milliseconds since 1970
    HASH.cheops.internal    who it is, as TLS libraries can check it: we reach sites by any address

When it was made is said to the millisecond, because a site that was forgotten is refused with all that was
made before, and the time from which a certificate holds lies a little in the past (clocks differ).
"""

import base64
import binascii
import hashlib
from urllib.parse import quote, unquote

DOMAIN = "cheops.internal"
_SITE, _KEY, _MADE = "cheops://site/", "cheops://key/", "cheops://made/"


def dns_name(site: str) -> str:
    """A host name that stands for a site, whatever characters its name has."""
    digest = base64.b32encode(hashlib.sha256(site.encode()).digest()).decode()
    return f"{digest.rstrip('=').lower()}.{DOMAIN}"


def is_reserved(host: str) -> bool:
    """Whether a host name could be mistaken for that of a site."""
    plain = host.lower().rstrip(".")
    return plain == DOMAIN or plain.endswith(f".{DOMAIN}") or "*" in plain


def site_uri(site: str) -> str:
    return _SITE + quote(site, safe="")


def key_uri(public_key: bytes) -> str:
    return _KEY + base64.urlsafe_b64encode(public_key).decode().rstrip("=")


def made_uri(made_ms: int) -> str:
    return f"{_MADE}{made_ms}"


def site_in(uris: list[str]) -> str | None:
    """The one site that these names stand for."""
    found = _only(uris, _SITE)
    site = None if found is None else unquote(found)
    return site if site and site_uri(site) == f"{_SITE}{found}" else None


def key_in(uris: list[str]) -> bytes | None:
    found = _only(uris, _KEY)
    try:
        key = base64.b64decode(f"{found or ''}=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == 32 else None


def made_in(uris: list[str]) -> int | None:
    found = _only(uris, _MADE)
    return int(found) if found and found.isascii() and found.isdigit() and len(found) <= 15 else None


def _only(uris: list[str], start: str) -> str | None:
    found = [uri.removeprefix(start) for uri in uris if uri.startswith(start)]
    return found[0] if len(found) == 1 else None
