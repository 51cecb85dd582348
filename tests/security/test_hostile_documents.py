"""A stolen site sends documents to honest sites: operations, replies, snapshots, seals, and what it says it knows."""

import json
from functools import partial

import msgspec
import pytest

from cheops.engine.documents import Message
from cheops.log.operation import Command
from cheops.store import codec
from tests.agent.rig import RefusedByAgentError, until
from tests.security.honest_sites import EVERYWHERE, NAMES, STOLEN, WITH_STOLEN, HonestSites
from tests.security.hostile_site import INCARNATION, HostileSite, envelope, raw_document
from tests.security.rogue import operations

IDS = ("../../stolen", "../stolen", "a/../../../stolen", "..", "/stolen", "-stolen")
CONTROLS = ("stolen\x1b[2J", "stolen\nline", "stolen\r", "stolen\x7f", "stolen\x9b31m", "stolen\u2028", "stolen\u202e")
ESCAPE = "\x1b]0;stolen\x07\x1b[2J\r\n"


def counted(honest: HonestSites, before: dict[str, float]) -> None:
    """Every honest site has counted something of the stolen one as refused."""
    for name in NAMES:
        until(lambda n=name: honest.refused(n) > before[n], f"for {name} to count a refusal")  # type: ignore[misc]


def refusals(honest: HonestSites) -> dict[str, float]:
    return {name: honest.refused(name) for name in NAMES}


def all_write(honest: HonestSites, page: str, sites: str) -> None:
    for name in NAMES:
        honest.write(name, page, sites)


def alarm(honest: HonestSites, name: str) -> bool:
    """Whether a site says that the stolen one signed two contents under one id."""
    failed = [one for one in json.loads(honest.check(name))["checks"] if not one["ok"]]
    return any(STOLEN in json.dumps(one) and "two" in one["detail"] for one in failed)


def test_ids_that_leave_their_directory_are_refused(honest: HonestSites, thief: HostileSite) -> None:
    before = refusals(honest)
    absolute = str(honest.rig.base / "stolen")
    thief.send_ids((*IDS, *CONTROLS))
    thief.send_ids((*IDS, *CONTROLS, absolute), "note")
    honest.stand()
    counted(honest, before)
    for name in NAMES:
        assert not {*IDS, *CONTROLS, absolute} & honest.resources(name)
    honest.forget_and_take_back(thief)


@pytest.mark.parametrize("id_", [*IDS, *CONTROLS])
def test_such_ids_do_not_come_by_another_database_either(honest: HonestSites, thief: HostileSite, id_: str) -> None:
    """The stolen site itself may not write there; an administrator may, whose CouchDB carries what the site made."""
    thief.post("site1", Message("first", INCARNATION))  # by its connection site1 knows its certificate
    op = thief.new_resource(id_)
    body = json.dumps({"docs": [json.loads(bytes(raw_document(op)))], "new_edits": False}).encode()
    headers = {"Content-Type": "application/json"}
    assert thief.ask("site1", "POST", "/db/cheops/_bulk_docs", body, Content_Type="application/json")[0] in {401, 403}
    (row,) = json.loads(honest.rig.request("site1", "POST", "/db/cheops/_bulk_docs", body, headers))
    assert row["error"] == "forbidden"
    assert id_ not in honest.resources("site1")


def test_an_id_does_not_read_the_files_of_a_site(honest: HonestSites, thief: HostileSite) -> None:
    """The id of a resource that it made itself is the path of a key."""
    key = honest.rig.folder("site1") / "tls" / "site.key"
    for id_ in (str(key), "../tls/site.key"):
        thief.tell("site1", thief.new_resource(id_, rtype="note"))
        wanted = json.dumps({"resource": id_, "command": ""}).encode()
        status, shown = thief.ask("site1", "POST", "/peer/show", wanted)
        assert status >= 400 or "PRIVATE KEY" not in json.dumps(shown)
    honest.stand()


