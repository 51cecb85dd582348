"""The agent's Unix socket: who connects is who the kernel says, and clients find it by themselves."""

import asyncio
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cheops.api import server
from cheops.client import Agent, AgentError, Target, UnreachableError, target_of
from cheops.client import target as addresses
from cheops.client.async_agent import AsyncAgent
from cheops.errors import CheopsError
from cheops.security.principal import Role
from tests.agent.rig import Rig
from tests.security.clients import agent, is_unharmed, local, rig_of, token
from tests.support.command import run_process

NOBODY = "nobody"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = rig_of(tmp_path_factory.mktemp("socket"))
    try:
        found.start()
        yield found
    finally:
        found.close()


def socket_of(rig: Rig) -> Path:
    return rig.folder("site1") / "data" / "agent.sock"


# -- the agent's side ------------------------------------------------------------------------------------------


def test_its_owner_administrates_without_any_token(rig: Rig) -> None:
    who = local(rig).who_am_i()
    assert (who.kind, who.role, who.name) == ("local", Role.ADMIN, f"uid {os.getuid()}")
    assert stat.S_IMODE(socket_of(rig).stat().st_mode) == 0o600
    assert local(rig).tokens().tokens == ()


def test_who_shows_a_token_is_held_to_it_also_here(rig: Rig) -> None:
    secret = token(rig, "held", Role.VIEWER)
    asked = Agent(local(rig).url, token=secret)
    assert asked.who_am_i().role is Role.VIEWER
    with pytest.raises(AgentError, match="needs the role admin"):
        asked.tokens()


def test_another_user_is_nobody_even_if_the_door_stands_open(rig: Rig) -> None:
    """What counts is who the kernel says it is, not the mode of a file."""
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    other = pwd.getpwnam(NOBODY)
    program = (
        "import os, socket, sys; folder = os.open(sys.argv[1], os.O_PATH); s = socket.socket(socket.AF_UNIX);"
        "os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[2]));"
        "s.connect(f'/proc/self/fd/{folder}/agent.sock');"
        "s.sendall(b'GET /api/v1/tokens HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n');"
        "print(s.recv(65536).split()[1].decode())"
    )
    argv = [sys.executable, "-c", program, str(socket_of(rig).parent), str(other.pw_uid), str(other.pw_gid)]
    closed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "PermissionError" in closed.stderr
    folder = socket_of(rig).parent
    folder.chmod(0o711)
    socket_of(rig).chmod(0o666)
    try:
        opened = subprocess.run(argv, capture_output=True, text=True, check=True)
    finally:
        socket_of(rig).chmod(0o600)
        folder.chmod(0o700)
    assert opened.stdout.strip() == "401"
    assert is_unharmed(rig)


