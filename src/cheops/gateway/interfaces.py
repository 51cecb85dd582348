"""Where proxying and replication meet: the types, protocols and errors that both use.

The gateway reads requests, routes them, and relays what one site serves. A request whose route has `&`, or that may
name a replicant, goes to a `Replication`, which sends requests to services through `UpstreamServices`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from cheops.errors import CheopsError, ClientError, Fault
from cheops.gateway.headers import Headers, RequestHead
from cheops.scope.explanation import Method
from cheops.scope.route import Replicas

if TYPE_CHECKING:
    from cheops.gateway.headers import ForwardingInfo


class GatewayRequestError(ClientError):
    """A request that is not valid, or that two programs could read differently. The connection ends."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ClientGoneError(CheopsError):
    """The client disconnected before its request was complete, or before it had its response."""

    fault = Fault.CLIENT
    definite = False
    status = 499  # only for the log: nginx uses the same number


class UpstreamError(CheopsError):
    """A service or gateway was not reached, did not respond, or broke off.

    Raise it whenever a request may have been executed: `may_have_had_effect` is False only if nothing of the
    request reached the other side. `why` is a word or two for people (`connection refused`).
    """

    fault = Fault.APPLICATION
    definite = False
    status = 502
    reason = "upstream"

    def __init__(self, text: str, why: str, *, may_have_had_effect: bool, status: int = 502) -> None:
        super().__init__(text)
        self.why = why
        self.may_have_had_effect = may_have_had_effect
        self.status = status


class SiteDownError(CheopsError):
    """A site is down. Nothing was sent there, so nothing can have happened."""

    fault = Fault.PEER
    definite = False
    status = 503
    reason = "site down"


class NoGatewayError(CheopsError):
    """A site has the service, but no address where its gateway takes requests for it."""

    fault = Fault.PEER
    status = 502


_EFFECT_UNKNOWN = (500, 502, 504)


def may_have_had_effect(error: CheopsError) -> bool:
    """Whether a request that ended with this error may have been executed. This decides two things, and they must
    agree: whether the response has `Cheops-Effect: none`, and whether another target gets a request that must not run
    twice."""
    if isinstance(error, UpstreamError):
        return error.may_have_had_effect
    if isinstance(error, SiteDownError | NoGatewayError):
        return False
    # All other errors that Cheops raises before it sends a request have one of the other statuses (4xx, 501, 503).
    return error.status in _EFFECT_UNKNOWN


class IncomingRequest(Protocol):
    """A request from a client: its head, and a body that is read at most once and never held as a whole."""

    @property
    def head(self) -> RequestHead:
        """Without hop-by-hop headers, and without those of the mesh unless `is_forwarded`."""
        ...

    @property
    def peer(self) -> str:
        """The address of the client or gateway that sent it: `10.0.0.2`."""
        ...

    @property
    def forwarding(self) -> "ForwardingInfo":
        """What the next program learns about the sender."""
        ...

    @property
    def is_forwarded(self) -> bool:
        """Whether the gateway of another site sent it: it is served here and goes no further."""
        ...

    @property
    def size(self) -> int | None:
        """The length of the body: 0 for none, None if it is not known before its end."""
        ...

    def body(self) -> AsyncIterator[bytes]:
        """The body as it arrives; a slow reader slows down the sender. Raises `ClientGoneError` if the sender breaks
        off."""
        ...


Body: TypeAlias = bytes | AsyncIterator[bytes]


