"""What routers on the way do with packets: a firewall that knows connections, NAT, and a path that is too narrow.

Only what agents need: TCP and UDP over IPv4 and IPv6, without options and extension headers that nobody sends here.
"""

import socket
import struct
from typing import NamedTuple

_TCP, _UDP, _ICMP, _ICMP6 = 6, 17, 1, 58
_SYN, _ACK = 0x02, 0x10
_FIRST_PORT = 50_000  # of the public address of a NAT
_CHECKSUM_AT = {_TCP: 16, _UDP: 6}


class Flow(NamedTuple):
    """The ends of a connection, and whether this packet may begin it."""

    protocol: int
    source: tuple[bytes, bytes]  # address and port
    target: tuple[bytes, bytes]
    begins: bool = False


def flow_of(packet: bytes) -> Flow:
    protocol, start = protocol_of(packet)
    source, target = addresses_of(packet)
    begins = protocol != _TCP or packet[start + 13] & (_SYN | _ACK) == _SYN
    return Flow(protocol, (source, packet[start : start + 2]), (target, packet[start + 2 : start + 4]), begins)


def protocol_of(packet: bytes) -> tuple[int, int]:
    """The protocol of a packet, and where its own header begins."""
    return (packet[9], 4 * (packet[0] & 15)) if packet[0] >> 4 == 4 else (packet[6], 40)


def addresses_of(packet: bytes) -> tuple[bytes, bytes]:
    """Source and destination."""
    return (packet[12:16], packet[16:20]) if packet[0] >> 4 == 4 else (packet[8:24], packet[24:40])


class Connections:
    """The connections between two hosts, as a firewall between them knows them. What it does not know it drops without a
    word: no RST, no ICMP."""

    def __init__(self) -> None:
        self.is_watched = False
        self._seen_s: dict[Flow, float] = {}  # the last packet, by the flow that has opened it

    def let_through(self, flow: Flow, now: float, *, may_open: bool, idle_s: float) -> bool:
        back = Flow(flow.protocol, flow.target, flow.source)
        known = next((one for one in (flow._replace(begins=False), back) if one in self._seen_s), None)
        if known is not None and idle_s and now - self._seen_s[known] > idle_s:
            del self._seen_s[known]
            known = None
        if known is None and not (flow.begins and may_open):
            return False
        self._seen_s[known or flow._replace(begins=False)] = now
        return True


class Nat:
    """Hosts behind one public address. Others see that address with a port of the NAT, and can answer there; the address
    of the host itself leads nowhere."""

    def __init__(self, address: bytes) -> None:
        self.address = address
        self.hosts: dict[bytes, str] = {}  # the names, by their own addresses
        self._ports: dict[tuple[int, bytes, bytes], bytes] = {}  # by protocol, address and port of a host
        self._ends: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}  # the other way round

    def leaving(self, packet: bytes) -> bytes:
        """A packet of a host, as others see it."""
        flow = flow_of(packet)
        key = (flow.protocol, *flow.source)
        if key not in self._ports:
            port = struct.pack("!H", _FIRST_PORT + len(self._ports) % 15_000)
            self._ports[key] = port
            self._ends[flow.protocol, port] = flow.source
        return _rewritten(packet, 0, self.address, self._ports[key])

    def arriving(self, packet: bytes) -> tuple[str, bytes] | None:
        """The host that a packet is for, and the packet as it gets it; None if nobody is meant."""
        flow = flow_of(packet)
        end = self._ends.get((flow.protocol, flow.target[1]))
        name = self.hosts.get(end[0]) if end else None
        return (name, _rewritten(packet, 1, *end)) if end and name else None


def _rewritten(packet: bytes, which: int, address: bytes, port: bytes) -> bytes:
    """A packet with another source (0) or destination (1)."""
    changed = bytearray(packet)
    protocol, start = protocol_of(packet)
    size = len(address)
    at, port_at = (12 if size == 4 else 8) + which * size, start + 2 * which
    before = packet[at : at + size]
    checksum_at = start + _CHECKSUM_AT[protocol]
    _adjust(changed, checksum_at, before + packet[port_at : port_at + 2], address + port)
    if size == 4:
        _adjust(changed, 10, before, address)
    changed[at : at + size], changed[port_at : port_at + 2] = address, port
    return bytes(changed)


def _adjust(packet: bytearray, at: int, before: bytes, after: bytes) -> None:
    """Correct a checksum for words that change (RFC 1624)."""
    total = ~int.from_bytes(packet[at : at + 2]) & 0xFFFF
    for (old,), (new,) in zip(struct.iter_unpack("!H", before), struct.iter_unpack("!H", after), strict=True):
        total += (~old & 0xFFFF) + new
    packet[at : at + 2] = struct.pack("!H", ~_folded(total) & 0xFFFF)


def _folded(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _checksum(data: bytes) -> int:
    return ~_folded(sum(word for (word,) in struct.iter_unpack("!H", data + b"\0" * (len(data) % 2)))) & 0xFFFF


def too_big(packet: bytes, mtu_bytes: int) -> bytes:
    """What a router answers to the sender of a packet that is larger than the next link takes."""
    source, target = addresses_of(packet)
    if packet[0] >> 4 == 4:
        quoted = packet[: protocol_of(packet)[1] + 8]
        body = struct.pack("!BBHHH", 3, 4, 0, 0, mtu_bytes) + quoted
        body = body[:2] + struct.pack("!H", _checksum(body)) + body[4:]
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, _ICMP, 0, target, source)
        return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + body
    body = struct.pack("!BBHI", 2, 0, 0, mtu_bytes) + packet[:1_000]
    pseudo = target + source + struct.pack("!II", len(body), _ICMP6)
    body = body[:2] + struct.pack("!H", _checksum(pseudo + body)) + body[4:]
    return struct.pack("!IHBB16s16s", 0x60000000, len(body), _ICMP6, 64, target, source) + body


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
