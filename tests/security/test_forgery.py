"""What somebody with a certificate of the mesh, or with the keys of one of its sites, sends to real agents."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cheops.engine.intake import FOREIGN_STAMP, FUTURE_STAMP
from cheops.log.operation import Command, Kind, Operation, OpId, Origin, Stamp, Status, Verdict
from cheops.peers.couchdb.documents import couch_document
from cheops.peers.intake import NOT_SIGNED, UNKNOWN_KEY, WRONG_SIGNATURE
from cheops.security.refusals import AGAINST_POLICY
from cheops.security.signatures import Signer
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.security.clients import local
from tests.security.rogue import Rogue, changed, documents, operations, signed
from tests.security.sites import all_up, is_well, refused

NAMES = ("site1", "site2", "site3")
MATRIX = [
    {"before": "set", "after": "set", "result": "take-one"},
    {"before": "set", "after": "inc", "result": "take-both-keep-order"},
    {"before": "inc", "after": "inc", "result": "take-both"},
]
TYPES: dict[str, Any] = {
    "tally": {
        "allow": ["dd if=/dev/zero of=__ID__ bs=1 count=1 oflag=append conv=notrunc status=none"],
        "cwd": "@FOLDER@",
        "read": "wc -c __ID__",
        "reset": "rm -f __ID__",
        "matrix": MATRIX,
    }
}
TALLY: dict[str, Any] = {"resource-type": "tally"}
ADD = "dd if=/dev/zero of=__ID__ bs=1 count=1 oflag=append conv=notrunc status=none"
MORE = ADD.replace("count=1", "count=2")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("forgery") / "rig", TYPES, NAMES, secure=True)
    try:
        made.start()
        all_up(made)
        begun(made, "first")  # from here on every site knows the type's matrix, whichever test runs first
        yield made
        assert all(is_well(made, name) for name in NAMES)
    finally:
        made.close()


@pytest.fixture(scope="module")
def mallory(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Rogue:
    return Rogue.new(rig, tmp_path_factory.mktemp("rogues"), "mallory")


def tally(rig: Rig, site: str, id_: str) -> int:
    path = rig.folder(site) / id_
    return path.stat().st_size if path.exists() else 0


def begun(rig: Rig, id_: str, sites: str = "site1 & site2 & site3", at: str = "site1") -> Operation:
    """A resource with one operation, which all its sites have run."""
    lines = rig.exec(at, id_, "inc", ADD, sites=sites, **TALLY)
    assert all(line["Status"] == "OK" for line in lines)
    return next(iter(operations(rig, at, id_).values()))


def goes_on(rig: Rig, id_: str, length: int) -> None:
    """All sites take another operation, and nothing else happened to the resource."""
    lines = rig.exec("site1", id_, "inc", ADD, **TALLY)
    assert [line["Status"] for line in lines] == ["OK"] * len(lines)
    assert [tally(rig, name, id_) for name in NAMES] == [length] * 3


def counted(rig: Rig, site: str, reason: str, before: float) -> None:
    until(lambda: refused(rig, site, reason) > before, f"for '{reason}' to be counted")


# -- signatures ------------------------------------------------------------------------------------------


def test_nobody_speaks_for_another_site(rig: Rig, mallory: Rogue) -> None:
    first = begun(rig, "origin")
    before = {reason: refused(rig, "site2", reason) for reason in (UNKNOWN_KEY, WRONG_SIGNATURE, NOT_SIGNED)}
    forged = mallory.operation(first, ADD, origin=first.origin, seq=2)
    assert mallory.send("site2", forged)[0] == 201
    counted(rig, "site2", UNKNOWN_KEY, before[UNKNOWN_KEY])
    # Under the name of the right key, but not made with it.
    true_key = bytes.fromhex(Signer(Rogue.of(rig, "site1").folder.signing_key).key_id)
    named = changed(forged, signature=_with_key(forged.signature, true_key))
    mallory.send("site2", named)
    counted(rig, "site2", WRONG_SIGNATURE, before[WRONG_SIGNATURE])
    mallory.send("site2", changed(forged, signature=""))
    counted(rig, "site2", NOT_SIGNED, before[NOT_SIGNED])
    goes_on(rig, "origin", 2)
    told = local(rig, "site2").audit(who="peer:mallory", outcome="refused").entries
    assert {WRONG_SIGNATURE, NOT_SIGNED} <= {one.reason for one in told if one.resource == "origin"}


def _with_key(signature: str, key: bytes) -> str:
    return b64encode(key + b64decode(signature)[8:]).decode()


def on_its_way(rig: Rig, id_: str, to: str = "site2") -> Operation:
    """The first operation of a resource, which no other site than site1 has yet."""
    return Rogue.of(rig, "site1").begin(id_, "tally", ADD, "site1", to)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": Command(MORE)},
        {"verdict": Verdict.VOID, "why": "never"},
        {"type": "set"},
        {"kind": Kind.DELETE},
        {"sites": ("site1", "site2", "site3")},
    ],
    ids=["payload", "verdict", "type", "kind", "sites"],
)
def test_nothing_can_be_altered_on_its_way(rig: Rig, mallory: Rogue, changes: dict[str, Any]) -> None:
    """Of a resource that site2 does not know, so that nothing else keeps it from taking the operation."""
    id_ = f"altered-{next(iter(changes))}"
    op = on_its_way(rig, id_)
    before = refused(rig, "site2", WRONG_SIGNATURE)
    mallory.send("site2", changed(op, **changes))
    counted(rig, "site2", WRONG_SIGNATURE, before)
    assert not operations(rig, "site2", id_)
    mallory.send("site2", op)  # as it is, whoever brings it
    until(lambda: operations(rig, "site2", id_), "for the true one to be taken")


def test_the_rest_of_a_message_is_taken(rig: Rig, mallory: Rogue) -> None:
    good, bad = on_its_way(rig, "rest"), mallory.begin("rest", "tally", ADD, "mallory", "site2")
    before = refused(rig, "site2", WRONG_SIGNATURE)
    mallory.send("site2", changed(bad, payload=Command(MORE)), good)
    counted(rig, "site2", WRONG_SIGNATURE, before)
    until(lambda: set(operations(rig, "site2", "rest")) == {"site1:1"}, "for the good one")


def test_a_reply_is_of_the_site_that_ran(rig: Rig, mallory: Rogue) -> None:
    op = begun(rig, "reply")
    false = mallory.reply(op, Status.KO, n=50, origin=Origin("site3", "rogue"), detail="it failed here")
    before = refused(rig, "site1", UNKNOWN_KEY)
    mallory.send("site1", false, replies_after={false.origin: 0})
    counted(rig, "site1", UNKNOWN_KEY, before)
    true = next(d for d in documents(rig, "site1", "reply") if d.origin.site == "site3")
    before = refused(rig, "site1", WRONG_SIGNATURE)
    mallory.send("site1", changed(true, n=51, status=Status.KO), replies_after={true.origin: 50})
    counted(rig, "site1", WRONG_SIGNATURE, before)
    status = json.loads(rig.request("site1", "GET", "/api/v1/resources/reply/status"))
    assert status["overall"] == "CONVERGED"


def test_what_is_sent_again_does_not_run_again(rig: Rig, mallory: Rogue) -> None:
    op = begun(rig, "replay")
    for _ in range(3):
        assert mallory.send("site2", *documents(rig, "site1", "replay"))[0] == 201
    goes_on(rig, "replay", 2)
    assert OpId(op.origin, 1) in {d.op for d in documents(rig, "site2", "replay") if not isinstance(d, Operation)}


def test_what_its_origin_signed_is_taken_once_its_certificate_is_here(rig: Rig, mallory: Rogue, tmp_path: Path) -> None:
    """Nobody can tell who made it, so it is not taken, nor lost: whoever has it offers it again."""
    ghost = Rogue.new(rig, tmp_path, "ghost")
    op = ghost.begin("ghostly", "tally", ADD, "ghost", "site2")
    before = refused(rig, "site2", UNKNOWN_KEY)
    mallory.send("site2", op)
    counted(rig, "site2", UNKNOWN_KEY, before)
    assert not operations(rig, "site2", "ghostly")
    other = ghost.begin("unrelated", "tally", ADD, "ghost", "site1")
    assert ghost.send("site1", other)[0] == 201  # site1 gets to know it, and tells site2 who it is

    def is_taken() -> bool:
        mallory.send("site2", op)
        return bool(operations(rig, "site2", "ghostly"))

    until(is_taken, "for site2 to learn who ghost is")
    until(lambda: tally(rig, "site2", "ghostly") == 1, "for it to be run")


def test_a_stamp_is_of_the_one_who_made_it(rig: Rig) -> None:
    op = begun(rig, "stamp")
    thief = Rogue.of(rig, "site3")
    before = refused(rig, "site2", FOREIGN_STAMP)
    thief.send("site2", thief.operation(op, ADD, stamp=Stamp(op.stamp.time_ms + 1, 0, op.origin)))
    counted(rig, "site2", FOREIGN_STAMP, before)
    goes_on(rig, "stamp", 2)


# -- what a site may say ---------------------------------------------------------------------------------


def test_a_site_that_is_not_involved_changes_nothing(rig: Rig, mallory: Rogue) -> None:
    op = begun(rig, "stranger")
    for attempt in (
        mallory.operation(op, ADD),
        mallory.operation(op, "rm -f __ID__", kind=Kind.DELETE, type="delete"),
        mallory.operation(op, "", kind=Kind.SITES, type="sites", sites=("mallory", "site2")),
        mallory.begin("stranger", "tally", ADD, "mallory", "site1", "site2", "site3"),
    ):
        before = refused(rig, "site2", AGAINST_POLICY)
        rig.request("site2", "GET", "/api/v1/resources/stranger/status")
        mallory.send("site2", attempt)
        if attempt.kind is Kind.NORMAL and attempt.deps:
            counted(rig, "site2", AGAINST_POLICY, before)
        assert "mallory:1" not in operations(rig, "site2", "stranger")
    goes_on(rig, "stranger", 2)


def test_a_stolen_site_cannot_extend_a_resource_or_change_its_rules(rig: Rig) -> None:
    op = begun(rig, "extended")
    thief = Rogue.of(rig, "site3")
    before = refused(rig, "site2", AGAINST_POLICY)
    wider = thief.operation(op, "", kind=Kind.SITES, type="sites", sites=("site1", "site2", "site3", "mallory"))
    thief.send("site2", wider)
    counted(rig, "site2", AGAINST_POLICY, before)
    site_list = json.loads(rig.request("site2", "GET", "/api/v1/resources/extended"))["sites"]
    assert sorted(one["site"] if isinstance(one, dict) else one for one in site_list) == list(NAMES)
    goes_on(rig, "extended", 2)
    body, headers = json.dumps({"sites": "site1", "how": "set"}), {"Content-Type": "application/json"}
    with pytest.raises(RefusedByAgentError) as caught:
        rig.request("site2", "POST", "/api/v1/resources/extended/sites", body, headers)
    assert caught.value.status == 403
    assert "only site1, which made it, may change its list of sites" in caught.value.detail
    assert "submit it at site1" in caught.value.detail


def test_a_command_that_is_not_allowed_does_not_run_whoever_signed_it(rig: Rig) -> None:
    op = begun(rig, "command")
    thief = Rogue.of(rig, "site3")
    evil = thief.operation(op, "touch pwned")
    assert thief.send("site2", evil)[0] == 201
    until(lambda: "site3:1" in operations(rig, "site2", "command"), "for it to be kept, since it was made")

    def reply_of_site2() -> str:
        found = [d for d in documents(rig, "site2", "command") if d.origin.site == "site2"]
        return next((d.detail for d in found if not isinstance(d, Operation) and d.op == evil.id), "")

    assert "not allowed" in until(reply_of_site2, "for site2 to refuse it")
    assert not (rig.folder("site2") / "pwned").exists()
    assert tally(rig, "site2", "command") == 1


# -- time ------------------------------------------------------------------------------------------------


def test_a_stamp_far_in_the_future_is_not_taken(rig: Rig) -> None:
    op = begun(rig, "future")
    thief = Rogue.of(rig, "site3")
    origin = Origin("site3", "rogue")
    before = refused(rig, "site2", FUTURE_STAMP)
    late = thief.operation(op, ADD, stamp=Stamp(op.stamp.time_ms + 3_600_000, 0, origin))
    assert thief.send("site2", late)[0] == 201
    counted(rig, "site2", FUTURE_STAMP, before)
    assert "site3:1" not in operations(rig, "site2", "future")
    checks = json.loads(rig.request("site2", "GET", "/api/v1/check"))["checks"]
    told = [one for one in checks if one["group"] == "clocks" and "site3" in one["name"] and "ahead" in one["detail"]]
    assert told
    assert not told[0]["ok"]
    near = thief.operation(op, ADD, stamp=Stamp(op.stamp.time_ms + 20_000, 0, origin))
    thief.send("site2", near)  # clocks are never quite the same
    until(lambda: "site3:1" in operations(rig, "site2", "future"), "for the near one to be taken")


def test_documents_by_way_of_another_database_are_checked_too(rig: Rig, mallory: Rogue) -> None:
    """As CouchDB's protocol has it: each document that is refused is named, with the reason."""
    op = on_its_way(rig, "couch", "site3")

    def put(*some: Any) -> list[dict[str, str]]:
        raws = [json.loads(bytes(couch_document(one).as_couch())) for one in some]
        body = json.dumps({"docs": raws, "new_edits": False})
        headers = {"Content-Type": "application/json"}
        rows: list[dict[str, str]] = json.loads(rig.request("site3", "POST", "/db/cheops/_bulk_docs", body, headers))
        return rows

    rows = put(changed(op, payload=Command(MORE)), changed(op, seq=7, deps={op.origin: 6}, signature=""))
    assert [row["error"] for row in rows] == ["forbidden", "forbidden"]
    assert "does not match" in rows[0]["reason"]
    assert "has not signed it" in rows[1]["reason"]
    with pytest.raises(RefusedByAgentError) as caught:
        put(signed(changed(op, resource="couch2"), mallory.folder))
    assert caught.value.status == 503  # nobody knows such a key yet: to be sent again
    assert put(op) == []
    assert "site1:1" in operations(rig, "site3", "couch")
