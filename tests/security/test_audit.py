"""The audit log: all changes and refusals, nothing secret, in a chain that shows where it was cut."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cheops.api.models.operations import SubmitRequest
from cheops.client import AgentError
from cheops.errors import CheopsError
from cheops.security import audit as audits
from cheops.security.audit import SINGLY, AuditEntry, AuditHead, AuditWriter
from cheops.security.audit_query import AuditQuery, read_entries, read_log
from cheops.security.principal import Role
from cheops.security.tokens import new_secret
from tests.agent.rig import Rig
from tests.security.clients import agent, ask, is_unharmed, local, rig_of, token
from tests.security.sites import answer, as_site
from tests.support.command import run_process

PAYLOAD = "very-private-payload"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = rig_of(tmp_path_factory.mktemp("audit"))
    try:
        found.start()
        yield found
    finally:
        found.close()


def entry(what: str = "POST /x", outcome: str = "done", **more: Any) -> AuditEntry:
    return AuditEntry(
        at="2026-11-16T01:41:31.885Z", who="token:ci", source="10.0.0.1", what=what, outcome=outcome, **more
    )


def written(path: Path, *entries: AuditEntry, **settings: Any) -> None:
    log = AuditWriter(path, **settings)
    log.start()
    for one in entries:
        (log.note if one.outcome == "done" else log.refused)(one)
    log.close()


def everything(path: Path, files: int = 10, **wanted: Any) -> tuple[list[int], list[str]]:
    found = read_entries(path, files, AuditQuery(limit=1_000, **wanted))
    return [one.n for one in found.entries], found.broken


# -- by itself -------------------------------------------------------------------------------------------------


def test_lines_are_numbered_and_chained_also_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, entry(), entry())
    written(path, entry())
    assert everything(path) == ([1, 2, 3], [])
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("harm", ["cut", "changed", "swapped", "doubled", "put in"])
def test_what_was_done_to_the_middle_shows(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "audit.log"
    written(path, *(entry(resource=f"r{n}") for n in range(6)))
    lines = path.read_bytes().splitlines()
    if harm == "cut":
        del lines[2:4]
    elif harm == "changed":
        lines[2] = lines[2].replace(b'"r2"', b'"r9"')
    elif harm == "swapped":
        lines[2], lines[3] = lines[3], lines[2]
    elif harm == "doubled":
        lines.insert(3, lines[2])
    else:
        lines.insert(3, b'{"n":3,"at":"x","who":"me","what":"y","outcome":"done"}')
    path.write_bytes(b"\n".join(lines) + b"\n")
    _, broken = everything(path)
    assert broken
    assert all("audit.log, line" in told for told in broken)


def test_what_a_crash_cut_off_shows_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, entry(), entry())
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 30)
    written(path, entry(), entry())
    numbers, broken = everything(path)
    assert numbers == [1, 2, 3]
    assert len(broken) == 1


def run_once(path: Path, saved: AuditHead | None, *entries: AuditEntry, **settings: Any) -> tuple[AuditHead, list[str]]:
    """One life of an agent: the head that its store has in the end, and what its log says of the ends."""
    heads = [saved or AuditHead()]
    log = AuditWriter(path, **settings)
    log.start(saved, heads.append)
    for one in entries:
        log.note(one)
    broken = read_log(log, AuditQuery()).broken
    log.close()
    return heads[-1], broken


def test_the_end_of_the_log_is_kept_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    head, broken = run_once(path, None, *[entry()] * 5)
    assert (head.n, head.first, broken) == (5, 1, [])
    assert run_once(path, head, entry())[1] == []


@pytest.mark.parametrize("harm", ["cut", "emptied", "deleted", "replaced", "changed"])
def test_what_was_done_to_the_end_shows_and_stays(tmp_path: Path, harm: str) -> None:
    path, forged = tmp_path / "audit.log", tmp_path / "forged" / "audit.log"
    head, _ = run_once(path, None, *(entry(resource=f"r{n}") for n in range(6)))
    lines = path.read_bytes().splitlines(keepends=True)
    if harm == "cut":
        path.write_bytes(b"".join(lines[:4]))
    elif harm == "emptied":
        path.write_bytes(b"")
    elif harm == "deleted":
        path.unlink()
    else:  # a chain that holds by itself
        forged.parent.mkdir()
        run_once(forged, None, *(entry(resource=f"f{n}") for n in range(6 if harm == "replaced" else 8)))
        forged.replace(path)
    for _ in range(3):  # what was written since does not hide it
        head, broken = run_once(path, head, entry())
        assert broken, harm
    reasons = [(one.reason, one.times) for one in read_entries(path, 10, AuditQuery(limit=100)).entries]
    missing = {"cut": 2, "emptied": 6, "deleted": 6, "replaced": 1, "changed": 1}[harm]
    assert [one for one in reasons if one[0]] == [(audits.ALTERED, missing)]


@pytest.mark.parametrize("harm", ["cut", "deleted", "replaced"])
def test_what_is_done_to_the_end_while_the_agent_runs_shows(tmp_path: Path, harm: str) -> None:
    path, forged = tmp_path / "audit.log", tmp_path / "forged" / "audit.log"
    log = AuditWriter(path)
    log.start()
    for _ in range(6):
        log.note(entry())
    assert read_log(log, AuditQuery()).broken == []
    if harm == "cut":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    elif harm == "deleted":
        path.unlink()
    else:
        forged.parent.mkdir()
        run_once(forged, None, *(entry(resource=f"f{n}") for n in range(6)))
        forged.replace(path)
    assert read_log(log, AuditQuery()).broken
    log.note(entry("later"))
    page = read_log(log, AuditQuery())
    log.close()
    assert page.broken
    assert page.entries[-1].what == "later", "what comes after it is still kept"


def test_old_lines_that_are_removed_show_and_those_that_were_turned_over_do_not(tmp_path: Path) -> None:
    path, head = tmp_path / "audit.log", None
    for _ in range(40):
        head, broken = run_once(path, head, entry(), most_bytes=1_000, files=3)
        assert broken == []
    assert head is not None
    assert head.first > 1
    (tmp_path / "audit.log.2").unlink()
    assert run_once(path, head, most_bytes=1_000, files=3)[1]


def test_lines_that_a_crash_left_behind_the_saved_head_are_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    head, _ = run_once(path, None, *[entry()] * 3)
    run_once(path, head, *[entry()] * 3)
    assert run_once(path, head, entry()) == (AuditHead(7, audits.last_entry(path)[1], 1), [])  # type: ignore[index]


def test_a_head_that_cannot_be_saved_stops_nothing(tmp_path: Path) -> None:
    def fail(_head: AuditHead) -> None:
        raise CheopsError("the disk is full")

    path = tmp_path / "audit.log"
    log = AuditWriter(path)
    log.start(None, fail)
    log.note(entry())
    log.close()
    assert everything(path) == ([1], [])


def test_files_are_turned_over_and_the_chain_goes_on_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for _ in range(40):
        written(path, entry(), most_bytes=1_000, files=3)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    numbers, broken = everything(path, 3)
    assert broken == []
    assert numbers == list(range(numbers[0], 41))
    assert len(numbers) < 40
    (tmp_path / "audit.log.1").unlink()
    assert everything(path, 3)[1], "a whole file that is missing shows, too"


def test_lines_are_found_by_time_name_and_outcome(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, entry(), entry("GET /y", "refused"), entry())
    assert everything(path, who="ci", outcome="refused")[0] == [2]
    assert everything(path, who="token:ci", outcome="done")[0] == [1, 3]
    assert everything(path, who="other")[0] == []
    assert everything(path, since="2026-11-16T01:41")[0] == [1, 2, 3]
    assert everything(path, since="2026-11-17")[0] == []
    assert [one.n for one in read_entries(path, 10, AuditQuery(limit=2)).entries] == [2, 3]


def test_a_flood_of_refusals_becomes_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, *(entry("connection", "refused", reason="rate") for _ in range(10_000)), entry("POST /z"))
    found = read_entries(path, 10, AuditQuery(limit=1_000)).entries
    assert len(found) == SINGLY + 2
    assert sum(one.times for one in found if one.outcome == "refused") == 10_000
    assert [one.what for one in found if one.outcome == "done"] == ["POST /z"], "what is done is always told"


def test_who_tells_does_not_wait_and_nothing_is_lost_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditWriter(path)
    log.start()
    begun_s = time.perf_counter()
    for _ in range(20_000):
        log.note(entry())
    each_s = (time.perf_counter() - begun_s) / 20_000
    log.close()
    assert each_s < 0.001
    assert len(path.read_bytes().splitlines()) == 20_000


def test_a_full_disk_loses_only_what_memory_cannot_hold_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_WAITING", 5)
    monkeypatch.setattr(audits, "_RETRY_S", 0.02)
    real, is_full = os.write, [True]

    def write(descriptor: int, data: Any) -> int:
        if is_full[0]:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    log = AuditWriter(tmp_path / "audit.log")
    log.start()
    monkeypatch.setattr(os, "write", write)
    try:
        for _ in range(8):
            log.note(entry())
        log.flush()
        assert "No space left" in (log.trouble or "")
        assert log.lost == 3
        is_full[0] = False
        while log.trouble:
            time.sleep(0.01)
        log.note(entry("last"))
    finally:
        log.close()
    found = read_entries(tmp_path / "audit.log", 1, AuditQuery(limit=100))
    assert found.broken == []
    assert [(one.what, one.times) for one in found.entries] == [
        *[("POST /x", 1)] * 5,
        ("audit", 3),
        ("last", 1),
    ]


def test_it_cannot_be_led_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheopsError):
        AuditWriter(tmp_path / "audit.log").start()


# -- of an agent -----------------------------------------------------------------------------------------------


def test_who_did_what_from_where_and_how_it_ended(rig: Rig) -> None:
    secret = token(rig, "worker", Role.OPERATOR, types=("file",))
    asked = agent(rig, secret)
    command = f"echo {PAYLOAD} > __ID__"
    op = asked.submit(
        "counter", SubmitRequest(type="set", command=command, sites="site1", resource_type="file")
    ).operation
    for refused in (
        lambda: asked.submit("t", SubmitRequest(type="set", command=command, sites="site1", resource_type="tally")),
        asked.tokens,
    ):
        with pytest.raises(AgentError):
            refused()
    assert ask(rig, "GET", "/api/v1/resources").status == 401
    assert answer(rig, "site1", as_site(rig, "site1"), "GET", "/db/")[0] == 403
    found = local(rig).audit()
    told = [(one.who, one.source, one.what, one.outcome, one.reason) for one in found.entries]
    submit = "POST /api/v1/resources/{id}/operations"
    assert (f"local:uid {os.getuid()}", "unix", "POST /api/v1/tokens", "done", "") in told
    done = next(one for one in found.entries if one.operation == op)
    assert (done.who, done.source, done.what, done.resource, done.type, done.outcome, done.status) == (
        *("token:worker", "127.0.0.1", submit, "counter", "file", "done", 200),
    )
    assert ("token:worker", "127.0.0.1", submit, "refused", "beyond the token's limits") in told
    assert ("token:worker", "127.0.0.1", "GET /api/v1/tokens", "refused", "wrong role") in told
    assert ("nobody", "127.0.0.1", "GET /api/v1/resources", "refused", "no token") in told
    assert ("peer:site1", "127.0.0.1", "GET /db/", "refused", "not for sites") in told
    assert found.broken == ()
    assert found.trouble is None
    raw = (rig.folder("site1") / "data" / "audit.log").read_text()
    assert PAYLOAD not in raw
    assert secret not in raw
    assert is_unharmed(rig)


def test_a_client_that_plays_a_site_is_named_and_cannot_choose_what_the_log_says(rig: Rig) -> None:
    """Refusals are kept apart by their text: a client that chose it could fill the log and hide others in it."""
    secret = token(rig, "spy", Role.ADMIN)
    for name in ("messages", "a", "b", "x" * 60):
        assert ask(rig, "POST", f"/peer/{name}", secret=secret).status == 403
        assert ask(rig, "GET", f"/peer/{name}").status == 401
    entries = [one for one in local(rig).audit().entries if "/peer/" in one.what]
    assert {(one.who, one.what) for one in entries} == {
        ("token:spy", "POST /peer/{rest:path}"),
        ("nobody", "GET /peer/{rest:path}"),
    }


def test_reading_is_not_noted_and_only_administrators_read_it(rig: Rig) -> None:
    secret = token(rig, "reader", Role.VIEWER)
    before = len(local(rig).audit(who="reader").entries)
    agent(rig, secret).sites()
    assert len(local(rig).audit(who="reader").entries) == before
    with pytest.raises(AgentError, match="needs the role admin"):
        agent(rig, secret).audit()


def test_the_command_line_shows_it(rig: Rig) -> None:
    ask(rig, "GET", "/api/v1/resources", secret=new_secret())
    url = ["--url", local(rig).url]
    shown = run_process("audit", "--outcome", "refused", *url)
    assert shown.code == 0, shown.err
    assert "unknown token" in shown.out
    assert "done" not in {line.split()[4] for line in shown.out.splitlines()[1:]}
    wide = json.loads(run_process("audit", "--limit", "1", "-o", "json", *url).out)
    assert len(wide["entries"]) == 1
    assert run_process("audit", "--who", "nobody-like-that", *url).out == "no matching entries\n"


def test_it_is_whole_after_a_stop_and_shows_what_was_cut_meanwhile(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    try:
        rig.start()
        asked = SubmitRequest(type="set", command="true", sites="site1", resource_type="file")
        ops = [local(rig).submit("a", asked).operation for _ in range(10)]
        assert rig.stop("site1") == 0
        path = rig.folder("site1") / "data" / "audit.log"
        lines = path.read_bytes().splitlines(keepends=True)
        assert [json.loads(line)["operation"] for line in lines] == ops
        path.write_bytes(b"".join(lines[:3] + lines[5:]))
        rig.start("site1")
        shown = run_process("audit", "--url", local(rig).url)
        assert shown.code == 1
        assert "audit.log, line 4" in shown.err
        assert not [one for one in local(rig).check().checks if "altered" in one.name], "the end is as it was"
    finally:
        rig.close()


def test_an_agent_notices_that_the_end_was_cut_off_while_it_was_down(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    try:
        rig.start()
        asked = SubmitRequest(type="set", command="true", sites="site1", resource_type="file")
        for _ in range(10):
            local(rig).submit("a", asked)
        assert rig.stop("site1") == 0
        path = rig.folder("site1") / "data" / "audit.log"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))
        rig.start("site1")
        shown = run_process("audit", "--url", local(rig).url)
        assert shown.code == 1
        assert "audit.log, line 8" in shown.err
        found = next(one for one in local(rig).check().checks if one.name == "audit log was altered")
        assert (found.level, found.detail) == ("failed", "its last 3 lines are missing")
    finally:
        rig.close()
