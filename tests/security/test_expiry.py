"""A certificate that has ended: its site comes back by itself, and gets nothing but its own renewal."""

import json
import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cheops.peers.renewal import GraceError, check_grace
from cheops.security.certificate_requests import Renewal, accept_renewal, renewal_spec
from cheops.security.certificates import Authorities, Identity, make_authority
from cheops.security.keyring import CERTIFICATE, KeyFolder, load_key_folder, write_file
from cheops.security.principal import Role
from cheops.security.refusals import Refusals
from tests.agent.rig import Rig, until
from tests.security.clients import configure, local, token
from tests.security.pki import DAY_S, Pki
from tests.security.sites import NOTE, TYPES, all_up, answer, believing, heartbeat, is_well, refused, states

RENEWAL = "/peer/renewal"


def rig_with_key(base: Path, *names: str) -> Rig:
    """Sites of which site1 has the authority's key."""
    rig = Rig(base / "rig", TYPES, names, secure=True)
    assert rig.pki
    configure(rig, "site1", security={"folder": "tls", "ca_key": str(rig.pki.write(rig.base / "ca"))})
    return rig


def end(rig: Rig, site: str, *, in_s: float) -> Identity:
    """Give a site a certificate of the same keys that ends soon, or has ended."""
    assert rig.pki
    folder = rig.folder(site) / "tls"
    begun_s = time.time() - 2 * DAY_S
    short = rig.pki.authority.issue(
        renewal_spec(load_key_folder(folder).identity), begun_s, 2 * DAY_S + in_s, int(time.time() * 1000)
    )
    write_file(folder / CERTIFICATE, short.pem, secret=False)
    if site in rig.processes:
        rig.processes[site].send_signal(signal.SIGHUP)
    return short


# -- the whole way -----------------------------------------------------------------------------------------


def test_sites_whose_certificates_ended_come_back_by_themselves(tmp_path: Path) -> None:
    """The site with the key was off for longer than all certificates lasted, its own included. site3 has it in no
    file, and knows it from its saved records only."""
    rig = rig_with_key(tmp_path, "site1", "site2", "site3")
    try:
        configure(rig, "site3", peers={"site2": rig.url("site2")})
        rig.start()
        all_up(rig)
        until(lambda: '"issues"' in _saved_mesh(rig, "site3"), "for site3 to save what it knows")
        rig.stop("site1")
        ended = {site: end(rig, site, in_s=-1 if site == "site1" else 3) for site in rig.names}
        until(lambda: states(rig, "site2")["site3"] == states(rig, "site3")["site2"] == "down", "for all to be alone")
        until(lambda: "it ended at" in rig.log("site2"), "for site2 to say why")
        rig.kill("site3")
        rig.start("site3", "site1")
        all_up(rig)
        for site, old in ended.items():
            new = load_key_folder(rig.folder(site) / "tls").identity
            assert (new.signing_key, new.addresses) == (old.signing_key, old.addresses)
            assert new.until_s > time.time() + 300 * DAY_S
        lines = rig.exec("site2", "page", "set", "cp site.yaml page", **NOTE)
        assert {line["Site"]: line["Status"] for line in lines} == dict.fromkeys(rig.names, "OK")
    finally:
        rig.close()


def _saved_mesh(rig: Rig, site: str) -> str:
    """What the store has of the other sites, as text."""
    paths = (rig.folder(site) / "data").glob("*.db*")
    return b"".join(path.read_bytes() for path in paths).decode(errors="replace")


# -- and nothing else --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One site, which has the authority's key."""
    made = rig_with_key(tmp_path_factory.mktemp("expiry"), "site1")
    try:
        made.start()
        yield made
    finally:
        made.close()


def expired(rig: Rig, path: Path, site: str, days: float = 1) -> KeyFolder:
    assert rig.pki
    return rig.pki.site(path, site, valid_for_s=DAY_S, made_s=Pki.days_ago(days + 1))


