"""Events, which happen to a site, and effects, which it requests from its driver. Both are plain data.

The package docstring has the order in which effects are carried out.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field

from cheops.engine.documents import NO_DROPS, NO_LINEAGE, Document, Drops, Key, Lineage, Message
from cheops.log.causality import Clock
from cheops.log.matrix import Matrix
from cheops.log.operation import NO_TIME, Command, Kind, OpId, Status, Timing

if TYPE_CHECKING:
    from cheops.engine.restoration import Restored


class Result(StrEnum):
    """How a run ended."""

    OK = "OK"
    KO = "KO"  # definitely failed
    RETRY = "RETRY"  # definitely not run: connection refused, 503
    MAYBE = "MAYBE"  # may have had an effect: a timeout


class Outcome(Struct, frozen=True):
    result: Result
    output: str = ""
    timing: Timing = NO_TIME
    cut: bool = False  # the output was cut off
    refused: bool = False  # this site does not allow it: neither units nor on_error run instead
    in_doubt: bool = False  # RETRY: it may have had an effect, and may be run again
    once: bool = False  # with MAYBE: not even a replace operation may run again


# -- events ------------------------------------------------------------------------------------------


class Submitted(Struct, frozen=True):
    """A client submits an operation. `sites` is needed for a new resource, and to change them (SITES). With `revision`
    it is refused if the resource has changed here since then (see Replica.revision)."""

    request: str
    resource: str
    type: str
    payload: Command
    kind: Kind = Kind.NORMAL
    rtype: str = ""
    sites: tuple[str, ...] | None = None
    matrix: Matrix | None = None
    revision: str = ""


class Received(Struct, frozen=True):
    peer: str
    message: Message


class Ran(Struct, frozen=True):
    """A run has ended. One outcome per step; a step after one that was not run has none."""

    resource: str
    n: int
    outcomes: tuple[Outcome, ...]


class Tick(Struct, frozen=True):
    pass


class PeerUp(Struct, frozen=True):
    peer: str
    incarnation: str


class PeerDown(Struct, frozen=True):
    peer: str


class Loaded(Struct, frozen=True):
    """The documents of a resource, in response to `Load`; none if it is new."""

    resource: str
    documents: tuple[Document, ...]
    restored: "Restored | None" = None  # what the driver has done of it already, see restoration.py


class Recovered(Struct, frozen=True):
    """The site starts on an existing store."""

    clock: Clock
    matrices: tuple[Matrix, ...]
    unsynced: tuple[str, ...]  # resources to load: something is left to do or to send
    peers: Mapping[str, str] = field(default_factory=dict)  # the incarnations that were last seen
    lineage: Lineage = NO_LINEAGE
    drops: Drops = NO_DROPS


class Enumerated(Struct, frozen=True):
    """The resources in which a peer is involved, in response to `Enumerate`. Or, without a peer and from time to time,
    some of those whose ledger says that they may be dropped by now."""

    peer: str
    resources: tuple[str, ...]


class Resolved(Struct, frozen=True):
    """The operator decides whether an operation that was UNKNOWN here took effect."""

    resource: str
    op: OpId
    happened: bool


class Retried(Struct, frozen=True):
    """The operator has everything run again that failed at this site and not at its origin."""

    resource: str


class Verified(Struct, frozen=True):
    """A site has compared the application's states at all sites of a resource. `differs` says how they differ; empty:
    they are equal."""

    resource: str
    by: str
    differs: str
    at_ms: int


class Queried(Struct, frozen=True):
    """A client queries the status of a resource, which is loaded; with `refresh`, the other sites are asked too."""

    resource: str
    refresh: bool = True


class ClientLeft(Struct, frozen=True):
    """The client that waited for the replies to an operation has disconnected."""

    resource: str
    op: OpId


class MatricesReceived(Struct, frozen=True):
    """Matrices that were fetched separately."""

    matrices: tuple[Matrix, ...]


class Unstorable(Struct, frozen=True):
    """What the engine decided about a resource could not be stored, and never can be. The driver has dropped every
    effect on it that was not carried out yet, so the engine's state of it is wrong from here on."""

    resource: str
    error: Exception


