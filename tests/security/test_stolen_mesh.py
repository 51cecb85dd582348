"""With the keys of one site nobody changes what others know of the mesh, and the site can always be forgotten."""

import json
import ssl
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cheops.api.models.site import SiteView
from cheops.client import Agent
from cheops.peers.heartbeat import MembershipRecord, SiteRecord
from cheops.security.keyring import load_key_folder
from tests.agent.rig import Rig, until
from tests.security.clients import local
from tests.security.sites import TYPES, all_up, answer, as_site, heartbeat, is_well, refused, site_record, states
from tests.support.command import run_process

PROBE = "/peer/heartbeat"
HONEST = ("site1", "site2", "site3")
STOLEN = "site4"


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Three honest sites, the first with the authority's key; the agent of the fourth is off, and its keys are used."""
    made = Rig(tmp_path_factory.mktemp("stolen") / "rig", TYPES, (*HONEST, STOLEN), secure=True)
    try:
        made.start()
        all_up(made)
        made.stop(STOLEN)
        yield made
    finally:
        made.close()


def record_of(rig: Rig, site: str, seen_by: str, **changes: Any) -> SiteRecord:
    """A record for any site, signed with the stolen key and with the stolen certificate."""
    known = local(rig, seen_by).sites().sites
    url = next((one.url for one in known if one.name == site), "https://127.0.0.1:9")
    return site_record(load_key_folder(rig.folder(STOLEN) / "tls"), site, **{"url": url, **changes})


def said(rig: Rig, to: str, context: ssl.SSLContext, **content: Any) -> int:
    return answer(rig, to, context, "POST", PROBE, body=heartbeat(STOLEN, **msgspec.to_builtins(content)))[0]


def agree(rig: Rig, *names: str) -> None:
    """The honest sites serve, see each other, and know each other by their true addresses."""
    for name in names or HONEST:
        assert is_well(rig, name)
        seen = {one.name: one for one in local(rig, name).sites().sites}
        assert set(seen) == {*HONEST, STOLEN}
        assert {site: seen[site].url for site in HONEST} == {site: rig.url(site) for site in HONEST}
        assert {seen[site].state for site in HONEST} == {"up"}


def confirmed_by_all(agent: Agent) -> None:
    decided = agent.forget(STOLEN, force=True)
    assert (decided.forgotten, decided.confirmed) == (True, ("site2", "site3"))
    assert (decided.waiting, decided.unreachable) == ((), ())


def test_a_stolen_site_cannot_keep_others_from_forgetting_it(rig: Rig) -> None:
    """Thousands of invented decisions, decisions beyond every clock, and one that admits it again."""
    stolen, now_ms = as_site(rig, STOLEN), int(time.time() * 1000)
    invented = [MembershipRecord(f"x{number}", now_ms + 30_000, forgotten=True) for number in range(4_224)]
    for to in HONEST:
        for start in range(0, len(invented), 64):
            assert said(rig, to, stolen, members=tuple(invented[start : start + 64])) in (200, 429)
        for stamp_ms in (2**53, now_ms):
            lies = tuple(MembershipRecord(site, stamp_ms, forgotten=True) for site in HONEST)
            until(lambda to=to, lies=lies: said(rig, to, stolen, members=lies) == 200)  # type: ignore[misc]
        assert refused(rig, to, "forged membership decision") > 0
        assert refused(rig, to, "membership decision of the future") > 0
    agree(rig)
    confirmed_by_all(local(rig))
    lifted = (MembershipRecord(STOLEN, int(time.time() * 1000) + 1_000, forgotten=False),)
    for name in HONEST:
        assert states(rig, name)[STOLEN] == "forgotten"
        assert said(rig, name, stolen, members=lifted) == 403
        assert states(rig, name)[STOLEN] == "forgotten"
    rig.kill("site2")  # not stopped: what it confirmed is on its disk
    rig.start("site2")
    assert states(rig, "site2")[STOLEN] == "forgotten"


