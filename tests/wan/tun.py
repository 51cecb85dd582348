"""Network namespaces and TUN devices, by system calls: a process per setting would cost more than the bed does.

A host's only device is a TUN device: what the host sends is read from a file as IP packets, what is written
there the host receives. There is no Ethernet, hence no ARP and no broadcast: only what programs send goes over
the wire. The device is made inside the namespace, so the machine's own network never sees it.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

DEVICE = "wan0"
MTU_BYTES = 1500
PREFIX_BITS = {4: 24, 16: 64}  # by the length of an address
QUEUE_PACKETS = 1000  # what a host may send while the switch is busy; more is lost, as on a real network card

_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_MS_BIND, _MS_PRIVATE, _MS_REC = 0x1000, 0x40000, 0x4000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_IFF_UP = 0x1
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8922, 0x8943
_SIOCGIFINDEX = 0x8933
_TENTATIVE = 0x40  # an address that the kernel still checks
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """Let the calling thread, and no other, be in a network namespace; what it opens or starts there stays there."""
    with Path("/proc/thread-self/ns/net").open("rb") as home, namespace.open("rb") as there:
        _set_namespace(there.fileno())
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def enter(namespace: Path) -> None:
    """Go into a network namespace to stay."""
    with namespace.open("rb") as there:
        _set_namespace(there.fileno())


def _set_namespace(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def see_as_hosts(hosts_file: Path) -> None:
    """Let this process, and those that it starts, see a file as /etc/hosts. It may be written to meanwhile."""
    if (
        _libc.unshare(_CLONE_NEWNS)
        or _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        or _libc.mount(bytes(hosts_file), b"/etc/hosts", None, _MS_BIND, None)
    ):
        raise OSError(ctypes.get_errno(), "cannot give a process its own /etc/hosts")


def open_tun(address: str, prefix_bits: int) -> int:
    """Make this namespace a host with that address; gives the file of what it sends and receives."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, _TUNSETIFF, _request(DEVICE, struct.pack("H", _IFF_TUN | _IFF_NO_PI)))
    is_ipv6 = ":" in address
    _set_up_ipv6(is_ipv6)
    with socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fd = any_socket.fileno()
        if not is_ipv6:
            netmask = socket.inet_ntoa(struct.pack("!I", (0xFFFFFFFF << (32 - prefix_bits)) & 0xFFFFFFFF))
            fcntl.ioctl(fd, _SIOCSIFADDR, _request(DEVICE, _internet(address)))
            fcntl.ioctl(fd, _SIOCSIFNETMASK, _request(DEVICE, _internet(netmask)))
        fcntl.ioctl(fd, _SIOCSIFMTU, _request(DEVICE, struct.pack("i", MTU_BYTES)))
        fcntl.ioctl(fd, _SIOCSIFTXQLEN, _request(DEVICE, struct.pack("i", QUEUE_PACKETS)))
        for device in ("lo", DEVICE):
            fcntl.ioctl(fd, _SIOCSIFFLAGS, _request(device, struct.pack("H", _IFF_UP)))
        if is_ipv6:
            index = fcntl.ioctl(fd, _SIOCGIFINDEX, _request(DEVICE, b""))[16:20]
            prefix = struct.pack("I", prefix_bits)
            fcntl.ioctl(fd, _SIOCSIFADDR, socket.inet_pton(socket.AF_INET6, address) + prefix + index)
            while _is_tentative():  # until then nothing is sent from it
                time.sleep(0.001)
    return tun


def _request(device: str, value: bytes) -> bytes:
    return struct.pack("16s24s", device.encode(), value)  # struct ifreq: a name and a union


def _internet(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))  # struct sockaddr_in


def _set_up_ipv6(is_used: bool) -> None:
    """Without it, where it cannot be switched off, hosts only see it on their loopback: the switch passes none on. With
    it a host has no address but the one that it is given."""
    for which in ("all", "default", DEVICE):
        folder = Path(f"/proc/sys/net/ipv6/conf/{which}")
        with contextlib.suppress(OSError):
            (folder / "addr_gen_mode" if is_used else folder / "disable_ipv6").write_text("1")


def _is_tentative() -> bool:
    lines = Path("/proc/thread-self/net/if_inet6").read_text().splitlines()
    return any(int(line.split()[4], 16) & _TENTATIVE for line in lines)