class StoreOutdated(Struct, frozen=True):
    """There is proof, or the operator says, that this incarnation of the store must not go on: the store is an old
    copy, or its stamps are ahead of the clocks. What it made after this time is withdrawn, and issued again."""

    why: str
    after: Clock
    old_copy: bool = True  # everything since this process started was made after the copy was put back
    later: str = ""  # the incarnation that the store had later, which proves it; it proves nothing once more


class SitesRemoved(Struct, frozen=True):
    """All the sites that were removed for good: no resource waits for them any more. And those that were admitted again
    since, or for the first time: what the others settled while they were away is not theirs to refuse."""

    sites: frozenset[str]
    admitted: frozenset[str] = frozenset()


Event: TypeAlias = (
    Submitted
    | Received
    | Ran
    | Tick
    | PeerUp
    | PeerDown
    | Loaded
    | Recovered
    | Enumerated
    | Resolved
    | Retried
    | Verified
    | Queried
    | ClientLeft
    | MatricesReceived
    | SitesRemoved
    | StoreOutdated
    | Unstorable
)


# -- effects -----------------------------------------------------------------------------------------


class Save(Struct, frozen=True):
    """Make durable, all or nothing, before any later effect begins. No key is in both."""

    documents: tuple[Document, ...] = ()
    forget: tuple[Key, ...] = ()


class Step(Struct, frozen=True):
    op: OpId | None
    payload: Command
    of_type: bool = False  # a command of the type itself, not one that came with an operation
    reads: bool = False  # its output is a state: nothing else may be in it
    of_base: bool = False  # writes a whole state, which may be another site's: of a checkpoint, or a forced operation
    again: bool = False  # an attempt before may have had an effect


class Run(Struct, frozen=True):
    """Run these in order on the local application; stop at the first that was not run (RETRY, MAYBE),
    and, with `until_failure`, at the first that failed."""

    resource: str
    n: int
    steps: tuple[Step, ...]
    replay: bool = False
    until_failure: bool = False
    rtype: str = ""


class Send(Struct, frozen=True):
    peer: str
    message: Message


class Stage(StrEnum):
    REFUSED = "refused"
    ACCEPTED = "accepted"  # durable here; the answer proper follows
    DECIDED = "decided"  # run at its origin: this is the acknowledgement
    SITE = "site"  # a site has replied


class Answer(Struct, frozen=True):
    request: str
    stage: Stage
    op: OpId | None = None
    site: str = ""
    status: Status | None = None
    detail: str = ""
    output: str = ""
    timing: Timing = NO_TIME
    resource: str = ""


class Notify(Struct, frozen=True):
    """Something an operator should know."""

    resource: str
    what: str
    op: OpId | None = None
    detail: str = ""
    reason: str = ""  # of a refusal: the same for all of its kind
    by: str = ""  # the site that is to blame, if it is not the origin of the operation


class Load(Struct, frozen=True):
    resource: str


class Enumerate(Struct, frozen=True):
    peer: str


class Fault(Struct, frozen=True):
    """An event failed because of a bug. It had no effect; the resource is loaded again from the store."""

    resource: str
    error: Exception


class Restart(Struct, frozen=True):
    """Start the site again, under a new incarnation of its store. Until then it does nothing."""

    why: str


Effect: TypeAlias = Save | Run | Send | Answer | Notify | Load | Enumerate | Fault | Restart


class Effects(Struct):
    """Collects the effects of a step. All its saves become one, which comes first."""

    documents: dict[Key, Document] = field(default_factory=dict)
    forget: list[Key] = field(default_factory=list)
    others: list[Effect] = field(default_factory=list)

    def all(self) -> list[Effect]:
        if not self.documents and not self.forget:
            return self.others
        # Documents win: one step may forget a key and write it again, such as `Started` when the next run begins.
        forget = tuple(key for key in dict.fromkeys(self.forget) if key not in self.documents)
        return [Save(tuple(self.documents.values()), forget), *self.others]

    def merge(self, other: "Effects") -> None:
        """Add the effects of a part of the step, which follow those that are here."""
        for key in other.forget:
            self.documents.pop(key, None)
        self.documents |= other.documents
        self.forget += other.forget
        self.others += other.others

    def drop(self, keys: Iterable[Key]) -> None:
        """Delete documents, including those that this very step was going to save."""
        for key in keys:
            self.documents.pop(key, None)
            self.forget.append(key)