def test_it_is_removed_at_the_end_and_a_stale_one_replaced(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    try:
        rig.start()
        rig.kill("site1")
        assert socket_of(rig).is_socket(), "nobody could remove it"
        rig.start()
        assert local(rig).health().ok
        assert rig.stop("site1") == 0
        assert not socket_of(rig).exists()
    finally:
        rig.close()


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / server.SOCKET_NAME
    path.write_text("precious")
    with pytest.raises(CheopsError, match="in the way"):
        server.listen_local(path, 1)
    assert path.read_text() == "precious"


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    """Addresses of sockets have 108 bytes; directories may have more."""
    folder = tmp_path / ("long" * 25) / ("long" * 25)
    folder.mkdir(parents=True)
    path = folder / server.SOCKET_NAME
    listening = server.listen_local(path, 1)
    try:
        listening.setblocking(True)
        asked = Agent(f"unix://{path}")
        with pytest.raises(UnreachableError):  # it is reached, and hangs up
            _hang_up(listening, asked)
    finally:
        server.remove_local(path, listening)
    assert not path.exists()


def _hang_up(listening: socket.socket, asked: Agent) -> None:
    import threading  # noqa: PLC0415

    def hang_up() -> None:
        talking, _ = listening.accept()
        talking.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        asked.health()
    finally:
        thread.join()


# -- the client's side -----------------------------------------------------------------------------------------


def test_both_clients_go_by_the_socket_and_by_tls(rig: Rig) -> None:
    secret = token(rig, "both ways", Role.VIEWER)

    async def asked(target: Target) -> str:
        async with AsyncAgent(target) as found:
            return found.target.url if (await found.sites()).here == "site1" else ""

    ca = str(rig.folder("site1") / "tls" / "ca.pem")
    for target in (Target(local(rig).url), Target(rig.url("site1"), secret, ca)):
        assert Agent(target).sites().here == "site1"
        assert asyncio.run(asked(target)) == target.url


def test_the_client_finds_the_socket_of_the_configuration_here(rig: Rig, tmp_path: Path) -> None:
    """In the data directory that ./cheops.yaml names, whatever else that file says."""
    (tmp_path / "cheops.yaml").write_text(f"site: a\ndata: {rig.folder('site1') / 'data'}\n")
    shown = run_process("token", "list", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert shown.code == 0, shown.err


def test_it_says_whom_it_asked_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CHEOPS_URL", "CHEOPS_TOKEN", "CHEOPS_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(addresses, "USUAL_SOCKET", tmp_path / "usual.sock")
    assert target_of().url == "http://127.0.0.1:8079"
    assert "usual address" in target_of().origin
    (tmp_path / "cheops.yaml").write_text("{this is: [not, right")
    assert target_of().url == "http://127.0.0.1:8079"
    (tmp_path / "cheops.yaml").write_text("site: a\ndata: here\n")
    (tmp_path / "here").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("here/agent.sock")
        target = target_of()
        assert target.url == f"unix://{tmp_path}/here/agent.sock"
        with pytest.raises(UnreachableError, match=r"here/agent.sock \(the socket of the agent of this machine\)"):
            Agent(target).health()
    (tmp_path / "here" / "agent.sock").unlink()
    monkeypatch.setenv("CHEOPS_CA", "ca.pem")
    assert target_of().url == "https://127.0.0.1:8079"
    monkeypatch.setenv("CHEOPS_URL", "unix:///run/x.sock")
    assert target_of().socket == "/run/x.sock"
    assert target_of("http://127.0.0.1:1/").url == "http://127.0.0.1:1"


def test_a_token_comes_from_the_environment_or_a_file_and_never_goes_in_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHEOPS_TOKEN", "cheops_a")
    assert target_of("http://127.0.0.1:1").headers == {"Authorization": "Bearer cheops_a"}
    file = tmp_path / "token"
    file.write_text("cheops_b\n")
    assert target_of("https://h.example", file).headers == {"Authorization": "Bearer cheops_b"}
    with pytest.raises(AgentError, match="plain text"):
        target_of("http://h.example")
    for content in ("", "two words"):
        file.write_text(content)
        with pytest.raises(AgentError, match="holds no token"):
            target_of("https://h.example", file)


@pytest.mark.parametrize("url", ["ftp://x", "unix://relative", "unix:/x", "nonsense", "http://"])
def test_what_is_no_address_is_said_to_be_none(url: str) -> None:
    with pytest.raises(AgentError, match="not the address of an agent"):
        Target(url)


def test_errors_on_the_way_say_what_to_do(rig: Rig) -> None:
    secret = token(rig, "lost", Role.VIEWER)
    with pytest.raises(UnreachableError, match="CHEOPS_CA"):
        Agent(rig.url("site1"), token=secret).sites()
    with pytest.raises(UnreachableError, match="https://"):
        Agent(rig.url("site1").replace("https", "http")).sites()
    with pytest.raises(AgentError, match="CHEOPS_TOKEN"):
        agent(rig, "").sites()
    with pytest.raises(AgentError, match="cannot be read"):
        Agent(rig.url("site1"), ca="/nowhere/ca.pem").sites()
