"""Request heads and headers: types, hop-by-hop rules, what a proxy adds, and which methods may be repeated. Pure.

A head is kept as it was sent: spelling, order and repetitions. Text has one character per byte (latin-1), so that
nothing is lost on the way.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import TypeAlias
from urllib.parse import quote, unquote

from msgspec import Struct

from cheops.config.gateway import ForwardedHeaders
from cheops.config.request_rules import SAFE_METHODS

Header: TypeAlias = tuple[str, str]
Headers: TypeAlias = tuple[Header, ...]


class RequestHead(Struct, frozen=True):
    """A request without its body. `target` is path and query, as sent: `/v2/images?limit=3`."""

    method: str
    target: str
    headers: Headers = ()


def first(head: RequestHead, name: str) -> str | None:
    """The value of the first header with a name, whatever its spelling."""
    wanted = name.lower()
    return next((value for given, value in head.headers if given.lower() == wanted), None)


def every(head: RequestHead, name: str) -> list[str]:
    """The values of all headers with a name, in their order."""
    wanted = name.lower()
    return [value for given, value in head.headers if given.lower() == wanted]


def without(headers: Iterable[Header], *names: str) -> Headers:
    """Headers without those of these names."""
    unwanted = {name.lower() for name in names}
    return tuple((name, value) for name, value in headers if name.lower() not in unwanted)


IDEMPOTENT_METHODS = SAFE_METHODS | {"PUT", "DELETE"}


def is_idempotent(head: RequestHead) -> bool:
    """Whether running it twice has the same effect as running it once."""
    return head.method in IDEMPOTENT_METHODS or first(head, "Idempotency-Key") is not None


def is_safe(head: RequestHead) -> bool:
    return head.method in SAFE_METHODS


SCOPE = "Scope"
HOP = "Cheops-Hop"  # in a request: the site whose gateway forwarded it
SERVICE = "Cheops-Service"  # in a request between gateways: the service, where one address serves all
SITE = "Cheops-Site"  # in a response: the site that served it
FALLBACK = "Cheops-Fallback"  # in a response: the sites that were tried before, and why they failed
EFFECT = "Cheops-Effect"  # in a response: `none` if the request certainly changed nothing
OPERATION = "Cheops-Operation"
REPLICAS = "Cheops-Replicas"  # in a response: the sites of a replicated change, and its status there
NOTE = "Cheops-Note"
CUT = "Cheops-Cut"
PARTS = "Cheops-Parts"  # in a response: the parts of a read over several sites, and the status of each
CREDENTIALS = "Cheops-Credentials"  # in a response: `dropped` if the client's were not forwarded
PURPOSE = "Cheops-For"  # in a request between gateways: `replication` if it may become an operation
DRY_RUN = "Cheops-Dry-Run"
PEER_CERTIFICATE = "Cheops-Certificate"  # from HAProxy to the agent only: that of the other gateway

MESH_PREFIX = "cheops-"
# Headers with the prefix that clients may send. All others are for gateways only.
FOR_CLIENTS = frozenset({"cheops-dry-run", "cheops-wait", "cheops-exists", "cheops-annotate"})
_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te",
    "transfer-encoding", "upgrade", "http2-settings",
})  # fmt: skip
_FORWARDED = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"})


class ForwardingInfo(Struct, frozen=True):
    """Which site forwards a request, for which client, and which headers report that."""

    here: str  # this site
    client: str  # its address
    proto: str = "http"
    headers: ForwardedHeaders = ForwardedHeaders.CLIENT


def connection_tokens(headers: Iterable[Header]) -> set[str]:
    """The names in the Connection headers, in lower case."""
    values = (value for name, value in headers if name.lower() == "connection")
    return {token for value in values for part in value.split(",") if (token := part.strip().lower())}


def end_to_end(headers: Headers) -> Headers:
    """Headers without those that belong to one connection. `Content-Length` stays: it describes the body."""
    # Connection may name any header, but the message is not the same without these two.
    dropped = _HOP_BY_HOP | (connection_tokens(headers) - {"content-length", "host"})
    return tuple((name, value) for name, value in headers if name.lower() not in dropped)


def requested_upgrade(headers: Headers) -> str | None:
    """The protocol that a request wants to switch to. Never HTTP/2: its requests would bypass the gateway."""
    if "upgrade" not in connection_tokens(headers):
        return None
    values = [value for name, value in headers if name.lower() == "upgrade"]
    protocols = [part.strip() for value in values for part in value.split(",")]
    kept = [one for one in protocols if one and not one.lower().startswith("h2")]
    return ", ".join(kept) or None


def accepts_trailers(headers: Headers) -> bool:
    values = (value for name, value in headers if name.lower() == "te")
    return any(part.strip().lower().startswith("trailers") for value in values for part in value.split(","))


def without_forged_headers(head: RequestHead) -> RequestHead:
    """A client's request without the headers that only gateways may send. Some applications read `_` as `-`, so that
    spelling is removed, too."""
    kept = (
        (name, value)
        for name, value in head.headers
        if not (lower := name.lower().replace("_", "-")).startswith(MESH_PREFIX) or lower in FOR_CLIENTS
    )
    return RequestHead(head.method, head.target, tuple(kept))


def without_mesh(headers: Headers) -> Headers:
    """Headers without those between gateways: for applications, and from them."""
    return tuple((name, value) for name, value in headers if not name.lower().replace("_", "-").startswith(MESH_PREFIX))


def with_scope(headers: Headers, scope: str | None) -> Headers:
    """With this scope, or with none."""
    kept = without(headers, SCOPE)
    return kept if scope is None else (*kept, (SCOPE, encode_header(scope)))


def headers_for_upstream(head: RequestHead, forwarding: ForwardingInfo, *, upgrade: str | None) -> Headers:
    """The headers of a request for the next program, without the length."""
    own: list[Header] = [("Via", f"1.1 {via_name(forwarding.here)}")]
    if upgrade:
        own += [("Connection", "upgrade"), ("Upgrade", upgrade)]
    elif accepts_trailers(head.headers):
        own += [("Connection", "TE"), ("TE", "trailers")]
    kept = end_to_end(head.headers)
    if forwarding.headers is not ForwardedHeaders.NOTHING:
        added = _forwarded(head, forwarding)
        mine = {name.lower() for name, _ in added}
        kept = tuple((name, value) for name, value in kept if not _is_mine(name.lower(), mine))
        own += added
    return (*kept, *own)


def _is_mine(name: str, mine: set[str]) -> bool:
    """Whether a header is replaced, or could be mistaken for one that is: some programs read `_` as `-`."""
    return name in mine or ("_" in name and name.replace("_", "-") in _FORWARDED)


def _forwarded(head: RequestHead, forwarding: ForwardingInfo) -> list[Header]:
    """Each proxy appends the sender; host and protocol stay those of the first request."""
    if forwarding.headers is ForwardedHeaders.CLIENT:
        return [("X-Forwarded-For", ", ".join([*every(head, "X-Forwarded-For"), forwarding.client]))]
    host = first(head, "Host") or ""
    own = f"for={_node(forwarding.client)};proto={forwarding.proto}" + (f';host="{host}"' if host else "")
    chain = [*every(head, "Forwarded"), own]
    clients = [*every(head, "X-Forwarded-For"), forwarding.client]
    added = [("Forwarded", ", ".join(chain)), ("X-Forwarded-For", ", ".join(clients))]
    added.append(("X-Forwarded-Proto", first(head, "X-Forwarded-Proto") or forwarding.proto))
    if host:
        added.append(("X-Forwarded-Host", first(head, "X-Forwarded-Host") or host))
    return added


def _node(client: str) -> str:
    try:
        return f'"[{client}]"' if ip_address(client).version == 6 else client
    except ValueError:
        return "unknown"


def via_name(site: str) -> str:
    """The name of a gateway in `Via`."""
    return f"cheops-{quote(site, safe='')}"


def has_passed_through(head: RequestHead, site: str) -> bool:
    """Whether a request has come through the gateway of a site before."""
    mark = via_name(site)
    vias = (part.split() for value in every(head, "Via") for part in value.split(","))
    return any(len(words) > 1 and words[1] == mark for words in vias)


def encode_header(text: str) -> str:
    """A text as a header holds it: one character for each of its UTF-8 bytes."""
    return text.encode().decode("latin-1")


def encode_name(site: str) -> str:
    """The name of a site as a header holds it."""
    return quote(site)


def decode_name(value: str) -> str:
    return unquote(value)


def body_size(head: RequestHead) -> int | None:
    """The length of the body; None if it is not known before its end."""
    if first(head, "Transfer-Encoding") is not None:
        return None
    return int(first(head, "Content-Length") or 0)


FOR_REPLICATION = "replication"
