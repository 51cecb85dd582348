"""What the API under /api/v1 takes and gives: one definition for server, OpenAPI document and clients.

Frozen structs with keyword arguments. `plain` makes JSON data of one (for `-o json`), `from_json` reads one.
Field names are those of the JSON, except for `class_`, which is `class` there.
"""

from typing import Any, TypeVar

import msgspec

from cheops.api.models.operations import (
    Accepted,
    ChangeSites,
    DryRun,
    Effect,
    Explanation,
    ExplanationStep,
    Lane,
    LaneOperation,
    Lanes,
    LogView,
    Mark,
    MatrixEntry,
    MatrixPair,
    MatrixView,
    Operations,
    OperationView,
    ReplyView,
    Resolution,
    Resolved,
    ResolveRequest,
    SiteAnswer,
    SiteLane,
    SitesChange,
    StateAt,
    SubmitRequest,
    Verification,
    Wait,
    WouldSupersede,
)
from cheops.api.models.resources import (
    Flows,
    FlowView,
    LocalId,
    Overall,
    Replicants,
    ReplicantView,
    Requests,
    ResourceDetail,
    Resources,
    ResourceStatus,
    ResourceSummary,
    ScopeExplanation,
    ScopeMethod,
    ScopeMistake,
    ScopeService,
    ScopeSite,
    SiteStatus,
    Trouble,
    Types,
    TypeView,
)
from cheops.api.models.site import (
    CHECK_GROUPS,
    AuditLog,
    Changes,
    Check,
    Checks,
    Distance,
    Forgotten,
    Health,
    Invitation,
    InviteRequest,
    Level,
    MadeToken,
    NewToken,
    Ping,
    Problem,
    Session,
    SignIn,
    Sites,
    SiteView,
    TokenList,
    TokenView,
    Wiring,
)
from cheops.gateway.request_log import ServedRequest
from cheops.notify.event import Event, SiteResult
from cheops.security.audit_entries import AuditEntry

__all__ = [
    "CHECK_GROUPS",
    "Accepted",
    "AuditEntry",
    "AuditLog",
    "ChangeSites",
    "Changes",
    "Check",
    "Checks",
    "Distance",
    "DryRun",
    "Effect",
    "Event",
    "Explanation",
    "ExplanationStep",
    "FlowView",
    "Flows",
    "Forgotten",
    "Health",
    "Invitation",
    "InviteRequest",
    "Lane",
    "LaneOperation",
    "Lanes",
    "Level",
    "LocalId",
    "LogView",
    "MadeToken",
    "Mark",
    "MatrixEntry",
    "MatrixPair",
    "MatrixView",
    "NewToken",
    "OperationView",
    "Operations",
    "Overall",
    "Ping",
    "Problem",
    "ReplicantView",
    "Replicants",
    "ReplyView",
    "Requests",
    "Resolution",
    "ResolveRequest",
    "Resolved",
    "ResourceDetail",
    "ResourceStatus",
    "ResourceSummary",
    "Resources",
    "ScopeExplanation",
    "ScopeMethod",
    "ScopeMistake",
    "ScopeService",
    "ScopeSite",
    "ServedRequest",
    "Session",
    "SignIn",
    "SiteAnswer",
    "SiteLane",
    "SiteResult",
    "SiteStatus",
    "SiteView",
    "Sites",
    "SitesChange",
    "StateAt",
    "SubmitRequest",
    "TokenList",
    "TokenView",
    "Trouble",
    "TypeView",
    "Types",
    "Verification",
    "Wait",
    "Wiring",
    "WouldSupersede",
    "from_json",
    "plain",
    "to_json",
]

M = TypeVar("M")


def plain(model: Any) -> Any:
    """A model as JSON data: dicts, lists, texts and numbers."""
    return msgspec.to_builtins(model)


def to_json(model: Any) -> bytes:
    return msgspec.json.encode(model)


def from_json(text: bytes, kind: type[M]) -> M:
    """A model from JSON; raises msgspec.DecodeError. What it does not know, it passes over."""
    try:
        return msgspec.json.decode(text, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 text: {error}") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deep") from None
