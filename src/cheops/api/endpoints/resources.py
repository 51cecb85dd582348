"""Endpoints of resources: their state, their operations, replicants, and the requests and scopes of the gateway."""

from typing import Annotated

from msgspec import Struct

from cheops.api.endpoints.declaration import (
    CHANGE_RESOURCE,
    FORWARDABLE,
    MAX_COMMAND_CHARACTERS,
    READ,
    READ_RESOURCE,
    READ_SITE,
    Endpoint,
    FreshPageParameters,
    FreshParameters,
    PageParameters,
    TimeoutParameters,
    WaitParameters,
)
from cheops.api.models.operations import (
    Accepted,
    ChangeSites,
    DryRun,
    Explanation,
    Lanes,
    LogView,
    MatrixView,
    Operations,
    OperationView,
    Resolved,
    ResolveRequest,
    SiteAnswer,
    SubmitRequest,
    Verification,
)
from cheops.api.models.repair import RepairPlan
from cheops.api.models.resources import (
    Flows,
    LocalId,
    Overall,
    Replicants,
    ReplicantView,
    Requests,
    ResourceDetail,
    Resources,
    ResourceStatus,
    ScopeExplanation,
    SiteHealth,
    Types,
)
from cheops.log.operation import Status
from cheops.schema import doc

MAX_LOG_PAGE = 5_000  # operations: most logs are shorter
_MAX_SCOPE = 16_384  # of what fits into an address

# -- resources --------------------------------------------------------------------------------------------------


class ResourceFilter(FreshPageParameters, frozen=True, kw_only=True):
    prefix: Annotated[str, doc("Only ids that begin with this text.", max_length=256)] = ""
    search: Annotated[str, doc("Only ids that contain this text, in upper or lower case.", max_length=256)] = ""
    site: Annotated[str, doc("Only resources that are, or were, at this site too.", max_length=256)] = ""
    type: Annotated[str, doc("Only resources of this type.", max_length=256)] = ""
    overall: Annotated[Overall | None, doc("Only resources in this state.")] = None
    outcome: Annotated[Status | None, doc("Only resources whose newest operation had this outcome.")] = None
    deleted: Annotated[
        bool, doc("Instead of the others, resources that all sites have deleted, until they are forgotten.")
    ] = False


class LogParameters(FreshParameters, frozen=True, kw_only=True):
    cursor: Annotated[str, doc("`next` of the previous page.", max_length=2_500)] = ""
    limit: Annotated[int, doc("The largest number of operations.", ge=1, le=MAX_LOG_PAGE)] = MAX_LOG_PAGE


class VerifyParameters(Struct, frozen=True, kw_only=True):
    command: Annotated[
        str, doc("The command that shows the state, instead of the type's `read`.", max_length=MAX_COMMAND_CHARACTERS)
    ] = ""


