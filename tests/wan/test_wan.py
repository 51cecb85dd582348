"""The bed does what its users rely on: the network obeys at once, and nothing of a bed outlives it."""

import errno
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.wan import Wan, WanError, missing
from tests.wan.datagrams import ends, reachable, reaches, until
from tests.wan.fixtures import MakeWan
from tests.wan.record import pids_inside, started

ALL = {"ab", "ba", "ac", "ca", "bc", "cb"}


def test_hosts_reach_each_other(wan: Wan) -> None:
    assert [host.address for host in wan.hosts.values()] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert reaches(wan, "site1", "site3")
    assert reaches(wan, "site3", "site1")


def test_a_cut_is_both_ways_or_one_way_and_heals(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b", "c")
    wan.cut("a", "b")
    assert reachable(wan) == ALL - {"ab", "ba"}
    wan.heal("b", "a")
    assert reachable(wan) == ALL
    wan.cut("a", "b", one_way=True)
    assert reachable(wan) == ALL - {"ab"}
    wan.isolate("c")
    assert reachable(wan) == {"ba"}
    wan.heal()
    assert reachable(wan) == ALL


def test_a_partition_leaves_each_group_to_itself(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b", "c")
    wan.cut("b", "c")
    wan.partition({"a"}, {"b", "c"})
    assert reachable(wan) == {"bc", "cb"}
    wan.partition({"b"})  # the others form a group
    assert reachable(wan) == {"ac", "ca"}
    wan.heal()
    assert reachable(wan) == ALL


def test_what_was_sent_into_a_cut_is_lost_for_good(wan: Wan) -> None:
    with ends(wan.hosts["site1"], wan.hosts["site2"]) as (sender, receiver):
        wan.cut("site1", "site2")
        sender.send(b"into the cut")
        wan.heal()
        sender.send(b"after")
        assert receiver.recv(100) == b"after"


def test_a_cut_takes_what_is_under_way(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b", delay_ms=40)
    with ends(wan.hosts["a"], wan.hosts["b"]) as (sender, receiver):
        sender.send(b"under way")
        wan.cut("a", "b")
        wan.heal()
        sender.send(b"after")
        assert receiver.recv(100) == b"after"
    assert wan.links()["a", "b"].dropped == 1


def test_a_delay_is_at_least_what_was_asked_in_each_direction(wan: Wan) -> None:
    wan.delay_all(15)
    wan.delay("site1", "site2", 30, one_way=True)
    with ends(wan.hosts["site1"], wan.hosts["site2"]) as (client, server):
        sent = time.monotonic()
        client.send(b"question")
        _, back = server.recvfrom(100)
        turned = time.monotonic()
        server.sendto(b"answer", back)
        client.recv(100)
        assert turned - sent >= 0.030
        assert time.monotonic() - turned >= 0.015


def test_packets_of_one_link_stay_in_order(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b", delay_ms=5)
    with ends(wan.hosts["a"], wan.hosts["b"]) as (sender, receiver):
        for number in range(100):
            sender.send(b"%d" % number)
        assert [int(receiver.recv(100)) for _ in range(100)] == list(range(100))


def arrived(wan: Wan, seed: int) -> list[bytes]:
    """What of a hundred datagrams gets through a link that loses three in ten."""
    with ends(wan.hosts["site1"], wan.hosts["site2"]) as (sender, receiver):
        wan.loss("site1", "site2", 0.3, seed=seed, one_way=True)
        for number in range(100):
            sender.send(b"%d" % number)
        wan.loss("site1", "site2", 0)
        sender.send(b"end")
        return list(iter(lambda: receiver.recv(100), b"end"))


def test_a_loss_takes_some_and_the_same_for_the_same_seed(wan: Wan) -> None:
    first = arrived(wan, seed=7)
    assert 0 < len(first) < 100
    assert arrived(wan, seed=7) == first
    assert arrived(wan, seed=8) != first


def test_loss_of_everything_and_of_nothing(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b", "c")
    wan.loss_all(1)
    assert reachable(wan) == set()
    wan.restore("a", "b")
    assert reachable(wan) == {"ab", "ba"}
    wan.loss_all(0)
    assert reachable(wan) == ALL


def test_restore_goes_back_to_the_first_rules(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b", delay_ms=3)
    before = wan.links()
    wan.delay("a", "b", 50)
    wan.loss("a", "b", 0.5)
    wan.cut("a", "b")
    wan.restore()
    assert wan.links() == before


def test_tcp_gets_through_loss_and_delay_unharmed(wan: Wan) -> None:
    wan.delay_all(1)
    wan.loss_all(0.01, seed=3)
    message = os.urandom(300_000)
    with wan.hosts["site1"].socket() as listener, wan.hosts["site2"].socket() as client:
        listener.bind((wan.hosts["site1"].address, 0))
        listener.listen()
        client.connect(listener.getsockname())
        sending = threading.Thread(target=client.sendall, args=(message,))
        sending.start()
        with listener.accept()[0] as server, server.makefile("rb") as stream:
            assert stream.read(len(message)) == message
        sending.join()
    assert sum(link.dropped for link in wan.links().values()) > 0


def test_two_beds_do_not_see_each_other(make_wan: MakeWan) -> None:
    one, two = make_wan("a", "b"), make_wan("a", "b")
    assert one.hosts["b"].address == two.hosts["b"].address
    one.cut("a", "b")
    assert reachable(one) == set()
    assert reachable(two) == {"ab", "ba"}
    assert one.links()["a", "b"].passed == 0
    one.close()
    assert reachable(two) == {"ab", "ba"}


def test_programs_run_in_their_host(wan: Wan) -> None:
    shown = wan.hosts["site2"].run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    assert "inet 10.77.0.2/24" in shown
    assert "inet 127.0.0.1/8" in shown
    assert "inet6" not in shown
    assert len(shown.splitlines()) == 2


def test_a_host_reaches_neither_the_machine_nor_the_world(wan: Wan) -> None:
    own = subprocess.run(["ip", "-oneline", "-4", "address"], capture_output=True, text=True, check=True)
    addresses = {line.split()[3].partition("/")[0] for line in own.stdout.splitlines()} | {"192.0.2.1"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for address in addresses:
            with wan.hosts["site1"].socket() as client:
                seen = client.connect_ex((address, listener.getsockname()[1]))
            expected = errno.ECONNREFUSED if address.startswith("127.") else errno.ENETUNREACH
            assert seen == expected, (address, os.strerror(seen))
    assert "wan0" not in {name for _, name in socket.if_nameindex()}


def test_a_process_is_in_its_host_from_its_first_moment(wan: Wan) -> None:
    own = Path("/proc/thread-self/ns/net")
    home = own.stat()
    process = wan.hosts["site1"].popen(["sleep", "1000"])
    assert pids_inside(wan.record) == [process.pid]  # so that none is missed when the bed ends just then
    with pytest.raises(FileNotFoundError):
        wan.hosts["site1"].popen(["no-such-program"])
    assert own.stat().st_ino == home.st_ino  # and this test is back at home


def test_all_processes_in_a_bed_end_with_it(make_wan: MakeWan) -> None:
    wan = make_wan("a", "b")
    record = wan.record
    script = "setsid sleep 1000 & exec sleep 1000"  # the first one has left its family behind
    process = wan.hosts["a"].popen(["sh", "-c", script], stdout=subprocess.PIPE)
    until(lambda: len(pids_inside(record)) == 2, "both processes run in the host")
    pids = pids_inside(record)
    wan.close()
    assert process.returncode is not None
    assert process.stdout
    assert process.stdout.closed
    assert [pid for pid in pids if started(pid) is not None] == []
    assert not any(path.exists() for path in [*record.namespaces, record.path, record.control_path])


def test_a_bed_whose_switch_was_killed_says_so_and_is_still_cleared_away() -> None:
    if lacking := missing():
        pytest.skip(lacking)
    with Wan(2) as wan:
        record = wan.record
        switch = wan._switch
        assert switch is not None
        switch.kill()
        switch.wait()
        with pytest.raises(WanError, match="switch of the bed"):
            wan.cut("site1", "site2")
        assert all(path.exists() for path in record.namespaces)
    assert not any(path.exists() for path in [*record.namespaces, record.path, record.control_path])


def test_a_bed_of_many_hosts(make_wan: MakeWan) -> None:
    wan = make_wan(*(f"a-site-with-name-{number:03}" for number in range(32)))
    wan.partition(wan.names[:16])
    wan.delay_all(100 / 3)  # numbers that are long when they are written
    wan.loss_all(1 / 3)
    wan.rate_all(1000 / 3)
    wan.mtu_all(1280)
    wan.forget_idle(100 / 3)
    links = wan.links()
    assert len(links) == 32 * 31
    assert sum(link.cut for link in links.values()) == 2 * 16 * 16
    assert {(link.loss, link.mtu_bytes, link.opens) for link in links.values()} == {(1 / 3, 1280, True)}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "1 to 32 hosts"),
        (33, "1 to 32 hosts"),
        (["a", "a"], "same name"),
        (["../a"], "cannot be the name"),
        (["a" * 21], "cannot be the name"),
    ],
)
def test_names_that_cannot_be(names: list[str] | int, words: str) -> None:
    with pytest.raises(WanError, match=words):
        Wan(names)


def test_what_makes_no_sense_is_refused(wan: Wan) -> None:
    before = wan.links()
    with pytest.raises(WanError, match=r"no host 'site9' in this bed; it has site1, site2, site3"):
        wan.cut("site1", "site9")
    with pytest.raises(WanError, match="to itself"):
        wan.delay("site1", "site1", 5)
    with pytest.raises(WanError, match="milliseconds from 0 on"):
        wan.delay_all(float("nan"))
    with pytest.raises(WanError, match="share from 0"):
        wan.loss("site1", "site2", 30)
    with pytest.raises(WanError, match="two groups"):
        wan.partition({"site1"}, {"site1", "site2"})
    with pytest.raises(WanError, match="two hosts, or none"):
        wan.heal("site1")
    with pytest.raises(WanError, match="does not understand"):
        wan.ask({"do": "rest"})
    assert wan.links() == before


def test_a_bed_that_is_not_up_says_so() -> None:
    with pytest.raises(WanError, match="not up; use it as"):
        Wan(2).heal()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("tests.wan.bed.ip_command", lambda: None)
    lacking = missing()
    assert lacking is not None
    assert lacking.startswith(
        "the WAN test bed needs root and iproute2; here this is not root and there is no command 'ip'"
    )
    with pytest.raises(WanError, match="needs root and iproute2"):
        Wan(2).start()