PATHS = [
    *(("POST", f"/peer/{kind}") for kind in ("heartbeat", "messages", "show")),
    *(("GET", f"/peer/{kind}") for kind in ("identity/site1", f"files/{'0' * 64}", "replicants/x", "x", "renewal")),
    *(("POST", path) for path in ("/peer/renewal/", "/peer/renewal/x", "//peer/renewal", "/peer/renewal%2f")),
    *(("GET", path) for path in ("/db/", "/db/cheops/_changes", "/api/v1/sites", "/api/v1/resources", "/metrics", "/")),
    *(("POST", path) for path in ("/exec/page", "/join", "/api/v1/invitations", "/db/cheops/_bulk_docs")),
    *(("GET", path) for path in ("/join/authority", "/healthz", "/readyz", "/show/page")),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_an_ended_certificate_gets_nothing_but_its_renewal(rig: Rig, tmp_path: Path, method: str, path: str) -> None:
    shown = believing(rig, expired(rig, tmp_path / "x", "site7"))
    before = refused(rig, "site1", "expired certificate")
    status, said = answer(rig, "site1", shown, method, path, body=heartbeat("site7"))
    assert (status, "the certificate of 'site7' ended at " in said["detail"]) == (403, True), said
    assert refused(rig, "site1", "expired certificate") == before + 1


def test_not_even_with_a_token(rig: Rig, tmp_path: Path) -> None:
    secret = token(rig, "somebody", Role.ADMIN)
    headers = {"Authorization": f"Bearer {secret}"}
    shown = believing(rig, expired(rig, tmp_path / "x", "site7"))
    assert answer(rig, "site1", shown, "GET", "/api/v1/sites", headers=headers)[0] == 403
    assert answer(rig, "site1", believing(rig, None), "GET", "/api/v1/sites", headers=headers)[0] == 200


def renew(rig: Rig, folder: KeyFolder) -> tuple[int, str]:
    """The status, and the explanation of a refusal. What is sent must be a renewal."""
    status, said = answer(rig, "site1", believing(rig, folder), "POST", RENEWAL)
    if status != 200:
        return status, said["detail"]
    assert rig.pki
    renewal = msgspec.convert(said, Renewal)
    new, _ = accept_renewal(renewal, folder.identity, Authorities([rig.pki.authority.certificate]))
    assert new.is_valid_at(time.time())
    return status, ""


def test_it_gets_its_renewal_within_the_grace(rig: Rig, tmp_path: Path) -> None:
    assert renew(rig, expired(rig, tmp_path / "a", "site6", days=89)) == (200, "")
    status, why = renew(rig, expired(rig, tmp_path / "b", "site6", days=91))
    assert (status, "longer ago than security.renew_grace (90.0 days)" in why) == (403, True)
    assert "'cheops site invite site6 --again' gives it a new one" in why


def test_not_if_the_site_has_shown_a_newer_one(rig: Rig, tmp_path: Path) -> None:
    """A renewal whose response was lost was never shown, so the site can ask again."""
    assert rig.pki
    old = expired(rig, tmp_path / "a", "site5")
    assert renew(rig, old) == renew(rig, old) == (200, "")
    newer = rig.pki.site(tmp_path / "b", "site5")
    shown = believing(rig, newer)
    assert answer(rig, "site1", shown, "POST", "/peer/heartbeat", body=heartbeat("site5"))[0] == 200
    status, why = renew(rig, old)
    assert (status, "'site5' has shown a newer one since" in why) == (403, True)
    assert renew(rig, newer) == (200, "")


def test_not_if_the_site_was_forgotten_or_invited_again(rig: Rig, tmp_path: Path) -> None:
    assert rig.pki
    for site in ("site3", "site4"):
        now_ms = int(time.time() * 1000)
        record = {"name": site, "incarnation": "x", "url": "https://127.0.0.1:1", "revision": now_ms}
        shown = believing(rig, rig.pki.site(tmp_path / site, site))
        body = heartbeat(site, entries=[record])
        assert answer(rig, "site1", shown, "POST", "/peer/heartbeat", body=body)[0] == 200
    local(rig).forget("site3", force=True)
    rig.request("site1", "POST", "/api/v1/invitations", json.dumps({"site": "site4", "again": True}))
    status, why = renew(rig, expired(rig, tmp_path / "a", "site3"))
    assert (status, "'site3' was forgotten" in why) == (403, True)
    status, why = renew(rig, expired(rig, tmp_path / "b", "site4"))
    assert (status, "so it needs a new one" in why) == (403, True)


def test_a_certificate_of_an_authority_that_has_ended_is_nothing(tmp_path: Path) -> None:
    """The handshake does not look at times, so the authorities are chosen by them."""
    from cheops.config.security import SecurityConfig  # noqa: PLC0415
    from cheops.security.keyring import Keyring  # noqa: PLC0415

    pki, now_s = Pki(), time.time()
    gone = Pki(make_authority(now_s - 400 * DAY_S, 399 * DAY_S))
    folder = pki.site(tmp_path / "tls", "a")
    both = Authorities([pki.authority.certificate, gone.authority.certificate])
    write_file(folder.path / "ca.pem", both.pem, secret=False)
    keyring = Keyring(SecurityConfig(folder=folder.path), "a", Refusals())
    stranger = gone.site(tmp_path / "b", "b", made_s=Pki.days_ago(30), valid_for_s=DAY_S)
    assert _handshake(keyring.server.context, stranger, pki) == "certificate verify failed"
    assert _handshake(keyring.server.context, pki.site(tmp_path / "c", "c"), pki) == ""
    reloads: list[int] = []
    keyring.changed.append(lambda: reloads.append(1))
    keyring.drop_ended_authorities(now_s)
    assert not reloads
    keyring.drop_ended_authorities(now_s - 10 * DAY_S)  # a moment at which both were valid
    assert reloads


def _handshake(server: ssl.SSLContext, shown: KeyFolder, pki: Pki) -> str:
    """Why a server refuses a certificate; empty if it takes it. In memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=pki.pem)
    client.load_cert_chain(shown.certificate_file, shown.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(6):
        for one in ends:
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return "certificate verify failed" if "verify failed" in str(error) else str(error)
    return ""


# -- the rule by itself ------------------------------------------------------------------------------------


def test_the_grace_has_two_ends(tmp_path: Path) -> None:
    identity = Pki().site(tmp_path, "a", valid_for_s=DAY_S).identity
    end_s, made_ms = identity.until_s, identity.made_ms
    for at_s in (identity.from_s, end_s, end_s + 1, end_s + 100):
        check_grace(identity, at_s, 100, made_ms)
    check_grace(identity, end_s, 100, made_ms + 1)  # still valid: it may be a renewal whose response was lost
    with pytest.raises(GraceError, match="one of both clocks is wrong"):
        check_grace(identity, identity.from_s - 1, 100, made_ms)
    with pytest.raises(GraceError, match="longer ago than security"):
        check_grace(identity, end_s + 101, 100, made_ms)
    with pytest.raises(GraceError, match="has shown a newer one since"):
        check_grace(identity, end_s + 1, 100, made_ms + 1)


def test_the_agent_is_well_after_all_this(rig: Rig) -> None:
    assert is_well(rig, "site1")