def test_a_stolen_site_cannot_say_where_others_are_or_invent_sites(rig: Rig) -> None:
    stolen = as_site(rig, STOLEN)
    beyond = int(time.time() * 1000) + 3_600_000
    for to in HONEST:
        other = "site2" if to != "site2" else "site3"
        true = record_of(rig, other, to, url="https://127.0.0.1:9")
        assert said(rig, to, stolen, entries=(true,)) == 200
        assert said(rig, to, stolen, entries=tuple(record_of(rig, f"ghost{n}", to) for n in range(20))) == 200
        late = record_of(rig, STOLEN, to, revision=beyond)
        assert said(rig, to, stolen, entries=(late,)) == 200
        for url in ("https://127.0.0.1 redir http://127.0.0.1:1 :28302", "https://127.0.0.1:99999"):
            assert said(rig, to, stolen, entries=(record_of(rig, STOLEN, to, url=url),)) == 200
            service = record_of(rig, STOLEN, to, services=(("image", url),))
            assert said(rig, to, stolen, entries=(service,)) == 200
        assert refused(rig, to, "forged site record") >= 2
        assert refused(rig, to, "site record of the future") == 1
        assert refused(rig, to, "unusable address") == 4
        assert said(rig, to, stolen, beats=((other, 2**53), ("ghost1", 7)), seen=(2**53, 2**53)) == 200
    agree(rig)
    confirmed_by_all(local(rig))


def test_what_a_stolen_site_says_keeps_no_dead_site_up_and_takes_no_live_one_down(rig: Rig) -> None:
    """Beats of a dead site that advance, one of a live site beyond all others, and distances that nobody measured."""
    stolen, agent = as_site(rig, STOLEN), local(rig)
    rig.stop("site3")

    def lie() -> None:
        at_ms = int(time.time() * 1000) + 30_000
        pairs = (("site2", "site1", 0.0001, at_ms), ("site4", "site1", 0.0001, at_ms))
        content = {"beats": (("site3", at_ms), ("site2", 2**53)), "pairs": pairs, "seen": (2**53, 2**53)}
        assert said(rig, "site1", stolen, **content) in (200, 429)

    def seen(site: str) -> SiteView:
        lie()
        return next(one for one in agent.sites().sites if one.name == site)

    until(lambda: seen("site3").state == "down", "for the dead site to be down")
    until(lambda: seen("site2").state == "up", "for the live site to be up")
    assert (seen("site2").rtt_measured, (seen("site2").rtt_ms or 0) > 0.0001) == (True, True)
    assert is_well(rig, "site1")


def test_a_site_without_the_key_says_where_it_is_and_passes_on_what_the_operator_signed(rig: Rig) -> None:
    url = f"unix://{rig.folder('site2') / 'data' / 'agent.sock'}"
    ran = run_process("site", "forget", STOLEN, "--force", "--url", url)
    assert (ran.code, "site2 does not have the key of an authority" in ran.err) == (1, True)
    assert f"do it at site1, or from anywhere with the authority's folder: cheops site forget {STOLEN} --ca" in ran.err
    ca = str(rig.folder("site1") / "ca")
    ran = run_process("site", "forget", STOLEN, "--force", "--url", url, "--ca", ca)
    assert (ran.code, ran.out) == (0, f"{STOLEN} is forgotten: at this agent, and at site1, site3\n"), ran.err
    assert states(rig, "site3")[STOLEN] == "forgotten"
    ran = run_process("site", "admit", STOLEN, "--url", url, "--ca", ca)
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            f"{STOLEN} is part of the mesh again: at this agent, and at site1, site3",
            f"With certificates, it also needs new keys: cheops site invite {STOLEN} --again",
        ],
    )
    ran = run_process("site", "admit", STOLEN, "--url", url, "--ca", ca)
    assert (ran.code, "was not forgotten, so there is nothing to undo" in ran.err) == (1, True)
    ran = run_process("site", "forget", "never-seen", "--url", url, "--ca", ca)  # the authority knows what it issued
    assert ran.code == 0, ran.err


def test_what_is_not_known_everywhere_is_not_reported_as_done(rig: Rig) -> None:
    rig.stop("site3")
    until(lambda: states(rig, "site1")["site3"] == "down")
    agent = local(rig)
    decided = agent.forget(STOLEN, force=True)
    assert (decided.confirmed, decided.unreachable) == (("site2",), ("site3",))
    shown = [one for one in agent.check().checks if "forgotten" in one.name]
    assert [(one.name, one.detail) for one in shown] == [
        (f"{STOLEN} is forgotten, but not everywhere", "not confirmed by site3")
    ]
    listed = json.loads(rig.request("site1", "GET", f"/api/v1/sites/{STOLEN}"))
    assert "not confirmed yet by site3" in listed["problems"]
    rig.start("site3")
    until(lambda: states(rig, "site3")[STOLEN] == "forgotten")
    until(lambda: [one.ok for one in agent.check().checks if one.name.startswith("all sites have confirmed")] == [True])
