"""Certificates and authorities are replaced while everything runs, and nobody notices."""

import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from cheops.peers.renewal import left_until_due_s
from cheops.security.certificate_requests import accept_renewal, make_renewal, renewal_spec
from cheops.security.certificates import Authorities, Identity, UntrustedError, dns_name
from cheops.security.keyring import AUTHORITIES, CA_KEY, CERTIFICATE, key_pem, load_key_folder, write_file
from tests.agent.rig import Rig, until
from tests.security.pki import DAY_S, Pki
from tests.security.sites import NOTE, TYPES, all_up, answer, as_site, heartbeat, is_well


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Two sites; site1 has the authority's key."""
    made = Rig(tmp_path / "rig", TYPES, ("site1", "site2"), secure=True)
    assert made.pki
    made.pki.write(made.base / "ca")
    path = made.folder("site1") / "site.yaml"
    settings = {"folder": "tls", "ca_key": str(made.base / "ca" / CA_KEY)}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "security": settings}))
    try:
        yield made
    finally:
        made.close()


def identity(rig: Rig, site: str) -> Identity:
    return load_key_folder(rig.folder(site) / "tls").identity


def shown(rig: Rig, site: str) -> bytes:
    """The certificate that a site shows to whoever connects now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with rig.tls(site, context) as connection:
        assert isinstance(connection.sock, ssl.SSLSocket)
        der = connection.sock.getpeercert(binary_form=True)
    assert isinstance(der, bytes)
    return der


class Load:
    """Asks both sites all the time, as operations and as heartbeats do, and notes what failed."""

    def __init__(self, rig: Rig) -> None:
        self.failed: list[str] = []
        self.done = 0
        self._rig = rig
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(what,)) for what in (self._operate, self._meet)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, what: Callable[[], None]) -> None:
        while not self._stop.wait(0.03):  # requests are under way most of the time, and leave others some of it
            try:
                what()
                self.done += 1
            except Exception as error:
                self.failed.append(f"{what.__name__}: {error!r}")

    def _operate(self) -> None:
        """An operation goes from one site to the other, and its answer back."""
        for site in self._rig.names:
            lines = self._rig.exec(site, "page", "set", "cp site.yaml page", timeout=20, **NOTE)
            found = {line["Site"]: line["Status"] for line in lines}
            if found != dict.fromkeys(self._rig.names, "OK"):
                raise AssertionError(found)

    def _meet(self) -> None:
        """A new connection each time, to both, as the other one; whatever is in the folder now."""
        for site, other in (("site1", "site2"), ("site2", "site1")):
            status, said = answer(
                self._rig, site, as_site(self._rig, other), "POST", "/peer/heartbeat", body=heartbeat(other)
            )
            if status != 200:
                raise AssertionError(said)


def test_a_certificate_is_renewed_under_load_without_a_failed_request(rig: Rig) -> None:
    """It ends while requests are under way all the time: on connections new and old."""
    assert rig.pki
    rig.start()
    all_up(rig)
    with Load(rig) as load:
        until(lambda: load.done > 3)
        old = rig.pki.authority.issue(renewal_spec(identity(rig, "site2")), time.time() - 100, 110)
        write_file(rig.folder("site2") / "tls" / CERTIFICATE, old.pem, secret=False)
        rig.processes["site2"].send_signal(signal.SIGHUP)
        until(lambda: identity(rig, "site2") != old, "for a new certificate")
        until(lambda: time.time() > old.until_s + 0.5)
        done = load.done
        until(lambda: load.done > done + 10)
    assert load.failed == []
    new = identity(rig, "site2")
    assert new.until_s > time.time() + 300 * DAY_S
    assert (new.signing_key, new.addresses) == (old.signing_key, old.addresses)
    assert shown(rig, "site2") == new.der


def test_a_site_with_the_authority_renews_its_own(rig: Rig) -> None:
    assert rig.pki
    rig.pki.site(rig.folder("site1") / "tls", "site1", "127.0.0.1", valid_for_s=200, made_s=time.time() - 150)
    old = identity(rig, "site1")
    rig.start("site1")
    until(lambda: identity(rig, "site1") != old)
    assert shown(rig, "site1") == identity(rig, "site1").der
    assert is_well(rig, "site1")


def test_sighup_takes_what_is_in_the_folder_and_disturbs_nobody(rig: Rig) -> None:
    assert rig.pki
    rig.start("site2")
    with rig.tls("site2", as_site(rig, "site1"), dns_name("site2")) as kept:
        rig.pki.site(rig.folder("site2") / "tls", "site2", "127.0.0.1")
        rig.processes["site2"].send_signal(signal.SIGHUP)
        until(lambda: shown(rig, "site2") == identity(rig, "site2").der)
        kept.request("POST", "/peer/heartbeat", heartbeat("site1"))
        assert kept.getresponse().read()
    before = shown(rig, "site2")
    (rig.folder("site2") / "tls" / CERTIFICATE).write_text("nothing of the kind")
    rig.processes["site2"].send_signal(signal.SIGHUP)
    until(lambda: "cannot reload certificates, the old ones stay in use: " in rig.log("site2"))
    assert shown(rig, "site2") == before
    assert is_well(rig, "site2")


def test_one_authority_takes_over_from_another_under_load(rig: Rig, tmp_path: Path) -> None:
    """As docs/security.md has it: believe both; issue with the new one; believe only that."""
    assert rig.pki
    new = Pki()
    old_ca, new_ca = rig.pki.authority.certificate, new.authority.certificate

    def hand_over(*believed: Any, key: Pki) -> None:
        write_file(rig.folder("site1") / "tls" / AUTHORITIES, Authorities(believed).pem, secret=False)
        write_file(rig.base / "ca" / CA_KEY, key_pem(key.authority.key), secret=True)
        rig.processes["site1"].send_signal(signal.SIGHUP)

        def is_everywhere() -> bool:
            folders = [load_key_folder(rig.folder(site) / "tls") for site in rig.names]
            return all(
                folder.authorities.certificates == believed
                and folder.authorities.issuer_of(folder.identity) == key.authority.certificate
                for folder in folders
            )

        until(is_everywhere, f"for {len(believed)} to be believed")

    rig.start()
    all_up(rig)
    with Load(rig) as load:
        hand_over(old_ca, new_ca, key=rig.pki)
        hand_over(new_ca, old_ca, key=new)
        hand_over(new_ca, key=new)
        done = load.done
        until(lambda: load.done > done + 10)
    assert load.failed == []
    leftover = rig.pki.site(tmp_path / "leftover", "site2")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=new.pem)
    context.load_cert_chain(leftover.certificate_file, leftover.key_file)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        answer(rig, "site1", context, "POST", "/peer/heartbeat", body=heartbeat("site2"))
    assert is_well(rig, "site1")


# -- what is taken for a renewal --------------------------------------------------------------------------


def test_a_renewal_is_due_before_the_end(tmp_path: Path) -> None:
    now_s = time.time()
    made = Pki().site(tmp_path, "a", valid_for_s=90 * DAY_S).identity
    assert left_until_due_s(made, now_s, 10 * DAY_S) == pytest.approx(80 * DAY_S, abs=10)
    assert left_until_due_s(made, now_s, 1_000 * DAY_S) == pytest.approx(60 * DAY_S, abs=10)
    assert left_until_due_s(made, now_s + 81 * DAY_S, 10 * DAY_S) < 0


def test_nobody_can_slip_in_authorities_with_a_renewal(tmp_path: Path) -> None:
    """Neither a site without the key, nor with a certificate that exists already, nor for another site."""
    pki, evil = Pki(), Pki()
    ours = pki.site(tmp_path / "a", "a")
    believed, both = ours.authorities, Authorities([pki.authority.certificate, evil.authority.certificate])
    later = pki.authority.issue(renewal_spec(ours.identity), time.time() + 5, DAY_S)
    good = make_renewal(pki.authority, later, both)
    assert accept_renewal(good, ours.identity, believed)[1].certificates == both.certificates
    bad = [
        make_renewal(evil.authority, later, both),  # not signed by one that is believed
        make_renewal(evil.authority, evil.authority.issue(renewal_spec(ours.identity), time.time() + 5, DAY_S), both),
        make_renewal(pki.authority, ours.identity, both),  # not new
        make_renewal(pki.authority, pki.site(tmp_path / "b", "b", made_s=time.time() + 5).identity, both),
        make_renewal(pki.authority, pki.site(tmp_path / "c", "a", made_s=time.time() + 5).identity, both),  # other keys
        make_renewal(pki.authority, later, Authorities([evil.authority.certificate])),  # would lock us out
        type(good)(good.certificate, pki.pem, good.proof),  # the proof of another list
    ]
    for renewal in bad:
        with pytest.raises(UntrustedError):
            accept_renewal(renewal, ours.identity, believed)
