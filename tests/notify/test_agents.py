"""Real agents tell real receivers: in order, nothing lost, one summary per operation, whatever breaks between."""

import json
import re
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from cheops.notify.signature import verify
from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import TALLY
from tests.notify.receiver import Receiver, endless, garbage, hangs_up, status
from tests.support.command import run_here
from tests.support.ports import free_port
from tests.wan import Wan

ADD = "printf x >> __ID__"
QUICK = {"retry_most": "200ms", "timeout": "2s"}
# In one write: several sites append to one file.
APPEND = ["sh", "-c", 'printf "%s\\n" "$(cat "$1")" >> "$2"', "-", "{event}"]


def tell(rig: Rig, **targets: dict[str, Any]) -> None:
    """Have all sites of a rig tell these. Before they are started."""
    for name in rig.names:
        path = rig.folder(name) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["notify"] = {target: {**QUICK, **settings} for target, settings in targets.items()}
        path.write_text(yaml.safe_dump(config))


def undelivered(rig: Rig, site: str) -> int:
    """How many events of a site's journal its targets have not been told of."""
    with closing(sqlite3.connect(rig.folder(site) / "data" / "notify.db")) as db:
        (count,) = db.execute("SELECT count(*) FROM events WHERE seq > (SELECT min(seq) FROM cursors)").fetchone()
        return int(count)


def operations(events: list[dict[str, Any]]) -> list[str]:
    return [event["operation"] for event in events]


def test_a_receiver_that_is_down_for_a_while_loses_nothing(make_rig: MakeRig, tmp_path: Path) -> None:
    """Down, then broken in every way, over kill -9 of the agent: all events, in order, one summary each."""
    secret = tmp_path / "secret"
    secret.write_text("not so secret\n")
    with Receiver() as receiver:
        hook = {"url": receiver.url, "secret_file": str(secret)}
        rig = make_rig({"tally": TALLY}, "site1")
        tell(rig, ops={"webhook": hook, "on": ["decided", "void"], "summary": True})
        rig.start()
        rig.exec("site1", "n", "inc", ADD)
        until(lambda: len(receiver.events()) == 2)
        receiver.down()
        for number in range(12):
            rig.exec("site1", "n", "inc", "false" if number == 5 else ADD)
        rig.kill("site1")
        rig.start("site1")
        rig.exec("site1", "n", "inc", ADD)
        receiver.script = [status(500), garbage, hangs_up, status(302), status(429), endless]
        receiver.up()
        until(lambda: len(receiver.events("summary")) == 14, shown(receiver))
        assert receiver.script == []
        assert operations(receiver.events("decided", "void")) == [f"site1:{n}" for n in range(1, 15)]
        assert operations(receiver.events("summary")) == [f"site1:{n}" for n in range(1, 15)]
        sequence = [event["sequence"] for event in receiver.events()]
        assert sequence == sorted(sequence)
        (void,) = receiver.events("void")
        assert (void["status"], void["detail"]) == ("VOID", "exit code 1")
        assert [event["status"] for event in receiver.events("summary")].count("VOID") == 1
        key = secret.read_bytes().strip()
        for got in receiver.got:
            assert verify(key, got.body, got.headers["cheops-signature"], got.taken_s)
            assert not verify(key, got.body + b" ", got.headers["cheops-signature"], got.taken_s)
            assert got.headers["idempotency-key"] == got.event["id"]


def shown(receiver: Receiver) -> str:
    return f"{[(event['kind'], event['operation']) for event in receiver.events()]}"


