"""Replicants: resources of HTTP services that are at several sites."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.resources import Overall
from cheops.api.models.says import says

_ID = "c4e095a1-a357-8d5c-85fc-1e35020baf87"


class ReplicantView(Struct, frozen=True, kw_only=True):
    """A replicated HTTP resource, as the site that is asked knows it."""

    id: Annotated[str, says("Its meta-id, under which clients know it.", _ID)]
    service: Annotated[str, says("The service that it belongs to.", "image")]
    path: Annotated[str, says("Where clients find it; empty if not known here.", f"/v2/images/{_ID}")]
    sites: Annotated[tuple[str, ...], says("Where it is.", ["site1", "site2"])]
    gone: Annotated[
        tuple[str, ...], says("Sites on its list that were removed from the mesh, and do not count.", [])
    ]
    local_id: Annotated[
        str | None, says("What the service of this site calls it; null: it has no copy here.", "42")
    ]
    overall: Annotated[Overall, says("Whether all is well, as known here.", "CONVERGED")]
    deleted: Annotated[bool, says("The last that counts is a deletion.", False)]
    waits: Annotated[str | None, says("Why its next operation cannot run here yet; null: none waits.", None)]
    local_ids: Annotated[
        dict[str, str | None],
        says("Of one replicant: what the service of each site calls it; null: none, or not known now.", {}),
    ] = {}


class Replicants(Struct, frozen=True, kw_only=True):
    """A page of replicants, sorted by id."""

    replicants: Annotated[tuple[ReplicantView, ...], says("Those of this page.")]
    next: Annotated[str | None, says("Where the next page begins (`cursor`); null: this is the last.", None)]


class LocalId(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the service of this site calls a replicant."""

    local_id: Annotated[str, says("Its id there.", "42", min_length=1, max_length=256)]
    is_number: Annotated[bool, says("Whether the service writes it as a number.", False)] = False
