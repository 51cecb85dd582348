"""The verbs that change the network of a bed, the same for tests and for the command line.

Each is one message to the switch, which has carried it out when the call returns: what a host sent before the
call is judged by the old rules, what it sends after by the new ones. Links have a direction; unless `one_way`
is given, both directions between two hosts change.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from tests.wan.record import Record, WanError
from tests.wan.wire import Change

MAX_MESSAGE_BYTES = 200_000  # what a socket takes in one message
ANSWER_TIMEOUT_S = 30.0

Pair = tuple[str, str]


@dataclass(frozen=True)
class LinkStatus:
    """How one direction stands, and how many packets it has passed on and dropped so far."""

    source: str
    target: str
    cut: bool
    delay_ms: float
    loss: float
    rate_kbit: float
    mtu_bytes: int
    opens: bool
    idle_s: float
    passed: int
    dropped: int


class Controls:
    """Steers the network between `names` over a connection to the switch."""

    def __init__(self, names: tuple[str, ...], delay_ms: float, connection: socket.socket | None = None) -> None:
        self.names = names
        self.delay_ms = _checked_delay(delay_ms)
        self._connection = connection
        self._one_at_a_time = threading.Lock()

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing gets from a to b any more, nor back; with `one_way` only what a sends to b is lost."""
        self._change((self._pairs(a, b, one_way), Change(cut=True)))

    def isolate(self, name: str) -> None:
        """Cut a host off from all others."""
        self._change(([pair for pair in self._all() if self._known(name) in pair], Change(cut=True)))

    def partition(self, *groups: Iterable[str]) -> None:
        """Let each group reach only itself, whatever was cut before; hosts not named form one more group."""
        place: dict[str, int] = {}
        for number, group in enumerate(groups):
            for name in group:
                if place.setdefault(self._known(name), number) != number:
                    raise WanError(f"'{name}' is in two groups of the partition; a host is on one side only")
        apart = [(a, b) for a, b in self._all() if place.get(a) != place.get(b)]
        together = [pair for pair in self._all() if pair not in set(apart)]
        self._change((apart, Change(cut=True)), (together, Change(cut=False)))

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """End the cuts between two hosts, or all cuts; delays and losses stay."""
        self._change((self._between(a, b), Change(cut=False)))

    def delay(self, a: str, b: str, delay_ms: float, *, one_way: bool = False) -> None:
        """Let each packet take that long, one way; so the round trip takes twice as long."""
        self._change((self._pairs(a, b, one_way), Change(delay_ms=_checked_delay(delay_ms))))

    def delay_all(self, delay_ms: float) -> None:
        self._change((self._all(), Change(delay_ms=_checked_delay(delay_ms))))

    def loss(self, a: str, b: str, rate: float, *, seed: int = 0, one_way: bool = False) -> None:
        """Lose that share of the packets (0 to 1), the same ones for the same seed."""
        self._change((self._pairs(a, b, one_way), Change(loss=_checked_rate(rate), seed=seed)))

    def loss_all(self, rate: float, *, seed: int = 0) -> None:
        self._change((self._all(), Change(loss=_checked_rate(rate), seed=seed)))

    def rate_all(self, kbit: float) -> None:
        """Let each direction carry that many kbit/s, with a queue of one second; 0 for no limit."""
        self._change((self._all(), Change(rate_kbit=kbit)))

    def mtu_all(self, most_bytes: int) -> None:
        """Let no larger packets through; routers say so to their senders. 0 for no limit."""
        self._change((self._all(), Change(mtu_bytes=most_bytes)))

    def refuse_connections(self, a: str, b: str) -> None:
        """A firewall drops connections that a opens to b. Those that b opens work in both directions."""
        self._change((self._pairs(a, b, one_way=True), Change(opens=False)))

    def forget_idle(self, idle_s: float) -> None:
        """Firewalls everywhere forget connections that are idle for so long, and drop what comes then. They know none of
        those that there are now."""
        self._change((self._all(), Change(idle_s=idle_s)))

    def nat(self, *names: str) -> None:
        """Put hosts behind one NAT: others see its address, and can open no connections to them."""
        inside = [self._known(name) for name in names]
        into = [(a, b) for a, b in self._all() if b in inside and a not in inside]
        self._change((into, Change(opens=False)))
        self.ask({"do": "nat", "hosts": inside})

    def restore(self, a: str | None = None, b: str | None = None) -> None:
        """Put two hosts, or all, back as the bed started: no cut, no loss, no firewall, the first delay."""
        plain = Change(False, self.delay_ms, 0.0, rate_kbit=0.0, mtu_bytes=0, opens=True, idle_s=0.0)
        self._change((self._between(a, b), plain))
        if a is None:
            self.ask({"do": "nat", "hosts": []})

    def links(self) -> dict[Pair, LinkStatus]:
        """How every direction stands, by (source, target)."""
        statuses = [LinkStatus(*link) for link in self.ask({"do": "status"})["links"]]
        return {(status.source, status.target): status for status in statuses}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one message to the switch and wait for its answer."""
        with self._one_at_a_time:
            try:
                self._connected().sendall(json.dumps(request).encode())
            except OSError as error:
                raise WanError(f"the switch of the bed does not listen: {error}") from None
            return self._hear()

    def _hear(self) -> dict[str, Any]:
        try:
            text = self._connected().recv(MAX_MESSAGE_BYTES)
        except OSError as error:
            raise WanError(f"the switch of the bed does not answer: {error}") from None
        if not text:
            raise WanError("the switch of the bed has ended; what it printed on standard error says why")
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise WanError(answer["error"])
        return answer

    def _connected(self) -> socket.socket:
        if self._connection is None:
            raise WanError("the bed is not up; use it as `with Wan([...]) as wan:`")
        return self._connection

    def _change(self, *changes: tuple[list[Pair], Change]) -> None:
        listed = [{"links": links, "change": asdict(change)} for links, change in changes]
        self.ask({"do": "change", "changes": listed})

    def _between(self, a: str | None, b: str | None) -> list[Pair]:
        if a is None and b is None:
            return self._all()
        if a is None or b is None:
            raise WanError("name two hosts, or none for all")
        return self._pairs(a, b, one_way=False)

    def _pairs(self, a: str, b: str, one_way: bool) -> list[Pair]:
        if self._known(a) == self._known(b):
            raise WanError(f"a link leads from a host to another one, not from '{a}' to itself")
        return [(a, b)] if one_way else [(a, b), (b, a)]

    def _all(self) -> list[Pair]:
        return [(a, b) for a in self.names for b in self.names if a != b]

    def _known(self, name: str) -> str:
        if name not in self.names:
            raise WanError(f"there is no host '{name}' in this bed; it has {', '.join(self.names)}")
        return name


@contextlib.contextmanager
def controls_of(record: Record) -> Iterator[Controls]:
    """Steer a bed that another process made."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            connection.connect(str(record.control_path))
        except OSError as error:
            raise WanError(f"cannot reach the switch of bed {record.bed}: {error}") from None
        yield Controls(tuple(record.addresses), record.delay_ms, connection)


def _checked_delay(delay_ms: float) -> float:
    if not isfinite(delay_ms) or delay_ms < 0:
        raise WanError(f"a delay is a number of milliseconds from 0 on, not {delay_ms}")
    return delay_ms


def _checked_rate(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise WanError(f"a loss is a share from 0 (none) to 1 (all), not {rate}")
    return rate
