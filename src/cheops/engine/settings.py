"""Resource types: what a site knows about a kind of resource beyond its matrix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cheops.log.operation import Command, Operation
from cheops.log.policy import Policy

# Splits an operation that failed into unit steps; empty if it cannot be split.
Decompose = Callable[[Command], tuple[Command, ...]]
# Turns concurrent operations that do not commute (class 3), in canonical order, into commands to run instead.
Logic = Callable[[Sequence[Operation]], tuple[Command, ...]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a long history is folded into one base: read the state, and later write it."""

    read: Command
    write: Callable[[str], Command | None]  # None: no command can write this state
    after: int = 100  # effective operations


@dataclass(frozen=True, slots=True)
class ResourceType:
    name: str = ""
    reset: Command | None = None
    checkpoint: Checkpoint | None = None
    on_error: Command | None = None  # run where an operation failed that did not fail at its origin
    decompose: Decompose | None = None
    logic: Logic | None = None
    parallel: bool = False
    policy: Policy | None = None  # None: every site may do everything


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything has a limit."""

    drafts: int = 1_000  # operations of one resource that wait for their first run
    waiting: int = 10_000  # received operations of one resource that wait for what they depend on
    log: int = 500_000  # operations of one resource that are kept; then no more are taken
    batch: int = 500  # documents in one message
    batch_bytes: int = 4_000_000  # and about how large they may be together
    seal_after: int = 50  # operations that could be forgotten, before somebody says so
    wake: int = 200  # resources that are loaded per tick to be looked after
    parked: int = 2_000  # resources in memory, above which those leave that wait for a site that is down
    idle_ms: int = 30_000  # a resource that nobody asked for leaves memory after this
    resend_ms: int = 500
    resend_most_ms: int = 8_000
    retry_ms: int = 200
    retry_most_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Settings:
    types: dict[str, ResourceType] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    unknown_policy: Policy | None = None  # of types that are not configured here

    def policy_of(self, name: str) -> Policy | None:
        return self.types[name].policy if name in self.types else self.unknown_policy

    def type_named(self, name: str) -> ResourceType:
        return self.types.get(name) or ResourceType(name)
