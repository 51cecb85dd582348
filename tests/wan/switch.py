"""The process between the hosts of a bed: takes what each sends, and passes it on by the rules of the links.

It owns all that a bed is made of and takes it away when it ends: when its owner says so, hangs up or dies (of
whatever: the kernel tells through a pidfd), on SIGTERM, or when somebody stops the bed by hand. It runs in a
session of its own, so that what kills the owner's group leaves it the time to clean up.

It sleeps in select(), not in epoll: epoll rounds waiting times up to whole milliseconds, which would be added to
every delay.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from tests.wan.controls import MAX_MESSAGE_BYTES, LinkStatus
from tests.wan.firewall import Nat, addresses_of, packed, too_big
from tests.wan.record import NAMESPACES, Record, WanError, ip_batch, read_record, remove, started
from tests.wan.tun import MTU_BYTES, PREFIX_BITS, QUEUE_PACKETS, inside, open_tun
from tests.wan.wire import Change, Link, Wire

_BATCH = 64  # packets taken from one host before the others have their turn


@dataclass
class Port:
    """Where the switch meets one host: its file, its address, and the link towards each address."""

    tun: int
    address: bytes
    links: dict[bytes, Link]


class Switch:
    """Select, forward, deliver, answer; ends when `stopping`."""

    def __init__(self, record: Record, owner: socket.socket) -> None:
        self.stopping = False
        self._wire = Wire(tuple(record.addresses), record.delay_ms)
        self._ports = _make_hosts(record, self._wire)
        self._nat = Nat(packed(record.nat_address))
        self._name_of = {port.address: name for name, port in self._ports.items()}
        self._tun_of = {name: port.tun for name, port in self._ports.items()}
        self._actions: dict[str, Callable[..., dict[str, Any]]] = {
            "status": self._status,
            "change": self._change,
            "nat": self._set_nat,
            "move": self._move,
            "stop": self._stop,
        }
        self._readers: dict[int, Callable[[], object]] = {
            port.tun: partial(self._forward, port, _BATCH) for port in self._ports.values()
        }
        self._listen(record)
        self._add_client(owner, is_owner=True)
        self._readers[_watch(record)] = self._stop

    def run(self) -> None:
        while not self.stopping:
            for link, packet in self._wire.due(time.monotonic()):
                self._deliver(link, packet)
            for file in select.select(list(self._readers), (), (), self._idle_s())[0]:
                if reader := self._readers.get(file):  # not one that hung up in this very round
                    reader()

    def _idle_s(self) -> float | None:
        due = self._wire.next_due()
        return None if due is None else max(0.0, due - time.monotonic())

    def _forward(self, port: Port, most: int) -> None:
        for _ in range(most):
            try:
                packet = os.read(port.tun, MTU_BYTES)
            except BlockingIOError:
                return
            now = time.monotonic()
            to = addresses_of(packet)[1]
            link = port.links.get(to)
            if to == self._nat.address and (found := self._nat.arriving(packet)) is not None:
                link, packet = self._wire.links[self._name_of[port.address], found[0]], found[1]
            elif link is not None and to in self._nat.hosts and port.address not in self._nat.hosts:
                link.dropped += 1  # an address behind the NAT
                continue
            if link is None:
                continue  # a broadcast, or an address nobody has: on this network that is nowhere
            if link.mtu_bytes and len(packet) > link.mtu_bytes:
                link.dropped += 1
                os.write(port.tun, too_big(packet, link.mtu_bytes))
            elif link.carries_next(packet, now):
                if port.address in self._nat.hosts and to not in self._nat.hosts:
                    packet = self._nat.leaving(packet)
                self._send(link, packet, now)

    def _send(self, link: Link, packet: bytes, now: float) -> None:
        due_s = link.arrives_s(packet, now)
        if due_s is not None and due_s > now:
            self._wire.hold(link, packet, due_s)
        elif due_s is not None:
            self._deliver(link, packet)

    def _deliver(self, link: Link, packet: bytes) -> None:
        try:
            os.write(self._tun_of[link.target], packet)
        except OSError:  # the host took its device down
            link.dropped += 1
        else:
            link.passed += 1

    def _listen(self, record: Record) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(record.control_path))
        listener.listen()
        self._readers[listener.fileno()] = lambda: self._add_client(listener.accept()[0])

    def _add_client(self, client: socket.socket, *, is_owner: bool = False) -> None:
        client.setblocking(False)  # whoever does not take its answer is hung up on: the network goes on
        self._readers[client.fileno()] = lambda: self._serve(client, is_owner)

    def _serve(self, client: socket.socket, is_owner: bool) -> None:
        try:
            request = client.recv(MAX_MESSAGE_BYTES)
            if request:
                client.sendall(json.dumps(self._answer(request)).encode())
                return
        except OSError:
            pass  # hung up in the middle: as if after
        del self._readers[client.fileno()]
        client.close()
        self.stopping |= is_owner

    def _answer(self, text: bytes) -> dict[str, Any]:
        try:
            request = json.loads(text)
            self._catch_up()
            return self._actions[request.pop("do")](**request)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return {"error": f"the switch does not understand this: {error!r}"}

    def _catch_up(self) -> None:
        """Take all that was sent before a request: it goes by the rules, and into the figures, of then."""
        for port in self._ports.values():
            self._forward(port, 2 * QUEUE_PACKETS)

    def _status(self) -> dict[str, Any]:
        return {"links": [_status_of(link) for link in self._wire.links.values()]}

    def _stop(self) -> dict[str, Any]:
        self.stopping = True
        return {}

    def _change(self, changes: list[dict[str, Any]]) -> dict[str, Any]:
        for part in changes:
            change = Change(**part["change"])
            for source, target in part["links"]:
                self._wire.change(self._wire.links[source, target], change)
        return {}

    def _move(self, host: str, address: str) -> dict[str, Any]:
        moved = self._ports[host]
        del self._name_of[moved.address]
        for port in self._ports.values():
            if port is not moved:
                port.links[packed(address)] = port.links.pop(moved.address)
        moved.address = packed(address)
        self._name_of[moved.address] = host
        return {}

    def _set_nat(self, hosts: list[str]) -> dict[str, Any]:
        self._nat.hosts = {self._ports[name].address: name for name in hosts}
        return {}


def _status_of(link: Link) -> tuple[object, ...]:
    """Without the names of the fields: a bed of 32 hosts has 992 links, and they must fit into one message."""
    status = LinkStatus(
        source=link.source,
        target=link.target,
        cut=link.cut,
        delay_ms=link.delay_s * 1000,
        loss=link.loss,
        rate_kbit=link.rate_kbit,
        mtu_bytes=link.mtu_bytes,
        opens=link.opens,
        idle_s=link.idle_s,
        passed=link.passed,
        dropped=link.dropped,
    )
    return astuple(status)


def _make_hosts(record: Record, wire: Wire) -> dict[str, Port]:
    complaints = ip_batch([f"netns add {path.name}" for path in record.namespaces])
    if complaints:
        raise WanError(f"cannot make network namespaces: {complaints}")
    ports = {}
    for name, address in record.addresses.items():
        with inside(NAMESPACES / record.namespace(name)):
            tun = open_tun(address, PREFIX_BITS[len(packed(address))])
        links = {
            packed(other): wire.links[name, target] for target, other in record.addresses.items() if target != name
        }
        ports[name] = Port(tun, packed(address), links)
    return ports


def _watch(record: Record) -> int:
    """A file that becomes readable when the owner ends."""
    pidfd = os.pidfd_open(record.owner_pid)
    if started(record.owner_pid) != record.owner_start:  # it ended just now, and the id went to another
        raise ProcessLookupError
    return pidfd


@contextlib.contextmanager
def _cleaning_up(record: Record) -> Iterator[None]:
    def end(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up is quick, and is not to be cut short
        remove(record)


def _go_first() -> None:
    """Be woken in time also on a busy machine: what comes late here would look like a slower network."""
    with contextlib.suppress(PermissionError):  # some containers do not allow it: then delays are less exact
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main(bed: str, owner_fd: str) -> None:
    record = read_record(bed)
    owner = socket.socket(fileno=int(owner_fd))
    with _cleaning_up(record):
        try:
            switch = Switch(record, owner)
        except ProcessLookupError:
            return  # the owner is gone already
        except (OSError, WanError) as error:
            owner.sendall(json.dumps({"error": f"cannot set up the bed: {error}"}).encode())
            return
        _go_first()
        owner.sendall(b"{}")
        switch.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
