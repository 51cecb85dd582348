"""What a stolen site signs itself, and sends to real agents: names, numbers, floors, seals, and one id twice."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from cheops.engine.contents import EQUIVOCATION
from cheops.engine.documents import Message, Snapshot
from cheops.engine.intake import BAD_NAME, BAD_NUMBER, UNPROVEN_SEAL
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import MAX_COUNTER, Command, Kind, MatrixRef, Operation, Origin, Seal, Stamp, content_hash
from cheops.peers import links
from cheops.peers.links import INVALID
from cheops.security.tls import client_context
from tests.agent.rig import Rig, until
from tests.security.rogue import Rogue, operations
from tests.security.sites import all_up, answer, is_well, refused

NAMES = ("site1", "site2", "site3")
ADD = "dd if=/dev/zero of=__ID__ bs=1 count=1 oflag=append conv=notrunc status=none"
MORE = ADD.replace("count=1", "count=2")
TYPES: dict[str, Any] = {
    "tally": {
        "allow": [ADD, MORE],
        "cwd": "@FOLDER@",
        "read": "wc -c __ID__",
        "reset": "rm -f __ID__",
        "matrix": [
            {"before": "set", "after": "set", "result": "take-one"},
            {"before": "set", "after": "inc", "result": "take-both-keep-order"},
            {"before": "inc", "after": "inc", "result": "take-both"},
        ],
    }
}
TALLY: dict[str, Any] = {"resource-type": "tally"}
ROGUE = Origin("site3", "rogue")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("documents") / "rig", TYPES, NAMES, secure=True)
    try:
        made.start()
        all_up(made)
        yield made
        assert all(is_well(made, name) for name in NAMES)
    finally:
        made.close()


@pytest.fixture
def thief(rig: Rig) -> Rogue:
    return Rogue.of(rig, "site3")


def begun(rig: Rig, id_: str) -> Operation:
    lines = rig.exec("site1", id_, "inc", ADD, sites=" & ".join(NAMES), **TALLY)
    assert all(line["Status"] == "OK" for line in lines)
    return next(iter(operations(rig, "site1", id_).values()))


def sizes(rig: Rig, id_: str) -> list[int]:
    paths = [rig.folder(name) / id_ for name in NAMES]
    return [path.stat().st_size if path.exists() else 0 for path in paths]


def goes_on(rig: Rig, id_: str, before: int) -> None:
    """Every site takes and runs another operation of each honest site."""
    for number, site in enumerate(("site1", "site2"), 1):
        lines = rig.exec(site, id_, "inc", ADD, **TALLY)
        assert [line["Status"] for line in lines] == ["OK"] * len(lines)
        until(lambda n=number: sizes(rig, id_) == [before + n] * 3, f"for '{id_}' to be equal everywhere")  # type: ignore[misc]
    until(lambda: overall(rig, id_) == "CONVERGED", "for the sites to agree")


def overall(rig: Rig, id_: str, site: str = "site1") -> str:
    return str(json.loads(rig.request(site, "GET", f"/api/v1/resources/{id_}/status"))["overall"])


def post(rig: Rig, thief: Rogue, to: str, message: Message) -> int:
    body = links.pack(thief.name, [message])
    headers = {"Content-Type": "application/json"}
    path = f"/{links.MESSAGES_PATH}"
    return answer(rig, to, client_context(thief.folder), "POST", path, body=body, headers=headers)[0]


def checks(rig: Rig, site: str) -> list[str]:
    return [one["name"] for one in json.loads(rig.request(site, "GET", "/api/v1/check"))["checks"] if not one["ok"]]


def is_alarm_saved(rig: Rig, site: str, resource: str) -> bool:
    path = rig.folder(site) / "data" / "store.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        rows = store.execute("SELECT body FROM notes WHERE name = 'alarms'").fetchall()
    return any(alarm[0] == resource for (body,) in rows for alarm in json.loads(body)["alarms"])


def test_what_no_correct_site_sends_costs_its_sender_that_document(rig: Rig, thief: Rogue) -> None:
    first = begun(rig, "names")
    before = {reason: refused(rig, "site2", reason) for reason in (BAD_NAME, BAD_NUMBER)}
    thief.send("site2", thief.begin("../../../../outside", "tally", ADD, *NAMES))
    thief.send("site2", thief.operation(first, ADD, type="!delete"))
    thief.send("site2", thief.operation(first, ADD, seq=7))
    until(lambda: refused(rig, "site2", BAD_NAME) >= before[BAD_NAME] + 2, "for both names to be counted")
    until(lambda: refused(rig, "site2", BAD_NUMBER) > before[BAD_NUMBER], "for the number to be counted")
    assert not (rig.folder("site2").parent.parent.parent.parent / "outside").exists()
    goes_on(rig, "names", 1)


def test_one_unreadable_document_does_not_cost_the_others(rig: Rig, thief: Rogue) -> None:
    first = begun(rig, "mixed")
    good = thief.operation(first, ADD)
    site, documents, parts = msgspec.msgpack.decode(links.pack("site3", [Message("mixed", "rogue", (good,))]))
    documents.append(b'{"doc": "op", "seq": -1}')
    parts[0][1].append(1)
    body = msgspec.msgpack.encode([site, documents, parts])
    before = refused(rig, "site2", INVALID)
    headers = {"Content-Type": "application/json"}
    path = f"/{links.MESSAGES_PATH}"
    sent = answer(rig, "site2", client_context(thief.folder), "POST", path, body=body, headers=headers)
    assert sent[0] == 201
    until(lambda: sizes(rig, "mixed") == [2] * 3, "for the good one to run everywhere")
    assert refused(rig, "site2", INVALID) > before
    goes_on(rig, "mixed", 2)


def test_two_operations_under_one_id_are_proof(rig: Rig, thief: Rogue) -> None:
    first = begun(rig, "twice")
    stamp = Stamp(int(time.time() * 1000), 0, ROGUE)
    one, other = thief.operation(first, ADD, stamp=stamp), thief.operation(first, MORE, stamp=stamp)
    thief.send("site1", one)
    thief.send("site2", other)
    standing = 2 if content_hash(one) < content_hash(other) else 3
    for site in NAMES:
        until(lambda site=site: refused(rig, site, EQUIVOCATION), f"for {site} to have the proof")  # type: ignore[misc]
        until(lambda site=site: any("site3 misbehaves" in name for name in checks(rig, site)), "for the check to fail")  # type: ignore[misc]
    until(lambda: {overall(rig, "twice", site) for site in NAMES} == {"CONVERGED"}, "for the sites to agree")
    # The real agent of site3 cannot tell whether an earlier store of its own made both. If it held the one that does not
    # stand, it issues that again: nothing may be lost. Whoever has the key could have made two operations at once.
    reached = sizes(rig, "twice")
    assert reached in ([standing] * 3, [4] * 3)
    goes_on(rig, "twice", reached[0])
    until(lambda: is_alarm_saved(rig, "site2", "twice"), "for the alarm to be saved")
    rig.kill("site2")
    rig.start("site2")
    found = [name for name in checks(rig, "site2") if "site3 misbehaves (equivocation) on 'twice'" in name]
    assert len(found) == 1, "the check is right before any resource is loaded"
    all_up(rig)


def test_a_false_floor_erases_nothing(rig: Rig, thief: Rogue) -> None:
    first = begun(rig, "floor")
    rig.exec("site2", "floor", "inc", ADD, **TALLY)
    far = {first.origin: 2**40, Origin("site2", "x"): 2**40}
    nothing = MatrixRef(first.matrix.hash, first.matrix.introduced)
    for site in ("site1", "site2"):
        message = Message("floor", "rogue", (first,), known=far, snapshot=Snapshot(far, far, None, nothing, ()))
        assert post(rig, thief, site, message) == 201
    goes_on(rig, "floor", 2)


def test_a_false_seal_is_refused(rig: Rig, thief: Rogue) -> None:
    """It seals an operation of the thief that nobody else had, without the statements of the other sites."""
    first = begun(rig, "sealed")
    rig.exec("site2", "sealed", "inc", ADD, **TALLY)
    made = operations(rig, "site1", "sealed")
    known = {op.origin: op.seq for op in made.values()}
    hidden = thief.operation(first, ADD, deps=known)
    rig.exec("site2", "sealed", "inc", ADD, **TALLY)  # acknowledged, and without knowledge of what the seal covers
    stamp = Stamp(int(time.time() * 1000), 1, ROGUE)
    sealing = Seal({**known, ROGUE: 1}, stamp, (ROGUE, *(Origin(name, "1") for name in NAMES if name != ROGUE.site)))
    deps = {**known, ROGUE: 1}
    seal = thief.operation(
        first, "", seq=2, deps=deps, stamp=stamp, kind=Kind.SEAL, type="seal", payload=Command(""), seal=sealing
    )
    for site in ("site1", "site2"):
        thief.send(site, hidden, seal)
    for site in ("site1", "site2"):
        until(lambda site=site: refused(rig, site, UNPROVEN_SEAL), "for the seal to be refused")  # type: ignore[misc]
    until(lambda: sizes(rig, "sealed") == [4] * 3, "for all acknowledged operations to have their effect")
    goes_on(rig, "sealed", 4)


def test_matrices_that_no_operation_names_are_not_stored(rig: Rig, thief: Rogue) -> None:
    begun(rig, "rules")
    unused = tuple(Matrix([Entry(f"u{n}", f"u{n}", Result.TAKE_ONE)]) for n in range(50))
    assert post(rig, thief, "site2", Message("rules", "rogue", matrices=unused)) == 201
    goes_on(rig, "rules", 1)
    rows = json.loads(rig.request("site2", "GET", "/db/cheops/_changes"))["results"]
    stored = {row["id"] for row in rows}
    assert not stored & {f"matrix/{one.hash}" for one in unused}


def test_the_greatest_counter_stops_nobody(rig: Rig, thief: Rogue) -> None:
    """The last test of this file: from here on the clocks of all sites are ahead of the time of day."""
    first = begun(rig, "counter")
    high = thief.operation(first, ADD, stamp=Stamp(int(time.time() * 1000) + 20_000, MAX_COUNTER, ROGUE))
    assert thief.send("site2", high)[0] == 201
    until(lambda: sizes(rig, "counter") == [2] * 3, "for it to run everywhere")
    goes_on(rig, "counter", 2)