LIST_RESOURCES = Endpoint(
    name="listResources",
    method="GET",
    path="/resources",
    right=READ,
    tag="resources",
    summary="List the resources of this site, page by page",
    description=(
        "`overall` uses an index of states: DIVERGED resources are found at once, however many others there are. With "
        "`type`, `outcome`, or another `overall`, one page examines at most 1,000 resources, and fewer at a busy "
        "site. It can hold fewer than `limit`, or none, and still have a `next`."
    ),
    parameters=ResourceFilter,
    response=Resources,
    success="A page of resources, sorted by id.",
    problems=(503,),
)
GET_SITE_HEALTH = Endpoint(
    name="getSiteHealth",
    method="GET",
    path="/status",
    right=READ_SITE,
    tag="resources",
    summary="Count the resources of this site by their state, and get the worst ten",
    description=(
        "A resource that is not in memory is counted in the state that it last had. Not for a token with limits: the "
        "numbers are about all resources."
    ),
    response=SiteHealth,
    success="The numbers, and the worst resources.",
    problems=(503,),
)
GET_RESOURCE = Endpoint(
    name="getResource",
    method="GET",
    path="/resources/{id}",
    right=READ_RESOURCE,
    tag="resources",
    summary="Get a resource, with everything but its operations",
    parameters=FreshParameters,
    response=ResourceDetail,
    success="The resource.",
    problems=(400, 404, 503),
)
GET_STATUS = Endpoint(
    name="getStatus",
    method="GET",
    path="/resources/{id}/status",
    right=READ_RESOURCE,
    tag="resources",
    summary="Get the status of a resource at all its sites",
    parameters=FreshParameters,
    response=ResourceStatus,
    success="The overall status, and that of each site.",
    problems=(400, 404, 503),
)
EXPLAIN_RESOURCE = Endpoint(
    name="explainResource",
    method="GET",
    path="/resources/{id}/explain",
    right=READ_RESOURCE,
    tag="resources",
    summary="Explain why a resource is in its state",
    parameters=FreshParameters,
    response=Explanation,
    success="The explanation step by step, and a conclusion.",
    problems=(400, 404, 503),
)
GET_LOG = Endpoint(
    name="getLog",
    method="GET",
    path="/resources/{id}/log",
    right=READ_RESOURCE,
    tag="resources",
    summary="Get the known operations, which of them are in effect, and what each site has, page by page",
    description=(
        "A cursor stays valid when operations are added or deleted. What arrives later with an earlier time stamp is "
        "not on a page that was read before."
    ),
    parameters=LogParameters,
    response=LogView,
    success="The log.",
    problems=(400, 404, 503),
)
GET_LANES = Endpoint(
    name="getLanes",
    method="GET",
    path="/resources/{id}/lanes",
    right=READ_RESOURCE,
    tag="resources",
    summary="Get the operations as a graph, with the state of each operation at each site",
    parameters=FreshParameters,
    response=Lanes,
    success="The operations, and a lane for each site.",
    problems=(400, 404, 503),
)
GET_MATRIX = Endpoint(
    name="getMatrix",
    method="GET",
    path="/resources/{id}/matrix",
    right=READ_RESOURCE,
    tag="resources",
    summary="Get the matrix in force for a resource",
    response=MatrixView,
    success="The matrix, and what follows from it.",
    problems=(400, 404, 503),
)
VERIFY_RESOURCE = Endpoint(
    name="verifyResource",
    method="POST",
    path="/resources/{id}/verify",
    right=READ_RESOURCE,
    tag="resources",
    summary="Read the state of the application at every site, and compare",
    parameters=VerifyParameters,
    response=Verification,
    success="The state that each site's application reports.",
    problems=(400, 403, 404, 503),
)
LIST_TYPES = Endpoint(
    name="listTypes",
    method="GET",
    path="/types",
    right=READ,
    tag="resources",
    summary="List the resource types in this site's configuration",
    response=Types,
    success="The types.",
)
GET_TYPE_MATRIX = Endpoint(
    name="getTypeMatrix",
    method="GET",
    path="/types/{name}/matrix",
    right=READ,
    tag="resources",
    summary="Get the matrix of a resource type in this site's configuration",
    response=MatrixView,
    success="The matrix, and what follows from it.",
    problems=(400,),
)

# -- replicants -------------------------------------------------------------------------------------------------

