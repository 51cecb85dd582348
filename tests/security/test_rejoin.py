"""New keys for a site of the mesh: one command at each end, which change certificates and nothing else."""

import hashlib
import json
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cheops.security.certificates import Authorities
from cheops.security.keyring import (
    AUTHORITIES,
    CA_KEY,
    FILES,
    KEY,
    SIGNING_KEY,
    KeyFolder,
    known_authorities,
    load_authority_folder,
    load_key_folder,
)
from tests.agent.rig import Rig, until
from tests.agent.types import TALLY as TALLY_TYPE
from tests.security.sites import TYPES as NOTES
from tests.security.sites import all_up, answer, believing, heartbeat, is_well, states
from tests.security.test_expiry import rig_with_key
from tests.security.test_forgery import ADD, TALLY, tally
from tests.support.command import CommandResult, run_process
from tests.support.ports import free_port

__all__ = ["NOTES"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = rig_with_key(tmp_path, "site1", "site2")
    for site in made.names:
        path = made.folder(site) / "site.yaml"
        text = json.dumps({"tally": TALLY_TYPE}).replace("@FOLDER@", str(made.folder(site)))
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "types": json.loads(text)}))
    try:
        yield made
    finally:
        made.close()


def cheops(rig: Rig, site: str, *words: str, stdin: str = "") -> CommandResult:
    """A command on the machine of a site."""
    return run_process(*words, stdin=stdin, cwd=rig.folder(site))


def invite_again(rig: Rig, site: str) -> str:
    socket = rig.folder("site1") / "data" / "agent.sock"
    ran = cheops(rig, "site1", "site", "invite", site, "--again", "--url", f"unix://{socket}")
    assert ran.code == 0, ran
    assert f"{site} may rejoin once, until " in ran.err
    assert "Its current certificate is refused from now on." in ran.err
    return ran.out


def rejoin(rig: Rig, site: str, code: str, *options: str) -> CommandResult:
    return cheops(rig, site, "site", "rejoin", "--config", "site.yaml", *options, stdin=code)


def restart(rig: Rig, *sites: str) -> None:
    for site in sites:
        if site in rig.processes:
            rig.stop(site)
    rig.start(*sites)


def test_a_site_whose_keys_were_exposed_gets_new_ones(rig: Rig, tmp_path: Path) -> None:
    """What its clients sent meanwhile, signed by the old key after it was ended, reaches the other sites too."""
    rig.start()
    all_up(rig)
    rig.exec("site2", "stock", "inc", ADD, **TALLY)
    stolen = tmp_path / "stolen"
    shutil.copytree(rig.folder("site2") / "tls", stolen)
    thief = load_key_folder(stolen)
    code = invite_again(rig, "site2")
    for path in ("/peer/heartbeat", "/peer/renewal"):
        status, said = answer(rig, "site1", believing(rig, thief), "POST", path, body=heartbeat("site2"))
        assert (status, "so it needs a new one" in said["detail"]) == (403, True), path
    until(lambda: states(rig, "site2")["site1"] == "down", "for site2 to be cut off")
    rig.exec("site2", "stock", "inc", ADD, timeout=1, **TALLY)
    config = (rig.folder("site2") / "site.yaml").read_bytes()
    ran = rejoin(rig, "site2", code)
    assert (ran.code, ran.err) == (0, ""), ran
    assert "site2 has new keys and a new certificate" in ran.out
    assert (rig.folder("site2") / "site.yaml").read_bytes() == config
    new = load_key_folder(rig.folder("site2") / "tls", "site2")
    assert new.identity.signing_key != thief.identity.signing_key
    assert new.key.private_numbers() != thief.key.private_numbers()
    assert new.identity.addresses == thief.identity.addresses
    assert {path.name for path in new.path.iterdir()} == set(FILES)
    for name in (KEY, SIGNING_KEY):
        assert stat.S_IMODE((new.path / name).stat().st_mode) == 0o600
    restart(rig, "site2")
    all_up(rig)
    until(lambda: [tally(rig, site, "stock") for site in rig.names] == [2, 2], "for the operations of meanwhile")
    assert answer(rig, "site1", believing(rig, thief), "POST", "/peer/renewal")[0] == 403
    assert is_well(rig, "site1")


