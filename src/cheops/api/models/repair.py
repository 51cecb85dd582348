"""Models of repairs: what is wrong with a resource at each site, what a repair would do, and what one did."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.resources import Overall, Trouble
from cheops.log.operation import Status
from cheops.schema import doc


class RepairedSite(Struct, frozen=True, kw_only=True):
    """What a repair did at one site."""

    site: Annotated[str, doc("The site.", "site2")]
    status: Annotated[
        Status | None,
        doc("The worst outcome of these operations; empty if there are none, or the site is unreachable.", "OK"),
    ] = None
    operations: Annotated[tuple[str, ...], doc("The operations that it ran, or runs.", ["site1:3"])] = ()
    detail: Annotated[str, doc("Why it failed, is pending, or was not done.", "")] = ""
    reached: Annotated[bool, doc("Whether the site has been reached.", True)] = True


class Repairable(Struct, frozen=True, kw_only=True):
    """What is wrong with a resource at one site, and what a repair would do there."""

    site: Annotated[str, doc("The site.", "site2")]
    reachable: Annotated[bool, doc("Whether it is reachable.", True)]
    read: Annotated[
        str,
        doc("Whether its application's state was read: OK, KO, TIMEOUT (no response in time) or UNREACHABLE.", "OK"),
    ]
    state: Annotated[str, doc("The state of its application, or why it could not be read.", "42\n")]
    failed: Annotated[tuple[Trouble, ...], doc("Operations that failed here only. A retry runs them again.")]
    unknown: Annotated[tuple[Trouble, ...], doc("Operations whose outcome here is unknown.")]
    discards: Annotated[
        tuple[str, ...],
        doc("Operations whose effect is lost if the state of this site is taken: it does not hold it.", ["site1:3"]),
    ]


class RepairPlan(Struct, frozen=True, kw_only=True):
    """What is wrong with a resource, and what a repair would do. Nothing is changed."""

    resource: Annotated[str, doc("The resource.", "counter")]
    overall: Annotated[Overall, doc("The overall status.", "DIVERGED")]
    sentence: Annotated[str, doc("The reason.", "site1:3 failed at site2 but not at its origin")]
    same: Annotated[bool, doc("Whether the applications of all sites have the same state.", False)]
    sites: Annotated[tuple[Repairable, ...], doc("One entry for each site.")]
    no_state: Annotated[
        str, doc("Why the state of a site cannot be taken for all of them, whichever it is; empty if it can.", "")
    ] = ""
