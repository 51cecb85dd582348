"""Models of operations: submitted, listed, drawn as lanes, explained and dry-run."""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Struct

from cheops.api.models.repair import RepairedSite
from cheops.api.models.resources import Overall
from cheops.log.operation import Kind, Status, Verdict
from cheops.schema import doc


class ExplanationStep(Struct, frozen=True, kw_only=True):
    """One sentence of an explanation."""

    text: Annotated[str, doc("The sentence.", "site1:1 (set) was made at site1 and ran there: OK")]
    operation: Annotated[str | None, doc("The operation the sentence is about.", "site1:1")] = None
    site: Annotated[str | None, doc("The site the sentence is about.", None)] = None


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a resource is in its state, step by step."""

    resource: Annotated[str, doc("The resource.", "counter")]
    overall: Annotated[Overall, doc("The status that is explained.", "CONVERGED")]
    steps: Annotated[tuple[ExplanationStep, ...], doc("The steps, in order.")]
    conclusion: Annotated[str, doc("The result, and what to do.", "all 3 sites are in sync")]


class WouldSupersede(Struct, frozen=True, kw_only=True):
    """An operation that would be superseded."""

    operation: Annotated[str, doc("The operation.", "site1:2")]
    rule: Annotated[int, doc("The number of the merge rule.", 3)]
    sentence: Annotated[str, doc("The rule in words.", "a later operation replaces it")]


class DryRun(Struct, frozen=True, kw_only=True):
    """What an operation would do. Nothing was run and nothing was saved."""

    resource: Annotated[str, doc("The resource.", "counter")]
    sites: Annotated[tuple[str, ...], doc("The sites where it would run.", ["site1", "site2"])]
    first_at: Annotated[str | None, doc("The site where it would run first; null: none.", "site1")]
    command: Annotated[str, doc("The command that would run.", "redis-cli set counter 29")]
    would_supersede: Annotated[tuple[WouldSupersede, ...], doc("The operations that it would supersede.")]
    superseded_by: Annotated[WouldSupersede | None, doc("The operation that would supersede it at once; null: none.")]
    runs_here: Annotated[
        tuple[str, ...],
        doc("The operations that this site would run, in order; `new` is the operation itself.", ["new"]),
    ]
    replayed: Annotated[
        dict[str, tuple[str, ...]],
        doc("For each site, the operations that would run again, as far as this site knows.", {"site1": []}),
    ]
    order_not_enforced: Annotated[bool, doc("Whether the sites would run it in different orders.", False)]
    unreachable: Annotated[tuple[str, ...], doc("Sites that would get it later, because they are unreachable now.", [])]
    refused: Annotated[str | None, doc("Why it would be refused; null: it would not.", None)]
    notes: Annotated[tuple[str, ...], doc("Other remarks.", [])]


class MatrixPair(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """The rule for two types of operations in this order."""

    before: Annotated[str, doc("The first operation's type.", "inc")]
    after: Annotated[str, doc("The second operation's type.", "set")]
    result: Annotated[str | None, doc("Which of the two is taken; null: both, in order.", "take-one")]
    class_: Annotated[int, doc("1: they commute; 2: one replaces the other; 3: their order matters.", 2)]
    inferred: Annotated[bool, doc("Whether it follows from other entries, or from the default.", False)]
    concurrent_both: Annotated[bool, doc("Whether both stay in effect when they are concurrent.", False)]


class MatrixEntry(Struct, frozen=True, kw_only=True):
    """An entry of a matrix, as written."""

    before: Annotated[str, doc("The first operation's type.", "inc")]
    after: Annotated[str, doc("The second operation's type.", "set")]
    result: Annotated[str, doc("Which of the two is taken.", "take-one")]
    concurrent_both: Annotated[bool, doc("Whether both stay in effect when they are concurrent.", False)]


class MatrixView(Struct, frozen=True, kw_only=True):
    """A matrix, and what follows from it."""

    hash: Annotated[str, doc("The hash; equal matrices have equal hashes.", "d751713988987e93")]
    entries: Annotated[tuple[MatrixEntry, ...], doc("The entries as written.")]
    types: Annotated[tuple[str, ...], doc("The types that it names, and those of known operations.", ["set"])]
    pairs: Annotated[tuple[MatrixPair, ...], doc("The rule for each pair, row by row.")]
    replaces: Annotated[dict[str, tuple[str, ...]], doc("The types that each replace type replaces.", {"set": ["inc"]})]
    never_mentioned: Annotated[tuple[str, ...], doc("Types of operations that no entry names.", [])]
    resource: Annotated[str | None, doc("The resource that it applies to.", "counter")] = None
    introduced_by: Annotated[str | None, doc("The operation that introduced it, if still known.", "site1:1")] = None


class Effect(StrEnum):
    """The current effect of an operation."""

    EFFECTIVE = "effective"  # it is part of the state
    SUPERSEDED = "superseded"  # another operation supersedes it
    VOID = "void"  # it failed at its origin
    FOLDED = "folded"  # a checkpoint contains its effect
    ORPHANED = "estranged"  # submitted without knowing what all sites had settled for good
    SILENT = "silent"  # does not touch the application
    DRAFT = "draft"  # only its origin has it, and has not run it yet


class ReplyView(Struct, frozen=True, kw_only=True):
    """The outcome of an operation at one site."""

    site: Annotated[str, doc("The site.", "site2")]
    status: Annotated[Status, doc("The outcome; PENDING as long as no outcome is known to this agent.", "OK")]
    detail: Annotated[str, doc("Why it failed, or other details.", "")]
    output: Annotated[str, doc("What the command printed.", "42\n")]
    output_missing: Annotated[
        str | None,
        doc("Why `output` is empty although the command printed something; null: it is complete.", None),
    ] = None
    at: Annotated[str | None, doc("When it ran, by that site's clock.", "2026-11-16T01:41:31.885Z")]
    took_ms: Annotated[int | None, doc("How long it ran, in milliseconds.", 8)]
    replayed: Annotated[
        bool, doc("Whether the outcome is that of a replay, which runs several operations again.", False)
    ]


class OperationView(Struct, frozen=True, kw_only=True):
    """An operation, with its outcome at every site."""

    id: Annotated[str, doc("Its name within the resource: site and number.", "site1:3")]
    resource: Annotated[str, doc("The resource.", "counter")]
    origin: Annotated[str, doc("The site where it entered Cheops.", "site1")]
    incarnation: Annotated[str, doc("The incarnation of that site's store.", "6f1c9a")]
    seq: Annotated[int, doc("Its number among the operations of that origin on this resource.", 3)]
    type: Annotated[str, doc("The type, as the matrix names it.", "inc")]
    kind: Annotated[Kind, doc("The kind of operation.", "normal")]
    command: Annotated[str, doc("The command that runs at each site.", "redis-cli incrby counter 13")]
    files: Annotated[dict[str, str], doc("The files of the operation: name and SHA-256.", {})]
    made_at: Annotated[
        str, doc("When it was submitted, by the hybrid clock of its origin.", "2026-11-16T01:41:31.885Z")
    ]
    knows: Annotated[
        dict[str, int],
        doc("What its origin knew at that time: for each site, the number of its last operation.", {"site1": 2}),
    ]
    matrix: Annotated[str, doc("The hash of the matrix in force at that time.", "d751713988987e93")]
    sites: Annotated[tuple[str, ...] | None, doc("The list of sites that it sets; null: none.", None)]
    verdict: Annotated[Verdict | None, doc("Its outcome at its origin; null: it did not run yet.", "OK")]
    why: Annotated[str, doc("The reason for a verdict other than OK.", "")]
    effect: Annotated[Effect, doc("Its current effect.", "effective")]
    rule: Annotated[int | None, doc("The merge rule that superseded it; 8 to 10: another reason; null: none.", 4)]
    sentence: Annotated[str, doc("The rule in words.", "an operation made at the same time replaces it")]
    beaten_by: Annotated[str | None, doc("The operation that superseded it; null: none.", "site2:1")]
    replies: Annotated[tuple[ReplyView, ...], doc("One entry for each site of the resource.")]


class Operations(Struct, frozen=True, kw_only=True):
    """A page of the operations of a resource, sorted by time stamp."""

    resource: Annotated[str, doc("The resource.", "counter")]
    operations: Annotated[tuple[OperationView, ...], doc("The operations, the oldest first.")]
    next: Annotated[str | None, doc("The `cursor` of the next page; null: this is the last page.", None)]


class Mark(Struct, frozen=True, kw_only=True):
    """The state of one operation at one site."""

    operation: Annotated[str, doc("The operation.", "site1:3")]
    knows: Annotated[bool | None, doc("Whether the site had it when it last reported; null: not known.", True)]
    status: Annotated[Status, doc("Its outcome there; PENDING as long as no outcome is known here.", "OK")]


class Lane(Struct, frozen=True, kw_only=True):
    """The operations as one site has them, in the order of the log."""

    site: Annotated[str, doc("The site.", "site2")]
    marks: Annotated[tuple[Mark, ...], doc("One entry for each operation.")]


class LogView(Struct, frozen=True, kw_only=True):
    """A page of the log of a resource: operations that are still known, and which of them are in effect, in order."""

    resource: Annotated[str, doc("The resource.", "counter")]
    effective: Annotated[
        tuple[str, ...], doc("Those of them that every site must have applied, in order.", ["site1:3"])
    ]
    positions: Annotated[
        tuple[int, ...],
        doc("For each entry of `effective`, its position among all operations in effect, from 1.", [1]),
    ]
    operations: Annotated[tuple[OperationView, ...], doc("The operations of this page, sorted by time stamp.")]
    lanes: Annotated[tuple[Lane, ...], doc("One entry for each site.")]
    checkpoint: Annotated[
        dict[str, int] | None,
        doc(
            "What the checkpoint contains: for each site, the number of its last operation; null: no checkpoint.", None
        ),
    ]
    forgotten: Annotated[
        dict[str, int], doc("For each site, the number up to which operations may have been discarded.", {})
    ]
    next: Annotated[str | None, doc("The `cursor` of the next page; null: this is the last page.", None)] = None


# Of one operation at one site. `missing`: the site did not have it when it last reported. `not-known`: it has not
# reported, or has gone on since without reporting here, so that nobody knows whether it has it.
LaneState: TypeAlias = Literal[
    "ok", "failed", "unknown", "running", "pending", "missing", "not-known", "superseded", "void", "skipped"
]


class LaneOperation(Struct, frozen=True, kw_only=True):
    """An operation as a row of the graph."""

    id: Annotated[str, doc("Its name within the resource.", "site1:3")]
    type: Annotated[str, doc("The type, as the matrix names it.", "inc")]
    kind: Annotated[Kind, doc("The kind of operation.", "normal")]
    origin: Annotated[str, doc("The site where it entered Cheops.", "site1")]
    made_ms: Annotated[
        int, doc("When it was submitted, by the hybrid clock of its origin, in milliseconds since 1970.", 1794620491885)
    ]
    after: Annotated[
        tuple[str, ...],
        doc(
            "The operations that it directly follows: those its origin knew, without their own predecessors.",
            ["site1:2"],
        ),
    ]
    effect: Annotated[Effect, doc("Its current effect.", "effective")]
    rule: Annotated[int | None, doc("The merge rule that superseded it; 8 to 10: another reason; null: none.", None)]
    sentence: Annotated[str, doc("The rule in words.", "")]
    beaten_by: Annotated[str | None, doc("The operation that superseded it; null: none.", None)]
    command: Annotated[
        str, doc("The command that runs at each site, shortened if it is long.", "redis-cli incrby n 13")
    ]


class SiteLane(Struct, frozen=True, kw_only=True):
    """The state of each operation at one site, in the order of `operations`."""

    site: Annotated[str, doc("The site.", "site2")]
    here: Annotated[bool, doc("Whether this is the agent's own site.", False)]
    reachable: Annotated[bool, doc("Whether it is reachable now.", True)]
    as_of_s: Annotated[
        float | None, doc("How many seconds ago the site last reported this resource; null: never.", 0.4)
    ]
    pending: Annotated[
        int | None,
        doc("The number of operations that it had not settled when it last reported; null: not known.", 0),
    ]
    failed: Annotated[int, doc("The number of operations that failed there but not at their origin.", 0)]
    unknown: Annotated[int, doc("The number of operations whose outcome there is unknown.", 0)]
    digest: Annotated[str, doc("The digest of what it applied; equal digests mean equal states.", "9b1f")]
    states: Annotated[tuple[LaneState, ...], doc("One entry for each operation.", ["ok"])]
    ran_ms: Annotated[
        tuple[int | None, ...],
        doc("When it first ran there, by that site's clock; null: not known.", [1794620491890]),
    ]


class Lanes(Struct, frozen=True, kw_only=True):
    """All known operations of a resource, and the state of each at each site."""

    resource: Annotated[str, doc("The resource.", "counter")]
    type: Annotated[str, doc("Its type in the configuration.", "counter")]
    overall: Annotated[Overall, doc("The overall status, as this site knows it.", "CONVERGED")]
    sentence: Annotated[str, doc("The same in words.", "all 3 sites are in sync")]
    deleted: Annotated[bool, doc("Whether it is deleted.", False)]
    operations: Annotated[tuple[LaneOperation, ...], doc("The operations, the oldest first.")]
    lanes: Annotated[tuple[SiteLane, ...], doc("One entry for each site of the resource.")]
    forgotten: Annotated[int, doc("How many older operations were discarded, because they have no effect any more.", 0)]
    order_not_enforced: Annotated[bool, doc("Whether operations ran here in another order than elsewhere.", False)]


MAX_TIMEOUT_S = 3600.0


class Wait(StrEnum):
    """How many sites to wait for."""

    NONE = "none"  # until the operation is saved at the site that takes it
    FIRST = "first"  # until it ran there
    QUORUM = "quorum"  # until more than half of the sites have responded
    ALL = "all"  # until all sites have responded


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation that a client submits."""

    type: Annotated[str, doc("The type, as the matrix names it.", "inc", min_length=1, max_length=100)]
    command: Annotated[
        str,
        doc("The command to run at each site. `{name}` stands for a file of the request.", "redis-cli incrby n 13"),
    ] = ""
    sites: Annotated[
        str, doc("The sites, in scope-lang's bare form. Required for a new resource.", "site1 & site2")
    ] = ""
    resource_type: Annotated[str, doc("For a new resource: its type in the configuration.", "counter")] = ""
    kind: Annotated[Kind, doc("normal, force (a new base, whatever the state was before) or delete.", "normal")] = (
        Kind.NORMAL
    )
    matrix: Annotated[dict[str, Any] | None, doc("A new matrix for the resource, as in a matrix file.", None)] = None


