"""Files of operations: what a site that sends one can do to the site that fetches it, and who can read them."""

import asyncio
import hashlib
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cheops.engine.documents import Message
from cheops.errors import CheopsError
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, FileRef, Kind, MatrixRef, Operation, Origin, Stamp, Verdict
from cheops.peers import files
from cheops.peers.channel_pool import ChannelPool
from cheops.peers.client import PeerClient
from cheops.peers.files import WRONG_FILE, FileFetcher
from cheops.peers.frames import Answer
from cheops.peers.links import pack
from cheops.peers.requests import RequestKind
from cheops.peers.streams import IncomingRequest
from cheops.security.audit import AuditWriter
from cheops.security.refusals import AGAINST_POLICY, RefusalLog, Refusals
from cheops.store.files import FileStore, make_private
from cheops.store.room import DiskFullError, DiskRoom
from tests.agent.rig import RefusedByAgentError, Rig
from tests.agent.rig import until as until_true
from tests.security.clients import configure
from tests.security.sites import refused
from tests.support.channel_server import ChannelServer, send_slowly
from tests.support.ports import free_port

CONTENT = b"page one\n" * 1_000
FILE = FileRef("page", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
Handler = Callable[[IncomingRequest], Awaitable[None]]


# -- what sites send ---------------------------------------------------------------------------------------


async def honest(request: IncomingRequest) -> None:
    request.respond(Answer(200, CONTENT[request.opening.offset :], size=len(CONTENT)))


async def endless(request: IncomingRequest) -> None:
    request.respond(Answer(200, size=FILE.size), end=False)
    await send_slowly(request, b"x" * 65_536, 0)


async def wrong(request: IncomingRequest) -> None:
    request.respond(Answer(200, b"y" * FILE.size, size=FILE.size))


async def longer(request: IncomingRequest) -> None:
    request.respond(Answer(200, CONTENT + b"more", size=len(CONTENT) + 4))


async def missing(request: IncomingRequest) -> None:
    request.respond(Answer(404))


async def dripping(request: IncomingRequest) -> None:
    """A wrong byte at a time, so that the transfer never ends by itself."""
    request.respond(Answer(200, size=FILE.size), end=False)
    await send_slowly(request, b"?", 0.01)


class Scene:
    """One site that fetches, and others that send what their handlers do."""

    def __init__(self, folder: Path) -> None:
        self.room = DiskRoom(folder, 0)
        self.files = FileStore(folder / "files", self.room)
        self.refusals = Refusals()
        self.requests: list[str] = []
        self.needed = True
        self.forgotten: set[str] = set()
        self._audit = AuditWriter(folder / "audit.jsonl", 1_000_000, 2)

    @asynccontextmanager
    async def fetcher(self, turn_s: float = 60.0, **handlers: Handler) -> AsyncIterator[FileFetcher]:
        addresses, servers = {}, []
        for site, handler in handlers.items():

            async def counted(request: IncomingRequest, site: str = site, handler: Handler = handler) -> None:
                self.requests.append(site)
                await handler(request)

            port = free_port()
            servers.append(ChannelServer(site, "127.0.0.1", port, counted))
            addresses[site] = f"http://127.0.0.1:{port}"
        log = RefusalLog(self.refusals, self._audit)
        http = PeerClient(addresses.get)
        pool = ChannelPool("here", http, None, lambda *_: None, lambda: 0, log)
        fetcher = FileFetcher(
            self.files,
            pool,
            log,
            lambda _hash: self.needed,
            self.forgotten.__contains__,
            own="here",
            most_bytes=1_000_000,
            turn_s=turn_s,
        )
        try:
            yield fetcher
        finally:
            fetcher.close()
            pool.close()
            for server in servers:
                server.close()

    def parts(self) -> list[str]:
        return sorted(path.name for path in self.files.folder.iterdir() if path.name != FILE.hash)

    def wrong(self) -> list[str]:
        return [one.who for one in self.refusals.all() if one.reason == WRONG_FILE]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


async def fetched(scene: Scene, fetcher: FileFetcher, *sites: str) -> None:
    fetcher.want(FILE, sites)
    await until(lambda: scene.files.has(FILE.hash))
    assert scene.files.path(FILE.hash).read_bytes() == CONTENT
    await until(lambda: not scene.parts())


@pytest.mark.parametrize("hostile", [endless, wrong])
def test_a_site_that_sends_something_else_is_refused_and_not_asked_again(scene: Scene, hostile: Handler) -> None:
    async def play() -> None:
        async with scene.fetcher(rogue=hostile) as fetcher:
            fetcher.want(FILE, ["rogue"])
            await until(lambda: fetcher.is_nowhere(FILE.hash, ["rogue"]))
            await until(lambda: not scene.parts())
            assert scene.wrong() == ["rogue"]
            fetcher.want(FILE, ["rogue"])
            await until(lambda: fetcher.is_nowhere(FILE.hash, ["rogue"]))
            assert scene.requests == ["rogue"]

    asyncio.run(play())
    assert not scene.files.has(FILE.hash)


@pytest.mark.parametrize("hostile", [endless, wrong, longer, missing])
def test_an_honest_site_still_delivers(scene: Scene, hostile: Handler) -> None:
    async def play() -> None:
        async with scene.fetcher(rogue=hostile, origin=honest) as fetcher:
            await fetched(scene, fetcher, "rogue", "origin")

    asyncio.run(play())
    assert "origin" not in scene.wrong()


def test_a_slow_site_loses_its_turn_and_what_it_sent_does_no_harm(scene: Scene) -> None:
    """The honest site continues after bytes that are wrong; the hash shows it, and then each must send all alone."""

    async def play() -> None:
        async with scene.fetcher(0.2, rogue=dripping, origin=honest) as fetcher:
            await fetched(scene, fetcher, "rogue", "origin")

    asyncio.run(play())
    assert "origin" not in scene.wrong(), "nobody is blamed for the bytes of another"


def test_a_site_that_does_not_answer_is_not_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one that has the file may become known only after it was asked."""
    monkeypatch.setattr(files, "_READ_S", 0.1)

    async def silent(_request: IncomingRequest) -> None:
        await asyncio.Event().wait()

    async def play() -> None:
        async with scene.fetcher(rogue=silent, origin=honest) as fetcher:
            fetcher.want(FILE, ["rogue"])
            await until(lambda: scene.requests)
            await fetched(scene, fetcher, "origin")

    asyncio.run(play())
    assert not scene.wrong()


def test_a_forgotten_site_is_not_waited_for(scene: Scene) -> None:
    """Not even in the middle of a transfer: what waits for the file learns that nobody has it."""

    async def play() -> None:
        async with scene.fetcher(rogue=dripping) as fetcher:
            fetcher.want(FILE, ["rogue"])
            await until(lambda: scene.requests)
            scene.forgotten.add("rogue")
            await until(lambda: fetcher.is_nowhere(FILE.hash, ["rogue"]))
            fetcher.want(FILE, ["rogue"])
            await until(lambda: fetcher.is_nowhere(FILE.hash, ["rogue"]))
            assert scene.requests == ["rogue"]

    asyncio.run(play())
    assert not scene.parts()


def test_one_site_cannot_hold_up_what_others_send(scene: Scene) -> None:
    """It takes few transfers at a time, whatever it is asked for."""
    others = [FileRef("x", hashlib.sha256(bytes([n])).hexdigest(), FILE.size) for n in range(20)]

    async def play() -> None:
        async with scene.fetcher(rogue=dripping, origin=honest) as fetcher:
            for file in others:
                fetcher.want(file, ["rogue"])
            await until(lambda: len(scene.requests) == 4)
            await fetched_beside(fetcher)
            assert scene.requests.count("rogue") == 4

    async def fetched_beside(fetcher: FileFetcher) -> None:
        fetcher.want(FILE, ["origin"])
        await until(lambda: scene.files.has(FILE.hash))

    asyncio.run(play())


def test_a_file_that_no_operation_needs_any_more_is_given_up(scene: Scene) -> None:
    async def play() -> None:
        async with scene.fetcher(0.05, rogue=missing, other=dripping) as fetcher:
            fetcher.want(FILE, ["rogue", "other"])
            await until(scene.parts)
            scene.needed = False
            await until(lambda: not scene.parts())

    asyncio.run(play())


def test_a_wrong_size_in_an_operation_does_not_blame_the_site_that_has_the_file(scene: Scene) -> None:
    lie = FILE._replace(size=10)

    async def play() -> None:
        async with scene.fetcher(origin=honest) as fetcher:
            fetcher.want(lie, ["origin"])
            await until(lambda: fetcher.is_nowhere(FILE.hash, ["origin"]))
            assert scene.wrong() == []
            await fetched(scene, fetcher, "origin")

    asyncio.run(play())


def test_nothing_is_fetched_that_is_too_large_or_does_not_fit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def play() -> None:
        async with scene.fetcher(origin=honest) as fetcher:
            fetcher.want(FILE._replace(size=1_000_001), ["origin"])
            assert not fetcher._tasks
            scene.room._kept_bytes = 2**60
            fetcher.want(FILE, ["origin"])
            await asyncio.sleep(0.5)
            assert scene.requests == []
            scene.room._kept_bytes = 0
            await fetched(scene, fetcher, "origin")

    asyncio.run(play())


# -- room --------------------------------------------------------------------------------------------------


def free(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def test_files_that_come_at_once_do_not_fill_the_disk_together(tmp_path: Path) -> None:
    room = DiskRoom(tmp_path, 0)
    most = free(tmp_path)
    with room.reserve(most * 2 // 3), pytest.raises(DiskFullError, match="MiB does not fit"):
        room.reserve(most * 2 // 3)
    room.reserve(most * 2 // 3).release()


def test_files_of_other_sites_leave_room_for_clients(tmp_path: Path) -> None:
    room = DiskRoom(tmp_path, free(tmp_path) * 2 // 3)
    assert room.problem() is None
    room.reserve(1).release()
    with pytest.raises(DiskFullError, match=r"twice clients\.free_size"):
        room.reserve(1, of_peer=True)


def test_an_upload_is_checked_while_it_comes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = DiskRoom(tmp_path, free(tmp_path) // 2)
    store = FileStore(tmp_path / "files", room)

    def pieces() -> Iterator[bytes]:
        yield b"x" * 1_000
        full = os.statvfs_result((4_096, 4_096, 10, 0, 0, 10, 0, 0, 0, 255))
        monkeypatch.setattr("cheops.store.room.os.statvfs", lambda _path: full)  # something else fills the disk
        yield b"x" * 1_000

    with pytest.raises(DiskFullError):
        store.put(pieces())
    assert list(store.folder.iterdir()) == []


# -- who can read them -------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_only_the_agents_user_can_read_files(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    old = folder / ("0" * 64)
    old.write_bytes(b"from before")
    old.chmod(0o644)
    store = FileStore(folder, DiskRoom(tmp_path, 0))
    hash_ = store.put([CONTENT])
    store.append(FILE._replace(hash="1" * 64), 0, b"x")
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert store.hashes() == sorted([old.name, hash_])


def test_rests_of_transfers_are_gone_after_a_restart(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files", DiskRoom(tmp_path, 0))
    store.append(FILE, 0, CONTENT[:100])
    assert store.received(FILE) == 100
    again = FileStore(tmp_path / "files", DiskRoom(tmp_path, 0))
    assert again.received(FILE) == 0
    assert list(again.folder.iterdir()) == []


def test_a_link_is_no_file_of_the_store(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files", DiskRoom(tmp_path, 0))
    secret = tmp_path / "key"
    secret.write_text("secret")
    (store.folder / FILE.hash).symlink_to(secret)
    assert not store.has(FILE.hash)
    assert store.hashes() == []
    (store.folder / f"{FILE.hash}-{FILE.size}.part").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        store.append(FILE, 0, b"x")
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("hash_", ["", "x", "../" + "0" * 61, "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n"])
def test_a_name_that_is_no_hash_is_no_path(tmp_path: Path, hash_: str) -> None:
    store = FileStore(tmp_path / "files", DiskRoom(tmp_path, 0))
    with pytest.raises(CheopsError, match="not the hash of a file"):
        store.path(hash_)


def test_a_folder_that_cannot_be_made_private_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheopsError, match="cannot keep others from reading"):
        make_private(tmp_path / "file" / "data")


# -- real sites --------------------------------------------------------------------------------------------

PAGE: dict[str, Any] = {
    "allow": ["cp {*} __ID__", "touch __ID__"],
    "cwd": "@FOLDER@",
    "matrix": [{"before": "set", "after": "set", "result": "take-one"}],
}
RULES = Matrix([Entry("set", "set", Result.TAKE_ONE)])
THIEF = Origin("thief", "1")
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One site, with little room for files, and one that is only a server."""
    rig = Rig(tmp_path_factory.mktemp("files"), {"page": PAGE}, ("site1", "thief"))
    configure(rig, "site1", limits={"file_size": "1MiB"})
    rig.start("site1")
    yield rig
    rig.close()


def stolen(resource: str, *files: FileRef) -> bytes:
    stamp = Stamp(int(time.time() * 1000), 0, THIEF)
    op = Operation(
        resource,
        "page",
        "set",
        Kind.NORMAL,
        Command("cp {f} __ID__", files),
        THIEF,
        1,
        {},
        stamp,
        MatrixRef(RULES.hash, stamp),
        ("site1", "thief"),
        verdict=Verdict.OK,
    )
    return pack("thief", [Message(resource, "1", (op,), matrices=(RULES,))])


def send(rig: Rig, body: bytes) -> None:
    rig.request("site1", "POST", "/peer/messages", body, {"Content-Type": "application/json"})


def stored(rig: Rig) -> list[Path]:
    return list((rig.folder("site1") / "data" / "files").iterdir())


def test_a_file_without_an_end_costs_its_sender_a_refusal(rig: Rig) -> None:
    host, port = rig.url("thief").partition("://")[2].split(":")
    asked = []

    async def endless_file(request: IncomingRequest) -> None:
        if request.opening.kind == RequestKind.FILE:
            asked.append(request.opening.body)
            request.respond(Answer(200, size=1_000), end=False)
            await send_slowly(request, b"x" * 65_536, 0)

    server = ChannelServer("thief", host, int(port), endless_file)
    send(rig, stolen("endless", FileRef("f", "a" * 64, 1_000)))
    until_true(lambda: refused(rig, "site1", WRONG_FILE), f"for the refusal:\n{rig.log('site1')}")
    server.close()
    assert asked == [b"a" * 64]
    until_true(lambda: not stored(rig), "for the rest to be deleted")
    assert rig.exec("site1", "fine", "set", "touch __ID__", sites="site1")[0]["Status"] == "OK"


def test_nothing_is_asked_for_a_file_that_is_too_large(rig: Rig) -> None:
    """Neither alone nor together with others; the operation is refused, and said so."""
    before = refused(rig, "site1", AGAINST_POLICY)
    send(rig, stolen("large", FileRef("f", "b" * 64, 600_000), FileRef("g", "c" * 64, 600_000)))
    until_true(lambda: refused(rig, "site1", AGAINST_POLICY) > before, f"for the refusal:\n{rig.log('site1')}")
    assert "limits.file_size of this site is 1,048,576" in rig.log("site1")
    assert stored(rig) == []


def test_a_client_cannot_send_more_either(rig: Rig, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (MIB + 1))
    with pytest.raises(RefusedByAgentError, match=r"limits\.file_size") as caught:
        rig.exec("site1", "upload", "set", "cp {f} __ID__", sites="site1", files={"f": large})
    assert caught.value.status == 413
    assert stored(rig) == []


def test_an_upload_that_breaks_off_leaves_nothing(rig: Rig) -> None:
    start = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + b"x" * 3 * MIB
    head = (
        b"POST /exec/broken HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: %d\r\n\r\n" % (10 * MIB)
    )
    host, port = rig.url("site1").partition("://")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sending:
        sending.sendall(head + start)
    until_true(lambda: not open_files_below(rig), "for the upload to end")
    assert stored(rig) == []


def open_files_below(rig: Rig) -> list[str]:
    """The files in the folder of files that the agent has open, with or without a name."""
    folder, found = str(rig.folder("site1") / "data" / "files"), []
    for link in Path(f"/proc/{rig.processes['site1'].pid}/fd").iterdir():
        with suppress(OSError):
            found.append(str(link.readlink()))
    return [name for name in found if name.startswith(folder)]


def test_an_upload_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"page": PAGE}, ("site1",))
    try:
        free_mib = free(tmp_path) // MIB
        configure(rig, "site1", clients={"free_size": f"{free_mib - 300}MiB", "upload_size": "100TiB"})
        rig.start()
        headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": str(600 * MIB)}
        with pytest.raises(RefusedByAgentError, match="does not fit") as caught:
            rig.request("site1", "POST", "/exec/a", b"--b--", headers)
        assert caught.value.status == 507
        assert rig.exec("site1", "fine", "set", "touch __ID__", sites="site1")[0]["Status"] == "OK"
    finally:
        rig.close()


def test_nobody_else_can_read_the_data_of_a_site(tmp_path: Path) -> None:
    """Also if they could before; a client's file is there as well."""
    rig = Rig(tmp_path, {"page": PAGE}, ("site1",))
    data = rig.folder("site1") / "data"
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    (data / "notes").write_text("from before")
    (data / "notes").chmod(0o644)
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    try:
        rig.start()
        rig.exec("site1", "a", "set", "cp {f} __ID__", sites="site1", files={"f": file})
        assert (rig.folder("site1") / "a").read_bytes() == CONTENT
        assert [path.name for path in stored(rig)] == [FILE.hash]
        others = {str(path): oct(mode(path)) for path in (data, *data.rglob("*")) if mode(path) & 0o077}
        assert others == {}
        assert "others could read" in rig.log("site1")
    finally:
        rig.close()
