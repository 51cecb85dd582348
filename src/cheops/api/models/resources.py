"""Models of resources, resource types and replicants, and of the gateway: scopes, served requests and flows."""

import shlex
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Struct

from cheops.gateway.request_log import ServedRequest
from cheops.log.operation import Status
from cheops.schema import doc
from cheops.text import printable, size_text

# The values of engine.status.Overall; not that type, whose import would cost a client more than all models.
Overall: TypeAlias = Literal["CONVERGED", "CONVERGING", "DIVERGED", "UNREACHABLE"]


# The values of engine.health.State, likewise.
State: TypeAlias = Literal["converged", "converging", "diverged", "order-not-enforced", "unknown"]


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
    void: Annotated[
        bool, doc("Whether nothing was ever created: every operation failed at the site that submitted it.", False)
    ] = False


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
    pending: Annotated[
        int | None,
        doc("The number of operations that it had not settled when it last reported; null: not known.", 0),
    ]
    failed: Annotated[tuple[Trouble, ...], doc("Operations that failed there but not at their origin.")]
    unknown: Annotated[tuple[Trouble, ...], doc("Operations whose outcome there is unknown.")]
    retry_reason: Annotated[
        str, doc("At the site that responds: why what is pending could not run yet; it is tried again.", "")
    ] = ""
    relayed: Annotated[
        bool,
        doc(
            "Whether it has done more than it has reported here: its replies came through other sites, and count.",
            False,
        ),
    ] = False


class ResourceStatus(Struct, frozen=True, kw_only=True):
    """The status of a resource at all its sites."""

    id: Annotated[str, doc("The resource.", "counter")]
    overall: Annotated[Overall, doc("The overall status.", "CONVERGED")]
    sentence: Annotated[str, doc("The status in words.", "all 3 sites are in sync")]
    unreachable: Annotated[tuple[str, ...], doc("Sites that are unreachable now.", [])]
    order_not_enforced: Annotated[bool, doc("Whether operations ran here in another order than elsewhere.", False)]
    sites: Annotated[tuple[SiteStatus, ...], doc("One entry for each site of the resource.")]


def cure_of(status: ResourceStatus) -> str:
    """The command that fixes a resource that is DIVERGED."""
    command = "resolve" if any(site.unknown for site in status.sites) else "repair"
    return f"cheops {command} {shlex.quote(printable(status.id))}"


class StateCounts(Struct, frozen=True, kw_only=True):
    """How many resources of a site are in each state. It does not matter which sites are reachable now."""

    converged: Annotated[int, doc("In sync at all their sites, when these last reported.", 98)]
    converging: Annotated[int, doc("Operations are pending.", 1)]
    diverged: Annotated[int, doc("The sites differ until an operator fixes it.", 1)]
    order_not_enforced: Annotated[int, doc("Likewise, because operations ran here out of order.", 0)]
    unknown: Annotated[
        int, doc("Not compared with all their sites since the agent loaded them; nothing is known to be wrong.", 0)
    ]


class WorstResource(Struct, frozen=True, kw_only=True):
    """A resource that is not in sync."""

    id: Annotated[str, doc("The resource.", "counter")]
    state: Annotated[State, doc("The state that it is counted in.", "diverged")]
    overall: Annotated[Overall, doc("The overall status.", "DIVERGED")]
    sentence: Annotated[str, doc("The same in words.", "site1:3 failed at site2 but not at its origin")]
    hint: Annotated[str, doc("What to do; empty: it continues by itself.", "cheops repair counter")]


_MOST_COUNTED = 100_000


class SpaceUse(Struct, frozen=True, kw_only=True):
    """What a site takes of its disk, in bytes where nothing else is said."""

    total: Annotated[int, doc("All files of the agent.", 5_000_000)]
    live: Annotated[int, doc("Documents of the store, without those that are dead.", 2_000_000)]
    dead: Annotated[int, doc("Tombstones of deleted resources, which are forgotten after a time.", 10_000)]
    free: Annotated[int, doc("Free pages of the store, which are used again or given back at rest.", 500_000)]
    wal: Annotated[int, doc("The write-ahead log of the store.", 1_000_000)]
    files: Annotated[int, doc("Files that operations brought along.", 0)]
    journal: Annotated[int, doc("The journal of events.", 1_000_000)]
    replicas: Annotated[int, doc("Ids of replicated resources.", 50_000)]
    audit: Annotated[int, doc("The audit log.", 400_000)]
    documents: Annotated[int, doc("The number of documents, counted up to 100,000.", 600)]
    deleted: Annotated[int, doc("The number of deleted resources of which a tombstone is left.", 12)]

    def in_words(self) -> str:
        more = "more than " if self.documents >= _MOST_COUNTED else ""
        word = "tombstone" if self.deleted == 1 else "tombstones"
        dead = f"{size_text(self.dead)} in {self.deleted:,} {word}, " if self.deleted else ""
        others = {"files": self.files, "journal": self.journal, "replicas": self.replicas, "audit log": self.audit}
        rest = "".join(f", {name} {size_text(n)}" for name, n in others.items() if n)
        return (
            f"{size_text(self.total)}: store {size_text(self.live)} live in {more}{self.documents:,} documents, {dead}"
            f"{size_text(self.free)} free, log {size_text(self.wal)}{rest}"
        )