LIST_REPLICANTS = Endpoint(
    name="listReplicants",
    method="GET",
    path="/replicants",
    right=READ,
    tag="replicants",
    summary="List the replicants of this site, page by page",
    parameters=FreshPageParameters,
    response=Replicants,
    success="A page of replicants, sorted by id.",
    problems=(503,),
)
GET_REPLICANT = Endpoint(
    name="getReplicant",
    method="GET",
    path="/replicants/{id}",
    right=READ_RESOURCE,
    tag="replicants",
    summary="Get a replicant",
    parameters=FreshParameters,
    response=ReplicantView,
    success="The replicant.",
    problems=(400, 404, 503),
)
SET_LOCAL_ID = Endpoint(
    name="setLocalId",
    method="PUT",
    path="/replicants/{id}/local-id",
    right=CHANGE_RESOURCE,
    tag="replicants",
    summary="Set the id that a replicant has in the service of this site",
    description=(
        "For a create whose outcome is UNKNOWN: the operator has found the object in the service, and gives its id. "
        "After that the operation is resolved as happened."
    ),
    body=LocalId,
    response=ReplicantView,
    success="The replicant.",
    problems=(400, 404, 409, 413, 503),
)

# -- requests and scopes ----------------------------------------------------------------------------------------


class RequestFilter(PageParameters, frozen=True, kw_only=True):
    service: Annotated[str, doc("Only requests for this service; empty: for all.", max_length=200)] = ""


class ScopeParameters(Struct, frozen=True, kw_only=True):
    text: Annotated[str, doc("The scope.", "site1", max_length=_MAX_SCOPE)]
    service: Annotated[str, doc("For this service; empty: for each service in the scope.", max_length=200)] = ""


LIST_FLOWS = Endpoint(
    name="listFlows",
    method="GET",
    path="/flows",
    right=READ_SITE,
    tag="requests",
    summary="Get the state of the data plane, and list the scopes that are cached in it, page by page",
    description="A scope that the agent has resolved is cached as a flow until its route may change.",
    parameters=PageParameters,
    response=Flows,
    success="The data plane, and a page of its flows.",
    problems=(400,),
)
LIST_REQUESTS = Endpoint(
    name="listRequests",
    method="GET",
    path="/requests",
    right=READ_SITE,
    tag="requests",
    summary="List the latest requests with a scope, page by page",
    description="The gateway keeps the last 1,000 requests in memory, and none from before the agent's start.",
    parameters=RequestFilter,
    response=Requests,
    success="A page of requests, the latest first.",
    problems=(400,),
)
EXPLAIN_SCOPE = Endpoint(
    name="explainScope",
    method="GET",
    path="/scope",
    right=READ,
    tag="scopes",
    summary="Explain what a scope means at this site now: tree, sites, route, and what each method would do",
    description="For a text that is not a scope, `mistake` says what is wrong and where.",
    parameters=ScopeParameters,
    response=ScopeExplanation,
    success="What the scope means, or what is wrong with it.",
)

# -- operations -------------------------------------------------------------------------------------------------


class DeleteParameters(WaitParameters, frozen=True, kw_only=True, rename={"cheops_wait": "cheops-wait"}):
    command: Annotated[str, doc("The command that deletes the resource.", max_length=MAX_COMMAND_CHARACTERS)] = ""


_DELIVERED = "As many sites as requested have responded."
_SITES_CHANGED = "The list of sites is changed; new sites catch up in the background."
_PENDING = {202: "The operation is saved here, but fewer sites than requested have responded yet."}
_SUBMIT_PROBLEMS = (400, 403, 409, 502, 503, 507)

