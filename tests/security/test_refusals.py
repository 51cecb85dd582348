"""The labels of refusals: operators have alerts on them, so a label changes only on purpose."""

import importlib
import pkgutil

import pytest

import cheops
from cheops.api.permissions import ForbiddenError
from cheops.errors import CheopsError, ClientError
from cheops.peers.couchdb.requests import CouchError
from cheops.peers.requests import PeerRefusedError
from cheops.security.refusals import reason_of
from cheops.security.tokens import BadTokenError

LABELS = {
    "AddressError": "address",
    "BodyError": "bad list",
    "CertificateError": "certificate",
    "CodecError": "codec",
    "CommandLineError": "command line",
    "CommandNotAllowedError": "command not allowed",
    "CredentialsError": "credentials",
    "DamagedError": "store",
    "DiskFullError": "disk full",
    "ForgedSenderError": "forged sender",
    "FrameError": "broken channel",
    "GraceError": "expired certificate",
    "InvalidError": "invalid",
    "InvitationError": "invitation",
    "MatrixError": "matrix",
    "NoCopyError": "no copy",
    "NotInvolvedError": "not involved",
    "PayloadError": "payload",
    "RequestError": "request",
    "ScopeError": "scope",
    "ScopeResolutionError": "scope resolution",
    "ScopeSyntaxError": "scope syntax",
    "SignatureError": "signature",
    "SiteDownError": "site down",
    "StoreError": "store",
    "TooLargeError": "too large",
    "TooManyRequestsError": "rate",
    "UnauthorizedError": "no token",
    "UnitError": "unit",
    "UnknownListError": "codec",
    "UntrustedError": "untrusted",
    "UpstreamError": "upstream",
}


def _subclasses(of: type[CheopsError]) -> set[type[CheopsError]]:
    return {of}.union(*map(_subclasses, of.__subclasses__()))


def test_the_labels_of_error_classes() -> None:
    for module in pkgutil.walk_packages(cheops.__path__, "cheops."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = {one for one in _subclasses(CheopsError) if one.__module__.startswith("cheops.")}
    assert {one.__name__: one.reason for one in classes if one.reason} == LABELS


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (BadTokenError("text", "unknown token"), "unknown token"),
        (ForbiddenError("text", "wrong role"), "wrong role"),
        (PeerRefusedError("text", "site not involved"), "site not involved"),
        (CouchError("text", "too_large"), "too large"),
        (ClientError("text", status=413, reason="too large"), "too large"),
        (ClientError("text", status=403), "forbidden"),
        (CheopsError("text", status=503), "service unavailable"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_without_a_class_has_the_label_that_it_was_raised_with(error: CheopsError, label: str) -> None:
    assert reason_of(error) == label