@pytest.mark.parametrize("again", [(), ("--again",)], ids=["invite", "invite --again"])
def test_a_new_invitation_ends_the_certificate_of_a_thief_that_used_the_first(
    rig: Rig, tmp_path: Path, again: tuple[str, ...]
) -> None:
    """The thief has started no agent, so no site has heard of the name. All sites refuse it, not only the inviting."""
    rig.start()
    all_up(rig)
    words = ("site", "invite", "site3", "--url", f"unix://{rig.folder('site1') / 'data' / 'agent.sock'}")
    ran = cheops(rig, "site1", *words)
    assert (ran.code, "refused from now on" in ran.err) == (0, False), ran
    listen = f"127.0.0.1:{free_port()}"
    assert run_process("site", "join", "--listen", listen, stdin=ran.out, cwd=new_folder(tmp_path / "thief")).code == 0
    thief = load_key_folder(tmp_path / "thief" / "tls", "site3")
    for site in rig.names:
        assert answer(rig, site, believing(rig, thief), "POST", "/peer/heartbeat", body=heartbeat("site3"))[0] == 200
    ran = cheops(rig, "site1", *words, *again)
    assert (ran.code, "is refused from now on" in ran.err) == (0, True), ran
    for site in rig.names:
        until(lambda site=site: is_refused(rig, site, thief), f"for {site} to refuse the thief")  # type: ignore[misc]
    ran = run_process("site", "join", "--listen", listen, stdin=ran.out, cwd=new_folder(tmp_path / "true"))
    assert ran.code == 0, ran
    true = load_key_folder(tmp_path / "true" / "tls", "site3")
    for site in rig.names:
        assert answer(rig, site, believing(rig, true), "POST", "/peer/heartbeat", body=heartbeat("site3"))[0] == 200
        assert is_refused(rig, site, thief), site


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def is_refused(rig: Rig, site: str, keys: KeyFolder) -> bool:
    """Whether a site refuses these keys, even to renew their certificate."""
    asked = [answer(rig, site, believing(rig, keys), "POST", f"/peer/{path}") for path in ("heartbeat", "renewal")]
    return all(status == 403 and "so it needs a new one" in said["detail"] for status, said in asked)


def test_a_site_that_was_forgotten_comes_back(rig: Rig) -> None:
    rig.start()
    all_up(rig)
    socket = rig.folder("site1") / "data" / "agent.sock"
    assert cheops(rig, "site1", "site", "forget", "site2", "--force", "--url", f"unix://{socket}").code == 0
    ran = cheops(rig, "site1", "site", "invite", "site2", "--url", f"unix://{socket}")
    assert (ran.code, "'cheops site invite site2 --again'" in ran.err) == (1, True)
    assert rejoin(rig, "site2", invite_again(rig, "site2")).code == 0
    restart(rig, "site2")
    all_up(rig)


def test_what_is_wrong_is_said_before_anything_changes(rig: Rig, tmp_path: Path) -> None:
    rig.start("site1")
    socket = f"unix://{rig.folder('site1') / 'data' / 'agent.sock'}"
    code = cheops(rig, "site1", "site", "invite", "site9", "--url", socket).out
    ran = cheops(rig, "site1", "site", "invite", "site22", "--again", "--url", socket)
    assert (ran.code, "unknown site 'site22'; did you mean 'site2'?" in ran.err) == (1, True), ran
    before = {path: path.read_bytes() for path in rig.folder("site2").rglob("*") if path.is_file()}
    ran = rejoin(rig, "site2", code)
    assert (ran.code, "the code is for 'site9', and site.yaml is of 'site2'; nothing was changed" in ran.err) == (
        1,
        True,
    )
    ran = cheops(rig, "site2", "site", "rejoin", "--config", "site.yaml", code.strip())
    assert (ran.code, "every user of this machine can read it" in ran.err) == (1, True)
    ran = rejoin(rig, "site2", "", "--code-file", "nowhere")
    assert (ran.code, "--code-file: nowhere cannot be read" in ran.err) == (1, True)
    ran = rejoin(rig, "site2", "", "--ca", "nowhere")
    assert (ran.code, "nowhere is not the folder of an authority: it has no ca.pem" in ran.err) == (1, True), ran.err
    (tmp_path / "plain.yaml").write_text("site: a\nsecurity: none\n")
    ran = rejoin(rig, "site2", "", "--config", str(tmp_path / "plain.yaml"))
    assert (ran.code, "has no folder, so this site has no certificate to replace" in ran.err) == (1, True)
    assert {path: path.read_bytes() for path in rig.folder("site2").rglob("*") if path.is_file()} == before


