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
    type: Annotated[str, doc("Its type in the configuration.", "counter")]
    sites: Annotated[tuple[str, ...], doc("Its sites.", ["site1", "site2"])]
    overall: Annotated[Overall, doc("The overall status, as this site knows it.", "CONVERGED")]
    deleted: Annotated[bool, doc("Whether it is deleted.", False)]
    operations: Annotated[int, doc("The number of operations known here.", 4)]
    last_change: Annotated[str | None, doc("When the newest operation was submitted.", "2026-11-16T01:41:31.885Z")]
    last_outcome: Annotated[Status, doc("The worst outcome of the newest operation, over all sites.", "OK")] = (
        Status.PENDING
    )


class Resources(Struct, frozen=True, kw_only=True):
    """A page of resources, sorted by id."""

    resources: Annotated[tuple[ResourceSummary, ...], doc("The entries of this page.")]
    next: Annotated[str | None, doc("The `cursor` of the next page; null: this is the last page.", None)]


class Trouble(Struct, frozen=True, kw_only=True):
    """An operation that failed at a site, or whose outcome there is unknown."""

    operation: Annotated[str, doc("The operation.", "site1:3")]
    detail: Annotated[str, doc("What is known about it.", "exit code 1: no such key")]


class SiteStatus(Struct, frozen=True, kw_only=True):
    """The status of a resource at one site."""

    site: Annotated[str, doc("The site.", "site2")]
    reachable: Annotated[bool, doc("Whether it is reachable now.", True)]
    as_of_s: Annotated[
        float | None, doc("How many seconds ago the site last reported this resource; null: never.", 12.0)
    ]
    digest: Annotated[
        str,
        doc(
            "The digest of what it applied; empty while something is missing. Equal digests mean equal states.", "9b1f"
        ),
    ]
    pending: Annotated[int, doc("The number of operations that it is not known to have settled.", 0)]
    failed: Annotated[tuple[Trouble, ...], doc("Operations that failed there but not at their origin.")]
    unknown: Annotated[tuple[Trouble, ...], doc("Operations whose outcome there is unknown.")]


class ResourceStatus(Struct, frozen=True, kw_only=True):
    """The status of a resource at all its sites."""

    id: Annotated[str, doc("The resource.", "counter")]
    overall: Annotated[Overall, doc("The overall status.", "CONVERGED")]
    sentence: Annotated[str, doc("The status in words.", "all 3 sites are in sync")]
    unreachable: Annotated[tuple[str, ...], doc("Sites that are unreachable now.", [])]
    order_not_enforced: Annotated[bool, doc("Whether operations ran here in another order than elsewhere.", False)]
    sites: Annotated[tuple[SiteStatus, ...], doc("One entry for each site of the resource.")]


class ResourceDetail(Struct, frozen=True, kw_only=True):
    """A resource with everything but its operations."""

    id: Annotated[str, doc("Its name.", "counter")]
    type: Annotated[str, doc("Its type in the configuration.", "counter")]
    overall: Annotated[Overall, doc("The overall status, as this site knows it.", "CONVERGED")]
    sentence: Annotated[str, doc("The same in words.", "all 3 sites are in sync")]
    deleted: Annotated[bool, doc("Whether it is deleted.", False)]
    operations: Annotated[int, doc("The number of operations known here.", 4)]
    effective: Annotated[int, doc("How many of them are in effect.", 2)]
    last_change: Annotated[str | None, doc("When the newest operation was submitted.", "2026-11-16T01:41:31.885Z")]
    matrix: Annotated[str, doc("The hash of the matrix in force.", "d751713988987e93")]
    sites: Annotated[tuple[SiteStatus, ...], doc("One entry for each site of the resource.")]
    unreachable: Annotated[tuple[str, ...], doc("Sites that are unreachable now.", [])]
    order_not_enforced: Annotated[bool, doc("Whether operations ran here in another order than elsewhere.", False)]
    checkpoint: Annotated[
        dict[str, int] | None,
        doc(
            "What the checkpoint contains: for each site, the number of its last operation; null: no checkpoint.", None
        ),
    ]
    drafts: Annotated[tuple[str, ...], doc("Operations of this site that wait for their first run.", [])]


_ID = "c4e095a1-a357-8d5c-85fc-1e35020baf87"


class ReplicantView(Struct, frozen=True, kw_only=True):
    """A replicated HTTP resource, as this site knows it."""

    id: Annotated[str, doc("Its meta-id, which clients use.", _ID)]
    service: Annotated[str, doc("The service that it belongs to.", "image")]
    path: Annotated[str, doc("Its path for clients; empty if not known here.", f"/v2/images/{_ID}")]
    sites: Annotated[tuple[str, ...], doc("Its sites.", ["site1", "site2"])]
    gone: Annotated[tuple[str, ...], doc("Sites on its list that were removed from the mesh.", [])]
    local_id: Annotated[str | None, doc("Its id in the service of this site; null: there is no copy here.", "42")]
    overall: Annotated[Overall, doc("The overall status, as this site knows it.", "CONVERGED")]
    deleted: Annotated[bool, doc("Whether it is deleted.", False)]
    waits: Annotated[str | None, doc("Why its next operation cannot run here yet; null: none is waiting.", None)]
    local_ids: Annotated[
        dict[str, str | None],
        doc("Only for one replicant: its id in the service of each site; null: none, or not known now.", {}),
    ] = {}


class Replicants(Struct, frozen=True, kw_only=True):
    """A page of replicants, sorted by id."""

    replicants: Annotated[tuple[ReplicantView, ...], doc("The entries of this page.")]
    next: Annotated[str | None, doc("The `cursor` of the next page; null: this is the last page.", None)]


class LocalId(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of a replicant in the service of this site."""

    local_id: Annotated[str, doc("Its id in the service.", "42", min_length=1, max_length=256)]
    is_number: Annotated[bool, doc("Whether the service writes it as a number.", False)] = False


class TypeView(Struct, frozen=True, kw_only=True):
    """A resource type."""

    name: Annotated[str, doc("Its name.", "counter")]
    operations: Annotated[tuple[str, ...], doc("The types of operations that its matrix names.", ["set", "inc"])]
    allow: Annotated[tuple[str, ...], doc("Patterns of the commands that operations may run.", ["redis-cli set * *"])]
    reads: Annotated[bool, doc("Whether it has a command that shows the state.", True)]
    resets: Annotated[bool, doc("Whether it can be deleted without naming a command.", True)]


class Types(Struct, frozen=True, kw_only=True):
    """The resource types in this site's configuration."""

    types: Annotated[tuple[TypeView, ...], doc("The entries, sorted by name.")]
