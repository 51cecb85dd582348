"""A stolen site serves wrong files, asks for what is not its own, and has requests run with the rights of others."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from cheops.log.operation import Command, FileRef, Operation
from cheops.peers.frames import Answer
from cheops.peers.streams import IncomingRequest
from cheops.security.certificates import dns_name
from tests.agent.rig import until
from tests.security.honest_sites import FILE_SIZE, NAMES, SECRET, STOLEN, WITH_STOLEN, HonestSites
from tests.security.hostile_site import HostileSite
from tests.security.rogue import operations
from tests.security.sites import as_site, believing

PIECE = b"x" * 65_536


class Supply:
    """How a thief serves a file, and how much of it was taken."""

    def __init__(self, size: int, most: int = 1024 * 1024 * 1024) -> None:
        self.size = size
        self.most = most
        self.sent = 0
        self.over = Event()

    async def endless(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, size=self.size), end=False)
        await self._send_all(request)

    async def larger(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, size=self.most), end=False)
        await self._send_all(request)

    async def _send_all(self, request: IncomingRequest) -> None:
        while self.sent < self.most and not self.over.is_set():
            await request.write(PIECE)
            self.sent += len(PIECE)

    async def wrong(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, b"y" * self.size, size=self.size))
        self.sent += self.size

    async def slow(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, size=self.size), end=False)
        while not self.over.is_set():
            await request.write(b"x")
            self.sent += 1
            await asyncio.sleep(0.2)

    async def cut(self, request: IncomingRequest) -> None:
        request.respond(Answer(200, b"x" * (self.size // 2), size=self.size), end=False)
        self.sent += self.size // 2


def attached(thief: HostileSite, page: str, file: FileRef, seq: int = 1) -> Operation:
    return thief.line(page, "", seq, payload=Command("cp {x} pages/__ID__", (file,)))


def kept_files(honest: HonestSites) -> dict[str, int]:
    """What every honest site keeps of files, in whatever state, by name."""
    found = {}
    for name in NAMES:
        for path in (honest.rig.folder(name) / "data" / "files").rglob("*"):
            if path.is_file():
                found[f"{name}/{path.name}"] = path.stat().st_size
    return found


@pytest.mark.parametrize("how", ["endless", "larger", "wrong"])
def test_a_file_that_is_not_what_was_signed_is_not_kept(honest: HonestSites, thief: HostileSite, how: str) -> None:
    page = thief.shared_page(how)
    before, kept = {name: honest.refused(name) for name in NAMES}, kept_files(honest)
    supply = Supply(100_000)
    hash_ = hashlib.sha256(how.encode()).hexdigest()
    thief.files[hash_] = getattr(supply, how)
    thief.tell_all(attached(thief, page, FileRef("x", hash_, supply.size)))
    until(lambda: thief.asked_files.count(hash_) >= len(NAMES), "for the file to be fetched")
    for name in NAMES:
        honest.write(name, page, WITH_STOLEN)
    honest.stand(page)
    if how != "larger":  # a length that differs from the one that was signed is seen before the first byte
        assert all(honest.refused(name) > before[name] for name in NAMES)
    assert supply.sent < supply.most
    supply.over.set()
    until(lambda: kept_files(honest) == kept, "for the partial files to go")
    honest.forget_and_take_back(thief)


def test_a_file_beyond_the_limit_is_not_even_asked_for(honest: HonestSites, thief: HostileSite) -> None:
    page = thief.shared_page("too-large")
    for seq, size in enumerate((FILE_SIZE + 1, 2**53 - 1), 1):
        hash_ = hashlib.sha256(str(size).encode()).hexdigest()
        thief.tell_all(attached(thief, page, FileRef("x", hash_, size), seq))
    for name in NAMES:
        honest.write(name, page, WITH_STOLEN)
    honest.stand(page)
    assert not {hashlib.sha256(str(size).encode()).hexdigest() for size in (FILE_SIZE + 1, 2**53 - 1)} & set(
        thief.asked_files
    )


def test_files_of_strangers_are_not_fetched(honest: HonestSites, thief: HostileSite) -> None:
    """Of a page that it has no part in: the policy is asked before the first byte."""
    page = honest.new_page("strange-files")
    like = max(operations(honest.rig, "site1", page).values(), key=lambda op: op.stamp)
    hash_ = hashlib.sha256(b"stranger").hexdigest()
    op = thief.operation(
        like, "", origin=thief.origin, payload=Command("cp {x} pages/__ID__", (FileRef("x", hash_, 9),))
    )
    thief.tell_all(op)
    honest.stand(page)
    assert hash_ not in thief.asked_files


@pytest.mark.parametrize("how", ["slow", "cut"])
def test_a_file_that_never_ends_holds_up_nobody_else(honest: HonestSites, thief: HostileSite, how: str) -> None:
    """As many at a time as it likes. Honest sites exchange their own files meanwhile."""
    page = thief.shared_page(how)
    supplies = []
    for seq in range(1, 9):
        hash_ = hashlib.sha256(f"{how}{seq}".encode()).hexdigest()
        supplies.append(Supply(500_000))
        thief.files[hash_] = getattr(supplies[-1], how)
        thief.tell_all(attached(thief, page, FileRef("x", hash_, 500_000), seq))
    until(lambda: any(supply.sent for supply in supplies), "for the first to be fetched")
    other = honest.new_page("meanwhile")
    content = honest.rig.base / STOLEN / "content"
    content.write_text("a page by file\n")
    fields: dict[str, Any] = {"resource-type": "page", "files": {"x": content}}
    lines = honest.rig.exec("site1", other, "set", "cp {x} pages/__ID__", sites=" & ".join(NAMES), **fields)
    assert [line["Status"] for line in lines] == ["OK"] * len(NAMES)
    assert all(honest.lines(name, other) == ["a page by file"] for name in NAMES)
    honest.acknowledged[other] = ["a page by file"]
    honest.stand(other)
    honest.forget_and_take_back(thief)
    for supply in supplies:
        supply.over.set()


def test_it_gets_nothing_that_is_not_its_own(honest: HonestSites, thief: HostileSite) -> None:
    page = honest.new_page("private")
    content = honest.rig.base / STOLEN / "private"
    content.write_text(f"private {time.time()}\n")
    fields: dict[str, Any] = {"resource-type": "page", "files": {"x": content}}
    honest.rig.exec("site1", page, "set", "cp {x} pages/__ID__", sites=" & ".join(NAMES), **fields)
    honest.acknowledged[page] = content.read_text().splitlines()
    hash_ = hashlib.sha256(content.read_bytes()).hexdigest()
    before = honest.refused("site1")
    assert thief.ask("site1", "GET", f"/peer/files/{hash_}")[0] == 403
    for command in ("", "wc -l pages/__ID__"):
        wanted = json.dumps({"resource": page, "command": command}).encode()
        assert thief.ask("site1", "POST", "/peer/show", wanted)[0] == 403
    assert honest.refused("site1") > before
    for path in ("..%2f..%2fstore.db", "../../store.db", "%2e%2e/store.db", hash_[:-1], f"{hash_}/"):
        assert thief.ask("site1", "GET", f"/peer/files/{path}")[0] in {400, 403, 404}
    honest.stand(page)


def test_a_stolen_file_name_opens_no_other_file(honest: HonestSites, thief: HostileSite) -> None:
    """Names of files become names on the disk of the site that runs the command."""
    page = thief.shared_page("names")
    content = b"stolen\n"
    hash_ = hashlib.sha256(content).hexdigest()

    async def serve(request: IncomingRequest) -> None:
        request.respond(Answer(200, content, size=len(content)))

    thief.files[hash_] = serve
    names = ("../../stolen", "/etc/stolen", "-stolen", "a/b", ".", "..", "stolen\n", "\x1b[2J")
    for seq, file_name in enumerate(names, 1):
        line = f"cp {{{file_name}}} pages/__ID__"
        thief.tell_all(thief.line(page, "", seq, payload=Command(line, (FileRef(file_name, hash_, len(content)),))))
    honest.acknowledged[page] = []  # by an allowed command it may replace a page that it shares
    for name in NAMES:
        honest.write(name, page, WITH_STOLEN)
    honest.stand(page)


# -- services ----------------------------------------------------------------------------------------------


REQUESTS: list[dict[str, Any]] = [
    {"method": "GET", "path": "/secret"},
    {"method": "HEAD", "path": "/secret"},
    {"method": "OPTIONS", "path": "/secret"},
    {"method": "POST", "path": "http://127.0.0.1/secret"},
    {"method": "POST", "path": "/items/../secret"},
    {"method": "POST", "path": "/items/%2e%2e/secret"},
    {"method": "POST", "path": "/items\r\nX: y"},
    {"method": "POST", "path": "/items", "headers": [["X-Auth-Token", "site1-own"]]},
    {"method": "POST", "path": "/items", "headers": [["Authorization", "Bearer x"]]},
    {"method": "POST", "path": "/items", "headers": [["Host", "elsewhere"]]},
    {"method": "POST", "path": "/items", "headers": [["Transfer-Encoding", "chunked"]]},
]


def test_requests_of_a_stolen_site_are_held_to_what_a_service_allows(honest: HonestSites, thief: HostileSite) -> None:
    """What a peer may have run here is a change, below the service, without credentials of its own."""
    before = {name: len(honest.vaults[name].requests) for name in NAMES}
    counted = {name: honest.refused(name) for name in NAMES}
    for number, request in enumerate(REQUESTS):
        line = json.dumps({"item": "/items/{id}", **request})
        id_ = f"c4e095a1-0000-8000-8000-{number:012x}"
        op = thief.begin(id_, "http:vault", line, *NAMES, STOLEN, type="create", origin=thief.origin)
        thief.tell_all(op)
    for name in NAMES:
        until(lambda n=name: honest.refused(n) >= counted[n] + len(REQUESTS), f"for {name} to refuse all")  # type: ignore[misc]
        assert honest.vaults[name].requests[before[name] :] == []
    with thief._lock:
        told = json.dumps([str(message) for message in thief.received])
    assert SECRET not in told
    honest.stand()
    honest.forget_and_take_back(thief)


@pytest.fixture
def gateway(honest: HonestSites, thief: HostileSite) -> Callable[..., tuple[int, bytes]]:
    """A request to the address of site1 that is for gateways only."""

    def ask(context: Any, **headers: str) -> tuple[int, bytes]:
        rig = honest.rig
        before, rig._addresses["site1"] = rig._addresses["site1"], ("127.0.0.1", honest.ports["site1", "mesh"])
        try:
            with rig.tls("site1", context, dns_name("site1")) as connection:
                connection.request("GET", "/secret", headers={k.replace("_", "-"): v for k, v in headers.items()})
                answered = connection.getresponse()
                return answered.status, answered.read()
        finally:
            rig._addresses["site1"] = before

    assert thief
    return ask


def test_a_gateway_speaks_for_itself_and_gets_no_rights_of_others(
    honest: HonestSites, thief: HostileSite, gateway: Callable[..., tuple[int, bytes]]
) -> None:
    own = believing(honest.rig, thief.folder)
    before = honest.refused("site1")
    for headers in (
        {"Cheops_Hop": "site2"},
        {"Cheops_Hop": "site1"},
        {"Cheops_Hop": ""},
        {"Cheops_Hop": "site2", "Cheops_Certificate": "x"},
    ):
        status, body = gateway(own, Cheops_Service="vault", **headers)
        assert (status, SECRET.encode() in body) == (403, False)
    assert honest.refused("site1") == before + 4
    # In its own name it is served, as any client would be: without the credentials of the site.
    seen = len(honest.vaults["site1"].requests)
    for more in ({}, {"Scope": "{vault: site1}"}, {"Cheops_For": "replication"}, {"X_Forwarded_For": "127.0.0.1"}):
        status, body = gateway(own, Cheops_Hop=STOLEN, Cheops_Service="vault", **more)
        assert (status, SECRET.encode() in body) == (401, False)
    assert all("X-Auth-Token" not in headers for _, _, headers in honest.vaults["site1"].requests[seen:])
    status, _ = gateway(as_site(honest.rig, "site2"), Cheops_Hop="site2", Cheops_Service="vault")
    assert status == 401
    honest.forget_stolen()
    assert gateway(own, Cheops_Hop=STOLEN, Cheops_Service="vault")[0] == 403
    honest.take_back(thief)
    honest.stand()
