"""A stolen site lies about the mesh: who belongs to it, where sites are, and what others said; and returns."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cheops.peers.heartbeat import Coordinate
from cheops.security.certificates import identity_of
from tests.agent.rig import until
from tests.security.honest_sites import NAMES, STOLEN, HonestSites, honest_sites
from tests.security.hostile_site import HIGHEST, HostileSite, now_ms
from tests.security.pki import Pki
from tests.security.sites import answer, believing, heartbeat, states

FAR = 2**53  # one more than every reader of JSON keeps


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HonestSites]:
    """With HAProxy in front of the services: addresses of sites are written into its configuration."""
    with honest_sites(tmp_path_factory.mktemp("honest") / "rig", "haproxy") as sites:
        yield sites
        sites.everything_stands()


def all_served(honest: HonestSites) -> None:
    """The gateway of each site serves its clients, here and at other sites."""
    for name in NAMES:
        for site in NAMES:
            until(
                lambda n=name, s=site: honest.ask_service(n, "/open", Scope=f"{{vault: {s}}}")[0] == 200,  # type: ignore[misc]
                f"for {name} to serve requests to {site}",
            )


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """An address of the thief's, and who connected there."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, address = listening.accept()
                except TimeoutError:
                    continue
                seen.append(str(address))
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", seen
        over.set()
        thread.join()


def test_thousands_of_invented_decisions_push_no_revocation_out(honest: HonestSites, thief: HostileSite) -> None:
    thief.invent_decisions(4_224)
    honest.forget_stolen()
    thief.invent_decisions(512)
    assert all(states(honest.rig, name)[STOLEN] == "forgotten" for name in NAMES)
    assert thief.gossip() == [403] * len(NAMES)
    honest.take_back(thief)
    honest.stand()


@pytest.mark.parametrize("stamp_ms", [HIGHEST, FAR, None])
def test_nobody_bans_an_honest_site(honest: HonestSites, thief: HostileSite, stamp_ms: int | None) -> None:
    for name in (*NAMES, STOLEN):
        thief.decide_about(name, stamp_ms or now_ms() + 1, forgotten=True)
    honest.stand(honest.new_page("banned"))
    honest.forget_and_take_back(thief)


def test_who_is_forgotten_does_not_bring_itself_back(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("return")
    old = thief.folder
    honest.forget_stolen()
    for stamp_ms in (now_ms() + 1, HIGHEST, FAR):
        thief.decide_about(STOLEN, stamp_ms, forgotten=False)
    assert thief.gossip() == [403] * len(NAMES)
    for name in NAMES:
        assert thief.tell(name, thief.line(page, "after"))[0] == 403
        for method, path in (
            ("POST", "/peer/renewal"),
            ("GET", "/peer/identity/site2"),
            ("GET", f"/peer/files/{'0' * 64}"),
        ):
            assert thief.ask(name, method, path)[0] == 403
        assert thief.ask(name, "POST", "/peer/show", json.dumps({"resource": page, "command": ""}).encode())[0] == 403
    assert all(states(honest.rig, name)[STOLEN] == "forgotten" for name in NAMES)
    honest.stand(page)
    assert all("after" not in honest.lines(name, page) for name in NAMES)
    honest.take_back(thief)
    new = thief.folder
    thief.use(old)
    assert thief.gossip() == [403] * len(NAMES)  # admitted again is the site, not the keys that were stolen
    thief.use(new)
    assert thief.gossip() == [200] * len(NAMES)


def test_a_revocation_survives_a_restart(honest: HonestSites, thief: HostileSite) -> None:
    honest.forget_stolen()
    honest.rig.kill("site2")
    honest.restart("site2")
    assert states(honest.rig, "site2")[STOLEN] == "forgotten"
    assert thief.probe("site2")[0] == 403
    honest.take_back(thief)
    honest.stand()


@pytest.mark.parametrize("revision", [HIGHEST, None])
def test_nobody_rewrites_the_address_of_another_site(
    honest: HonestSites, thief: HostileSite, elsewhere: tuple[str, list[str]], revision: int | None
) -> None:
    url, seen = elsewhere
    for name in NAMES:
        thief.rewrite_address(name, url, revision or now_ms() + 1_000)
    honest.stand(honest.new_page("address"))
    all_served(honest)
    assert not seen
    honest.forget_and_take_back(thief)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1 redir http://evil.example :28302",
        "https://127.0.0.1:99999",
        "https://127.0.0.1:0",
        "https://127.0.0.1\nserver evil 127.0.0.1:1",
        "https://user:password@127.0.0.1:1/path?query#x",
        "https://[::1",
        "https://\x1b[2J",
        "ftp://127.0.0.1:1",
        "https://",
    ],
)
def test_an_address_is_an_address_and_nothing_else(honest: HonestSites, thief: HostileSite, url: str) -> None:
    thief.advertise(url)
    all_served(honest)
    honest.stand()
    for name in NAMES:
        written = [path.read_text() for path in (honest.rig.folder(name) / "data" / "gateway").rglob("*.cfg")]
        assert written
        assert all("redir http" not in text and "evil" not in text for text in written)


