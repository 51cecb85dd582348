"""Models of resources, resource types and replicants."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Struct

from cheops.log.operation import Status
from cheops.schema import doc

# The values of engine.status.Overall; not that type, whose import would cost a client more than all models.
Overall: TypeAlias = Literal["CONVERGED", "CONVERGING", "DIVERGED", "UNREACHABLE"]


class ResourceSummary(Struct, frozen=True, kw_only=True):
    """A resource in a list."""

    id: Annotated[str, doc("Its name.", "counter")]
    type: Annotated[str, doc("Its type in the configuration of the sites.", "counter")]
    sites: Annotated[tuple[str, ...], doc("Where it is.", ["site1", "site2"])]
    overall: Annotated[Overall, doc("Whether all is well, as known here.", "CONVERGED")]
    deleted: Annotated[bool, doc("The last that counts is a deletion.", False)]
    operations: Annotated[int, doc("How many operations are known here.", 4)]
    last_change: Annotated[str | None, doc("When the newest was made.", "2026-11-16T01:41:31.885Z")]
    last_outcome: Annotated[Status, doc("What became of the newest, at the site where it went worst.", "OK")] = (
        Status.PENDING
    )


class Resources(Struct, frozen=True, kw_only=True):
    """A page of resources, sorted by id."""

    resources: Annotated[tuple[ResourceSummary, ...], doc("Those of this page.")]
    next: Annotated[str | None, doc("Where the next page begins (`cursor`); null: this is the last.", None)]


class Trouble(Struct, frozen=True, kw_only=True):
    """An operation that failed at a site, or of which nobody knows whether it ran there."""

    operation: Annotated[str, doc("Which.", "site1:3")]
    detail: Annotated[str, doc("What is known of it.", "exit code 1: no such key")]


class SiteStatus(Struct, frozen=True, kw_only=True):
    """What is known of a resource at one site."""

    site: Annotated[str, doc("Which.", "site2")]
    reachable: Annotated[bool, doc("Whether it can be asked now.", True)]
    as_of_s: Annotated[float | None, doc("How long ago it was last heard of this resource; null: never.", 12.0)]
    digest: Annotated[str, doc("Of what it applied; empty while something is missing. Equal means the same.", "9b1f")]
    pending: Annotated[int, doc("Operations it is not known to have dealt with.", 0)]
    failed: Annotated[tuple[Trouble, ...], doc("What failed there and not at its origin.")]
    unknown: Annotated[tuple[Trouble, ...], doc("What may have run there or not.")]


class ResourceStatus(Struct, frozen=True, kw_only=True):
    """Is all well, in one answer."""

    id: Annotated[str, doc("Which resource.", "counter")]
    overall: Annotated[Overall, doc("The verdict.", "CONVERGED")]
    sentence: Annotated[str, doc("The verdict in words.", "all 3 sites have applied the same")]
    unreachable: Annotated[tuple[str, ...], doc("Sites that cannot be asked now.", [])]
    order_not_enforced: Annotated[bool, doc("Operations ran here in another order than elsewhere.", False)]
    sites: Annotated[tuple[SiteStatus, ...], doc("One for each site of the resource.")]


class ResourceDetail(Struct, frozen=True, kw_only=True):
    """A resource with everything but its operations."""

    id: Annotated[str, doc("Its name.", "counter")]
    type: Annotated[str, doc("Its type in the configuration of the sites.", "counter")]
    overall: Annotated[Overall, doc("Whether all is well, as known here.", "CONVERGED")]
    sentence: Annotated[str, doc("The same in words.", "all 3 sites have applied the same")]
    deleted: Annotated[bool, doc("The last that counts is a deletion.", False)]
    operations: Annotated[int, doc("How many operations are known here.", 4)]
    effective: Annotated[int, doc("How many of them count.", 2)]
    last_change: Annotated[str | None, doc("When the newest was made.", "2026-11-16T01:41:31.885Z")]
    matrix: Annotated[str, doc("The hash of the matrix in force.", "d751713988987e93")]
    sites: Annotated[tuple[SiteStatus, ...], doc("One for each site of the resource.")]
    unreachable: Annotated[tuple[str, ...], doc("Sites that cannot be asked now.", [])]
    order_not_enforced: Annotated[bool, doc("Operations ran here in another order than elsewhere.", False)]
    checkpoint: Annotated[dict[str, int] | None, doc("What a checkpoint holds: up to which number of each site.", None)]
    drafts: Annotated[tuple[str, ...], doc("Operations of this site that wait for their first run.", [])]


_ID = "c4e095a1-a357-8d5c-85fc-1e35020baf87"


class ReplicantView(Struct, frozen=True, kw_only=True):
    """A replicated HTTP resource, as the site that is asked knows it."""

    id: Annotated[str, doc("Its meta-id, under which clients know it.", _ID)]
    service: Annotated[str, doc("The service that it belongs to.", "image")]
    path: Annotated[str, doc("Where clients find it; empty if not known here.", f"/v2/images/{_ID}")]
    sites: Annotated[tuple[str, ...], doc("Where it is.", ["site1", "site2"])]
    gone: Annotated[tuple[str, ...], doc("Sites on its list that were removed from the mesh, and do not count.", [])]
    local_id: Annotated[str | None, doc("What the service of this site calls it; null: it has no copy here.", "42")]
    overall: Annotated[Overall, doc("Whether all is well, as known here.", "CONVERGED")]
    deleted: Annotated[bool, doc("The last that counts is a deletion.", False)]
    waits: Annotated[str | None, doc("Why its next operation cannot run here yet; null: none waits.", None)]
    local_ids: Annotated[
        dict[str, str | None],
        doc("Of one replicant: what the service of each site calls it; null: none, or not known now.", {}),
    ] = {}


class Replicants(Struct, frozen=True, kw_only=True):
    """A page of replicants, sorted by id."""

    replicants: Annotated[tuple[ReplicantView, ...], doc("Those of this page.")]
    next: Annotated[str | None, doc("Where the next page begins (`cursor`); null: this is the last.", None)]


class LocalId(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the service of this site calls a replicant."""

    local_id: Annotated[str, doc("Its id there.", "42", min_length=1, max_length=256)]
    is_number: Annotated[bool, doc("Whether the service writes it as a number.", False)] = False


class TypeView(Struct, frozen=True, kw_only=True):
    """A resource type."""

    name: Annotated[str, doc("Its name.", "counter")]
    operations: Annotated[tuple[str, ...], doc("The types of operations its matrix names.", ["set", "inc"])]
    allow: Annotated[tuple[str, ...], doc("Patterns of the commands that operations may bring.", ["redis-cli set * *"])]
    reads: Annotated[bool, doc("Whether it can show the real state.", True)]
    resets: Annotated[bool, doc("Whether it can be deleted without saying how.", True)]


class Types(Struct, frozen=True, kw_only=True):
    """The types of resources that this site is configured for."""

    types: Annotated[tuple[TypeView, ...], doc("Sorted by name.")]