SUBMIT_OPERATION = Endpoint(
    name="submitOperation",
    method="POST",
    path="/resources/{id}/operations",
    right=FORWARDABLE,
    tag="operations",
    summary="Submit an operation, which runs at all sites of a resource",
    description=(
        "The first site runs it before any other site receives it; if it fails there, it is void. With files the "
        "request is a form. With `Accept: application/x-ndjson` each site's response is a line of its own."
    ),
    parameters=WaitParameters,
    body=SubmitRequest,
    files=True,
    response=Accepted,
    success=_DELIVERED,
    lines=SiteAnswer,
    statuses=_PENDING,
    problems=(*_SUBMIT_PROBLEMS, 413),
)
LIST_OPERATIONS = Endpoint(
    name="listOperations",
    method="GET",
    path="/resources/{id}/operations",
    right=READ_RESOURCE,
    tag="operations",
    summary="List the operations of a resource, page by page, the oldest first",
    parameters=PageParameters,
    response=Operations,
    success="A page of operations.",
    problems=(400, 404, 503),
)
GET_OPERATION = Endpoint(
    name="getOperation",
    method="GET",
    path="/resources/{id}/operations/{op}",
    right=READ_RESOURCE,
    tag="operations",
    summary="Get an operation, with its outcome at every site",
    response=OperationView,
    success="The operation.",
    problems=(400, 404, 503),
)
DELETE_RESOURCE = Endpoint(
    name="deleteResource",
    method="DELETE",
    path="/resources/{id}",
    right=CHANGE_RESOURCE,
    tag="operations",
    summary="Delete a resource at all its sites",
    description=(
        "An operation that supersedes all others. It runs `command`, or the `reset` of the resource's type, which must "
        "be the same at each site; for a replicant, a DELETE request."
    ),
    parameters=DeleteParameters,
    response=Accepted,
    success=_DELIVERED,
    statuses=_PENDING,
    problems=(*_SUBMIT_PROBLEMS, 404),
)
DRY_RUN = Endpoint(
    name="dryRun",
    method="POST",
    path="/resources/{id}/dry-run",
    right=READ_RESOURCE,
    tag="operations",
    summary="Show what an operation would do, without running anything",
    description=(
        "This also covers changes that have endpoints of their own. With the kind `delete` the command can be left "
        "out, as when a resource is deleted. With the kind `sites`, `sites` is the new list of sites."
    ),
    body=SubmitRequest,
    response=DryRun,
    success="What would happen, as far as this site knows.",
    problems=(400, 403, 404, 413, 503),
)
RESOLVE = Endpoint(
    name="resolve",
    method="POST",
    path="/resources/{id}/resolve",
    right=FORWARDABLE,
    tag="operations",
    summary="Decide an outcome that Cheops cannot know",
    description=(
        "`happened` and `not-happened` settle an operation that is UNKNOWN at a site; the request is forwarded to that "
        "site. `force` makes a new base with a command, which ends any divergence. `retry` has every site run again "
        "what failed there only. `state` reads the application's state at a site, and makes it the new base: an "
        "operation that every site runs, and that supersedes all others."
    ),
    parameters=TimeoutParameters,
    body=ResolveRequest,
    response=Resolved,
    success="What was done.",
    problems=(*_SUBMIT_PROBLEMS, 404, 413),
)
PLAN_REPAIR = Endpoint(
    name="planRepair",
    method="GET",
    path="/resources/{id}/repair",
    right=READ_RESOURCE,
    tag="operations",
    summary="Show what is wrong with a resource at each site, and what a repair would do",
    description="Reads the application's state at every site. The resolutions `retry` and `state` do the repair.",
    parameters=FreshParameters,
    response=RepairPlan,
    success="What is wrong, and what would be done. Nothing is changed.",
    problems=(400, 403, 404, 503),
)
SET_SITES = Endpoint(
    name="setSites",
    method="PUT",
    path="/resources/{id}/sites",
    right=CHANGE_RESOURCE,
    tag="operations",
    summary="Set the list of sites of a resource",
    parameters=WaitParameters,
    body=ChangeSites,
    response=Accepted,
    success=_SITES_CHANGED,
    statuses=_PENDING,
    problems=(*_SUBMIT_PROBLEMS, 404, 413),
)
CHANGE_SITES = Endpoint(
    name="changeSites",
    method="POST",
    path="/resources/{id}/sites",
    right=CHANGE_RESOURCE,
    tag="operations",
    summary="Set the list of sites of a resource, add sites to it, or remove sites from it",
    parameters=WaitParameters,
    body=ChangeSites,
    response=Accepted,
    success=_SITES_CHANGED,
    statuses=_PENDING,
    problems=(*_SUBMIT_PROBLEMS, 404, 413),
)
