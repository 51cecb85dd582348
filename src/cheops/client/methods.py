"""The requests of both clients, built from the declarations of the endpoints, and their methods, defined once.

A method builds a `Call`. `Agent` sends it and returns the response; `AsyncAgent` returns a coroutine that does. Type
checkers see the right signature for each:

    Agent().status("counter").overall
    (await agent.status("counter")).overall     # with an AsyncAgent
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote, urlencode

import msgspec

from cheops.api.endpoints import BASE, Endpoint
from cheops.api.endpoints.declaration import (
    JSON,
    FreshPageParameters,
    FreshParameters,
    PageParameters,
    TimeoutParameters,
    WaitParameters,
    parameters_of,
)
from cheops.api.endpoints.resources import (
    CHANGE_SITES,
    DELETE_RESOURCE,
    DRY_RUN,
    EXPLAIN_RESOURCE,
    GET_LOG,
    GET_MATRIX,
    GET_OPERATION,
    GET_REPLICANT,
    GET_RESOURCE,
    GET_SITE_HEALTH,
    GET_STATUS,
    GET_TYPE_MATRIX,
    LIST_OPERATIONS,
    LIST_REPLICANTS,
    LIST_REQUESTS,
    LIST_TYPES,
    MAX_LOG_PAGE,
    PLAN_REPAIR,
    RESOLVE,
    SET_LOCAL_ID,
    SUBMIT_OPERATION,
    VERIFY_RESOURCE,
    DeleteParameters,
    LogParameters,
    RequestFilter,
    VerifyParameters,
)
from cheops.api.endpoints.site import (
    ADMIT_SITE,
    CHECK,
    CREATE_TOKEN,
    CURE_CLOCK,
    DECIDE_SITE,
    FORGET_SITE,
    GET_CLOCK,
    HEALTH,
    INVITE_SITE,
    LIST_CHANGES,
    LIST_RESOURCE_CHANGES,
    LIST_SITES,
    LIST_TOKENS,
    PING_SITE,
    READ_AUDIT,
    READINESS,
    REVOKE_TOKEN,
    STREAM_EVENTS,
    STREAM_RESOURCE_EVENTS,
    WHO_AM_I,
    AuditFilter,
    ChangesParameters,
    ForgetParameters,
    StreamParameters,
)
from cheops.api.models import plain, to_json
from cheops.api.models.operations import (
    Accepted,
    ChangeSites,
    DryRun,
    Explanation,
    LogView,
    MatrixView,
    Operations,
    OperationView,
    Resolved,
    ResolveRequest,
    SubmitRequest,
    Verification,
    Wait,
)
from cheops.api.models.repair import RepairPlan
from cheops.api.models.resources import (
    LocalId,
    Replicants,
    ReplicantView,
    Requests,
    ResourceDetail,
    ResourceStatus,
    SiteHealth,
    Types,
)
from cheops.api.models.site import (
    AuditLog,
    Changes,
    Checks,
    Clocks,
    Decided,
    Health,
    Invitation,
    InviteRequest,
    MadeToken,
    NewToken,
    Ping,
    Session,
    SignedDecision,
    Sites,
    TokenList,
    TokenView,
)
from cheops.errors import ClientError
from cheops.notify.event import Event

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
B = TypeVar("B")
A = ParamSpec("A")
RESPONSE_TIMEOUT_S = 30.0  # for a response, beyond the time that the request itself makes the agent wait


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the model of its response."""

    method: str
    path: str
    response: type[T]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    accept: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = RESPONSE_TIMEOUT_S
    statuses: tuple[int, ...] = ()  # statuses of 400 and above that have the same response

    @property
    def target(self) -> str:
        """The path with its query, below the address of an agent."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def all_headers(self) -> dict[str, str]:
        content = {"Content-Type": JSON} if self.body is not None else {}
        return {"Accept": self.accept, **content, **self.headers}


def call_of(
    endpoint: Endpoint[T, P, B],
    *names: str,
    parameters: P | None = None,
    body: B | None = None,
    timeout_s: float = RESPONSE_TIMEOUT_S,
) -> Call[T]:
    """The request to an endpoint. `names` fill the parameters of its path, in order."""
    query, headers = _encoded(parameters) if parameters is not None else ({}, {})
    return Call(
        endpoint.method,
        f"{BASE}{_filled(endpoint.path, names)}",
        endpoint.response,
        query,
        None if body is None else to_json(body),
        accept=endpoint.media_type,
        headers=headers,
        timeout_s=timeout_s,
        statuses=tuple(status for status in endpoint.statuses if status >= 400),
    )


def _filled(path: str, names: tuple[str, ...]) -> str:
    parts = path.split("/")
    values = iter(names)
    filled = "/".join(segment(next(values), part[1:-1]) if part.startswith("{") else part for part in parts)
    if rest := list(values):
        raise TypeError(f"{path} has no parameters for {rest}")
    return filled


_MEANING = {"id": "the id of the resource", "op": "the id of the operation"}


def segment(name: str, parameter: str = "id") -> str:
    """A name as one segment of a path, whatever it contains. Proxies remove segments that are only dots. An empty one
    would be another path, so it raises ClientError."""
    if not name:
        raise ClientError(f"{_MEANING.get(parameter, 'the name')} is empty")
    return quote(name, safe="").replace(".", "%2E") if set(name) == {"."} else quote(name, safe="")


def _encoded(parameters: msgspec.Struct) -> tuple[dict[str, str], dict[str, str]]:
    """Query and headers. Defaults are left out: agent and client have the same ones."""
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    for one in parameters_of(type(parameters)):
        value = getattr(parameters, one.field)
        if value != one.default:
            (headers if one.is_header else query)[one.name] = _text(plain(value))
    return query, headers


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if TYPE_CHECKING:
    from cheops.client.agent import Agent
    from cheops.client.async_agent import AsyncAgent


class Method(Generic[A, T]):
    """A method that the client of an instance sends."""

    def __init__(self, build: Callable[Concatenate[Any, A], Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: "Agent", owner: type) -> Callable[A, T]: ...
    @overload
    def __get__(self, client: "AsyncAgent", owner: type) -> Callable[A, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> "Method[A, T]": ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        def send(*args: A.args, **kwargs: A.kwargs) -> Any:
            return client.send(self._build(client, *args, **kwargs))

        return send


class AgentMethods:
    """What both clients can request. `fresh_s` is how long the agent waits for the current state of other sites;
    after that it responds with the last known state."""

    # -- resources ---------------------------------------------------------------------------------------

    @Method
    def resource(self, id_: str, *, fresh_s: float = 0.5) -> Call[ResourceDetail]:
        return call_of(GET_RESOURCE, id_, parameters=FreshParameters(fresh=fresh_s))

    @Method
    def status(self, id_: str, *, fresh_s: float = 0.5) -> Call[ResourceStatus]:
        return call_of(GET_STATUS, id_, parameters=FreshParameters(fresh=fresh_s))

    @Method
    def site_health(self) -> Call[SiteHealth]:
        """The resources of the site by their state, and the worst of them."""
        return call_of(GET_SITE_HEALTH)

    @Method
    def explain(self, id_: str, *, fresh_s: float = 0.5) -> Call[Explanation]:
        return call_of(EXPLAIN_RESOURCE, id_, parameters=FreshParameters(fresh=fresh_s))

    @Method
    def log(
        self, id_: str, cursor: str | None = None, limit: int = MAX_LOG_PAGE, *, fresh_s: float = 0.5
    ) -> Call[LogView]:
        """A page of the log. Most logs have only one."""
        return call_of(GET_LOG, id_, parameters=LogParameters(cursor=cursor or "", limit=limit, fresh=fresh_s))

    @Method
    def matrix(self, id_: str) -> Call[MatrixView]:
        return call_of(GET_MATRIX, id_)

    @Method
    def types(self) -> Call[Types]:
        """The resource types in the configuration of the agent."""
        return call_of(LIST_TYPES)

    @Method
    def type_matrix(self, name: str) -> Call[MatrixView]:
        """Of a resource type in the configuration of the agent."""
        return call_of(GET_TYPE_MATRIX, name)

    @Method
    def verify(self, id_: str, command: str = "", timeout_s: float = 30.0) -> Call[Verification]:
        """Read the application's state at each site, and compare; `command` replaces the type's own `read`."""
        parameters = VerifyParameters(command=command)
        return call_of(VERIFY_RESOURCE, id_, parameters=parameters, timeout_s=timeout_s + RESPONSE_TIMEOUT_S)

    # -- operations --------------------------------------------------------------------------------------

    @Method
    def operations(self, id_: str, cursor: str | None = None, limit: int = 100) -> Call[Operations]:
        return call_of(LIST_OPERATIONS, id_, parameters=PageParameters(cursor=cursor or "", limit=limit))

    @Method
    def operation(self, id_: str, op: str) -> Call[OperationView]:
        return call_of(GET_OPERATION, id_, op)

    @Method
    def delete(self, id_: str, command: str = "", *, wait: Wait = Wait.ALL, timeout_s: float = 30.0) -> Call[Accepted]:
        """Delete a resource everywhere, by this command or by its type's `reset`."""
        parameters = DeleteParameters(command=command, wait=wait, timeout=timeout_s)
        return call_of(DELETE_RESOURCE, id_, parameters=parameters, timeout_s=timeout_s + RESPONSE_TIMEOUT_S)

    @Method
    def dry_run(self, id_: str, request: SubmitRequest) -> Call[DryRun]:
        return call_of(DRY_RUN, id_, body=request)

    @Method
    def resolve(self, id_: str, request: ResolveRequest, *, timeout_s: float = 30.0) -> Call[Resolved]:
        parameters = TimeoutParameters(timeout=timeout_s)
        return call_of(RESOLVE, id_, parameters=parameters, body=request, timeout_s=2 * timeout_s + RESPONSE_TIMEOUT_S)

    @Method
    def plan_repair(self, id_: str, *, fresh_s: float = 0.5) -> Call[RepairPlan]:
        """What is wrong with a resource at each site, and what a repair would do."""
        return call_of(PLAN_REPAIR, id_, parameters=FreshParameters(fresh=fresh_s), timeout_s=2 * RESPONSE_TIMEOUT_S)

    @Method
    def change_sites(
        self, id_: str, request: ChangeSites, *, wait: Wait = Wait.ALL, timeout_s: float = 30.0
    ) -> Call[Accepted]:
        parameters = WaitParameters(wait=wait, timeout=timeout_s)
        return call_of(CHANGE_SITES, id_, parameters=parameters, body=request, timeout_s=timeout_s + RESPONSE_TIMEOUT_S)

    # -- replicants and the gateway ----------------------------------------------------------------------

    @Method
    def replicants(self, cursor: str | None = None, limit: int = 100) -> Call[Replicants]:
        return call_of(LIST_REPLICANTS, parameters=FreshPageParameters(cursor=cursor or "", limit=limit))

    @Method
    def replicant(self, id_: str, *, fresh_s: float = 0.5) -> Call[ReplicantView]:
        return call_of(GET_REPLICANT, id_, parameters=FreshParameters(fresh=fresh_s))

    @Method
    def set_local_id(self, id_: str, local_id: str, *, is_number: bool = False) -> Call[ReplicantView]:
        return call_of(SET_LOCAL_ID, id_, body=LocalId(local_id=local_id, is_number=is_number))

    @Method
    def requests(self, service: str = "", cursor: str | None = None, limit: int = 500) -> Call[Requests]:
        return call_of(LIST_REQUESTS, parameters=RequestFilter(service=service, cursor=cursor or "", limit=limit))

    # -- sites -------------------------------------------------------------------------------------------

    @Method
    def sites(self) -> Call[Sites]:
        return call_of(LIST_SITES)

    @Method
    def ping(self, name: str) -> Call[Ping]:
        return call_of(PING_SITE, name)

    @Method
    def forget(self, name: str, *, force: bool = False) -> Call[Decided]:
        return call_of(FORGET_SITE, name, parameters=ForgetParameters(force=force))

    @Method
    def admit(self, name: str) -> Call[Decided]:
        """Admit a forgotten site again."""
        return call_of(ADMIT_SITE, name)

    @Method
    def decide(self, name: str, decision: SignedDecision, *, force: bool = False) -> Call[Decided]:
        """Pass on a decision about a site that was signed with the authority's key."""
        return call_of(DECIDE_SITE, name, parameters=ForgetParameters(force=force), body=decision)

    @Method
    def invite(self, request: InviteRequest) -> Call[Invitation]:
        """A code with which a new site gets its certificate, once."""
        return call_of(INVITE_SITE, body=request)

    # -- access ------------------------------------------------------------------------------------------

    @Method
    def tokens(self) -> Call[TokenList]:
        return call_of(LIST_TOKENS)

    @Method
    def create_token(self, request: NewToken) -> Call[MadeToken]:
        """The response is the only place that has the secret."""
        return call_of(CREATE_TOKEN, body=request)

    @Method
    def revoke_token(self, token: str) -> Call[TokenView]:
        """By id or name."""
        return call_of(REVOKE_TOKEN, token)

    @Method
    def who_am_i(self) -> Call[Session]:
        return call_of(WHO_AM_I)

    @Method
    def audit(self, *, since: str = "", who: str = "", outcome: str = "", limit: int = 100) -> Call[AuditLog]:
        return call_of(READ_AUDIT, parameters=AuditFilter(since=since, who=who, outcome=outcome, limit=limit))

    # -- the agent ---------------------------------------------------------------------------------------

    @Method
    def changes(
        self, id_: str | None = None, since: str = "", *, wait_s: float = 0.0, limit: int = 1000
    ) -> Call[Changes]:
        """Events after a position, of one resource or of all (None). Waits for the first if there is none yet."""
        parameters = ChangesParameters(since=since, wait=wait_s, limit=limit)
        timeout_s = wait_s + RESPONSE_TIMEOUT_S
        if id_ is None:
            return call_of(LIST_CHANGES, parameters=parameters, timeout_s=timeout_s)
        return call_of(LIST_RESOURCE_CHANGES, id_, parameters=parameters, timeout_s=timeout_s)

    @Method
    def check(self) -> Call[Checks]:
        return call_of(CHECK)

    @Method
    def clock(self) -> Call[Clocks]:
        return call_of(GET_CLOCK)

    @Method
    def cure_clock(self) -> Call[Clocks]:
        return call_of(CURE_CLOCK)

    @Method
    def health(self) -> Call[Health]:
        return call_of(HEALTH)

    @Method
    def ready(self) -> Call[Health]:
        return call_of(READINESS)


# -- requests whose response each client reads in its own way ----------------------------------------------------


def submit_call(id_: str, request: SubmitRequest, wait: Wait, timeout_s: float) -> Call[Accepted]:
    parameters = WaitParameters(wait=wait, timeout=timeout_s)
    return call_of(SUBMIT_OPERATION, id_, parameters=parameters, body=request, timeout_s=timeout_s + RESPONSE_TIMEOUT_S)


def events_call(id_: str | None, last: str) -> Call[Event]:
    parameters = StreamParameters(last_event_id=last)
    if id_ is None:
        return call_of(STREAM_EVENTS, parameters=parameters)
    return call_of(STREAM_RESOURCE_EVENTS, id_, parameters=parameters)
