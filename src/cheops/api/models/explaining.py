"""Answers to why, and to what if."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.resources import Overall
from cheops.api.models.says import says


class ExplanationStep(Struct, frozen=True, kw_only=True):
    """One sentence."""

    text: Annotated[str, says("In plain words.", "site1:1 (set) was made at site1 and ran there: OK")]
    operation: Annotated[str | None, says("The operation it is about.", "site1:1")] = None
    site: Annotated[str | None, says("The site it is about.", None)] = None


class Explanation(Struct, frozen=True, kw_only=True):
    """Why the state of a resource is what it is, step by step."""

    resource: Annotated[str, says("Which.", "counter")]
    overall: Annotated[Overall, says("The verdict that is explained.", "CONVERGED")]
    steps: Annotated[tuple[ExplanationStep, ...], says("In the order in which they follow from each other.")]
    conclusion: Annotated[str, says("What it comes to, and what to do.", "all 3 sites have applied the same")]


class WouldSupersede(Struct, frozen=True, kw_only=True):
    """An operation that would lose its effect."""

    operation: Annotated[str, says("Which.", "site1:2")]
    rule: Annotated[int, says("By which rule.", 3)]
    sentence: Annotated[str, says("That rule in words.", "a later operation replaces it")]


class DryRun(Struct, frozen=True, kw_only=True):
    """What an operation would do. Nothing was run and nothing was saved."""

    resource: Annotated[str, says("On which resource.", "counter")]
    sites: Annotated[tuple[str, ...], says("Where it would run.", ["site1", "site2"])]
    first_at: Annotated[str | None, says("Where it would run first; null: nowhere now.", "site1")]
    command: Annotated[str, says("What would be run.", "redis-cli set counter 29")]
    would_supersede: Annotated[tuple[WouldSupersede, ...], says("What would lose its effect by it.")]
    superseded_by: Annotated[
        WouldSupersede | None, says("What would take its own effect at once: another matrix, say.")
    ]
    runs_here: Annotated[
        tuple[str, ...], says("What this site would run, in order; `new` is the operation itself.", ["new"])
    ]
    replayed: Annotated[
        dict[str, tuple[str, ...]],
        says("Per site what would be run again, as far as this site knows the sites.", {"site1": []}),
    ]
    order_not_enforced: Annotated[bool, says("It would run in an order that nothing can enforce.", False)]
    unreachable: Annotated[tuple[str, ...], says("Sites that would get it only when they are back.", [])]
    refused: Annotated[str | None, says("Why it would not be taken at all.", None)]
    notes: Annotated[tuple[str, ...], says("What else should be known.", [])]


class MatrixPair(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """What holds for two types of operations in this order."""

    before: Annotated[str, says("The first.", "inc")]
    after: Annotated[str, says("The second.", "set")]
    result: Annotated[str | None, says("What is taken of the two; null: both, in order.", "take-one")]
    class_: Annotated[int, says("1: they commute, 2: one replaces the other, 3: their order counts.", 2)]
    inferred: Annotated[bool, says("It follows from other entries, or from none.", False)]
    concurrent_both: Annotated[bool, says("Made at the same time, both stay.", False)]


class MatrixEntry(Struct, frozen=True, kw_only=True):
    """An entry as somebody wrote it."""

    before: Annotated[str, says("The first.", "inc")]
    after: Annotated[str, says("The second.", "set")]
    result: Annotated[str, says("What is taken of the two.", "take-one")]
    concurrent_both: Annotated[bool, says("Made at the same time, both stay.", False)]


class MatrixView(Struct, frozen=True, kw_only=True):
    """A matrix and everything that follows from it."""

    hash: Annotated[str, says("Equal for equal rules.", "d751713988987e93")]
    entries: Annotated[tuple[MatrixEntry, ...], says("What was written.")]
    types: Annotated[tuple[str, ...], says("The types it mentions, and those of known operations.", ["set"])]
    pairs: Annotated[tuple[MatrixPair, ...], says("What holds for each pair, row by row.")]
    replaces: Annotated[
        dict[str, tuple[str, ...]], says("What each replace type replaces.", {"set": ["inc"]})
    ]
    never_mentioned: Annotated[tuple[str, ...], says("Types of operations that no entry mentions.", [])]
    resource: Annotated[str | None, says("The resource it is in force for.", "counter")] = None
    introduced_by: Annotated[
        str | None, says("The operation that brought it, if still known.", "site1:1")
    ] = None
