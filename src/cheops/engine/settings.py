"""Resource types: what a site knows about a kind of resource beyond its matrix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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


def limit(default: int, doc: str) -> Any:
    """A limit. The configuration file has a key for each, and docs/configuration.md a line with this text."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything has a limit. The end of a name is its unit; a name without one is a count."""

    drafts: int = limit(1_000, "Operations of one resource that wait for their first run.")
    waiting: int = limit(10_000, "Received operations of one resource that wait for operations they depend on.")
    log: int = limit(
        500_000,
        "Operations of one resource that are kept. Beyond this only an operation that replaces or deletes all others "
        "is accepted.",
    )
    batch: int = limit(500, "Documents in one message.")
    batch_bytes: int = limit(4_000_000, "Approximate size of the documents in one message.")
    seal_after: int = limit(50, "Operations that could be forgotten before a site proposes to forget them.")
    wake: int = limit(200, "Resources that are loaded at a time for maintenance.")
    parked: int = limit(
        2_000, "Resources in memory. Beyond this, those that can only wait for a site that is down leave memory."
    )
    idle_ms: int = limit(30_000, "A resource that is not used for this long leaves memory.")
    resend_ms: int = limit(500, "Unconfirmed documents are sent again after this time, then after twice as long, …")
    resend_most_ms: int = limit(8_000, "… but never later than this.")
    retry_ms: int = limit(
        200,
        "An indefinite failure (connection refused, timeout) is tried again after this time, then after twice as long, "
        "…",
    )
    retry_most_ms: int = limit(30_000, "… but never later than this.")


@dataclass(frozen=True, slots=True)
class Settings:
    types: dict[str, ResourceType] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    unknown_policy: Policy | None = None  # of types that are not configured here

    def policy_of(self, name: str) -> Policy | None:
        return self.types[name].policy if name in self.types else self.unknown_policy

    def type_named(self, name: str) -> ResourceType:
        return self.types.get(name) or ResourceType(name)