def test_nothing_is_lost_or_doubled_by_kill_9_under_load(make_rig: MakeRig) -> None:
    """Whatever the store kept is told, in the order of each resource, wherever the kill fell."""
    with Receiver() as receiver:
        rig = make_rig({"tally": TALLY}, "site1")
        tell(rig, ops={"webhook": {"url": receiver.url}, "on": ["decided"], "summary": True})
        for attempt in range(2):
            rig.start("site1")
            before = len(receiver.got)
            with ThreadPoolExecutor(4) as pool:
                # New resources each time: the kill may leave every old one UNKNOWN, and then nothing runs there.
                clients = [pool.submit(_some_increments, rig, f"n{attempt}{number}") for number in range(4)]
                until(lambda b=before: len(receiver.got) >= b + 20)  # type: ignore[misc]
                rig.kill("site1")
                assert all(client.result() for client in clients)
        rig.start("site1")
        kept = _kept(rig, "site1")
        until(lambda: len(receiver.events("decided")) >= len(kept))
        until(lambda: not undelivered(rig, "site1"))
        decided = [(event["resource"], event["operation"]) for event in receiver.events("decided")]
        assert sorted(decided) == kept
        for name in {resource for resource, _ in decided}:
            own = [int(op.split(":")[1]) for resource, op in decided if resource == name]
            assert own == sorted(own)
        until(lambda: len(receiver.events("summary")) >= len(kept))
        summed = [(event["resource"], event["operation"]) for event in receiver.events("summary")]
        assert sorted(summed) == kept


def _some_increments(rig: Rig, id_: str) -> bool:
    """Until the agent is gone."""
    for _ in range(1_000):
        try:
            rig.exec("site1", id_, "inc", ADD, timeout=5)
        except (OSError, HTTPException, ValueError):
            return True
    return False


def _kept(rig: Rig, site: str) -> list[tuple[str, str]]:
    """The decided operations that the store holds."""
    with closing(sqlite3.connect(rig.folder(site) / "data" / "store.db")) as db:
        rows = db.execute("SELECT resource, id FROM documents WHERE id LIKE 'op/%' AND seq IS NOT NULL")
        return sorted((resource, f"{site}:{id_.split('/')[-1]}") for resource, id_ in rows)


def test_one_summary_per_operation_from_three_sites_over_a_cut(make_rig: MakeRig, wan: Wan, tmp_path: Path) -> None:
    """Made on both sides of a cut, some superseded by others; each is summed up once, by the site that made it."""
    told, lost = tmp_path / "told", tmp_path / "lost"
    rig = make_rig({"tally": TALLY}, wan=wan)
    tell(
        rig,
        sums={"command": [*APPEND, str(told)], "summary": True},
        lost={"command": [*APPEND, str(lost)], "on": ["superseded"]},
    )
    rig.start()
    rig.exec("site1", "n", "set", "printf x > __ID__")
    wan.partition(["site1"], ["site2", "site3"])
    for _ in range(3):
        rig.exec_here("site1", "n", "inc", ADD)
        rig.exec_here("site2", "n", "inc", ADD)
    rig.exec_here("site3", "n", "set", "printf yy > __ID__")
    rig.exec_here("site1", "n", "inc", "false")
    rig.kill("site2")  # it has to remember whom to tell of what
    rig.start("site2")
    # Otherwise site1 may run those of site2, and all is summed up as OK before site2 hears of the set.
    until(lambda: (rig.folder("site2") / "n").read_text() == "yy")
    assert {event["operation"] for event in _told(told)} <= {"site1:1", "site1:5"}, "nobody else can know yet"
    wan.heal()
    expected = {f"site1:{n}" for n in range(1, 6)} | {f"site2:{n}" for n in range(1, 4)} | {"site3:1"}
    until(lambda: {event["operation"] for event in _told(told)} >= expected, f"{_told(told)}")
    until(lambda: not any(undelivered(rig, site) for site in rig.names))
    events = _told(told)
    assert Counter(operations(events)) == Counter(expected)
    assert all(event["teller"] == event["site"] for event in events)
    by_op = {event["operation"]: event for event in events}
    assert by_op["site3:1"]["status"] == "OK"
    assert {r["site"]: r["status"] for r in by_op["site3:1"]["results"]} == dict.fromkeys(rig.names, "OK")
    for op in ("site1:2", "site2:1"):  # ran at home, superseded by the set before others could
        assert by_op[op]["status"] == "SUPERSEDED"
    assert by_op["site1:5"]["status"] == "VOID"
    assert all(event.get("complete", True) for event in events)
    # site2 was killed, perhaps between telling and noting that it had: then it tells once more, by the same id.
    by_id = {event["id"]: event["operation"] for event in _told(lost)}
    assert Counter(by_id.values()) == Counter(expected - {"site3:1", "site1:5"})
    assert {event["detail"].split(":")[0] for event in _told(lost)} == {"by site3"}