def test_join_with_force_keeps_the_configuration_file(rig: Rig) -> None:
    rig.start("site1")
    config = (rig.folder("site2") / "site.yaml").read_bytes()
    words = ("site", "join", "--config", "site.yaml", "--listen", f"127.0.0.1:{free_port()}")
    code = invite_again(rig, "site2")
    ran = cheops(rig, "site2", *words, stdin=code)
    assert (ran.code, "ca.pem exists already, and nothing was written" in ran.err) == (1, True)
    ran = cheops(rig, "site2", *words, "--force", stdin=code)
    assert (ran.code, "and kept site.yaml" in ran.out) == (0, True), ran
    assert (rig.folder("site2") / "site.yaml").read_bytes() == config
    rig.start("site2")
    all_up(rig)


def test_a_site_moves_to_another_address(rig: Rig) -> None:
    """Sites go by names: only clients need the new address in the certificate."""
    rig.start()
    all_up(rig)
    rig.stop("site2")
    path, port = rig.folder("site2") / "site.yaml", free_port()
    peers = {"site1": rig.url("site1")}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "listen": f"127.0.0.2:{port}", "peers": peers}))
    rig._addresses["site2"] = ("127.0.0.2", port)
    rig.start("site2")
    all_up(rig)
    seen = json.loads(rig.request("site1", "GET", "/api/v1/sites"))["sites"]
    assert {one["name"]: one["url"] for one in seen}["site2"] == rig.url("site2")
    assert load_key_folder(rig.folder("site2") / "tls").identity.addresses == ("127.0.0.1",)
    assert rejoin(rig, "site2", invite_again(rig, "site2"), "--address", "site2.example.org").code == 0
    restart(rig, "site2")
    all_up(rig)
    identity = load_key_folder(rig.folder("site2") / "tls").identity
    assert identity.addresses == ("site2.example.org", "127.0.0.2")


# -- authorities ---------------------------------------------------------------------------------------------


def test_a_lost_key_of_the_authority(rig: Rig) -> None:
    """A new authority; then one command at each end per site. No data is lost, and everything works after it."""
    rig.start()
    all_up(rig)
    rig.exec("site2", "stock", "inc", ADD, **TALLY)
    (rig.base / "ca" / CA_KEY).unlink()
    rig.stop("site1")
    ran = cheops(rig, "site1", "agent", "--config", "site.yaml")
    assert (ran.code, "docs/certificates-trouble.md#the-authoritys-key-is-lost" in ran.err) == (1, True), ran
    rig.exec("site2", "stock", "inc", ADD, timeout=1, **TALLY)
    assert cheops(rig, "site1", "ca", "init", "../ca", "--force").code == 0
    ran = rejoin(rig, "site1", "", "--ca", "../ca")
    assert (ran.code, "security.ca_key" in ran.out) == (0, False), ran
    rig.start("site1")
    code = invite_again(rig, "site2")
    assert rejoin(rig, "site2", code).code == 0
    restart(rig, "site2")
    all_up(rig)
    until(lambda: [tally(rig, site, "stock") for site in rig.names] == [2, 2], "for everything to be everywhere")
    assert cheops(rig, "site1", "ca", "retire", "--config", "site.yaml").code == 0
    restart(rig, "site1")
    new = load_authority_folder(rig.base / "ca")[0].certificate
    until(
        lambda: all(known_authorities(rig.folder(site) / "tls").certificates == (new,) for site in rig.names),
        "for the old authority to be dropped everywhere",
    )
    all_up(rig)


def test_a_key_that_is_at_another_path(rig: Rig) -> None:
    assert cheops(rig, "site1", "ca", "init", "ca-new").code == 0
    ran = rejoin(rig, "site1", "", "--ca", "ca-new")
    assert (ran.code, "Set security.ca_key in site.yaml to ca-new/ca.key." in ran.out) == (0, True), ran
    with_both = known_authorities(rig.folder("site1") / "tls")
    assert with_both.certificates == (
        *load_authority_folder(rig.folder("site1") / "ca-new")[1].certificates,
        *load_authority_folder(rig.base / "ca")[1].certificates,
    )


