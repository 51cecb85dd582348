"""The kinds of requests between agents, their limits, and who sends and answers them."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cheops.errors import CheopsError, ClientError
from cheops.peers import heartbeat
from cheops.peers.outbox import Priority
from cheops.store.codec import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from cheops.security.certificates import Identity

PREFIX = "/peer/"  # of their paths, where they come by HTTP
CHANNEL_PATH = f"{PREFIX}channel"
_NAME_BYTES = 4_096  # far more than any name or hash


class RequestKind(StrEnum):
    """The kinds of requests between agents; also the first part of the path below PREFIX."""

    HEARTBEAT = "heartbeat"
    MESSAGES = "messages"
    FILE = "files"
    IDENTITY = "identity"
    RENEWAL = "renewal"
    SHOW = "show"
    REPLICANT = "replicants"
    VERIFIED = "verified"
    DOCUMENTS = "documents"


# Only in a channel:
HTTP = "http"  # a request to the API of the other site, on behalf of a client
GATEWAY_TUNNEL, AGENT_TUNNEL = "gateway", "agent"  # a connection to the gateway of the other site, or to an agent
FOR_CLIENTS = frozenset((HTTP, GATEWAY_TUNNEL, AGENT_TUNNEL))  # how many there are is not decided by the other agent


class RequestForm(NamedTuple):
    """How a kind of request comes."""

    method: str  # by HTTP
    max_bytes: int  # of its body
    is_named: bool = False  # by HTTP the path has one more part, which is the body
    priority: Priority = Priority.NORMAL  # in a channel


FORMS: Mapping[RequestKind, RequestForm] = {
    RequestKind.HEARTBEAT: RequestForm("POST", heartbeat.MAX_BYTES, priority=Priority.HEARTBEAT),
    RequestKind.MESSAGES: RequestForm("POST", MAX_MESSAGE_BYTES),
    RequestKind.FILE: RequestForm("GET", _NAME_BYTES, is_named=True, priority=Priority.BULK),
    RequestKind.IDENTITY: RequestForm("GET", _NAME_BYTES, is_named=True),
    RequestKind.RENEWAL: RequestForm("POST", _NAME_BYTES),
    RequestKind.SHOW: RequestForm("POST", 1024 * 1024),
    RequestKind.REPLICANT: RequestForm("GET", _NAME_BYTES, is_named=True),
    RequestKind.VERIFIED: RequestForm("POST", 64 * 1024),
    RequestKind.DOCUMENTS: RequestForm("POST", 1024 * 1024, priority=Priority.BULK),
}


_PRIORITIES: dict[str, Priority] = {kind: form.priority for kind, form in FORMS.items()}


def priority_of(kind: str) -> Priority:
    return _PRIORITIES.get(kind, Priority.NORMAL)


class Peer(msgspec.Struct, frozen=True):
    """The other end of a connection."""

    site: str | None = None  # by its certificate; None with `security: none`
    identity: "Identity | None" = None


class PeerResponse(msgspec.Struct, frozen=True):
    body: bytes = b""  # JSON
    status: int = 200
    file: Path | None = None  # instead of a body
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


Handler = Callable[[Peer, bytes], Awaitable[PeerResponse]]


class PeerRefusedError(ClientError):
    """A refused request. `reason` is the same for all refusals of its kind."""

    def __init__(self, message: str, reason: str, status: int = 403, wait_s: float | None = None) -> None:
        super().__init__(message, status=status, definite=wait_s is None, reason=reason)
        self.headers = {} if wait_s is None else {"Retry-After": str(max(1, round(wait_s + 0.5)))}


def problem_body(status: int, detail: str, **members: Any) -> bytes:
    """Problem details (RFC 9457)."""
    about = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return msgspec.json.encode(about | members)


def error_body(error: CheopsError) -> bytes:
    return problem_body(error.status, str(error), fault=error.fault.value, definite=error.definite)
