"""A wide-area network on one machine: hosts as network namespaces, and a switch process between them.

    with Wan(["paris", "lyon", "brest"], delay_ms=25) as wan:
        server = wan.hosts["paris"].popen(["redis-server", "--bind", wan.hosts["paris"].address])
        wan.cut("paris", "lyon")

Whatever way the block ends, kill -9 included, the namespaces and all processes in them go with it. Beds do not
see each other, so many may stand side by side with the same addresses.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import fork_server
from tests.wan.controls import ANSWER_TIMEOUT_S, Controls
from tests.wan.firewall import packed
from tests.wan.record import NAMESPACES, Record, WanError, ip_command, new_record, remove
from tests.wan.tun import DEVICE, PREFIX_BITS, inside

MAX_HOSTS = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,19}")
_ROOT = Path(__file__).parents[2]
_END_TIMEOUT_S = 60.0
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


class Host:
    """A machine of the bed: an address, a loopback of its own, and the processes started in it."""

    def __init__(self, name: str, address: str, namespace: str) -> None:
        self.name = name
        self.address = address
        self.namespace = namespace
        self._path = NAMESPACES / namespace
        self._started: list[subprocess.Popen[Any] | fork_server.ForkedProcess] = []

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in this host, with the options of subprocess.Popen; it ends with the bed.

        It is in the namespace from its first moment. `ip netns exec` would move it there a little later, and a bed that
        kills all its processes in between would miss it.
        """
        with inside(self._path):
            process = subprocess.Popen(argv, **options)
        self._started.append(process)
        return process

    def agent(self, arguments: list[str], output: int, hosts_file: Path | None = None) -> fork_server.ForkedProcess:
        """Start an agent in this host, see tests/support/fork_server.py; it ends with the bed."""
        process = fork_server.start_agent(arguments, output, self._path, hosts_file)
        self._started.append(process)
        return process

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Let the calling thread be in this host for a while."""
        return inside(self._path)

    def run(self, argv: Sequence[str], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a process in this host to its end, with the options of subprocess.run."""
        with inside(self._path):
            return subprocess.run(argv, check=check, **options)

    def socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """A socket of this host for use in this process: a test can speak from any host."""
        with inside(self._path):
            return socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET, kind)

    def end_processes(self) -> None:
        """Kill what was started here, and close its pipes; their own children go with the bed."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    with contextlib.suppress(BrokenPipeError):  # what nobody is left to read
                        pipe.close()
        self._started.clear()


class Wan(Controls):
    """The bed: its hosts by name, and the verbs of `Controls`. Up while used as a context manager."""

    def __init__(
        self, names: Sequence[str] | int = 3, *, delay_ms: float = 0.0, by_hand: bool = False, ipv6: bool = False
    ) -> None:
        chosen = [f"site{number}" for number in range(1, names + 1)] if isinstance(names, int) else names
        super().__init__(_checked(tuple(chosen)), delay_ms)
        self.hosts: dict[str, Host] = {}
        self._by_hand = by_hand
        self._prefix = "fd77::" if ipv6 else "10.77.0."
        self._record: Record | None = None
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bed(self) -> str:
        """The short id by which the command line and the names of the namespaces know this bed."""
        return self.record.bed

    @property
    def record(self) -> Record:
        if self._record is None:
            raise WanError("the bed is not up; use it as `with Wan([...]) as wan:`")
        return self._record

    def start(self) -> None:
        if self._record:
            raise WanError(f"the bed {self.bed} is up already")
        if lacking := missing():
            raise WanError(lacking)
        addresses = {
            name: f"{self._prefix}{number:{'x' if ':' in self._prefix else ''}}"
            for number, name in enumerate(self.names, 1)
        }
        self._record = new_record(addresses, delay_ms=self.delay_ms, by_hand=self._by_hand)
        self.hosts = {name: Host(name, address, self.record.namespace(name)) for name, address in addresses.items()}
        try:
            self._start_switch()
        except BaseException:
            self.close()
            raise

    def _start_switch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection = ours
        ours.settimeout(ANSWER_TIMEOUT_S)
        with theirs:
            argv = [sys.executable, "-E", "-S", "-m", "tests.wan.switch", self.bed, str(theirs.fileno())]
            self._switch = subprocess.Popen(
                argv,
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._hear()  # its first word says that all hosts are up

    def move(self, name: str, address: str) -> None:
        """Give a host another address instead of its own; its connections end without a word."""
        host = self.hosts[self._known(name)]
        bits = PREFIX_BITS[len(packed(address))]
        # In this order: with the first address of a network all others of that network go.
        commands = ((f"{host.address}/{bits}", "delete"), (f"{address}/{bits}", "add"))
        for which, verb in commands:
            host.run([ip_command() or "ip", "address", verb, which, "dev", DEVICE], check=True)
        self.ask({"do": "move", "host": name, "address": address})
        host.address = address

    def wait(self) -> None:
        """Return when somebody else has taken the bed down."""
        if self._switch:
            self._switch.wait()

    def close(self) -> None:
        """Kill what runs in the hosts and take the bed down; doing it twice does no harm."""
        if self._record is None:
            return
        for host in self.hosts.values():
            host.end_processes()
        if self._connection:
            self._connection.close()  # which tells the switch to end and to clean up
        if self._switch:
            self._switch.wait(_END_TIMEOUT_S)
        if self._record.path.exists():  # unless something killed it
            remove(self._record)
        self._connection, self._switch, self._record = None, None, None


def _checked(names: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(names) <= MAX_HOSTS:
        raise WanError(f"a bed has 1 to {MAX_HOSTS} hosts, not {len(names)}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise WanError(
                f"'{name}' cannot be the name of a host: up to 20 of a-z, 0-9, - and _, a letter or digit first"
            )
    if len(set(names)) < len(names):
        raise WanError(f"two hosts have the same name: {', '.join(names)}")
    return names


def missing() -> str | None:
    """What this machine lacks for a bed, in words; None if a bed can be made."""
    lacking = []
    if os.geteuid() != 0:
        lacking.append("this is not root")
    elif not _may_administer_networks():
        lacking.append("this root may not administer networks (CAP_NET_ADMIN and CAP_SYS_ADMIN)")
    if ip_command() is None:
        lacking.append("there is no command 'ip'")
    if not Path("/dev/net/tun").exists():
        lacking.append("there is no /dev/net/tun")
    return f"the WAN test bed needs root and iproute2; here {' and '.join(lacking)}" if lacking else None


def _may_administer_networks() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(re.search(r"CapEff:\s*([0-9a-f]+)", status)[1], 16)  # type: ignore[index]  # always there
    return all(effective >> capability & 1 for capability in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN))
