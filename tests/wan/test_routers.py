"""What routers of the bed do: firewalls that know connections, NAT, narrow links, and addresses of IPv6."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.wan import Host, Wan
from tests.wan.fixtures import MakeWan


@contextlib.contextmanager
def connected(source: Host, target: Host, timeout_s: float = 10.0) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection."""
    with target.socket() as listener, source.socket() as client:
        for one in (listener, client):
            one.settimeout(timeout_s)
        listener.bind((target.address, 0))
        listener.listen()
        client.connect(listener.getsockname()[:2])
        with listener.accept()[0] as server:
            server.settimeout(timeout_s)
            yield client, server


def passes(sender: socket.socket, receiver: socket.socket, size: int = 5_000) -> bool:
    content = os.urandom(size)
    sending = threading.Thread(target=sender.sendall, args=(content,))
    sending.start()
    received = b""
    while len(received) < size:
        received += receiver.recv(65_536)
    sending.join()
    return received == content


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_host_behind_nat_connects_and_nobody_connects_to_it(make_wan: MakeWan, ipv6: bool) -> None:
    wan = make_wan("site1", "site2", "site3", ipv6=ipv6)
    site1, site3 = wan.hosts["site1"], wan.hosts["site3"]
    wan.nat("site3")
    with connected(site3, site1) as (client, server):
        assert server.getpeername()[0] == ("fd77::c8" if ipv6 else "10.77.0.200")
        assert passes(client, server)
        assert passes(server, client)
    with pytest.raises(TimeoutError), connected(site1, site3, 0.3):
        pass
    wan.restore()
    with connected(site1, site3) as (client, server):
        assert passes(client, server)


def test_connections_in_one_direction(wan: Wan) -> None:
    wan.refuse_connections("site1", "site2")
    with connected(wan.hosts["site2"], wan.hosts["site1"]) as (client, server):
        assert passes(client, server)
        assert passes(server, client)
    with pytest.raises(TimeoutError), connected(wan.hosts["site1"], wan.hosts["site2"], 0.3):
        pass


def test_a_firewall_forgets_what_is_idle_without_a_word(wan: Wan) -> None:
    wan.forget_idle(0.3)
    with connected(wan.hosts["site1"], wan.hosts["site2"], 0.5) as (client, server):
        assert passes(client, server)
        time.sleep(0.4)
        client.send(b"too late")
        with pytest.raises(TimeoutError):
            server.recv(100)
    with connected(wan.hosts["site1"], wan.hosts["site2"]) as (client, server):
        assert passes(client, server)


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_small_mtu_is_reported_to_the_sender(make_wan: MakeWan, ipv6: bool) -> None:
    wan = make_wan("a", "b", ipv6=ipv6)
    wan.mtu_all(1280)
    with connected(wan.hosts["a"], wan.hosts["b"]) as (client, server):
        assert passes(client, server, 100_000)
    link = wan.links()["a", "b"]
    assert 0 < link.dropped < link.passed


def test_a_rate_is_kept(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b")
    wan.rate_all(400)
    with connected(wan.hosts["a"], wan.hosts["b"]) as (client, server):
        began_s = time.monotonic()
        assert passes(client, server, 25_000)
        assert time.monotonic() - began_s >= 25_000 * 8 / 400_000


def test_a_host_moves(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b")
    wan.move("b", "10.77.0.99")
    with connected(wan.hosts["a"], wan.hosts["b"]) as (client, server):
        assert client.getpeername()[0] == "10.77.0.99"
        assert passes(server, client)