def test_after_a_change_the_folder_of_the_authority_has_the_key_and_the_certificate_of_the_new_one(rig: Rig) -> None:
    ca, tls = rig.base / "ca", rig.folder("site1") / "tls"
    old = load_authority_folder(ca)[0].certificate

    def step(word: str, *more: str) -> CommandResult:
        return cheops(rig, "site1", "ca", word, *more, "--config", "site.yaml")

    assert cheops(rig, "site1", "ca", "init", "ca-new").code == 0
    new = load_authority_folder(rig.folder("site1") / "ca-new")[0].certificate
    ran = step("use", "ca-new")
    assert (ran.code, "'cheops ca trust ca-new' comes first" in ran.err) == (1, True)
    assert step("trust", "ca-new").code == 0
    assert (known_authorities(tls).certificates, load_authority_folder(ca)[0].certificate) == ((old, new), old)
    assert step("use", "ca-new").code == 0
    assert (known_authorities(tls).certificates, load_authority_folder(ca)[0].certificate) == ((new, old), new)
    ran = step("retire")
    assert (ran.code, "is not of the authority whose key is" in ran.err) == (1, True)
    rig.start("site1")
    until(lambda: Authorities([new]).issuer_of(load_key_folder(tls).identity), "for a certificate of the new one")
    assert step("retire").code == 0
    assert known_authorities(tls).certificates == known_authorities(ca).certificates == (new,)
    assert (ca / AUTHORITIES).read_bytes() == (tls / AUTHORITIES).read_bytes()
    ran = cheops(rig, "site1", "ca", "issue", "site3", "--ca", "../ca")
    assert ran.code == 0, ran
    assert load_key_folder(rig.folder("site1") / "tls-site3", "site3").authorities.certificates == (new,)
    ran = cheops(rig, "site2", "ca", "trust", "../site1/ca-new", "--config", "site.yaml")
    assert (ran.code, "site.yaml has no security.ca_key" in ran.err) == (1, True)


# -- two agents of one name ------------------------------------------------------------------------------------


def named_twice(rig: Rig, site: str) -> str:
    """What `cheops check` says of two agents of one name; empty if it says nothing."""
    ran = cheops(rig, site, "check", "--url", f"unix://{rig.folder(site) / 'data' / 'agent.sock'}")
    return ran.out.partition("two agents are called site2")[2]


def test_check_notices_a_second_agent_with_other_keys_until_the_site_is_invited_again(rig: Rig) -> None:
    """Every site notices, the two themselves included. The invitation cuts both off."""
    assert rig.pki
    rig.start()
    all_up(rig)
    thief = rig.folder("thief")
    shutil.copytree(rig.folder("site2"), thief, ignore=shutil.ignore_patterns("data", "tls", "*.sock"))
    keys = rig.pki.site(thief / "tls", "site2", "127.0.0.1")
    settings = yaml.safe_load((thief / "site.yaml").read_text())
    url, peers = f"127.0.0.1:{free_port()}", {"site1": rig.url("site1")}
    (thief / "site.yaml").write_text(yaml.safe_dump({**settings, "listen": url, "peers": peers}))
    process = rig.start_beside("site2", [sys.executable, "-m", "cheops", "agent", "--config", str(thief / "site.yaml")])
    try:
        for site in ("site1", "site2"):
            until(lambda site=site: named_twice(rig, site), f"for {site} to notice")  # type: ignore[misc]
        said = named_twice(rig, "site1")
        fingerprint = hashlib.sha256(keys.identity.der).hexdigest()[:16]
        assert f"https://{url} (certificate {fingerprint})" in said
        assert rig.url("site2") in said
        assert "'cheops site invite site2 --again' ends the certificates of both" in " ".join(said.split())
        code = invite_again(rig, "site2")
        assert not named_twice(rig, "site1")
        assert rejoin(rig, "site2", code).code == 0
        restart(rig, "site2")
        all_up(rig)
        assert is_refused(rig, "site1", keys)
        assert not named_twice(rig, "site1")
    finally:
        process.terminate()
        process.wait(30)
