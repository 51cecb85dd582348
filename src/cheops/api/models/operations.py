"""Models of operations: submitted, listed, drawn as lanes, explained and dry-run."""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Struct

from cheops.api.models.resources import Overall
from cheops.log.operation import Kind, Status, Verdict
from cheops.schema import doc


class ExplanationStep(Struct, frozen=True, kw_only=True):
    """One sentence."""

    text: Annotated[str, doc("In plain words.", "site1:1 (set) was made at site1 and ran there: OK")]
    operation: Annotated[str | None, doc("The operation it is about.", "site1:1")] = None
    site: Annotated[str | None, doc("The site it is about.", None)] = None


class Explanation(Struct, frozen=True, kw_only=True):
    """Why the state of a resource is what it is, step by step."""

    resource: Annotated[str, doc("Which.", "counter")]
    overall: Annotated[Overall, doc("The verdict that is explained.", "CONVERGED")]
    steps: Annotated[tuple[ExplanationStep, ...], doc("In the order in which they follow from each other.")]
    conclusion: Annotated[str, doc("What it comes to, and what to do.", "all 3 sites have applied the same")]


class WouldSupersede(Struct, frozen=True, kw_only=True):
    """An operation that would lose its effect."""

    operation: Annotated[str, doc("Which.", "site1:2")]
    rule: Annotated[int, doc("By which rule.", 3)]
    sentence: Annotated[str, doc("That rule in words.", "a later operation replaces it")]


class DryRun(Struct, frozen=True, kw_only=True):
    """What an operation would do. Nothing was run and nothing was saved."""

    resource: Annotated[str, doc("On which resource.", "counter")]
    sites: Annotated[tuple[str, ...], doc("Where it would run.", ["site1", "site2"])]
    first_at: Annotated[str | None, doc("Where it would run first; null: nowhere now.", "site1")]
    command: Annotated[str, doc("What would be run.", "redis-cli set counter 29")]
    would_supersede: Annotated[tuple[WouldSupersede, ...], doc("What would lose its effect by it.")]
    superseded_by: Annotated[WouldSupersede | None, doc("What would take its own effect at once: another matrix, say.")]
    runs_here: Annotated[
        tuple[str, ...], doc("What this site would run, in order; `new` is the operation itself.", ["new"])
    ]
    replayed: Annotated[
        dict[str, tuple[str, ...]],
        doc("Per site what would be run again, as far as this site knows the sites.", {"site1": []}),
    ]
    order_not_enforced: Annotated[bool, doc("It would run in an order that nothing can enforce.", False)]
    unreachable: Annotated[tuple[str, ...], doc("Sites that would get it only when they are back.", [])]
    refused: Annotated[str | None, doc("Why it would not be taken at all.", None)]
    notes: Annotated[tuple[str, ...], doc("What else should be known.", [])]


