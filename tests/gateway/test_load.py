"""What many connections and large bodies cost: little, and no more the larger they are."""

import hashlib
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.gateway.raw import Socket, Upstream, connected, resident_bytes
from tests.gateway.service import Service
from tests.gateway.stage import Stage

IDLE = 8_000
MB = 1024 * 1024


@pytest.fixture
def open_files() -> Iterator[int]:
    """As many as this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections(open_files: int, one_site: Stage) -> None:
    if open_files != resource.RLIM_INFINITY and open_files < 2 * IDLE + 1_000:
        pytest.skip(f"{IDLE} connections need {2 * IDLE + 1_000} open files, and the limit is {open_files}")
    service = Service("image of site1", one_site.own("site1"))
    before = resident_bytes(one_site.pid("site1"))
    idle: list[socket.socket] = []
    try:
        idle.extend(socket.create_connection(one_site.address("site1"), timeout=60) for _ in range(IDLE))
        for one in (idle[0], idle[IDLE // 2], idle[-1]):  # each is served, whenever it wakes up
            client = Socket(one)
            client.send("GET / HTTP/1.1", "Host: h")
            assert client.head().status == 200
        grown = resident_bytes(one_site.pid("site1")) - before
        assert grown < IDLE * 24 * 1024, f"{grown / IDLE / 1024:.1f} KiB each"
    finally:
        for one in idle:
            one.close()
        service.close()


def test_a_large_body_each_way_does_not_stay_in_memory(one_site: Stage) -> None:
    size = 1024 * MB
    piece = hashlib.sha256(b"x").digest() * (MB // 32)
    upstream = Upstream(one_site.own("site1"))
    before = resident_bytes(one_site.pid("site1"))
    most = before
    received = [0]

    def serve() -> None:
        service = upstream.accept()
        service.head()
        while received[0] < size:
            received[0] += len(service.waiting or service.socket.recv(4 * MB))
            service.waiting = b""
        service.send("HTTP/1.1 200 OK", f"Content-Length: {size}")
        for _ in range(size // MB):
            service.raw(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    with connected(one_site.address("site1")) as client:
        client.send("PUT /large HTTP/1.1", "Host: h", f"Content-Length: {size}")
        for number in range(size // MB):
            client.raw(piece)
            if number % 64 == 0:
                most = max(most, resident_bytes(one_site.pid("site1")))
        assert client.head().status == 200
        got, looked = len(client.waiting), 0
        while got < size:
            got += len(client.socket.recv(4 * MB))
            if got > looked:
                looked = got + 64 * MB
                most = max(most, resident_bytes(one_site.pid("site1")))
    thread.join()
    upstream.close()
    assert received[0] == size
    assert most - before < 32 * MB, f"{(most - before) / MB:.0f} MiB more while {size / MB:.0f} MiB went through"


def test_a_service_that_does_not_read_slows_its_client_down(one_site: Stage) -> None:
    upstream = Upstream(one_site.own("site1"))
    before = resident_bytes(one_site.pid("site1"))
    with connected(one_site.address("site1")) as client:
        client.send("PUT /large HTTP/1.1", "Host: h", f"Content-Length: {1024 * MB}")
        upstream.accept().head()
        client.socket.settimeout(2)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 * MB:
                sent += client.socket.send(b"x" * MB)
        assert sent < 64 * MB  # the rest stays with the client
        assert resident_bytes(one_site.pid("site1")) - before < 16 * MB
    upstream.close()