class SiteAnswer(Struct, frozen=True, kw_only=True):
    """The response of a site to an operation. In a stream, one per line."""

    operation: Annotated[str, doc("The operation.", "site1:3")]
    site: Annotated[str, doc("The site.", "site2")]
    status: Annotated[Status, doc("The outcome; PENDING: not known yet, delivery continues in the background.", "OK")]
    detail: Annotated[str, doc("Why it failed, or other details.", "")]
    output: Annotated[str, doc("What the command printed.", "42\n")]
    at: Annotated[str | None, doc("When it ran, by that site's clock.", "2026-11-16T01:41:31.885Z")]
    took_ms: Annotated[int | None, doc("How long it ran, in milliseconds.", 8)]


class Accepted(Struct, frozen=True, kw_only=True):
    """An operation that is saved here, and the responses of the sites so far."""

    operation: Annotated[str, doc("Its name within the resource.", "site1:3")]
    resource: Annotated[str, doc("The resource.", "counter")]
    sites: Annotated[tuple[str, ...], doc("The sites where it runs.", ["site1", "site2"])]
    answers: Annotated[tuple[SiteAnswer, ...], doc("The responses that came in time.")]
    verdict: Annotated[Verdict | None, doc("Its outcome at its origin; null: it did not run yet.", "OK")]
    waiting_for: Annotated[tuple[str, ...], doc("The sites that have not responded yet.", [])]
    satisfied: Annotated[bool, doc("Whether as many sites responded as the request waited for.", True)]


