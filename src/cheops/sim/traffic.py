"""What an operation costs in messages and bytes: counted in a world without faults, so it depends on no machine."""

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256

from msgspec import structs

from cheops.engine.events import Outcome, Result, Run, Save, Send, Submitted
from cheops.engine.settings import Limits, Settings
from cheops.engine.status import Overall, status
from cheops.log.operation import Command, Kind, Timing
from cheops.peers.links import packed, unpack
from cheops.sim.apps import COUNTER
from cheops.sim.node import Node
from cheops.sim.wire import Wire
from cheops.sim.workload import PROFILES, Profile
from cheops.sim.world import World

# The budgets: what one operation may take for each site of its resource.
MESSAGES_PER_SITE = 4
BYTES_PER_SITE = 2_000

_RESOURCE = "counter-0"
_START_MS = 3_000  # until all sites have heard each other
_PAUSE_MS = 5_000  # between two operations: each ends before the next one begins
_STEP_MS = 20
_INCARNATION_DIGITS = 12  # of the origin of an agent
_EPOCH_MS = 1_700_000_000_000  # a time of today, which takes more bytes than one of the simulator
_APP = replace(COUNTER, type=replace(COUNTER.type, checkpoint=None))  # without seals: they are other operations


@dataclass(frozen=True)
class Traffic:
    """Per operation. Documents are operations and replies."""

    messages: float
    documents: float
    bytes: float  # as agents send them, without TLS
    converged_ms: float  # until every site says so; the longest


class CountedWorld(World):
    """Counts what sites send. Origins and times are as long as those of agents."""

    def __init__(self, seed: int, names: tuple[str, ...], profile: Profile, *, output_lines: int, signed: bool) -> None:
        self._output_lines = output_lines
        self.sent: Counter[str] = Counter()
        self._wire = Wire(names, lambda _site: 0, lambda _here, _site: None)
        self._is_signed = signed
        super().__init__(seed, names, profile)

    def restart(self, name: str) -> None:
        self.nodes[name].disk.incarnation = sha256(name.encode()).hexdigest()[:_INCARNATION_DIGITS]
        super().restart(name)

    def settings(self, profile: Profile) -> Settings:
        """As in production: the limits decide how often something is sent."""
        del profile
        return Settings({_APP.name: _APP.type}, Limits())

    def prepare_save(self, node: Node, save: Save) -> None:
        if self._is_signed:
            self._wire.sign(node, save)

    def execute(self, node: Node, run: Run, trouble: float) -> tuple[Outcome, ...]:
        done = super().execute(node, run, trouble)
        lines = (sha256(f"{node.name} {self.now_ms} {n}".encode()).hexdigest() for n in range(self._output_lines))
        output, timing = "\n".join(lines), Timing(_EPOCH_MS + self.now_ms, 3 + len(node.name))
        return tuple(
            structs.replace(one, output=output, timing=timing) if one.result is Result.OK else one for one in done
        )

    def send(self, node: Node, send: Send) -> None:
        if self._is_signed:  # the receiver passes on what it has got
            send = Send(send.peer, self._wire.with_report(node.name, send.message))
        self.sent["messages"] += 1
        self.sent["documents"] += len(send.message.ops) + len(send.message.replies)
        self.sent["bytes"] += self._size(node.name, send)
        super().send(node, send)

    def _size(self, site: str, send: Send) -> int:
        """The bytes of a message, which its receiver can read."""
        body = packed(site, [send.message], send.peer, self._wire.tables(site, send.peer))
        unpacked = unpack(body, lambda sender: self._wire.tables(send.peer, sender))
        if unpacked.is_unknown or unpacked.refused or len(unpacked.messages) != 1:
            raise AssertionError(f"{send.peer} cannot read what {site} has sent: {unpacked.refused}")
        return len(body)


def measure(
    sites: int,
    operations: int = 5,
    delay_ms: tuple[int, int] = (1, 5),
    *,
    output_lines: int = 0,
    signed: bool = False,
) -> Traffic:
    """Submit operations at the first of these sites, one after the other, and count. A command prints so many lines of
    64 characters, which differ from site to site."""
    profile = replace(PROFILES["calm"], delay_ms=delay_ms, operations=1_000, tiny=0)
    names = tuple(f"site{number}" for number in range(1, sites + 1))
    world = CountedWorld(1, names, profile, output_lines=output_lines, signed=signed)
    world.apps[_RESOURCE] = _APP
    world.run_until(world.now_ms + _START_MS)
    longest_ms = 0
    for number in range(operations + 1):
        _submit(world, names, number)
        took_ms = _wait(world)
        if number == 0:
            world.sent.clear()  # the first one makes the resource
        else:
            longest_ms = max(longest_ms, took_ms)
    sent = {what: count / operations for what, count in world.sent.items()}
    return Traffic(sent["messages"], sent["documents"], sent["bytes"], longest_ms)


def _submit(world: World, names: tuple[str, ...], number: int) -> None:
    sites, matrix = (names, _APP.matrix) if number == 0 else (None, None)
    request = f"{_RESOURCE}#{number}"
    event = Submitted(request, _RESOURCE, "inc", Command("inc 1"), Kind.NORMAL, _APP.name, sites, matrix)
    world.deliver(names[0], event)


def _wait(world: World) -> int:
    """Let the operation end; return after how long every site says that the resource is converged."""
    start_ms, found_ms = world.now_ms, None
    while world.now_ms < start_ms + _PAUSE_MS:
        world.run_until(world.now_ms + _STEP_MS)
        if found_ms is None and all(map(_is_converged, world.nodes.values())):
            found_ms = world.now_ms - start_ms
    return found_ms if found_ms is not None else _PAUSE_MS


def _is_converged(node: Node) -> bool:
    replica = node.site.replicas.get(_RESOURCE) if node.site else None
    if node.site is None or replica is None:
        return False
    return status(replica, set(node.site.up)).overall is Overall.CONVERGED
