"""Certificates say who a site is, and the folder that holds them is believed only if all of it fits."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.errors import CheopsError
from cheops.scope.names import name_problem
from cheops.security import certificates
from cheops.security.certificates import (
    Authorities,
    CertificateError,
    CertificateSpec,
    UntrustedError,
    general_names,
    identity_of,
    make_key,
    make_signing_key,
    raw_public_key,
)
from cheops.security.keyring import load_authority, load_key_folder, write_file
from tests.security.pki import DAY_S, Pki

PKI = Pki()
KEY, SIGNING_KEY = make_key(), make_signing_key()
NAMES = st.text(min_size=1, max_size=60).filter(lambda name: name_problem(name) is None)


@given(NAMES)
def test_a_certificate_says_all_that_was_asked_for(name: str) -> None:
    addresses = ("dc1.example.org", "10.0.0.1", "fd00::1")
    request = CertificateSpec(name, KEY.public_key(), raw_public_key(SIGNING_KEY), addresses)
    made = PKI.authority.issue(request, time.time(), DAY_S, least_made_ms=7)
    found = Authorities([PKI.authority.certificate]).verify(made.der, time.time())
    assert (found.site, found.signing_key, found.addresses) == (name, raw_public_key(SIGNING_KEY), addresses)
    assert abs(found.made_ms / 1000 - time.time()) < 60


@given(NAMES, NAMES)
def test_different_sites_have_different_host_names(one: str, other: str) -> None:
    assert (certificates.dns_name(one) == certificates.dns_name(other)) == (one == other)
    assert len(certificates.dns_name(one).split(".")[0]) <= 63
    assert certificates.is_reserved(certificates.dns_name(one))


def test_it_was_not_made_before_what_it_must_come_after() -> None:
    request = CertificateSpec("a", KEY.public_key(), raw_public_key(SIGNING_KEY))
    later_ms = int(time.time() * 1000) + 5_000
    assert PKI.authority.issue(request, time.time(), DAY_S, least_made_ms=later_ms).made_ms == later_ms


def test_who_is_not_believed(tmp_path: Path) -> None:
    believed = Authorities([PKI.authority.certificate])
    with pytest.raises(UntrustedError, match="is of an unknown authority"):
        believed.verify(Pki().site(tmp_path / "a", "a").identity.der, None)
    old = PKI.site(tmp_path / "b", "b", valid_for_s=DAY_S, made_s=Pki.days_ago(3)).identity
    with pytest.raises(UntrustedError, match="the certificate of 'b' is valid from"):
        believed.verify(old.der, time.time())
    assert believed.verify(old.der, None) == old  # what it signed in time is still its own


def test_no_certificate_outlives_its_authority() -> None:
    request = CertificateSpec("a", KEY.public_key(), raw_public_key(SIGNING_KEY))
    end_s = PKI.authority.certificate.not_valid_after_utc.timestamp()
    assert PKI.authority.issue(request, end_s - 60, DAY_S).until_s == end_s
    with pytest.raises(CertificateError, match="the authority itself ended at"):
        PKI.authority.issue(request, end_s + 1, DAY_S)


@pytest.mark.parametrize(
    "address", ["", "*.example.org", certificates.dns_name("b"), "cheops.internal", "a.CHEOPS.internal.", "é"]
)
def test_addresses_that_nobody_gets(address: str) -> None:
    with pytest.raises(CertificateError):
        general_names([address])


def test_there_are_not_too_many() -> None:
    with pytest.raises(CertificateError, match="at most 32 addresses"):
        general_names(f"10.0.0.{n}" for n in range(33))


@given(st.binary(max_size=300))
def test_what_is_no_certificate(data: bytes) -> None:
    with pytest.raises(CertificateError):
        identity_of(data)


def test_names_that_contradict_each_other() -> None:
    assert certificates.site_in([certificates.site_uri("a"), certificates.site_uri("b")]) is None
    assert certificates.site_in(["cheops://site/"]) is None
    assert certificates.site_in(["cheops://site/a b"]) is None  # not as we write it
    assert certificates.key_in(["cheops://key/AAAA"]) is None
    assert certificates.key_in(["cheops://key/!"]) is None
    assert certificates.made_in(["cheops://made/-1"]) is None
    assert certificates.made_in(["cheops://made/" + "9" * 16]) is None


# -- folders ---------------------------------------------------------------------------------------------


def _other_key(path: Path) -> None:
    Pki().site(path.parent / "other", "a")
    (path / "site.key").write_bytes((path.parent / "other" / "site.key").read_bytes())


def _other_signing_key(path: Path) -> None:
    Pki().site(path.parent / "other", "a")
    (path / "signing.key").write_bytes((path.parent / "other" / "signing.key").read_bytes())


def _swapped_keys(path: Path) -> None:
    (path / "site.key").write_bytes((path / "signing.key").read_bytes())


def _other_authority(path: Path) -> None:
    (path / "ca.pem").write_text(Pki().pem)


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: (path / "ca.pem").unlink(), "ca.pem: no such file or directory; 'cheops site join'"),
    (lambda path: (path / "site.key").unlink(), "site.key: no such file or directory; 'cheops site join'"),
    (lambda path: (path / "ca.pem").write_text(""), "ca.pem: no certificates in the PEM format"),
    (lambda path: (path / "ca.pem").write_text("x" * 300_000), "ca.pem: larger than 256 KiB"),
    (
        lambda path: (path / "ca.pem").write_bytes((path / "site.pem").read_bytes()),
        "is not the certificate of an authority",
    ),
    (lambda path: (path / "ca.pem").write_text(9 * Pki().pem), "9 authorities; at most 8 are possible"),
    (lambda path: (path / "site.pem").write_text("no"), "site.pem: not a certificate of a site"),
    (
        lambda path: (path / "site.pem").write_bytes((path / "ca.pem").read_bytes()),
        "site.pem: not a certificate of a site",
    ),
    (lambda path: (path / "site.key").write_text("no"), "site.key: not a private key in the PEM format"),
    (lambda path: (path / "site.key").chmod(0o644), "others than its owner can read or change this key"),
    (lambda path: (path / "signing.key").chmod(0o620), "(mode 0620)"),
    (_other_key, "site.key: this key does not belong to the certificate in site.pem"),
    (_other_signing_key, "signing.key: this key is not the one that site.pem names"),
    (_swapped_keys, "site.key: expected an ECDSA key, found another kind"),
    (_other_authority, "is of an unknown authority; ca.pem has the trusted authorities"),
]


@pytest.mark.parametrize(("spoil", "complaint"), FAULTS, ids=[complaint for _, complaint in FAULTS])
def test_a_folder_that_is_not_right(tmp_path: Path, spoil: Callable[[Path], object], complaint: str) -> None:
    path = tmp_path / "tls"
    PKI.site(path, "a")
    assert load_key_folder(path, "a").identity.site == "a"
    spoil(path)
    with pytest.raises(CheopsError) as caught:
        load_key_folder(path, "a")
    assert complaint in str(caught.value)


def test_the_folder_of_another_site(tmp_path: Path) -> None:
    PKI.site(tmp_path, "b")
    with pytest.raises(CheopsError, match="this is the certificate of 'b', not of 'a'"):
        load_key_folder(tmp_path, "a")


def test_the_key_of_another_authority(tmp_path: Path) -> None:
    key = Pki().write(tmp_path)
    with pytest.raises(CheopsError, match=r"this is not the key of any authority in ca\.pem"):
        load_authority(key, Authorities([PKI.authority.certificate]))


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheopsError, match="cannot be written"):
        write_file(tmp_path / "file" / "site.pem", b"", secret=False)


def test_who_needs_no_certificates_does_not_wait_for_them() -> None:
    code = "import sys; import cheops.agent, cheops.cli.main as m; m.main(['--help']); assert 'cryptography' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