def _told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_event_is_told_by_the_site_where_it_happened(make_rig: MakeRig) -> None:
    with Receiver() as receiver, Receiver() as nosy:
        rig = make_rig({"tally": TALLY}, "site1", "site2")
        tell(
            rig,
            ops={"webhook": {"url": receiver.url}, "on": ["decided", "ran"]},
            nosy={"webhook": {"url": nosy.url}, "on": ["ran"], "others": True, "resources": ["n*"]},
        )
        rig.start()
        for id_ in ("n", "m"):
            rig.exec("site1", id_, "inc", ADD)
        until(lambda: len(receiver.got) >= 6)
        until(lambda: not any(undelivered(rig, site) for site in rig.names))
        seen = Counter((got.event["kind"], got.event["site"], got.event["teller"]) for got in receiver.got)
        assert seen == {
            ("decided", "site1", "site1"): 2,
            ("ran", "site1", "site1"): 2,
            ("ran", "site2", "site2"): 2,
        }
        assert {got.event["resource"] for got in nosy.got} == {"n"}
        assert len(nosy.got) == 4, "each site tells of both runs"
        assert len(nosy.events()) == 2, "and receivers can tell that it is the same"


def test_a_summary_waits_for_a_site_that_is_down(make_rig: MakeRig) -> None:
    """Also over a restart of the site that is to send it, with nothing else happening."""
    with Receiver() as receiver:
        rig = make_rig({"tally": TALLY}, "site1", "site2")
        tell(rig, sums={"webhook": {"url": receiver.url}, "on": ["ran"], "summary": True})
        rig.start("site1")
        rig.exec("site1", "n", "inc", ADD, timeout=0.3)
        until(lambda: receiver.events("ran"))
        rig.stop("site1")
        assert receiver.events("summary") == [], "site2 has not run it"
        rig.start("site1", "site2")
        (event,) = until(lambda: receiver.events("summary"))
        assert {r["site"]: r["status"] for r in event["results"]} == dict.fromkeys(rig.names, "OK")


def test_a_receiver_that_is_dead_is_reported_everywhere(make_rig: MakeRig) -> None:
    with Receiver() as alive:
        rig = make_rig({"tally": TALLY}, "site1")
        dead = f"http://127.0.0.1:{free_port()}/secret-part"
        tell(rig, dead={"webhook": {"url": dead}}, well={"webhook": {"url": alive.url}}, broken={"command": "false"})
        rig.start()
        for _ in range(3):
            rig.exec("site1", "n", "inc", ADD)
        until(lambda: all(one["failures"] for one in _targets(rig) if one["name"] != "well"))
        until(lambda: next(one for one in _targets(rig) if one["name"] == "well")["backlog"] == 0)
        checks = json.loads(rig.request("site1", "GET", "/api/v1/check"))["checks"]
        found = {one["name"]: one for one in checks if one["group"] == "notifications"}
        assert found["well receives notifications"]["level"] == "ok"
        assert found["broken does not accept notifications"]["level"] == "failed"
        failed = found["dead does not accept notifications"]
        assert failed["level"] == "failed"
        assert "the connection is refused: nothing listens at its address" in failed["detail"]
        assert "secret-part" not in failed["detail"]
        sent = len(alive.got)  # the other receiver gets the same events
        assert f"{sent} events waiting" in failed["detail"]
        numbers = rig.request("site1", "GET", "/metrics").decode()
        assert f'cheops_notify_backlog{{target="dead",channel="web hook"}} {sent}\n' in numbers
        assert 'cheops_notify_backlog{target="well",channel="web hook"} 0\n' in numbers
        assert 'cheops_notify_failing_seconds{target="well",channel="web hook"} 0\n' in numbers
        for name in ("failures_total", "failing_seconds", "seconds_since_success"):
            assert _number(numbers, f"cheops_notify_{name}", "dead") > 0
        listed = run_here("get", "notifications", "--url", rig.url("site1")).out
        assert re.search(rf"dead +web hook +failed +{sent} +0 +\d+ +never +the connection is refused", listed)


def _targets(rig: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(rig.request("site1", "GET", "/api/v1/notifications"))["targets"]
    return found


def _number(numbers: str, name: str, target: str) -> float:
    found = re.search(rf'^{name}{{target="{target}",[^}}]*}} (.*)$', numbers, re.MULTILINE)
    assert found, name
    return float(found[1])