class SitesChange(StrEnum):
    SET = "set"
    ADD = "add"
    REMOVE = "remove"


class ChangeSites(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the list of sites of a resource."""

    sites: Annotated[str, doc("The sites, in scope-lang's bare form.", "site1 & site3")]
    how: Annotated[SitesChange, doc("Whether to set the list to these sites, add them, or remove them.", "set")] = (
        SitesChange.SET
    )
    delete_copy: Annotated[bool, doc("Whether sites that leave the list delete their copy.", False)] = False
    delete_with: Annotated[
        str,
        doc("The command that deletes the copy; empty: the type's `reset`.", "redis-cli del counter"),
    ] = ""


class Resolution(StrEnum):
    HAPPENED = "happened"  # it took effect at this site
    NOT_HAPPENED = "not-happened"  # it did not, so it runs
    FORCE = "force"  # whatever the state is: this command makes a new one, everywhere
    RETRY = "retry"  # what failed at a site runs there again
    STATE = "state"  # the application's state at one site becomes that of all sites


class ResolveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's decision on an outcome that Cheops cannot know."""

    resolution: Annotated[Resolution, doc("The decision.", "happened")]
    operation: Annotated[
        str, doc("The operation that is UNKNOWN; can be left out if there is only one.", "site1:3")
    ] = ""
    site: Annotated[
        str,
        doc(
            "The site where it is UNKNOWN, or whose state is taken; empty: this agent's site. With retry: the only "
            "site that does it; empty: all sites.",
            "",
        ),
    ] = ""
    command: Annotated[str, doc("With force: the command that makes the state.", "redis-cli set counter 29")] = ""
    type: Annotated[str, doc("With force: the operation's type.", "set")] = "force"


class Resolved(Struct, frozen=True, kw_only=True):
    """The result of a resolution."""

    resource: Annotated[str, doc("The resource.", "counter")]
    site: Annotated[str, doc("The site where it was resolved.", "site1")]
    operation: Annotated[str, doc("The operation that was resolved, or the forced one.", "site1:3")]
    resolution: Annotated[Resolution, doc("The decision.", "happened")]
    sites: Annotated[tuple[RepairedSite, ...], doc("With retry and state: what each site did.", [])] = ()


class StateAt(Struct, frozen=True, kw_only=True):
    """The state of the application at one site."""

    site: Annotated[str, doc("The site.", "site2")]
    status: Annotated[str, doc("OK, KO (the command failed), TIMEOUT (no response in time) or UNREACHABLE.", "OK")]
    output: Annotated[str, doc("The output of the command that shows the state.", "42\n")]


class Verification(Struct, frozen=True, kw_only=True):
    """The state of the application at all sites, compared."""

    resource: Annotated[str, doc("The resource.", "counter")]
    same: Annotated[bool, doc("Whether all sites responded with the same state.", True)]
    states: Annotated[tuple[StateAt, ...], doc("One entry for each site.")]
    diff: Annotated[
        dict[str, tuple[str, ...]],
        doc("For each site that differs from the first: the lines of a unified diff.", {}),
    ]
