"""The operations of a resource beside each other, site by site: what a page draws as a graph."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Struct

from cheops.api.models.operations import Effect
from cheops.api.models.resources import Overall
from cheops.api.models.says import says
from cheops.log.operation import Kind

# Of one operation at one site. `missing`: the site is not known to have heard of it.
LaneState: TypeAlias = Literal[
    "ok", "failed", "unknown", "running", "pending", "missing", "superseded", "void", "skipped"
]


class LaneOperation(Struct, frozen=True, kw_only=True):
    """An operation as a row of the graph."""

    id: Annotated[str, says("Its name within the resource.", "site1:3")]
    type: Annotated[str, says("As the matrix names it.", "inc")]
    kind: Annotated[Kind, says("What it is beyond its type.", "normal")]
    origin: Annotated[str, says("The site where it entered Cheops.", "site1")]
    made_ms: Annotated[int, says("When, by the hybrid clock of its origin, since 1970.", 1794620491885)]
    after: Annotated[
        tuple[str, ...],
        says("Those it directly follows: what its origin knew, without what these know.", ["site1:2"]),
    ]
    effect: Annotated[Effect, says("What it counts for now.", "effective")]
    rule: Annotated[int | None, says("The number of the rule that took its effect.", None)]
    sentence: Annotated[str, says("That rule in words.", "")]
    beaten_by: Annotated[str | None, says("The operation that beat it.", None)]
    command: Annotated[str, says("What is run at each site; cut where it is long.", "redis-cli incrby n 13")]


class SiteLane(Struct, frozen=True, kw_only=True):
    """What one site has of the operations, in the same order as these."""

    site: Annotated[str, says("Which.", "site2")]
    here: Annotated[bool, says("Whether this is the agent that answers.", False)]
    reachable: Annotated[bool, says("Whether it can be asked now.", True)]
    as_of_s: Annotated[float | None, says("How long ago it was last heard of this resource.", 0.4)]
    pending: Annotated[int, says("Operations it is not known to have dealt with.", 0)]
    digest: Annotated[str, says("Of what it applied; equal means the same.", "9b1f")]
    states: Annotated[tuple[LaneState, ...], says("One for each operation.", ["ok"])]
    ran_ms: Annotated[
        tuple[int | None, ...],
        says("When it first ran there, by that site's clock; null: not that anybody knows.", [1794620491890]),
    ]


class Lanes(Struct, frozen=True, kw_only=True):
    """All operations of a resource that are known, and what each site has of each."""

    resource: Annotated[str, says("Which.", "counter")]
    type: Annotated[str, says("Its type in the configuration of the sites.", "counter")]
    overall: Annotated[Overall, says("Whether all is well, as known here.", "CONVERGED")]
    sentence: Annotated[str, says("The same in words.", "all 3 sites have applied the same")]
    deleted: Annotated[bool, says("The last that counts is a deletion.", False)]
    operations: Annotated[tuple[LaneOperation, ...], says("By stamp, the oldest first.")]
    lanes: Annotated[tuple[SiteLane, ...], says("One for each site of the resource.")]
    forgotten: Annotated[
        int, says("How many older operations are not kept any more: they count for nothing.", 0)
    ]
    order_not_enforced: Annotated[bool, says("Operations ran here in another order than elsewhere.", False)]
