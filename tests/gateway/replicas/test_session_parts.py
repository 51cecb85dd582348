"""Sessions in pieces: their rules, what is on disk, and what another site may say about one."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cheops.backends.http.interpretation import rule_for
from cheops.backends.http.payload import PayloadError, Request
from cheops.backends.http.sender import FileSlice
from cheops.backends.http.session_content import content_of, head_of, steps_of
from cheops.backends.http.session_replay import _checked, _merged
from cheops.backends.http.sessions import Opening, OpenSessions, Step
from cheops.config.rule_syntax import rule_set
from cheops.config.service_rules import replace_variable, target_of_rule
from cheops.config.services import ReplicationConfig, ServiceConfig
from cheops.errors import CheopsError, ClientError
from cheops.store.files import FileStore
from cheops.store.room import DiskRoom
from cheops.yaml_file import YamlFileError
from tests.gateway.replicas.test_interpretation import about, rules

USES = {"match": "PUT /{key}?id={upload}", "uses": "upload"}


def service(name: str = "s3") -> ServiceConfig:
    return ServiceConfig("app", url="http://127.0.0.1:1", replication=ReplicationConfig(rules=rule_set(name)))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"match": "POST /a", "opens": "upload"}, "'id' is missing: where the response has the handle"),
        ({"match": "POST /a", "opens": "upload", "id": "body"}, "expected where the handle is"),
        ({"match": "POST /a", "opens": "Up Load", "id": "$.id"}, "expected the name of a session"),
        ({"match": "PUT /a", "uses": "upload"}, "'match' must have the variable {upload}"),
        ({**USES, "aborts": "upload"}, "a request does one of these to a session: aborts, uses"),
        ({**USES, "is": "put"}, "it belongs to the rule that completes the session"),
        ({**USES, "next": "ETag"}, "expected Location"),
        ({**USES, "without": ["mount"]}, "only a rule with 'opens' can have this"),
        ({"match": "PUT /a", "is": "put", "next": "Location"}, "only a rule with 'opens' or 'uses' can have this"),
        (
            {"match": "PUT /{u}", "completes": "u", "is": "action x", "of": "/a"},
            "what completes a session is a 'put' of a resource",
        ),
        ({"match": "PUT /{u}", "completes": "u"}, "'is' is missing"),
        ({"match": "PUT /a", "is": "put", "of": "replicants"}, "only a read is 'of: replicants'"),
        ({"match": "PUT /a", "is": "session"}, "expected what a request does"),
        ({**USES, "has": "$.id"}, "it belongs to the rule that completes the session"),
        (
            {"match": "PUT /{u}", "completes": "u", "is": "put", "has": "$.id"},
            "a request of a session is known by its path, query and headers",
        ),
        (
            {"match": "PUT /a", "is": "refuse", "why": "x", "of": "service"},
            "what is refused is about some resources: leave 'of' out",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(YamlFileError) as caught:
        rules(rule)
    assert message in str(caught.value)


def test_all_requests_about_a_name_are_about_one_resource_however_it_is_spelled() -> None:
    known = rule_set("s3")
    for line in ("PUT /b/a%20b/%C3%BC", "PUT /b/a%20b/%c3%bc?tagging", "POST /b/a%20b/%C3%BC?uploadId=x"):
        found = about(known, line)
        assert found is not None
        assert found[1] == "/b/a%20b/%C3%BC"


def test_a_handle_is_replaced_where_the_rule_says_it_is() -> None:
    found = rule_for(rule_set("s3"), "PUT", "/b/abc?partNumber=1&uploadId=abc")
    assert found
    assert replace_variable(found[0], "/b/abc", "partNumber=1&uploadId=abc", "upload", "x/y") == (
        "/b/abc",
        "partNumber=1&uploadId=x%2Fy",
    )
    found = rule_for(rule_set("docker-registry"), "PATCH", "/v2/a/abc/blobs/uploads/abc?_state=s")
    assert found
    path, query = "/v2/a/abc/blobs/uploads/abc", "_state=s"
    assert replace_variable(found[0], path, query, "upload", "new") == ("/v2/a/abc/blobs/uploads/new", "_state=s")
    assert target_of_rule(found[0], {"name": "a/abc", "upload": "new"}) == ("/v2/a/abc/blobs/uploads/new", "")
    assert _merged("_state=own", "_state=other&digest=d") == "_state=own&digest=d"


# -- the body of the operation ---------------------------------------------------------------------------------


def recorded(method: str, path: str, query: str, size: int = 0) -> Request:
    return Request(method=method, path=path, query=query, file_bytes=size, session="upload")


UPLOAD = [
    recorded("POST", "/b/k", "uploads"),
    recorded("PUT", "/b/k", "partNumber=1&uploadId=u", 3),
    recorded("POST", "/b/k", "uploadId=u", 4),
]


def test_a_session_as_one_body(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"one")

    async def written() -> bytes:
        return b"".join([piece async for piece in content_of(head_of(UPLOAD), [b"", part, b"last"])])

    content = asyncio.run(written())
    assert [step.body for step in steps_of(content)] == [b"", b"one", b"last"]
    file = tmp_path / "content"
    file.write_bytes(content)
    start = len(content) - 7
    assert steps_of(file)[1].body == FileSlice(file, start, 3)
    for wrong in (content[:-1], content + b"x", b"[]\n", b"no", head_of(UPLOAD[:1])):
        with pytest.raises(PayloadError):
            steps_of(wrong)
    negative = msgspec.structs.replace(UPLOAD[1], file_bytes=-7)
    with pytest.raises(PayloadError):
        steps_of(head_of([UPLOAD[0], negative, UPLOAD[2]]) + b"last")


@pytest.mark.parametrize(
    "steps",
    [
        [recorded("POST", "/b/other", "uploads"), *UPLOAD[1:]],  # about something else
        [UPLOAD[0], recorded("PUT", "/b/k", "partNumber=1&uploadId=v", 3), UPLOAD[2]],  # another session
        [UPLOAD[0], recorded("PUT", "/b/k", ""), UPLOAD[2]],  # no request of a session
        [UPLOAD[0], recorded("DELETE", "/b/k", "uploadId=u"), UPLOAD[2]],
        [UPLOAD[1], UPLOAD[2]],  # never opened
        [*UPLOAD[:2], recorded("POST", "/b/k", "uploadId=v", 4)],  # completed by another request
        [UPLOAD[0], msgspec.structs.replace(UPLOAD[1], headers=(("Authorization", "x"),)), UPLOAD[2]],
        [UPLOAD[0], msgspec.structs.replace(UPLOAD[1], path="/b/../k"), UPLOAD[2]],
        [UPLOAD[0], msgspec.structs.replace(UPLOAD[1], headers=(("X-Amz-Copy-Source", "b/secret"),)), UPLOAD[2]],
    ],
)
def test_what_another_site_recorded_must_be_one_session_by_the_rules_of_this_one(steps: list[Request]) -> None:
    request = msgspec.structs.replace(UPLOAD[2], kind="put")
    bodies = b"".join(b"." * (step.file_bytes or 0) for step in steps)
    with pytest.raises(CheopsError):
        _checked(service(), request, steps_of(head_of(steps) + bodies))
    assert len(_checked(service(), request, steps_of(head_of(UPLOAD) + b"onelast"))) == 3


# -- open sessions on disk -------------------------------------------------------------------------------------


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def sessions(folder: Path, clock: Clock) -> OpenSessions:
    return OpenSessions(folder / "sessions", FileStore(folder / "files", DiskRoom(folder, 0)), clock)


def opening(handle: str) -> Opening:
    sites = ("site1", "site2")
    return Opening(
        service="s3", name="upload", handle=handle, sites=sites, site="site1", until_s=2000.0, request=UPLOAD[0]
    )


def test_a_session_is_there_after_a_restart_as_far_as_clients_know(tmp_path: Path) -> None:
    asyncio.run(_a_session_is_there_after_a_restart_as_far_as_clients_know(tmp_path))


async def _a_session_is_there_after_a_restart_as_far_as_clients_know(tmp_path: Path) -> None:
    clock = Clock()
    before = sessions(tmp_path, clock)
    session = await before.open(opening("u"))
    hash_ = session.files.put([b"one"])
    await before.add(session, Step(UPLOAD[1], "", is_lost=True))
    assert session.lost == UPLOAD[1]
    await before.add(session, Step(UPLOAD[1], hash_))  # the same PUT again: it is known now
    with (session.folder / "journal").open("ab") as journal:
        journal.write(b'[{"method": "PU')  # the agent stopped here, and the client got no response
    after = sessions(tmp_path, clock).find("s3", "upload", "u")
    assert after is not None
    assert (after.opening, after.steps, after.lost) == (opening("u"), [Step(UPLOAD[1], hash_)], None)
    body = after.body(after.steps[0])
    assert isinstance(body, Path)
    assert body.read_bytes() == b"one"
    assert session.folder.stat().st_mode & 0o077 == 0
    assert sessions(tmp_path, clock).find("s3", "other", "u") is None
    assert sessions(tmp_path, clock).find("other", "upload", "u") is None


def test_a_session_expires_and_its_handle_is_remembered_for_longer(tmp_path: Path) -> None:
    asyncio.run(_a_session_expires_and_its_handle_is_remembered_for_longer(tmp_path))


async def _a_session_expires_and_its_handle_is_remembered_for_longer(tmp_path: Path) -> None:
    clock = Clock()
    kept = sessions(tmp_path, clock)
    session = await kept.open(opening("u"))
    hash_ = session.files.put([b"one"])
    await kept.add(session, Step(UPLOAD[1], hash_))
    clock.now_s = 2001.0
    await kept.open(opening("other"))
    assert session.files.hashes() == []
    for one in (kept, sessions(tmp_path, clock)):
        with pytest.raises(ClientError, match="has expired, and nothing of it was replicated"):
            one.find("s3", "upload", "u")
    clock.now_s += 8 * 86_400
    await kept.open(opening("last"))
    assert kept.find("s3", "upload", "u") is None
    assert not session.folder.exists()


def test_bodies_that_nothing_needs_are_deleted(tmp_path: Path) -> None:
    asyncio.run(_bodies_that_nothing_needs_are_deleted(tmp_path))


async def _bodies_that_nothing_needs_are_deleted(tmp_path: Path) -> None:
    clock = Clock()
    kept = sessions(tmp_path, clock)
    session = await kept.open(opening("u"))

    async def used(content: bytes, *, is_done: bool) -> str:
        with session.holding() as held:
            held.append(session.files.put([content]))
            if is_done:
                await kept.add(session, Step(UPLOAD[1], held[0]))
            return held[0]

    await used(b"first", is_done=True)
    await used(b"refused", is_done=False)
    last = await used(b"last", is_done=True)
    assert session.files.hashes() == [last]
    with session.holding(last):  # another request has the same body, or the session is being completed
        other = await used(b"other", is_done=True)
        assert set(session.files.hashes()) == {last, other}
    assert session.files.hashes() == [other]
    # When the session has expired, all are deleted, also if nothing else happens.
    clock.now_s = 2001.0
    short = await kept.open(msgspec.structs.replace(opening("short"), until_s=2001.0))
    short.files.put([b"short"])
    clock.now_s = 2002.0
    for _ in range(200):
        if not session.files.hashes() + short.files.hashes():
            return
        await asyncio.sleep(0.05)
    pytest.fail("the bodies of expired sessions are still there")


def test_there_are_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_there_are_only_so_many(tmp_path, monkeypatch))


async def _there_are_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cheops.backends.http.sessions.MAX_SESSIONS", 1)
    monkeypatch.setattr("cheops.backends.http.sessions.MAX_STEPS", 1)
    kept = sessions(tmp_path, Clock())
    session = await kept.open(opening("u"))
    with pytest.raises(CheopsError, match="sessions are open at this site"):
        await kept.open(opening("v"))
    await kept.add(session, Step(UPLOAD[1]))
    with pytest.raises(ClientError, match="of more than"):
        await kept.add(session, Step(UPLOAD[1]))
    await kept.close(session)
    assert not session.folder.exists()
    await kept.open(opening("v"))
