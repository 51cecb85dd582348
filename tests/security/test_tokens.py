"""Tokens: made, shown, limited, expired, revoked; what is kept of them, and what guessing brings."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cheops.api.models.operations import SubmitRequest
from cheops.api.models.site import NewToken
from cheops.client import AgentError
from cheops.errors import ClientError
from cheops.notify.event import Event
from cheops.security.principal import Reach, Role
from cheops.security.tokens import (
    LASTS_S,
    MOST_SESSIONS,
    MOST_TOKENS,
    BadTokenError,
    Sessions,
    Token,
    Tokens,
    hash_of,
    new_secret,
)
from cheops.store.memory import MemoryStore
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.security.clients import agent, ask, is_unharmed, local, made, refusals, rig_of, token
from tests.support.command import run_process

SET = SubmitRequest(type="set", command="echo x > __ID__", sites="site1", resource_type="file")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = rig_of(tmp_path_factory.mktemp("tokens"))
    try:
        found.start()
        local(found).submit("here", SET)
        yield found
    finally:
        found.close()


# -- by themselves ---------------------------------------------------------------------------------------------


def one(
    tokens: Tokens, name: str = "ci", lasts_ms: int | None = None, **limits: frozenset[str]
) -> tuple[Tokens, Token, str]:
    secret = new_secret()
    changed, made_ = tokens.add(name, Role.VIEWER, Reach(**limits), lasts_ms, "test", secret)
    return changed, made_, secret


def test_a_token_is_32_random_bytes_and_only_its_hash_is_kept() -> None:
    tokens, found, secret = one(Tokens())
    assert secret.startswith("cheops_")
    assert len(secret) == len("cheops_") + 43
    assert found.hash == hash_of(secret)
    assert secret not in json.dumps(tokens.note())
    assert tokens.with_secret(secret) == found
    assert new_secret() != new_secret()


@pytest.mark.parametrize("shown", ["", "cheops_", "x" * 50, "cheops_" + "a" * 43, "cheops_" + "é" * 43, "\0" * 50])
def test_what_is_no_token_is_none(shown: str) -> None:
    tokens, _, _ = one(Tokens())
    with pytest.raises(BadTokenError) as caught:
        tokens.with_secret(shown)
    assert caught.value.reason == "unknown token"


def test_a_token_expires_and_makes_room_for_another_of_its_name() -> None:
    now = [1_000]
    tokens, _, secret = one(Tokens(now_ms=lambda: now[0]), lasts_ms=500)
    with pytest.raises(ClientError, match="revoke it first"):
        one(tokens)
    now[0] = 1_500
    with pytest.raises(BadTokenError) as caught:
        tokens.with_secret(secret)
    assert caught.value.reason == "expired token"
    tokens, _, _ = one(tokens)
    assert len(tokens) == 1


def test_their_number_is_bounded() -> None:
    tokens = Tokens(
        Token(f"{n:08x}", f"t{n}", Role.VIEWER, Reach(), 0, None, "test", f"{n:064x}") for n in range(MOST_TOKENS)
    )
    with pytest.raises(ClientError, match="revoke some"):
        one(tokens)


@pytest.mark.parametrize("name", ["", " ", "a ", "a\nb", "x" * 101])
def test_a_name_can_be_shown(name: str) -> None:
    with pytest.raises(ClientError):
        one(Tokens(), name)


def test_a_limit_names_something() -> None:
    with pytest.raises(ClientError):
        one(Tokens(), types=frozenset())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_they_are_kept_in_every_store(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "site.db")
    tokens, first, secret = one(Tokens(), types=frozenset(["a", "b"]))
    tokens, second, _ = one(tokens, "other", lasts_ms=10_000, sites=frozenset(["paris"]))
    store.put_note("tokens", tokens.note())
    if isinstance(store, SQLiteStore):
        store.close()
        store = SQLiteStore(tmp_path / "site.db")
    kept = Tokens.of_note(store.note("tokens"))
    assert list(kept) == [first, second]
    assert kept.with_secret(secret) == first
    assert kept.without(first).note() != kept.note()
    with pytest.raises(ClientError):
        kept.without(first).named("ci")
    store.close()


def test_sessions_end_and_their_number_is_bounded() -> None:
    now = [0]
    sessions, (_, found, _) = Sessions(lambda: now[0]), one(Tokens())
    first = sessions.start(found)
    assert first != sessions.start(found)
    assert sessions.get(first) is not None
    for _ in range(MOST_SESSIONS):
        last = sessions.start(found)
    assert sessions.get(first) is None
    assert sessions.get(last) is not None
    now[0] = LASTS_S * 1_000
    assert sessions.get(last) is None


# -- at an agent -----------------------------------------------------------------------------------------------


def test_the_secret_is_told_once_and_never_again(rig: Rig) -> None:
    found = made(rig, "once", Role.VIEWER)
    assert agent(rig, found.secret).who_am_i().name == "once"
    listed = rig.request("site1", "GET", "/api/v1/tokens")
    assert b"once" in listed
    assert found.secret.encode() not in listed
    assert hash_of(found.secret).encode() not in listed


def test_nothing_is_told_without_a_token(rig: Rig) -> None:
    said = ask(rig, "GET", "/api/v1/resources")
    assert said.status == 401
    assert said.headers["www-authenticate"].startswith("Bearer")
    assert said.headers["content-type"] == "application/problem+json"
    assert "cheops token create" in said.json["detail"]
    health = ask(rig, "GET", "/healthz")
    assert health.status == 200
    assert health.json == {"ok": True, "site": "", "version": "", "detail": ""}
    assert ask(rig, "GET", "/api/v1/readyz").json["site"] == ""
    assert ask(rig, "GET", "/metrics").status == 401


def test_a_wrong_token_is_counted(rig: Rig) -> None:
    before = refusals(rig, "unknown token")
    assert ask(rig, "GET", "/api/v1/sites", secret=new_secret()).status == 401
    assert ask(rig, "GET", "/api/v1/sites", headers={"Authorization": "Basic YTpi"}).status == 401
    assert refusals(rig, "unknown token") == before + 2


def test_an_expired_token_is_refused_and_counted(rig: Rig) -> None:
    secret = token(rig, "short", Role.ADMIN, lasts_s=0.2)
    until(lambda: ask(rig, "GET", "/api/v1/sites", secret=secret).status == 401)
    assert "expired" in ask(rig, "GET", "/api/v1/sites", secret=secret).json["detail"]
    assert refusals(rig, "expired token") >= 2


def test_a_revoked_token_is_good_for_nothing_at_once(rig: Rig) -> None:
    """Also not for what was begun with it: streams end, and who waits hears nothing more."""
    secret = token(rig, "gone", Role.VIEWER)
    asked = agent(rig, secret)
    heard: list[Event] = []
    waited: list[int] = []

    def follow() -> None:
        heard.extend(asked.events())

    def wait() -> None:
        waited.append(ask(rig, "GET", "/api/v1/changes?wait=60", secret=secret).status)

    threads = [threading.Thread(target=follow), threading.Thread(target=wait)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # until both are there; if not, they are refused, which is right too
    local(rig).revoke_token("gone")
    local(rig).submit("after", SET)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert not heard
    assert waited == [401]
    with pytest.raises(AgentError) as caught:
        asked.sites()
    assert caught.value.http_status == 401
    assert is_unharmed(rig)


def test_a_token_survives_a_restart_and_so_does_its_end(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    try:
        rig.start()
        kept, gone = token(rig, "kept", Role.VIEWER), token(rig, "gone", Role.VIEWER)
        local(rig).revoke_token("gone")
        rig.stop("site1")
        rig.start("site1")
        assert ask(rig, "GET", "/api/v1/sites", secret=kept).status == 200
        assert ask(rig, "GET", "/api/v1/sites", secret=gone).status == 401
    finally:
        rig.close()


def test_who_guesses_is_slowed_down_and_nobody_else(rig: Rig) -> None:
    good = token(rig, "good", Role.VIEWER)
    before = refusals(rig, "too many") + refusals(rig, "rate")
    said = [ask(rig, "GET", "/api/v1/sites", secret=new_secret()) for _ in range(30)]
    assert {one.status for one in said} == {401, 429}
    refused = [one for one in said if one.status == 429]
    assert int(refused[-1].headers["retry-after"]) >= 1
    assert ask(rig, "GET", "/api/v1/sites", secret=good).status == 200, "others at this address must not suffer"
    assert refusals(rig, "too many") + refusals(rig, "rate") > before
    assert is_unharmed(rig)


def test_no_secret_is_in_the_files_of_the_site(rig: Rig) -> None:
    """Nor in its log, nor in what it says of processes."""
    secret = token(rig, "planted", Role.OPERATOR)
    agent(rig, secret).submit("planted", SET)
    rig.request("site1", "GET", "/api/v1/audit")  # what was told is written
    session = ask(rig, "POST", "/api/v1/session", {"token": secret})
    cookie = session.headers["set-cookie"].split(";")[0].partition("=")[2]
    assert session.status == 200
    for needle in (secret, cookie):
        for path in rig.folder("site1").rglob("*"):
            if path.is_file():
                assert needle.encode() not in path.read_bytes(), path
    command = Path(f"/proc/{rig.processes['site1'].pid}/cmdline").read_bytes()
    assert secret.encode() not in command


def test_the_command_line_makes_lists_and_revokes(rig: Rig, tmp_path: Path) -> None:
    url = ["--url", local(rig).url]
    made_ = run_process("token", "create", "cli", "--role", "operator", "--type", "file", "--expires", "12h", *url)
    assert made_.code == 0, made_.err
    assert made_.out.startswith("cheops_")
    assert len(made_.out.split()) == 1, "the token alone, so that it can go into a file"
    assert "operator, only types file" in made_.err
    file = tmp_path / "token"
    file.write_text(made_.out)
    ca = {"CHEOPS_CA": str(rig.folder("site1") / "tls" / "ca.pem"), "PATH": "/usr/bin:/bin"}
    shown = run_process("get", "resources", "--url", rig.url("site1"), "--token-file", str(file), env=ca)
    assert shown.code == 0, shown.err
    listed = run_process("token", "list", *url)
    assert "cli" in listed.out
    assert made_.out.strip() not in listed.out
    assert run_process("token", "revoke", "cli", *url).out == "cli is revoked\n"
    shown_again = ("get", "resources", "--url", rig.url("site1"), "--token-file", str(file))

    def told() -> str:
        """Those who guess, in other tests, have all of this address wait for a while."""
        again = run_process(*shown_again, env=ca)
        assert again.code == 1
        return "" if "too many wrong tokens" in again.err else again.err

    assert "revoked" in until(told, "for wrong tokens to be looked at again")
    assert run_process("token", "revoke", "cli", *url).code == 1
    assert run_process("token", "create", "x", "--expires", "soon", *url).code == 2


def test_a_token_is_not_made_as_nobody_could_mean_it(rig: Rig) -> None:
    with pytest.raises(AgentError) as caught:
        local(rig).create_token(NewToken(name="bad\nname", role=Role.VIEWER))
    assert caught.value.http_status == 409
    for body in (
        {"name": "x", "role": "king"},
        {"name": "x", "role": "viewer", "types": []},
        {"role": "viewer"},
    ):
        with pytest.raises(RefusedByAgentError) as refused:
            rig.request("site1", "POST", "/api/v1/tokens", json.dumps(body).encode())
        assert refused.value.status == 422
