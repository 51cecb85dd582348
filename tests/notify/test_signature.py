"""Signatures: who has the secret can tell, and nobody can change or repeat."""

import hashlib
import hmac

import pytest

from cheops.notify.signature import sign, verify

SECRET, BODY, AT = b"s3cret", b'{"kind": "ran"}', 1_794_793_291


def test_a_signature_is_what_the_documentation_says() -> None:
    expected = hmac.new(SECRET, b"1794793291." + BODY, hashlib.sha256).hexdigest()
    assert sign(SECRET, BODY, AT) == f"t=1794793291,v1={expected}"
    assert verify(SECRET, BODY, sign(SECRET, BODY, AT), AT + 299)


@pytest.mark.parametrize(
    ("secret", "body", "header", "now_s"),
    [
        (b"other", BODY, sign(SECRET, BODY, AT), AT),
        (SECRET, BODY + b" ", sign(SECRET, BODY, AT), AT),
        (SECRET, BODY, sign(SECRET, BODY, AT), AT + 301),
        (SECRET, BODY, sign(SECRET, BODY, AT), AT - 301),
        (SECRET, BODY, sign(SECRET, BODY, AT).replace("t=1794793291", "t=1794793292"), AT),
        (SECRET, BODY, "", AT),
        (SECRET, BODY, "t=,v1=", AT),
        (SECRET, BODY, sign(SECRET, BODY, AT)[:-1], AT),
    ],
)
def test_anything_else_is_refused(secret: bytes, body: bytes, header: str, now_s: float) -> None:
    assert not verify(secret, body, header, now_s)