def test_its_own_address_harms_itself_alone(
    honest: HonestSites, thief: HostileSite, elsewhere: tuple[str, list[str]]
) -> None:
    """It may be wherever it likes. At the address of another site nobody takes that one for it, nor it for that one."""
    thief.advertise(honest.rig.url("site2"))
    thief.advertise(elsewhere[0])
    all_served(honest)
    honest.stand(honest.new_page("own-address"))
    thief.advertise(honest.rig.url(STOLEN))
    honest.forget_and_take_back(thief)


def test_invented_sites_are_no_sites_and_nobody_connects_to_them(
    honest: HonestSites, thief: HostileSite, elsewhere: tuple[str, list[str]]
) -> None:
    url, seen = elsewhere
    thief.invent_sites(500, url)
    beats = tuple((f"ghost{n}", HIGHEST) for n in range(256))
    with thief.lying(beats=beats, pairs=tuple((f"ghost{n}", "site1", 0.1, HIGHEST) for n in range(64))):
        honest.stand(honest.new_page("invented"))  # it takes some rounds of heartbeats
        all_served(honest)
    assert not seen
    honest.forget_and_take_back(thief)


def test_what_it_says_of_others_makes_nobody_seem_up_or_down(honest: HonestSites, thief: HostileSite) -> None:
    near = Coordinate(0.0, 0.0, 0.0, 0.01, 0.01)
    lies: dict[str, Any] = {
        "beats": tuple((name, HIGHEST) for name in NAMES),
        "pairs": tuple((one, other, 0.0, HIGHEST) for one in NAMES for other in (*NAMES, STOLEN) if one != other),
        "places": tuple((name, HIGHEST, near) for name in NAMES),
        "seen": (HIGHEST, HIGHEST),
        "digests": (HIGHEST,) * 32,
    }
    with thief.lying(**lies):
        for _ in range(3):
            assert set(thief.gossip(**lies)) <= {200, 400}
        honest.stand(honest.new_page("beats"))
        all_served(honest)
    honest.forget_and_take_back(thief)


def test_a_site_that_is_down_is_not_made_to_seem_up(honest: HonestSites, thief: HostileSite) -> None:
    honest.rig.kill("site3")
    entry = ("site3", now_ms())
    with thief.lying(beats=(entry,)):
        until(lambda: states(honest.rig, "site1")["site3"] == "down", "for site3 to be down")
        for _ in range(5):
            thief.gossip(("site1", "site2"), beats=(("site3", now_ms()),), pairs=(("site3", "site1", 0.1, HIGHEST),))
        assert states(honest.rig, "site1")["site3"] == "down"
        page = "first"
        honest.write("site1", page)
    honest.restart("site3")
    honest.stand()


def test_it_sends_no_heartbeat_of_another(honest: HonestSites, thief: HostileSite) -> None:
    before = honest.refused("site1")
    for name in ("site2", "ghost"):
        assert thief.probe("site1", sender=name)[0] == 403
    assert honest.refused("site1") == before + 2
    honest.stand()


def test_a_certificate_of_nobody_is_no_way_in(honest: HonestSites, thief: HostileSite, tmp_path: Path) -> None:
    """Only the authority makes certificates: one of its own for another site does not open a connection."""
    other = Pki().site(tmp_path / "own", "site2", "127.0.0.1")
    with pytest.raises(OSError):  # noqa: PT011 - refused in the handshake, or the connection is closed
        answer(honest.rig, "site1", believing(honest.rig, other), "POST", "/peer/heartbeat", body=heartbeat("site2"))
    assert thief.ask("site1", "POST", "/join", b"{}")[0] in {400, 401, 403}
    honest.stand()


def test_a_renewal_is_for_the_site_that_shows_its_certificate(honest: HonestSites, thief: HostileSite) -> None:
    """Whatever else the request names."""
    status, told = thief.ask("site1", "POST", "/peer/renewal", b'{"site": "site2"}')
    assert status == 200
    identity = identity_of(x509.load_pem_x509_certificate(told["certificate"].encode()).public_bytes(Encoding.DER))
    assert (identity.site, identity.signing_key) == (STOLEN, thief.folder.identity.signing_key)
    honest.stand()
