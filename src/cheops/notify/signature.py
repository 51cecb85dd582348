"""The signature of a web hook: proves to a receiver with the secret that this site sent a body, and when.

    Cheops-Signature: t=1794793291,v1=<hex of HMAC-SHA256(secret, "1794793291." + body)>

Receivers written in Python may use `verify`; docs/notifications.md shows the same in a few lines.
"""

import hashlib
import hmac
import re

HEADER = "Cheops-Signature"
TOLERANCE_S = 300.0  # for clocks that differ; as most providers of web hooks have it
_FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign(secret: bytes, body: bytes, at_s: int) -> str:
    """The value of the header for a body that is sent at this time (seconds since 1970)."""
    return f"t={at_s},v1={_mac(secret, body, at_s)}"


def verify(secret: bytes, body: bytes, header: str, now_s: float, tolerance_s: float = TOLERANCE_S) -> bool:
    """Whether a header matches a body, and is fresh: an old one may be a replay by somebody who recorded it."""
    parts = _FORM.fullmatch(header)
    if not parts:
        return False
    at_s = int(parts[1])
    return abs(now_s - at_s) <= tolerance_s and hmac.compare_digest(_mac(secret, body, at_s), parts[2])


def _mac(secret: bytes, body: bytes, at_s: int) -> str:
    return hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