def test_numbers_at_the_end_of_all_numbers_stop_nobody(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("numbers")
    before = refusals(honest)
    thief.send_high_numbers(page)
    all_write(honest, page, WITH_STOLEN)
    honest.stand(page)
    counted(honest, before)
    honest.forget_and_take_back(thief)


def test_a_snapshot_erases_nothing(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("snapshot")
    thief.send_snapshots(page)
    honest.stand(page)
    all_write(honest, page, WITH_STOLEN)
    honest.stand(page)
    assert all("forged" not in honest.lines(name, page) for name in NAMES)
    honest.forget_and_take_back(thief)


def test_two_contents_under_one_id_end_as_one_and_as_an_alarm(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("equivocation")
    thief.send_two_contents(page)
    all_write(honest, page, WITH_STOLEN)

    def is_one() -> bool:
        return all(len({"left", "right"} & set(honest.lines(name, page))) == 1 for name in NAMES)

    until(lambda: is_one() and honest.holds(page), "for one of the two to stand everywhere")
    for name in NAMES:
        until(lambda n=name: alarm(honest, n), f"for {name} to name the site that signed both")  # type: ignore[misc]
    honest.stand(page)
    honest.forget_and_take_back(thief)


SEALS = (
    "alone",
    "alone, of old",
    "apart",
    "apart, of old",
    "after all",
    "after all, of old",
    "of all",
    "beyond",
    "highest",
)


def test_a_seal_of_what_nobody_settled_makes_nobody_late(honest: HonestSites, thief: HostileSite) -> None:
    pages = {how: thief.shared_page("seal") for how in SEALS}
    for how, page in pages.items():
        thief.send_false_seal(page, how)
    honest.stand(*pages.values())
    for page in pages.values():
        all_write(honest, page, WITH_STOLEN)
    honest.stand(*pages.values())
    honest.forget_and_take_back(thief)


def test_what_it_says_it_knows_costs_nobody_anything(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("progress")
    thief.send_false_progress(page)
    all_write(honest, page, WITH_STOLEN)
    thief.send_false_progress(page)
    honest.stand(page)
    honest.forget_and_take_back(thief)


def test_disorder_ends_in_the_same_files(honest: HonestSites, thief: HostileSite) -> None:
    """It may write on the pages that it shares: each of its lines is there once, everywhere."""
    page = thief.shared_page("disorder")
    thief.send_in_disorder(page)
    until(lambda: all(honest.lines(name, page).count("disorder-6") == 1 for name in NAMES), "for its lines")
    all_write(honest, page, WITH_STOLEN)
    honest.stand(page)
    lines = honest.lines("site1", page)
    assert [lines.count(f"disorder-{n}") for n in range(1, 7)] == [1] * 6
    honest.forget_and_take_back(thief)


def test_a_page_that_it_has_no_part_in_stays_as_it_is(honest: HonestSites, thief: HostileSite) -> None:
    page = honest.new_page("foreign")
    before = refusals(honest)
    like = max(operations(honest.rig, "site1", page).values(), key=lambda op: op.stamp)
    thief.send_from_outside(page, like)
    all_write(honest, page, EVERYWHERE)
    honest.stand(page)
    counted(honest, before)
    for name in NAMES:
        assert set(honest.lines(name, page)) == set(honest.acknowledged[page])
        assert not [id_ for id_ in operations(honest.rig, name, page) if id_.startswith(STOLEN)]


def test_it_speaks_for_no_other_site(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("others")
    before = refusals(honest)
    thief.send_for_others(page)
    honest.stand(page)
    counted(honest, before)
    for name in NAMES:
        assert set(honest.lines(name, page)) == set(honest.acknowledged[page])


def _have_all(honest: HonestSites, page: str, line: str) -> bool:
    return all(line in honest.lines(name, page) for name in NAMES)


def test_a_bad_document_costs_that_document_alone(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("batch")
    changed = json.loads(codec.stored_form(thief.line(page, "rotten", seq=2)))
    changed["payload"]["line"] = "add-line pages/__ID__ changed"
    rotten = (json.dumps(changed).encode(), b'{"doc": "op"}', b'{"doc": 7}', b"[]", b"\xff", b"")
    for number, document in enumerate(rotten, 1):
        good = thief.line(page, f"good-{number}", seq=number)
        site, documents, parts = msgspec.msgpack.decode(envelope(thief.name, [Message(page, INCARNATION, (good,))]))
        documents.append(document)
        parts[0][1].insert(0, 1)
        body = msgspec.msgpack.encode([site, documents, parts])
        for name in NAMES:
            thief.ask(name, "POST", "/peer/messages", body, Content_Type="application/json")
        text = f"good-{number}"
        until(partial(_have_all, honest, page, text), f"for the good one of {number}")
    honest.stand(page)


def test_sequences_for_terminals_reach_no_log(honest: HonestSites, thief: HostileSite) -> None:
    """`stand` reads the logs of the agents."""
    page = thief.shared_page("escapes")
    thief.send_escapes(page, ESCAPE)
    thief.gossip(entries=(thief.record(version=ESCAPE, revision=thief._revision + 1),))
    thief.probe("site1", sender=ESCAPE)
    honest.stand(page)
    for name in NAMES:
        assert "\x1b" not in honest.rig.request(name, "GET", "/metrics").decode()
        audit = (honest.rig.folder(name) / "data" / "audit.log").read_text()
        assert "\x1b" not in audit
        assert "\\u001b" not in audit


def test_a_command_that_a_site_does_not_allow_runs_nowhere(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("command")
    forbidden = ("touch stolen", "add-line ../stolen x", "add-line pages/../stolen x", "rm -rf pages")
    for number, line in enumerate(forbidden, 1):
        thief.tell_all(thief.line(page, "", number, payload=Command(line)))
    thief.tell_all(thief.line(page, "last", 5))
    until(lambda: all("last" in honest.lines(name, page) for name in NAMES), "for what it may do")
    honest.stand(page)
    assert not any((honest.rig.folder(name) / "stolen").exists() for name in NAMES)


def test_clients_without_rights_are_no_way_in(honest: HonestSites, thief: HostileSite) -> None:
    """A certificate is no token: the API, the database and the settings are closed to a site."""
    for method, path in (
        ("GET", "/api/v1/resources"),
        ("GET", "/api/v1/sites"),
        ("GET", "/api/v1/audit"),
        ("GET", "/db/cheops/_changes"),
        ("POST", "/exec/first"),
        ("POST", "/api/v1/tokens"),
        ("DELETE", "/api/v1/sites/site2?force=true"),
        ("POST", "/api/v1/invitations"),
        ("GET", "/metrics"),
    ):
        assert thief.ask("site1", method, path, b"{}" if method == "POST" else b"")[0] in {401, 403}, path
    with pytest.raises(RefusedByAgentError):
        honest.rig.request("site1", "GET", "/peer/identity/site2")
    honest.stand()


def test_it_begins_no_resource_in_the_name_of_others(honest: HonestSites, thief: HostileSite) -> None:
    """Where it is not on its own list it may not begin one either; with them it may, and they run what they allow."""
    absent = thief.new_resource("absent", *NAMES)
    thief.tell_all(absent)
    own = thief.new_resource("present")
    thief.tell_all(own)
    until(lambda: all("stolen" in honest.lines(name, "present") for name in NAMES), "for its own page")
    honest.stand()
    assert all(not honest.lines(name, "absent") for name in NAMES)
    assert own.payload == Command("add-line pages/__ID__ stolen")
