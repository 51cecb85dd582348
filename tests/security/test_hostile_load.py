"""A stolen site sends too much: bombs, floods, what waits for ever, and what nobody needs."""

import gzip
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from cheops.engine.documents import Message
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, FileRef, Operation, Origin
from cheops.security.tls import client_context
from tests.agent.rig import until
from tests.security.honest_sites import NAMES, STOLEN, WITH_STOLEN, HonestSites
from tests.security.hostile_site import INCARNATION, HostileSite, envelope
from tests.security.rogue import operations
from tests.security.sites import answer

MESSAGES = "/peer/messages"
MEGABYTE = 1024 * 1024


def memory_kib(honest: HonestSites, name: str) -> int:
    """What the agent of a site holds in memory."""
    text = Path(f"/proc/{honest.rig.processes[name].pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:"))


def zeros(count: int) -> bytes:
    return gzip.compress(b"\x93\xa5site4\x91\xc6" + count.to_bytes(4) + b"0" * count + b"\x90")


BOMBS: dict[str, tuple[str, Callable[[], bytes], str]] = {  # made when they are sent: some take a second
    "bomb": (MESSAGES, lambda: zeros(200 * MEGABYTE), "gzip"),
    "bomb-twice": (MESSAGES, lambda: gzip.compress(zeros(20 * MEGABYTE)), "gzip, gzip"),
    "bomb-within": (MESSAGES, lambda: zlib.compress(b"\x93\xa5site4\x91\xc6" + b"0" * (200 * MEGABYTE)), ""),
    "deep": (MESSAGES, lambda: b"\x93\xa5site4" + b"\x91" * 200_000, ""),
    "deep-objects": (MESSAGES, lambda: b"\x93\xa5site4\x90\x91\x94" + b"\x81\xa1a" * 100_000, ""),
    "no-text": (MESSAGES, lambda: b"\xff\xfe\x00", ""),
    "empty": (MESSAGES, lambda: b"", ""),
    "deep-beat": ("/peer/heartbeat", lambda: b"[" * 200_000, ""),
    "bomb-beat": ("/peer/heartbeat", lambda: zeros(20 * MEGABYTE), "gzip"),
    "deep-show": ("/peer/show", lambda: b'{"resource":' + b"[" * 100_000, ""),
    "long-renewal": ("/peer/renewal", lambda: b"x" * 100_000, ""),
    "no-such": ("/peer/nothing", lambda: b"{}", ""),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused(honest: HonestSites, thief: HostileSite, bomb: str) -> None:
    path, made, encoding = BOMBS[bomb]
    body = made()
    before = {name: memory_kib(honest, name) for name in NAMES}
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": encoding} if encoding else {})
    for name in NAMES:
        context = client_context(thief.folder)
        status, _ = answer(honest.rig, name, context, "POST", path, body=body, headers=headers)
        assert 400 <= status < 500
    honest.stand()
    assert all(memory_kib(honest, name) < before[name] + 150 * 1024 for name in NAMES)


def test_unused_matrices_are_not_kept(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("matrices")
    before = {name: matrices(honest, name) for name in NAMES}
    for start in range(0, 600, 100):
        made = tuple(matrix(n) for n in range(start, start + 100))
        for name in NAMES:
            thief.post(name, Message(page, INCARNATION, matrices=made), Message("nowhere", INCARNATION, matrices=made))
    honest.stand(page)
    assert {name: matrices(honest, name) for name in NAMES} == before


def matrix(number: int) -> Matrix:
    return Matrix((Entry(f"a{number}", f"b{number}", Result.TAKE_ONE),))


def matrices(honest: HonestSites, name: str) -> int:
    rows = json.loads(honest.rig.request(name, "GET", "/db/cheops/_changes"))["results"]
    return sum(row["id"].startswith("matrix/") for row in rows)


def test_what_waits_for_ever_keeps_nobody_elses_out(honest: HonestSites, thief: HostileSite) -> None:
    """Thousands of operations of which the first never comes, on a page that it shares, and on one that it does not."""
    shared, foreign = thief.shared_page("waiting"), honest.new_page("waiting")
    like = max(operations(honest.rig, "site1", foreign).values(), key=lambda op: op.stamp)
    never = {Origin(STOLEN, "never"): 1}
    for start in range(2, 3_002, 500):
        some = [
            thief.line(shared, "waits", seq, deps={**thief.known(shared), **never, thief.origin: seq - 1})
            for seq in range(start, start + 500)
        ]
        other = [
            thief.operation(like, "x", origin=thief.origin, seq=seq, deps={**like.deps, **never, thief.origin: seq - 1})
            for seq in range(start, start + 100)
        ]
        for name in NAMES:
            thief.post(name, Message(shared, INCARNATION, tuple(some)), Message(foreign, INCARNATION, tuple(other)))
    for name in NAMES:
        honest.write(name, shared, WITH_STOLEN)
        honest.write(name, foreign)
    honest.stand(shared, foreign)
    honest.forget_and_take_back(thief)


def test_thousands_of_resources_leave_room_for_others(honest: HonestSites, thief: HostileSite) -> None:
    before = {name: memory_kib(honest, name) for name in NAMES}
    for start in range(0, 1_000, 250):
        some = [
            Message(f"flood-{n}", INCARNATION, known={thief.origin: 1}, ask=True) for n in range(start, start + 250)
        ]
        for name in NAMES:
            thief.post(name, *some)
    page = honest.new_page("beside")
    honest.stand(page)
    assert all(memory_kib(honest, name) < before[name] + 150 * 1024 for name in NAMES)
    assert all(not honest.resources(name, "flood") for name in NAMES)


def test_forged_documents_cost_their_sender_more_than_others(honest: HonestSites, thief: HostileSite) -> None:
    """Thousands with wrong signatures, or with keys that nobody knows."""
    page = thief.shared_page("forged")
    op = thief.line(page, "forged")
    forged = [_other(op, n) for n in range(2_000)]
    before = {name: honest.refused(name) for name in NAMES}
    for name in NAMES:
        for some in (forged[:1_000], forged[1_000:]):
            thief.post(name, Message(page, INCARNATION, tuple(some)))
    honest.stand(page)
    for name in NAMES:
        until(lambda n=name: honest.refused(n) > before[n], f"for {name} to count them")  # type: ignore[misc]
    assert all("forged" not in honest.lines(name, page) for name in NAMES)


def _other(op: Operation, number: int) -> Operation:
    return replace(op, seq=number + 1, payload=Command(f"add-line pages/__ID__ forged-{number}"))


def test_requests_without_end_leave_others_their_turn(honest: HonestSites, thief: HostileSite) -> None:
    """As many at a time as it can open, each asking for everything that it may ask for."""
    page = thief.shared_page("requests")
    body = envelope(thief.name, [Message(page, INCARNATION, ask=True)])
    wanted = json.dumps({"resource": page, "command": ""}).encode()

    def storm(name: str) -> list[int]:
        context = client_context(thief.folder)
        found = []
        for _ in range(20):
            found.append(answer(honest.rig, name, context, "POST", MESSAGES, body=body)[0])
            found.append(answer(honest.rig, name, context, "POST", "/peer/show", body=wanted)[0])
        return found

    with ThreadPoolExecutor(9) as pool:
        running = [pool.submit(storm, name) for name in NAMES * 3]
        honest.stand(page)
        for one in running:
            assert set(one.result()) <= {200, 201, 429, 503}
    honest.forget_and_take_back(thief)


def test_an_operation_that_is_too_large_is_refused(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("large")
    many = tuple(FileRef(f"f{n}", f"{n:064x}", 1) for n in range(1_000))
    for changes in (
        {"payload": Command("add-line pages/__ID__ " + "x" * 9_000_000)},
        {"payload": Command("add-line pages/__ID__ x", many)},
        {"sites": tuple(f"site{n}" for n in range(20_000))},
        {"why": "y" * 9_000_000},
        {"type": "t" * 5_000},
    ):
        thief.tell_all(thief.line(page, "", **changes))
    for name in NAMES:
        honest.write(name, page, WITH_STOLEN)
    honest.stand(page)
