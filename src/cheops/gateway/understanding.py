"""From the head of a request to all that must be known before it is routed: see `Request`."""

from dataclasses import dataclass

from cheops.config.site import SiteConfig
from cheops.gateway.asking import Watched
from cheops.gateway.carriers import Carriers, Recovered, carried
from cheops.gateway.client import Client
from cheops.gateway.fast.undoing import as_it_came
from cheops.gateway.headers import FOR, HOP, SCOPE, at_the_edge, has_passed, with_scope
from cheops.gateway.peers import PeerGateways
from cheops.gateway.pool import place_of_url
from cheops.gateway.record import Story
from cheops.gateway.request import Entrance, LoopError, Way, addressed, hosts_of, size_of
from cheops.gateway.routing import scope_of
from cheops.gateway.seam import Head, every, first
from cheops.gateway.sending import FOR_REPLICATION
from cheops.gateway.upload import ClientUpload
from cheops.scope.functions import Functions
from cheops.scope.parse import parse
from cheops.scope.tree import Scope

_ANOTHER = "another site"  # HAProxy has seen that it is one
_HANDED = (Way.INBOUND, Way.OUTBOUND)  # by HAProxy, where it forwards


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was understood."""

    client: Client
    service: str
    head: Head  # as the client sent it, without what it may not say
    scope: Scope | None
    sender: str | None  # the site whose gateway sent it on
    upload: ClientUpload
    watched: Watched
    story: Story
    sent_scope: str | None = None  # as the header had it
    is_news: bool = False  # to the fast path, which may learn from it
    recovered: Recovered | None = None  # how its scope was found, where it had none


class Understanding:
    """Knows the services, the other gateways, and the carriers of scopes."""

    def __init__(
        self, config: SiteConfig, functions: Functions, peers: PeerGateways, carriers: Carriers | None
    ) -> None:
        self._config = config
        self._here = config.name
        self._settings = config.gateway
        self._hosts = hosts_of(config.services)
        self._functions = functions
        self._peers = peers
        self._carriers = carriers

    async def understood(
        self, client: Client, entrance: Entrance, head: Head, story: Story, watched: Watched
    ) -> Request:
        """What a head means. Raises CheopsError where it cannot be right."""
        upload = ClientUpload(client, size_of(head), self._settings.repeat_size_bytes)
        story.service, head = addressed(head, entrance, self._hosts)
        if entrance.is_again:
            base = place_of_url(self._config.services[entrance.service].url).path
            head = as_it_came(head, self._here, base, self._settings.forwarded_headers)
        sender, purpose = None, ""
        is_mesh = entrance.way is Way.MESH
        if is_mesh or (first(head, HOP) is not None and not entrance.is_for_application):
            sender = await self._peers.sender(client, head, is_mesh=is_mesh)
            if sender is None and has_passed(head, self._here):
                raise LoopError(f"this request came through {self._here} before, and would go round for ever")
            purpose = (first(head, FOR) or "") if sender else ""
        if entrance.is_sent:
            sender = _ANOTHER
        if sender is None:
            head = at_the_edge(head)
        scope, sent, recovered = None, first(head, SCOPE), None
        if sender is None or purpose == FOR_REPLICATION:
            scope, recovered = self._scope(entrance, head, story)
            head = Head(head.method, head.target, with_scope(head.headers, str(scope) if scope else None))
        story.scope = str(scope) if scope else first(head, SCOPE) or ""
        if recovered:
            sent = first(head, SCOPE)
        is_news = sender is None and entrance.way in _HANDED and not entrance.is_again
        return Request(
            client, story.service, head, scope, sender, upload, watched, story, sent, is_news, recovered
        )

    def _scope(self, entrance: Entrance, head: Head, story: Story) -> tuple[Scope | None, Recovered | None]:
        scope = scope_of(every(head, SCOPE), story.service, self._functions)
        if scope is not None or not entrance.is_for_application or self._carriers is None:
            return scope, None
        text = self._carriers.recover(carried(head, self._config.carrier_names))
        story.recovered = text is not None
        if not text:
            return None, None
        return parse(text.encode("latin-1").decode(), self._functions), Recovered(head, text)