class StreamedBody:
    """The pieces of a body, and what has to be done after the last one, or when the reader closes it before. A mere
    generator is not enough: `aclose` on one that was never started does not run its `finally`."""

    def __init__(self, pieces: AsyncIterator[bytes], on_close: Callable[[], Awaitable[None]]) -> None:
        self._on_close: Callable[[], Awaitable[None]] | None = on_close
        self._pieces = self._iterate(pieces)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._pieces.__anext__()

    async def aclose(self) -> None:
        await self._pieces.aclose()
        await self._close()

    async def _iterate(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in pieces:
                yield piece
        finally:
            await self._close()

    async def _close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await on_close()


async def close_body(body: Body | None) -> None:
    """Close a body of which no more is read. Does nothing for one that is closed, or complete."""
    if (close := getattr(body, "aclose", None)) is not None:
        await close()


class Response(Struct, frozen=True):
    """A response. If its body is bytes, the sender adds the length. An iterator is read to its end, or closed
    (`aclose`) if the client disconnects before."""

    status: int
    headers: Headers = ()
    body: Body = b""


class DryRunResult(Struct, frozen=True):
    """What replication would do with a request."""

    # Its rule, its resource and its operation, as `cheops scope rules --try` has them; None if another site decides.
    about: Mapping[str, object] | None
    meta_id: str = ""  # of the replicant that it is about
    sites: tuple[str, ...] = ()  # of that replicant
    goes_everywhere: bool = False  # to all of these sites, rather than to one
    effect: Method | None = None  # by a rule; otherwise the HTTP method says it
    stays_here: bool = False  # whatever the scope says: it is about a session of this site, or never replicated


class RunGuard(Protocol):
    """Must be informed before an operation on a service runs at this site: HAProxy must not bypass it."""

    async def before_run(self, service: str) -> None: ...

    def after_run(self, service: str) -> None: ...


class Replication(Protocol):
    """Handles requests for replicated resources; implemented by backends.http."""

    def guard_runs(self, guard: RunGuard | None) -> None:
        """Have each run of an operation announced to this guard, or to none."""
        ...

    def has_copies(self, service: str = "") -> bool:
        """Whether this site has copies of replicated resources: of a service (or must see its requests for another
        reason), or of any."""
        ...

    def concerns(self, service: str, head: RequestHead) -> bool:
        """Whether a request to this site's instance may name a replicant. Called for every request, so it must be
        cheap. A request that is forwarded is examined at the other site."""
        ...

    async def handle(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> Response:
        """Handle a request whose route is replicas, or (None) one that concerns replicants. A `CheopsError` becomes
        a problem document."""
        ...

    async def dry_run(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> DryRunResult:
        """What `handle` would do. Raises the same errors, as far as they do not depend on the service's response."""
        ...

    async def replicant(self, service: str, head: RequestHead) -> DryRunResult | None:
        """What is known here of the replicant that a request for another site is about; None if it is about none."""
        ...

    def replicant_of(self, service: str, collection: str, name: str) -> tuple[str, bool] | None:
        """The meta-id of an item of a collection, given its id or name, and whether clients have named it; None if it
        is no replicant that this site knows. Called for every item of a list, so it must be cheap."""
        ...

    async def replicant_sites(self, meta_id: str) -> tuple[str, ...]:
        """The sites of a replicant, as far as this site knows them."""
        ...

    def with_local_ids(self, service: str, head: RequestHead) -> RequestHead:
        """A head with this site's local ids, for a request that switches to another protocol. Raises a `CheopsError`
        if a replicant has no copy here."""
        ...


class UpstreamServices(Protocol):
    """What replication may use of the gateway. All raise `UpstreamError`, whose `may_have_had_effect` says whether the
    request may have been executed."""

    async def local(
        self, service: str, head: RequestHead, body: Body | None, timeout_s: float, forwarding: "ForwardingInfo"
    ) -> Response:
        """Send to this site's instance of a service. `timeout_s` is the time until the head of the response."""
        ...

    async def at(
        self, site: str, service: str, head: RequestHead, body: Body | None, forwarding: "ForwardingInfo"
    ) -> Response:
        """Send to the gateway of another site, which serves it there."""
        ...

    async def carry(self, service: str, headers: Headers, scope: str) -> tuple[Headers, Callable[[], None]]:
        """Remember the scope of a request that replication sends to this site's instance itself, so that the calls
        that the application makes for it are recognized. Gives the headers with a carrier, and a function to call
        when the response is complete."""
        ...