class SiteHealth(Struct, frozen=True, kw_only=True):
    """All resources of a site, by their state."""

    site: Annotated[str, doc("The site.", "site1")]
    resources: Annotated[int, doc("The number of its resources.", 100)]
    states: Annotated[StateCounts, doc("How many of them are in each state.")]
    unreachable: Annotated[tuple[str, ...], doc("Other sites that are unreachable now.", [])]
    worst: Annotated[tuple[WorstResource, ...], doc("At most ten resources that are not in sync, the worst first.")]
    space: Annotated[SpaceUse, doc("What the site takes of its disk.")]


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
    void: Annotated[
        bool, doc("Whether nothing was ever created: every operation failed at the site that submitted it.", False)
    ] = False


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


# -- the gateway --------------------------------------------------------------------------------------------------


FlowRoute = Literal["local", "forward", "in-turn"]
Plane = Literal["haproxy", "builtin", "none"]


class FlowView(Struct, frozen=True, kw_only=True):
    """Where the data plane sends requests to a service with this scope, without the agent."""

    service: Annotated[str, doc("The service.", "image")]
    scope: Annotated[str, doc("The scope, as clients send it.", "site2")]
    route: Annotated[
        FlowRoute,
        doc("Served here, forwarded to a site, or tried at a site first and then by the agent.", "forward"),
    ]
    site: Annotated[str, doc("The site that gets the request first.", "site2")]


class Flows(Struct, frozen=True, kw_only=True):
    """The data plane of a site, and a page of its flows."""

    plane: Annotated[
        Plane,
        doc(
            "HAProxy; the agent's own proxy (builtin), which needs no flows; or none, if no service listens.",
            "haproxy",
        ),
    ]
    ok: Annotated[bool, doc("Whether it works.", True)]
    trouble: Annotated[str, doc("What is wrong with it; empty: nothing.", "")]
    total: Annotated[int, doc("The number of flows.", 2)]
    carried: Annotated[
        int, doc("The number of carrier values whose scope is cached, for requests of the application.", 0)
    ]
    fast: Annotated[int, doc("Requests that HAProxy served without the agent, since the agent's start.", 98_214)]
    slow: Annotated[int, doc("Requests that HAProxy passed to the agent.", 12)]
    reloads: Annotated[int, doc("How often its configuration was replaced.", 1)]
    restarts: Annotated[int, doc("How often it stopped and was started again.", 0)]
    flows: Annotated[tuple[FlowView, ...], doc("The flows of this page, the latest first.")]
    next: Annotated[str | None, doc("The `cursor` of the next page; null: this is the last page.", None)]


class Requests(Struct, frozen=True, kw_only=True):
    """A page of requests with a scope, the latest first."""

    requests: Annotated[tuple[ServedRequest, ...], doc("The entries of this page.")]
    next: Annotated[
        str | None,
        doc("The `cursor` of the next page, with older requests; null: this is the last page.", None),
    ]


_TREE = {"kind": "otherwise", "parts": [{"kind": "site", "site": "site1"}]}


class ScopeMistake(Struct, frozen=True, kw_only=True):
    """What is wrong with a text that should be a scope, and where."""

    problem: Annotated[str, doc("The problem.", "unknown site 'site9'")]
    hint: Annotated[str, doc("What would be valid.", "Sites: site1, site2")]
    text: Annotated[str, doc("The text with the mistake: as sent, or its canonical form.", "site9")]
    start: Annotated[int | None, doc("The first wrong character, counted from 0; null: not at one place.", 0)]
    end: Annotated[int | None, doc("The character after the last wrong one.", 5)]


class ScopeSite(Struct, frozen=True, kw_only=True):
    """A site and its role in a route."""

    site: Annotated[str, doc("The site.", "site2")]
    role: Annotated[str, doc("Its role in the route.", "first choice")]
    up: Annotated[bool, doc("Whether it is reachable now.", True)]
    rtt_ms: Annotated[float | None, doc("The round-trip time from here.", 12.5)]


class ScopeMethod(Struct, frozen=True, kw_only=True):
    """What one kind of request would do."""

    method: Annotated[str, doc("read, create, update or delete.", "read")]
    sites: Annotated[tuple[str, ...], doc("Where it would be executed.", ["site1"])]
    latency_ms: Annotated[float | None, doc("The expected time to the response.", 12.5)]
    does: Annotated[str, doc("The same in words.", "asks site1")]


class ScopeService(Struct, frozen=True, kw_only=True):
    """What a scope means for one service."""

    service: Annotated[str | None, doc("The service; null: any.", "image")]
    location: Annotated[str, doc("The location that the scope gives it.", "site1 ; site2")]
    means: Annotated[str, doc("The same, with functions expanded to operators.", "site1 ; site2")]
    tree: Annotated[dict[str, Any], doc("The syntax tree.", _TREE)]
    route: Annotated[dict[str, Any], doc("The route.", {"kind": "one", "site": "site1"})]
    sites: Annotated[tuple[ScopeSite, ...], doc("The sites, in the order in which they are tried.")]
    methods: Annotated[tuple[ScopeMethod, ...], doc("What each kind of request would do.")]
    notes: Annotated[tuple[str, ...], doc("Other details.", [])]


class ScopeExplanation(Struct, frozen=True, kw_only=True):
    """What a scope means at this site now, or what is wrong with it."""

    canonical: Annotated[str | None, doc("The canonical form; null: the text is not a scope.", "{image: site1}")]
    here: Annotated[str, doc("The site from which the scope is resolved.", "site1")]
    services: Annotated[tuple[ScopeService, ...], doc("One entry for each service in the scope.")]
    mistake: Annotated[ScopeMistake | None, doc("What is wrong with the text; null: nothing.", None)]
