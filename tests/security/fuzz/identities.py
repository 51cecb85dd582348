"""Targets about who somebody is: codes, requests to join, certificates, renewals, signatures."""

import base64
import json
from functools import cache
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_certificate

from cheops.errors import ClientError
from cheops.security.certificate_requests import (
    JoinRequest,
    Renewal,
    accept_renewal,
    make_renewal,
    make_request,
    verify_request,
)
from cheops.security.certificates import (
    Authorities,
    CertificateError,
    CertificateSpec,
    UntrustedError,
    fingerprint,
    identity_of,
    make_authority,
    make_key,
    make_signing_key,
    raw_public_key,
)
from cheops.security.invitations import Code, parse_code
from cheops.security.signatures import SignatureError, Signer, Verifier, read
from tests.security.fuzz.targets import JSON_TOKENS, Target

_NOW_S = 1_700_000_000.0
_CONTENTS = [b"one", b"two", b"three"]
_NAMED = ("code", "join", "csr", "certificate", "renewal", "signature")
_FILE = Path(__file__).with_name("identities.json")


def made() -> dict[str, list[str]]:
    """Samples of an authority and a site, as they are kept: signatures differ each time, and inputs are to be
    the same. `python -m tests.security.fuzz.identities` writes them anew. There is no secret among them."""
    authority, key, signing_key = make_authority(_NOW_S), make_key(), make_signing_key()
    request = CertificateSpec("paris", key.public_key(), raw_public_key(signing_key), ("10.0.0.1", "paris.example"))
    identity = authority.issue(request, _NOW_S + 10, 86_400.0)
    joining = make_request("lyon", make_key(), make_signing_key(), ("10.0.0.2",), b"s" * 16)
    code = Code("https://10.0.0.1:8079", "paris", "lyon", fingerprint(authority.certificate), b"s" * 16)
    renewed = make_renewal(authority, identity, Authorities([authority.certificate]))
    signer = Signer(signing_key)
    found: dict[str, list[bytes]] = {
        "code": [str(code).encode()],
        "join": [msgspec.json.encode(joining)],
        "csr": [joining.request],
        "certificate": [identity.der, authority.certificate.public_bytes(Encoding.DER)],
        "renewal": [msgspec.json.encode(renewed)],
        "signature": [text.encode() for text in (*signer.sign(_CONTENTS[:1]), *signer.sign(_CONTENTS))],
        "key": [raw_public_key(signing_key)],
    }
    return {name: [base64.b64encode(one).decode() for one in some] for name, some in found.items()}


@cache
def _samples() -> dict[str, tuple[bytes, ...]]:
    kept: dict[str, list[str]] = json.loads(_FILE.read_text())
    return {name: tuple(map(base64.b64decode, some)) for name, some in kept.items()}


@cache
def _believed() -> Authorities:
    return Authorities([load_der_x509_certificate(_samples()["certificate"][1])])


def _code(data: bytes) -> None:
    code = parse_code(data.decode("utf-8", "surrogateescape"))
    assert parse_code(str(code)) == code


def _join(data: bytes) -> None:
    try:
        sent = msgspec.json.decode(data, type=JoinRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    verify_request(sent)


def _request(data: bytes) -> None:
    verify_request(JoinRequest(b"", data, b"0" * 64))


def _certificate(data: bytes) -> None:
    identity_of(data)
    _believed().verify(data, _NOW_S)


def _renewal(data: bytes) -> None:
    try:
        renewal = msgspec.json.decode(data, type=Renewal)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    accept_renewal(renewal, identity_of(_samples()["certificate"][0]), _believed())


def _signature(data: bytes) -> None:
    """Nothing but what was signed is found good."""
    (public_key,), texts = _samples()["key"], [text.decode() for text in _samples()["signature"]]
    found = read(data.decode("utf-8", "surrogateescape"))
    Verifier().check(_CONTENTS[0], found, public_key)
    assert found[1:] in [read(text)[1:] for text in texts], "an altered signature was taken"


_SAMPLES = _samples() if _FILE.exists() else dict.fromkeys(_NAMED, (b"",))
_REFUSED = (CertificateError, UntrustedError)
_NAMES = (b"cheops://site/", b"cheops://key/", b"\x30\x82\xff\xff", b"\x30\x80", b"\x06\x03", b"\x02\x01\x7f", b"-----BEGIN CERTIFICATE-----\n")  # fmt: skip

IDENTITIES: dict[str, Target] = {
    "invitation-code": Target(_code, _SAMPLES["code"], (ClientError,), (b"cheops-join-", b"=", b"_"), 10),
    "join-request": Target(_join, _SAMPLES["join"], _REFUSED, JSON_TOKENS, 5),
    "signing-request": Target(_request, _SAMPLES["csr"], _REFUSED, _NAMES, 10),
    "certificate": Target(_certificate, _SAMPLES["certificate"], _REFUSED, _NAMES, 20),
    "renewal": Target(_renewal, _SAMPLES["renewal"], _REFUSED, (*JSON_TOKENS, *_NAMES), 5),
    "signature": Target(_signature, _SAMPLES["signature"], (SignatureError,), (b"=", b"A" * 44), 15),
}

if __name__ == "__main__":
    _FILE.write_text(json.dumps(made(), indent=1) + "\n")
