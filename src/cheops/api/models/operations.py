"""Operations, what became of them, and who has heard of them."""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says
from cheops.log.operation import Kind, Status, Verdict


class Effect(StrEnum):
    """What an operation counts for now."""

    EFFECTIVE = "effective"  # it is part of the state
    SUPERSEDED = "superseded"  # another one beat it
    VOID = "void"  # it failed at its origin
    FOLDED = "folded"  # a checkpoint holds its effect
    ESTRANGED = "estranged"  # made without knowing what all sites had settled for good
    SILENT = "silent"  # it touches no application
    DRAFT = "draft"  # known to its origin alone, which has not run it yet


class ReplyView(Struct, frozen=True, kw_only=True):
    """What became of an operation at one site."""

    site: Annotated[str, says("Where.", "site2")]
    status: Annotated[Status, says("As far as the agent that answers knows.", "OK")]
    detail: Annotated[str, says("Why it failed, or what else is to be said.", "")]
    output: Annotated[str, says("What the command printed.", "42\n")]
    at: Annotated[str | None, says("When it was run, by that site's clock.", "2026-11-16T01:41:31.885Z")]
    took_ms: Annotated[int | None, says("How long it ran.", 8)]
    replayed: Annotated[bool, says("Known from a replay, which runs many again.", False)]


class OperationView(Struct, frozen=True, kw_only=True):
    """One operation, with what became of it at every site."""

    id: Annotated[str, says("Its name within the resource: site and number.", "site1:3")]
    resource: Annotated[str, says("Of which resource.", "counter")]
    origin: Annotated[str, says("The site where it entered Cheops.", "site1")]
    incarnation: Annotated[str, says("Of the store of that site.", "6f1c9a")]
    seq: Annotated[int, says("The how manieth of that origin on this resource.", 3)]
    type: Annotated[str, says("As the matrix names it.", "inc")]
    kind: Annotated[Kind, says("What it is beyond its type.", "normal")]
    command: Annotated[str, says("What is run at each site.", "redis-cli incrby counter 13")]
    files: Annotated[dict[str, str], says("Files that came along: name and SHA-256.", {})]
    made_at: Annotated[str, says("When, by the hybrid clock of its origin.", "2026-11-16T01:41:31.885Z")]
    knows: Annotated[
        dict[str, int],
        says("What its origin knew when it was made: up to which number of each site.", {"site1": 2}),
    ]
    matrix: Annotated[str, says("The hash of the matrix it was made under.", "d751713988987e93")]
    sites: Annotated[tuple[str, ...] | None, says("The list of sites that it sets, if it does.", None)]
    verdict: Annotated[Verdict | None, says("What became of it at its origin; null: not run yet.", "OK")]
    why: Annotated[str, says("With a verdict other than OK: the reason.", "")]
    effect: Annotated[Effect, says("What it counts for now.", "effective")]
    rule: Annotated[int | None, says("The number of the rule that took its effect.", 4)]
    sentence: Annotated[str, says("That rule in words.", "an operation made at the same time replaces it")]
    beaten_by: Annotated[str | None, says("The operation that beat it.", "site2:1")]
    replies: Annotated[tuple[ReplyView, ...], says("One for each site of the resource.")]


class Operations(Struct, frozen=True, kw_only=True):
    """A page of the operations of a resource, by stamp."""

    resource: Annotated[str, says("Of which resource.", "counter")]
    operations: Annotated[tuple[OperationView, ...], says("From the oldest to the newest.")]
    next: Annotated[str | None, says("Where the next page begins (`cursor`); null: this is the last.", None)]


class Mark(Struct, frozen=True, kw_only=True):
    """What one site has of one operation."""

    operation: Annotated[str, says("Which.", "site1:3")]
    knows: Annotated[bool, says("Whether the site is known to have heard of it.", True)]
    status: Annotated[Status, says("What became of it there.", "OK")]


class Lane(Struct, frozen=True, kw_only=True):
    """The operations as one site has them, in the order of the log."""

    site: Annotated[str, says("Which.", "site2")]
    marks: Annotated[tuple[Mark, ...], says("One for each operation.")]


class LogView(Struct, frozen=True, kw_only=True):
    """The log of a resource: every operation that is still known, and which count, in which order."""

    resource: Annotated[str, says("Which.", "counter")]
    effective: Annotated[tuple[str, ...], says("What every site must have applied, in order.", ["site1:3"])]
    operations: Annotated[tuple[OperationView, ...], says("All that are known, by stamp.")]
    lanes: Annotated[tuple[Lane, ...], says("One for each site.")]
    checkpoint: Annotated[
        dict[str, int] | None, says("What a checkpoint holds: up to which number of each site.", None)
    ]
    forgotten: Annotated[
        dict[str, int], says("Up to which number of each site operations may have been forgotten.", {})
    ]
