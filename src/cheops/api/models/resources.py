"""Resources: what is where, and whether all is well."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Struct

from cheops.api.models.says import says
from cheops.log.operation import Status

# The values of engine.status.Overall; not that type, whose import would cost a client more than all models.
Overall: TypeAlias = Literal["CONVERGED", "CONVERGING", "DIVERGED", "UNREACHABLE"]


class ResourceSummary(Struct, frozen=True, kw_only=True):
    """A resource in a list."""

    id: Annotated[str, says("Its name.", "counter")]
    type: Annotated[str, says("Its type in the configuration of the sites.", "counter")]
    sites: Annotated[tuple[str, ...], says("Where it is.", ["site1", "site2"])]
    overall: Annotated[Overall, says("Whether all is well, as known here.", "CONVERGED")]
    deleted: Annotated[bool, says("The last that counts is a deletion.", False)]
    operations: Annotated[int, says("How many operations are known here.", 4)]
    last_change: Annotated[str | None, says("When the newest was made.", "2026-11-16T01:41:31.885Z")]
    last_outcome: Annotated[
        Status, says("What became of the newest, at the site where it went worst.", "OK")
    ] = Status.PENDING


class Resources(Struct, frozen=True, kw_only=True):
    """A page of resources, sorted by id."""

    resources: Annotated[tuple[ResourceSummary, ...], says("Those of this page.")]
    next: Annotated[str | None, says("Where the next page begins (`cursor`); null: this is the last.", None)]


class Trouble(Struct, frozen=True, kw_only=True):
    """An operation that failed at a site, or of which nobody knows whether it ran there."""

    operation: Annotated[str, says("Which.", "site1:3")]
    detail: Annotated[str, says("What is known of it.", "exit code 1: no such key")]


class SiteStatus(Struct, frozen=True, kw_only=True):
    """What is known of a resource at one site."""

    site: Annotated[str, says("Which.", "site2")]
    reachable: Annotated[bool, says("Whether it can be asked now.", True)]
    as_of_s: Annotated[
        float | None, says("How long ago it was last heard of this resource; null: never.", 12.0)
    ]
    digest: Annotated[
        str, says("Of what it applied; empty while something is missing. Equal means the same.", "9b1f")
    ]
    pending: Annotated[int, says("Operations it is not known to have dealt with.", 0)]
    failed: Annotated[tuple[Trouble, ...], says("What failed there and not at its origin.")]
    unknown: Annotated[tuple[Trouble, ...], says("What may have run there or not.")]


class ResourceStatus(Struct, frozen=True, kw_only=True):
    """Is all well, in one answer."""

    id: Annotated[str, says("Which resource.", "counter")]
    overall: Annotated[Overall, says("The verdict.", "CONVERGED")]
    sentence: Annotated[str, says("The verdict in words.", "all 3 sites have applied the same")]
    unreachable: Annotated[tuple[str, ...], says("Sites that cannot be asked now.", [])]
    order_not_enforced: Annotated[bool, says("Operations ran here in another order than elsewhere.", False)]
    sites: Annotated[tuple[SiteStatus, ...], says("One for each site of the resource.")]


class ResourceDetail(Struct, frozen=True, kw_only=True):
    """A resource with everything but its operations."""

    id: Annotated[str, says("Its name.", "counter")]
    type: Annotated[str, says("Its type in the configuration of the sites.", "counter")]
    overall: Annotated[Overall, says("Whether all is well, as known here.", "CONVERGED")]
    sentence: Annotated[str, says("The same in words.", "all 3 sites have applied the same")]
    deleted: Annotated[bool, says("The last that counts is a deletion.", False)]
    operations: Annotated[int, says("How many operations are known here.", 4)]
    effective: Annotated[int, says("How many of them count.", 2)]
    last_change: Annotated[str | None, says("When the newest was made.", "2026-11-16T01:41:31.885Z")]
    matrix: Annotated[str, says("The hash of the matrix in force.", "d751713988987e93")]
    sites: Annotated[tuple[SiteStatus, ...], says("One for each site of the resource.")]
    unreachable: Annotated[tuple[str, ...], says("Sites that cannot be asked now.", [])]
    order_not_enforced: Annotated[bool, says("Operations ran here in another order than elsewhere.", False)]
    checkpoint: Annotated[
        dict[str, int] | None, says("What a checkpoint holds: up to which number of each site.", None)
    ]
    drafts: Annotated[tuple[str, ...], says("Operations of this site that wait for their first run.", [])]
