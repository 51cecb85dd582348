"""Where proxying and replication meet: the types, protocols and errors that both use.

The gateway reads requests, routes them, and relays what one site serves. A request whose route has `&`, or that may
name a replicant, goes to a `Replication`, which sends requests to services through `UpstreamServices`.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cheops.errors import CheopsError, ClientError, Fault
from cheops.gateway.headers import Headers, RequestHead
from cheops.scope.route import Replicas

if TYPE_CHECKING:
    from cheops.gateway.headers import ForwardingInfo


class GatewayRequestError(ClientError):
    """A request that cannot be understood, or that could be understood in two ways. The connection ends."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ClientGoneError(CheopsError):
    """The client went away before its request was complete, or before it had its answer."""

    fault = Fault.CLIENT
    definite = False
    status = 499  # nobody is there to read it; it is what logs of proxies know


class UpstreamError(CheopsError):
    """A service or gateway was not reached, did not respond, or broke off.

    The one error for a request that may have been executed: `may_have_had_effect` is False only if nothing of the
    request reached the other side. `why` is a word or two for people (`connection refused`).
    """

    fault = Fault.APPLICATION
    definite = False
    status = 502

    def __init__(self, text: str, why: str, *, may_have_had_effect: bool, status: int = 502) -> None:
        super().__init__(text)
        self.why = why
        self.may_have_had_effect = may_have_had_effect
        self.status = status


class SiteDownError(CheopsError):
    """A site cannot be asked now. Nothing was sent there, so nothing can have happened."""

    fault = Fault.PEER
    definite = False
    status = 503


class NoGatewayError(CheopsError):
    """A site has the service, but nothing there takes requests for it."""

    fault = Fault.PEER
    status = 502


class IncomingRequest(Protocol):
    """A request that came in: its head, and a body that is read at most once and never held as a whole."""

    @property
    def head(self) -> RequestHead:
        """Without hop-by-hop headers, and without those of the mesh unless `is_forwarded`."""
        ...

    @property
    def peer(self) -> str:
        """The address of whoever sent it: `10.0.0.2`."""
        ...

    @property
    def forwarding(self) -> "ForwardingInfo":
        """What the next program is told of who sent it."""
        ...

    @property
    def is_forwarded(self) -> bool:
        """Whether the gateway of another site sent it: it is served here and goes no further."""
        ...

    @property
    def size(self) -> int | None:
        """How many bytes the body has: 0 for none, None where only its end will tell."""
        ...

    def body(self) -> AsyncIterator[bytes]:
        """The body as it comes in; whoever reads slowly slows down the sender. A sender that breaks off
        raises `ClientGoneError`."""
        ...


Body: TypeAlias = bytes | AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. With bytes as its body the length is stated by whoever sends it. An iterator is read to its
    end, or closed (`aclose`) where the client goes away before."""

    status: int
    headers: Headers = ()
    body: Body = b""


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """What would become of a request for something replicated."""

    meta_id: str
    sites: tuple[str, ...]  # where it is
    goes_everywhere: bool  # rather than to one of them


class RunGuard(Protocol):
    """Whoever must know before an operation on a service runs at this site."""

    async def before_run(self, service: str) -> None: ...

    def after_run(self, service: str) -> None: ...


class Replication(Protocol):
    """What the replicating half answers."""

    def guard_runs(self, guard: RunGuard | None) -> None:
        """Have each run of an operation announced to this guard, or to none."""
        ...

    def has_copies(self, service: str = "") -> bool:
        """Whether this site has copies of replicated resources: of a service, or of any."""
        ...

    def concerns(self, service: str, head: RequestHead) -> bool:
        """Whether a request to this site's own instance may speak of a replicant. Cheap: asked for every one.
        A request that goes to another site is asked about there."""
        ...

    async def handle(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> Response:
        """Answer a request whose route is replicas, or (None) one that concerns replicants. A `CheopsError`
        becomes a problem document."""
        ...

    async def dry_run(self, service: str, head: RequestHead, route: Replicas | None) -> DryRunResult | None:
        """What `handle` would do, or None where nothing that exists is concerned. Raises what it would."""
        ...

    def to_local(self, service: str, head: RequestHead) -> RequestHead:
        """A head with this site's own ids, for what is not HTTP after it. Raises a `CheopsError` where a
        replicant has no copy here."""
        ...


class UpstreamServices(Protocol):
    """What the replicating half may ask of the proxying one. Both raise an `UpstreamError`: its
    `may_have_had_effect` says whether the request went out before it failed."""

    async def local(
        self, service: str, head: RequestHead, body: Body | None, timeout_s: float, forwarding: "ForwardingInfo"
    ) -> Response:
        """A request to this site's own instance of a service. The time is the one until its answer begins."""
        ...

    async def at(
        self, site: str, service: str, head: RequestHead, body: Body | None, forwarding: "ForwardingInfo"
    ) -> Response:
        """A request to the gateway of another site, which serves it there."""
        ...

    async def carry(self, service: str, headers: Headers, scope: str) -> tuple[Headers, Callable[[], None]]:
        """Remember the scope of a request that goes to this site's own instance by another way, so that the
        calls that the application makes for it can be told: the headers with what it may pass on, and what is
        to be called when it is answered."""
        ...