class MatrixPair(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """What holds for two types of operations in this order."""

    before: Annotated[str, doc("The first.", "inc")]
    after: Annotated[str, doc("The second.", "set")]
    result: Annotated[str | None, doc("What is taken of the two; null: both, in order.", "take-one")]
    class_: Annotated[int, doc("1: they commute, 2: one replaces the other, 3: their order counts.", 2)]
    inferred: Annotated[bool, doc("It follows from other entries, or from none.", False)]
    concurrent_both: Annotated[bool, doc("Made at the same time, both stay.", False)]


class MatrixEntry(Struct, frozen=True, kw_only=True):
    """An entry as somebody wrote it."""

    before: Annotated[str, doc("The first.", "inc")]
    after: Annotated[str, doc("The second.", "set")]
    result: Annotated[str, doc("What is taken of the two.", "take-one")]
    concurrent_both: Annotated[bool, doc("Made at the same time, both stay.", False)]


class MatrixView(Struct, frozen=True, kw_only=True):
    """A matrix and everything that follows from it."""

    hash: Annotated[str, doc("Equal for equal rules.", "d751713988987e93")]
    entries: Annotated[tuple[MatrixEntry, ...], doc("What was written.")]
    types: Annotated[tuple[str, ...], doc("The types it mentions, and those of known operations.", ["set"])]
    pairs: Annotated[tuple[MatrixPair, ...], doc("What holds for each pair, row by row.")]
    replaces: Annotated[dict[str, tuple[str, ...]], doc("What each replace type replaces.", {"set": ["inc"]})]
    never_mentioned: Annotated[tuple[str, ...], doc("Types of operations that no entry mentions.", [])]
    resource: Annotated[str | None, doc("The resource it is in force for.", "counter")] = None
    introduced_by: Annotated[str | None, doc("The operation that brought it, if still known.", "site1:1")] = None


class Effect(StrEnum):
    """What an operation counts for now."""

    EFFECTIVE = "effective"  # it is part of the state
    SUPERSEDED = "superseded"  # another one beat it
    VOID = "void"  # it failed at its origin
    FOLDED = "folded"  # a checkpoint holds its effect
    ORPHANED = "estranged"  # made without knowing what all sites had settled for good
    SILENT = "silent"  # does not touch the application
    DRAFT = "draft"  # known to its origin alone, which has not run it yet


class ReplyView(Struct, frozen=True, kw_only=True):
    """What became of an operation at one site."""

    site: Annotated[str, doc("Where.", "site2")]
    status: Annotated[Status, doc("As far as the agent that answers knows.", "OK")]
    detail: Annotated[str, doc("Why it failed, or what else is to be said.", "")]
    output: Annotated[str, doc("What the command printed.", "42\n")]
    at: Annotated[str | None, doc("When it was run, by that site's clock.", "2026-11-16T01:41:31.885Z")]
    took_ms: Annotated[int | None, doc("How long it ran.", 8)]
    replayed: Annotated[bool, doc("Known from a replay, which runs many again.", False)]


class OperationView(Struct, frozen=True, kw_only=True):
    """One operation, with what became of it at every site."""

    id: Annotated[str, doc("Its name within the resource: site and number.", "site1:3")]
    resource: Annotated[str, doc("Of which resource.", "counter")]
    origin: Annotated[str, doc("The site where it entered Cheops.", "site1")]
    incarnation: Annotated[str, doc("Of the store of that site.", "6f1c9a")]
    seq: Annotated[int, doc("The how manieth of that origin on this resource.", 3)]
    type: Annotated[str, doc("As the matrix names it.", "inc")]
    kind: Annotated[Kind, doc("What it is beyond its type.", "normal")]
    command: Annotated[str, doc("What is run at each site.", "redis-cli incrby counter 13")]
    files: Annotated[dict[str, str], doc("Files that came along: name and SHA-256.", {})]
    made_at: Annotated[str, doc("When, by the hybrid clock of its origin.", "2026-11-16T01:41:31.885Z")]
    knows: Annotated[
        dict[str, int],
        doc("What its origin knew when it was made: up to which number of each site.", {"site1": 2}),
    ]
    matrix: Annotated[str, doc("The hash of the matrix it was made under.", "d751713988987e93")]
    sites: Annotated[tuple[str, ...] | None, doc("The list of sites that it sets, if it does.", None)]
    verdict: Annotated[Verdict | None, doc("What became of it at its origin; null: not run yet.", "OK")]
    why: Annotated[str, doc("With a verdict other than OK: the reason.", "")]
    effect: Annotated[Effect, doc("What it counts for now.", "effective")]
    rule: Annotated[int | None, doc("The number of the rule that took its effect.", 4)]
    sentence: Annotated[str, doc("That rule in words.", "an operation made at the same time replaces it")]
    beaten_by: Annotated[str | None, doc("The operation that beat it.", "site2:1")]
    replies: Annotated[tuple[ReplyView, ...], doc("One for each site of the resource.")]


class Operations(Struct, frozen=True, kw_only=True):
    """A page of the operations of a resource, by stamp."""

    resource: Annotated[str, doc("Of which resource.", "counter")]
    operations: Annotated[tuple[OperationView, ...], doc("From the oldest to the newest.")]
    next: Annotated[str | None, doc("Where the next page begins (`cursor`); null: this is the last.", None)]


class Mark(Struct, frozen=True, kw_only=True):
    """What one site has of one operation."""

    operation: Annotated[str, doc("Which.", "site1:3")]
    knows: Annotated[bool, doc("Whether the site is known to have heard of it.", True)]
    status: Annotated[Status, doc("What became of it there.", "OK")]


class Lane(Struct, frozen=True, kw_only=True):
    """The operations as one site has them, in the order of the log."""

    site: Annotated[str, doc("Which.", "site2")]
    marks: Annotated[tuple[Mark, ...], doc("One for each operation.")]


class LogView(Struct, frozen=True, kw_only=True):
    """The log of a resource: every operation that is still known, and which count, in which order."""

    resource: Annotated[str, doc("Which.", "counter")]
    effective: Annotated[tuple[str, ...], doc("What every site must have applied, in order.", ["site1:3"])]
    operations: Annotated[tuple[OperationView, ...], doc("All that are known, by stamp.")]
    lanes: Annotated[tuple[Lane, ...], doc("One for each site.")]
    checkpoint: Annotated[dict[str, int] | None, doc("What a checkpoint holds: up to which number of each site.", None)]
    forgotten: Annotated[dict[str, int], doc("Up to which number of each site operations may have been forgotten.", {})]


# Of one operation at one site. `missing`: the site is not known to have heard of it.
LaneState: TypeAlias = Literal[
    "ok", "failed", "unknown", "running", "pending", "missing", "superseded", "void", "skipped"
]


class LaneOperation(Struct, frozen=True, kw_only=True):
    """An operation as a row of the graph."""

    id: Annotated[str, doc("Its name within the resource.", "site1:3")]
    type: Annotated[str, doc("As the matrix names it.", "inc")]
    kind: Annotated[Kind, doc("What it is beyond its type.", "normal")]
    origin: Annotated[str, doc("The site where it entered Cheops.", "site1")]
    made_ms: Annotated[int, doc("When, by the hybrid clock of its origin, since 1970.", 1794620491885)]
    after: Annotated[
        tuple[str, ...],
        doc("Those it directly follows: what its origin knew, without what these know.", ["site1:2"]),
    ]
    effect: Annotated[Effect, doc("What it counts for now.", "effective")]
    rule: Annotated[int | None, doc("The number of the rule that took its effect.", None)]
    sentence: Annotated[str, doc("That rule in words.", "")]
    beaten_by: Annotated[str | None, doc("The operation that beat it.", None)]
    command: Annotated[str, doc("What is run at each site; cut where it is long.", "redis-cli incrby n 13")]


class SiteLane(Struct, frozen=True, kw_only=True):
    """What one site has of the operations, in the same order as these."""

    site: Annotated[str, doc("Which.", "site2")]
    here: Annotated[bool, doc("Whether this is the agent that answers.", False)]
    reachable: Annotated[bool, doc("Whether it can be asked now.", True)]
    as_of_s: Annotated[float | None, doc("How long ago it was last heard of this resource.", 0.4)]
    pending: Annotated[int, doc("Operations it is not known to have dealt with.", 0)]
    digest: Annotated[str, doc("Of what it applied; equal means the same.", "9b1f")]
    states: Annotated[tuple[LaneState, ...], doc("One for each operation.", ["ok"])]
    ran_ms: Annotated[
        tuple[int | None, ...],
        doc("When it first ran there, by that site's clock; null: not that anybody knows.", [1794620491890]),
    ]


class Lanes(Struct, frozen=True, kw_only=True):
    """All operations of a resource that are known, and what each site has of each."""

    resource: Annotated[str, doc("Which.", "counter")]
    type: Annotated[str, doc("Its type in the configuration of the sites.", "counter")]
    overall: Annotated[Overall, doc("Whether all is well, as known here.", "CONVERGED")]
    sentence: Annotated[str, doc("The same in words.", "all 3 sites have applied the same")]
    deleted: Annotated[bool, doc("The last that counts is a deletion.", False)]
    operations: Annotated[tuple[LaneOperation, ...], doc("By stamp, the oldest first.")]
    lanes: Annotated[tuple[SiteLane, ...], doc("One for each site of the resource.")]
    forgotten: Annotated[int, doc("How many older operations are not kept any more: they count for nothing.", 0)]
    order_not_enforced: Annotated[bool, doc("Operations ran here in another order than elsewhere.", False)]


MAX_TIMEOUT_S = 3600.0


class Wait(StrEnum):
    """For which answers to wait."""

    NONE = "none"  # until the operation is durable at the site that takes it
    FIRST = "first"  # until it was run there
    QUORUM = "quorum"  # until more than half of the sites have answered
    ALL = "all"  # until all have


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation as a client asks for it."""

    type: Annotated[str, doc("As the matrix names it.", "inc", min_length=1, max_length=100)]
    command: Annotated[
        str,
        doc("What to run at each site. `{name}`: a file that comes along.", "redis-cli incrby n 13"),
    ] = ""
    sites: Annotated[str, doc("Where, in scope-lang's bare form. Needed for a new resource.", "site1 & site2")] = ""
    resource_type: Annotated[str, doc("For a new resource: its type in the configuration.", "counter")] = ""
    kind: Annotated[Kind, doc("normal, or force: the new base, whatever was before; or delete.", "normal")] = (
        Kind.NORMAL
    )
    matrix: Annotated[dict[str, Any] | None, doc("A matrix that holds from now on, as in a matrix file.", None)] = None


class SiteAnswer(Struct, frozen=True, kw_only=True):
    """What a site says of an operation. One per line where answers are streamed."""

    operation: Annotated[str, doc("Which.", "site1:3")]
    site: Annotated[str, doc("Who.", "site2")]
    status: Annotated[Status, doc("PENDING: no reply yet; delivery continues in the background.", "OK")]
    detail: Annotated[str, doc("Why it failed, or what else is to be said.", "")]
    output: Annotated[str, doc("What the command printed.", "42\n")]
    at: Annotated[str | None, doc("When it was run, by that site's clock.", "2026-11-16T01:41:31.885Z")]
    took_ms: Annotated[int | None, doc("How long it ran.", 8)]


class Accepted(Struct, frozen=True, kw_only=True):
    """An operation that is durable here, and what the sites have said of it by now."""

    operation: Annotated[str, doc("Its name within the resource.", "site1:3")]
    resource: Annotated[str, doc("On which resource.", "counter")]
    sites: Annotated[tuple[str, ...], doc("Where it runs.", ["site1", "site2"])]
    answers: Annotated[tuple[SiteAnswer, ...], doc("Those that came in time.")]
    verdict: Annotated[Verdict | None, doc("What became of it at its origin; null: it was not run yet.", "OK")]
    waiting_for: Annotated[tuple[str, ...], doc("Sites that have not answered yet.", [])]
    satisfied: Annotated[bool, doc("Whether as many answered as were waited for.", True)]


class SitesChange(StrEnum):
    SET = "set"
    ADD = "add"
    REMOVE = "remove"


class ChangeSites(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another list of sites for a resource."""

    sites: Annotated[str, doc("Which, in scope-lang's bare form.", "site1 & site3")]
    how: Annotated[SitesChange, doc("What to do with them.", "set")] = SitesChange.SET
    delete_copy: Annotated[
        bool, doc("Whether the sites that the resource leaves delete what they have of it.", False)
    ] = False
    delete_with: Annotated[
        str,
        doc("The command that deletes the copy; empty: the type's `reset`.", "redis-cli del counter"),
    ] = ""


class Resolution(StrEnum):
    HAPPENED = "happened"  # it took effect at this site
    NOT_HAPPENED = "not-happened"  # it did not, so it is run
    FORCE = "force"  # whatever there is: this command makes the state, everywhere


class ResolveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's word on what Cheops cannot know."""

    resolution: Annotated[Resolution, doc("What is the case, or is to be.", "happened")]
    operation: Annotated[str, doc("The one that is UNKNOWN; may be left out where there is only one.", "site1:3")] = ""
    site: Annotated[str, doc("Where it is UNKNOWN; empty: at the site that is asked.", "")] = ""
    command: Annotated[str, doc("With force: what makes the state.", "redis-cli set counter 29")] = ""
    type: Annotated[str, doc("With force: the operation's type.", "set")] = "force"


class Resolved(Struct, frozen=True, kw_only=True):
    """What was done about it."""

    resource: Annotated[str, doc("Which.", "counter")]
    site: Annotated[str, doc("Where it was resolved.", "site1")]
    operation: Annotated[str, doc("The one resolved, or the one that was forced.", "site1:3")]
    resolution: Annotated[Resolution, doc("As asked.", "happened")]


class StateAt(Struct, frozen=True, kw_only=True):
    """The real state of the application at one site."""

    site: Annotated[str, doc("Which.", "site2")]
    status: Annotated[str, doc("OK, KO (the command failed) or TIMEOUT (no answer).", "OK")]
    output: Annotated[str, doc("What the type's read command printed.", "42\n")]


class Verification(Struct, frozen=True, kw_only=True):
    """The real state everywhere, compared."""

    resource: Annotated[str, doc("Which.", "counter")]
    same: Annotated[bool, doc("Whether all sites answered, and the same.", True)]
    states: Annotated[tuple[StateAt, ...], doc("One for each site.")]
    diff: Annotated[
        dict[str, tuple[str, ...]],
        doc("For a site that differs from the first: the lines of a unified diff.", {}),
    ]
