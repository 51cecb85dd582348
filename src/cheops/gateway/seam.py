"""Where the two halves of the gateway meet: what is proxied, and what is replicated.

The proxying half reads requests, routes them, and streams what one site serves. What has a route with `&`,
or may speak of a replicant, is handed to a `Replication`, which sends requests to services by `Services`.
Neither half knows more of the other than what stands here.

A head is as it was sent: names of headers in the sender's spelling, order and repetitions kept. Text in it is
one character per byte (latin-1), so that nothing is lost on the way.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cheops.scope.route import Replicas

if TYPE_CHECKING:
    from cheops.gateway.headers import Passage

Header: TypeAlias = tuple[str, str]
Headers: TypeAlias = tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. `target` is path and query, as sent: `/v2/images?limit=3`."""

    method: str
    target: str
    headers: Headers = ()


class Incoming(Protocol):
    """A request that came in: its head, and a body that is read at most once and never held as a whole."""

    @property
    def head(self) -> Head:
        """Without hop-by-hop headers, and without those of the mesh unless `is_forwarded`."""
        ...

    @property
    def peer(self) -> str:
        """The address of whoever sent it: `10.0.0.2`."""
        ...

    @property
    def passage(self) -> "Passage":
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
        raises `GoneError`."""
        ...


Body: TypeAlias = bytes | AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An answer. With bytes as its body the length is stated by whoever sends it. An iterator is read to its
    end, or closed (`aclose`) where the client goes away before."""

    status: int
    headers: Headers = ()
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Foretold:
    """What would become of a request for something replicated."""

    meta_id: str
    sites: tuple[str, ...]  # where it is
    goes_everywhere: bool  # rather than to one of them


class Replication(Protocol):
    """What the replicating half answers."""

    def concerns(self, service: str, head: Head) -> bool:
        """Whether a request to this site's own instance may speak of a replicant. Cheap: asked for every one.
        A request that goes to another site is asked about there."""
        ...

    async def handle(self, service: str, incoming: Incoming, route: Replicas | None) -> Outgoing:
        """Answer a request whose route is replicas, or (None) one that concerns replicants. A `CheopsError`
        becomes a problem document."""
        ...

    async def foretell(self, service: str, head: Head, route: Replicas | None) -> Foretold | None:
        """What `handle` would do, or None where nothing that exists is concerned. Raises what it would."""
        ...

    def to_local(self, service: str, head: Head) -> Head:
        """A head with this site's own ids, for what is not HTTP after it. Raises a `CheopsError` where a
        replicant has no copy here."""
        ...


class Services(Protocol):
    """What the replicating half may ask of the proxying one. Both raise an `UpstreamError`: its
    `may_have_had_effect` says whether the request went out before it failed."""

    async def local(
        self, service: str, head: Head, body: Body | None, timeout_s: float, passage: "Passage"
    ) -> Outgoing:
        """A request to this site's own instance of a service. The time is the one until its answer begins."""
        ...

    async def at(
        self, site: str, service: str, head: Head, body: Body | None, passage: "Passage"
    ) -> Outgoing:
        """A request to the gateway of another site, which serves it there."""
        ...

    async def carry(self, service: str, headers: Headers, scope: str) -> tuple[Headers, Callable[[], None]]:
        """Remember the scope of a request that goes to this site's own instance by another way, so that the
        calls that the application makes for it can be told: the headers with what it may pass on, and what is
        to be called when it is answered."""
        ...


def first(head: Head, name: str) -> str | None:
    """The value of the first header with a name, whatever its spelling."""
    wanted = name.lower()
    return next((value for given, value in head.headers if given.lower() == wanted), None)


def every(head: Head, name: str) -> list[str]:
    """The values of all headers with a name, in their order."""
    wanted = name.lower()
    return [value for given, value in head.headers if given.lower() == wanted]


def without(headers: Iterable[Header], *names: str) -> Headers:
    """Headers without those of these names."""
    unwanted = {name.lower() for name in names}
    return tuple((name, value) for name, value in headers if name.lower() not in unwanted)
