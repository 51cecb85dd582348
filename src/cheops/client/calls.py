"""Every question that the API answers, said once, for `Agent` and `AsyncAgent` alike: method, path, query,
body, and which model the answer is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from cheops.api.models import (
    Accepted,
    AuditLog,
    Changes,
    ChangeSites,
    Checks,
    DryRun,
    Explanation,
    Flows,
    Forgotten,
    Health,
    Invitation,
    InviteRequest,
    LocalId,
    LogView,
    MadeToken,
    MatrixView,
    NewToken,
    Operations,
    OperationView,
    Ping,
    Replicants,
    ReplicantView,
    Requests,
    Resolved,
    ResolveRequest,
    ResourceDetail,
    Resources,
    ResourceStatus,
    Session,
    Sites,
    SiteView,
    SubmitRequest,
    TokenList,
    TokenView,
    Verification,
    Wait,
    to_json,
)

T = TypeVar("T")
BASE = "/api/v1"
JSON = "application/json"
LINES = "application/x-ndjson"
STREAM = "text/event-stream"
ANSWER_S = 30.0  # how long an answer may take where nothing else is said


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and what its answer is."""

    method: str
    path: str
    answer: type[T]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    accept: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = ANSWER_S
    also_good: tuple[int, ...] = ()  # statuses of 400 and above that have the same answer

    @property
    def target(self) -> str:
        """The path with its query, below the address of an agent."""
        given = {name: value for name, value in self.query.items() if value}
        return f"{self.path}?{urlencode(given)}" if given else self.path

    @property
    def all_headers(self) -> dict[str, str]:
        content = {"Content-Type": JSON} if self.body is not None else {}
        return {"Accept": self.accept, **content, **self.headers}


def segment(name: str) -> str:
    """A name as one segment of a path, whatever is in it; also one that is only dots."""
    return quote(name, safe="").replace(".", "%2E") if set(name) == {"."} else quote(name, safe="")


def of(id_: str, below: str = "") -> str:
    return f"{BASE}/resources/{segment(id_)}{below}"


# -- resources -------------------------------------------------------------------------------------------


def resources(prefix: str, cursor: str | None, limit: int) -> Call[Resources]:
    query = {"prefix": prefix, "cursor": cursor or "", "limit": str(limit)}
    return Call("GET", f"{BASE}/resources", Resources, query)


def resource(id_: str, fresh_s: float) -> Call[ResourceDetail]:
    return Call("GET", of(id_), ResourceDetail, {"fresh": str(fresh_s)})


def status(id_: str, fresh_s: float) -> Call[ResourceStatus]:
    return Call("GET", of(id_, "/status"), ResourceStatus, {"fresh": str(fresh_s)})


def explain(id_: str, fresh_s: float) -> Call[Explanation]:
    return Call("GET", of(id_, "/explain"), Explanation, {"fresh": str(fresh_s)})


def log(id_: str, fresh_s: float) -> Call[LogView]:
    return Call("GET", of(id_, "/log"), LogView, {"fresh": str(fresh_s)})


def matrix(id_: str) -> Call[MatrixView]:
    return Call("GET", of(id_, "/matrix"), MatrixView)


def type_matrix(name: str) -> Call[MatrixView]:
    return Call("GET", f"{BASE}/types/{segment(name)}/matrix", MatrixView)


def verify(id_: str, command: str, timeout_s: float) -> Call[Verification]:
    query = {"command": command}
    return Call("POST", of(id_, "/verify"), Verification, query, timeout_s=timeout_s + ANSWER_S)


# -- operations ------------------------------------------------------------------------------------------


def operations(id_: str, cursor: str | None, limit: int) -> Call[Operations]:
    query = {"cursor": cursor or "", "limit": str(limit)}
    return Call("GET", of(id_, "/operations"), Operations, query)


def operation(id_: str, op: str) -> Call[OperationView]:
    return Call("GET", of(id_, f"/operations/{segment(op)}"), OperationView)


def submit(id_: str, request: SubmitRequest, wait: Wait, timeout_s: float, *, accept: str = JSON) -> Call[Accepted]:
    query = {"wait": wait.value, "timeout": str(timeout_s)}
    body = to_json(request)
    path = of(id_, "/operations")
    return Call("POST", path, Accepted, query, body, accept=accept, timeout_s=timeout_s + ANSWER_S)


def delete(id_: str, command: str, wait: Wait, timeout_s: float) -> Call[Accepted]:
    query = {"command": command, "wait": wait.value, "timeout": str(timeout_s)}
    return Call("DELETE", of(id_), Accepted, query, timeout_s=timeout_s + ANSWER_S)


