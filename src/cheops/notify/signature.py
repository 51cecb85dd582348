"""The signature of a web hook: who has the secret can tell that a body comes from us, and when it was sent.

    Cheops-Signature: t=1794793291,v1=<hex of HMAC-SHA256(secret, "1794793291." + body)>

Receivers written in Python may use `verify`; docs/notifications.md shows the same in a few lines.
"""

import hashlib
import hmac
import re

HEADER = "Cheops-Signature"
TOLERANCE_S = 300.0
_FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign(secret: bytes, body: bytes, at_s: int) -> str:
    """The value of the header for a body that is sent at this time (seconds since 1970)."""
    return f"t={at_s},v1={_mac(secret, body, at_s)}"


def verify(secret: bytes, body: bytes, header: str, now_s: float, tolerance_s: float = TOLERANCE_S) -> bool:
    """Whether a header fits a body and is not too old to be a repetition by somebody else."""
    found = _FORM.fullmatch(header)
    if not found:
        return False
    at_s = int(found[1])
    return abs(now_s - at_s) <= tolerance_s and hmac.compare_digest(_mac(secret, body, at_s), found[2])


def _mac(secret: bytes, body: bytes, at_s: int) -> str:
    return hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