def dry_run(id_: str, request: SubmitRequest) -> Call[DryRun]:
    return Call("POST", of(id_, "/dry-run"), DryRun, body=to_json(request))


def resolve(id_: str, request: ResolveRequest) -> Call[Resolved]:
    return Call("POST", of(id_, "/resolve"), Resolved, body=to_json(request))


def change_sites(id_: str, request: ChangeSites, wait: Wait, timeout_s: float) -> Call[Accepted]:
    query = {"wait": wait.value, "timeout": str(timeout_s)}
    body = to_json(request)
    return Call("POST", of(id_, "/sites"), Accepted, query, body, timeout_s=timeout_s + ANSWER_S)


# -- replicants ------------------------------------------------------------------------------------------


def replicants(cursor: str | None, limit: int) -> Call[Replicants]:
    return Call("GET", f"{BASE}/replicants", Replicants, {"cursor": cursor or "", "limit": str(limit)})


def replicant(id_: str, fresh_s: float) -> Call[ReplicantView]:
    return Call("GET", f"{BASE}/replicants/{segment(id_)}", ReplicantView, {"fresh": str(fresh_s)})


def set_local_id(id_: str, asked: LocalId) -> Call[ReplicantView]:
    return Call("PUT", f"{BASE}/replicants/{segment(id_)}/local-id", ReplicantView, body=to_json(asked))


def requests(service: str, cursor: str | None, limit: int) -> Call[Requests]:
    query = {"service": service, "cursor": cursor or "", "limit": str(limit)}
    return Call("GET", f"{BASE}/requests", Requests, query)


def flows(cursor: str | None, limit: int) -> Call[Flows]:
    return Call("GET", f"{BASE}/flows", Flows, {"cursor": cursor or "", "limit": str(limit)})


# -- sites -----------------------------------------------------------------------------------------------


def sites() -> Call[Sites]:
    return Call("GET", f"{BASE}/sites", Sites)


def site(name: str) -> Call[SiteView]:
    return Call("GET", f"{BASE}/sites/{segment(name)}", SiteView)


def ping(name: str) -> Call[Ping]:
    return Call("POST", f"{BASE}/sites/{segment(name)}/ping", Ping)


def admit(name: str) -> Call[SiteView]:
    return Call("POST", f"{BASE}/sites/{segment(name)}/admit", SiteView)


def forget(name: str, *, force: bool) -> Call[Forgotten]:
    return Call("DELETE", f"{BASE}/sites/{segment(name)}", Forgotten, {"force": str(force).lower()})


def invite(request: InviteRequest) -> Call[Invitation]:
    return Call("POST", f"{BASE}/invitations", Invitation, body=to_json(request))


# -- who may ask -----------------------------------------------------------------------------------------


def tokens() -> Call[TokenList]:
    return Call("GET", f"{BASE}/tokens", TokenList)


def create_token(asked: NewToken) -> Call[MadeToken]:
    return Call("POST", f"{BASE}/tokens", MadeToken, body=to_json(asked))


def revoke_token(named: str) -> Call[TokenView]:
    return Call("DELETE", f"{BASE}/tokens/{segment(named)}", TokenView)


def who_am_i() -> Call[Session]:
    return Call("GET", f"{BASE}/session", Session)


def audit(since: str, who: str, outcome: str, limit: int) -> Call[AuditLog]:
    query = {"since": since, "who": who, "outcome": outcome, "limit": str(limit)}
    return Call("GET", f"{BASE}/audit", AuditLog, query)


# -- the agent -------------------------------------------------------------------------------------------


def changes(id_: str | None, since: str, wait_s: float, limit: int) -> Call[Changes]:
    query = {"since": since, "wait": str(wait_s), "limit": str(limit)}
    path = f"{BASE}/changes" if id_ is None else of(id_, "/changes")
    return Call("GET", path, Changes, query, timeout_s=wait_s + ANSWER_S)


def events(id_: str | None, last: str) -> Call[bytes]:
    path = f"{BASE}/events" if id_ is None else of(id_, "/events")
    headers = {"Last-Event-ID": last} if last else {}
    return Call("GET", path, bytes, accept=STREAM, headers=headers)


def check() -> Call[Checks]:
    return Call("GET", f"{BASE}/check", Checks)


def health() -> Call[Health]:
    return Call("GET", f"{BASE}/healthz", Health, also_good=(503,))


def ready() -> Call[Health]:
    return Call("GET", f"{BASE}/readyz", Health, also_good=(503,))
