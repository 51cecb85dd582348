"""Interpreter: what a request that comes to the gateway is about, or why it is not replicated.

It executes nothing, so a dry run asks it the same questions as the request itself.
"""

from collections.abc import Callable

from cheops.backends.http.copies import Copies
from cheops.backends.http.ids import Form, meta_id_of, to_meta
from cheops.backends.http.interpretation import (
    WHOLE,
    BufferedRequest,
    Meaning,
    buffered,
    meaning_of,
    paths_at,
    refuse_by_rule,
    refuse_unexplained,
    refuse_unexplained_query,
    rule_about_body,
    rule_for,
)
from cheops.backends.http.locations import Locations
from cheops.backends.http.paths import canonical, joined, split_target, trimmed
from cheops.backends.http.places import AmbiguousError
from cheops.backends.http.request import (
    named_target,
    refuse_other_spelling,
    refuse_override,
    target_of,
    touched_by_move,
)
from cheops.backends.http.translation import ResponseIds, form_of
from cheops.config.request_rules import SAFE_METHODS
from cheops.config.service_rules import REPLICANTS, Rule, RuleKind, ServiceRules
from cheops.errors import ClientError
from cheops.gateway.headers import RequestHead
from cheops.gateway.interfaces import IncomingRequest
from cheops.node.node import Node
from cheops.scope.route import Replicas
from cheops.text import listed, printable, shortened

_FOR_ONE_SITE = Meaning(RuleKind.REFUSE)  # no rule is about it, and no other site gets it


class RequestInterpreter:
    """`response_ids` are the ids in the responses of a service; `knows_session` says whether a session is open."""

    def __init__(
        self,
        node: Node,
        copies: Copies,
        locations: Locations,
        response_ids: Callable[[str, RequestHead], ResponseIds],
        knows_session: Callable[[str, Rule, dict[str, str]], bool],
    ) -> None:
        self._node = node
        self._copies = copies
        self._locations = locations
        self._response_ids = response_ids
        self._knows_session = knows_session

    async def interpret(
        self, service: str, incoming: IncomingRequest, route: Replicas | None
    ) -> tuple[IncomingRequest, tuple[Rule, dict[str, str]] | None, Meaning | None]:
        """The request, with its body in memory if a rule needs that; its rule; and what that says about a change.
        Raises ClientError for what is not replicated. Executes nothing."""
        if route is not None:
            self._check(service, route)
        head, is_change = incoming.head, incoming.head.method not in SAFE_METHODS
        is_at_stake = route is not None or self._copies.index.has_service(service)
        if is_at_stake:
            refuse_override(self._copies.index, service, self.rules(service), head, has_scope=route is not None)
        if is_at_stake and is_change:
            refuse_other_spelling(self._copies.index, service, self.rules(service), head)
        incoming = await self._with_what_it_is_about(service, incoming) if is_change else incoming
        try:
            return incoming, *await self._rule_and_meaning(service, incoming, route)
        except AmbiguousError:
            if is_at_stake:
                raise
        return incoming, None, _FOR_ONE_SITE  # nothing that it may mean is replicated

    async def _rule_and_meaning(
        self, service: str, incoming: IncomingRequest, route: Replicas | None
    ) -> tuple[tuple[Rule, dict[str, str]] | None, Meaning | None]:
        """Raises AmbiguousError for what rules are about and services read differently."""
        head = incoming.head
        body = incoming.content if isinstance(incoming, BufferedRequest) else None
        found = rule_for(self.rules(service), head.method, head.target, head.headers, body)
        if found and found[0].step:
            return found, None
        if found and found[0].of == REPLICANTS and route:
            await self._refuse_not_replicated(service, head, route)
        if head.method in SAFE_METHODS:
            return found, None
        meaning = self.meaning(service, incoming)
        if meaning is not None and meaning.kind is RuleKind.REFUSE and meaning.rule:
            await self._refuse_if_replicated(service, incoming, route, meaning.rule)
        elif meaning is not None and (meaning.kind is RuleKind.READ or meaning.item):
            pass
        elif self.rules(service).is_whole and (route or self._copies.index.is_at(service, WHOLE)):
            refuse_unexplained(service, head)
        elif meaning is None:
            await self._refuse_unknown_query(service, incoming, route)
        return found, meaning

    async def _refuse_unknown_query(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> None:
        """Raises ClientError for a change by which a rule would mean something replicated, but for its query."""
        head = incoming.head
        if "?" not in head.target or not await self._would_mean_replicated(service, incoming, route):
            return
        refuse_unexplained_query(service, self.rules(service), head, split_target(head.target)[0])
        raise ClientError(
            "a member of the query of this request is there twice, and services differ in which one counts: it is not "
            "replicated",
            status=422,
        )

    async def _would_mean_replicated(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> bool:
        head, body = incoming.head, incoming.content if isinstance(incoming, BufferedRequest) else None
        found = rule_for(self.rules(service), head.method, head.target, head.headers, body, any_query=True)
        if found and found[0].step:
            return route is not None or self._knows_session(service, *found)
        near = self.meaning(service, incoming, any_query=True)
        if near is None or not near.item:
            return False
        meta_id = self._copies.index.whose_path(service, near.item) or near.meta_id(service)
        return route is not None or bool(await self._locations.known_here(meta_id))

    async def meaning_or_none(self, service: str, incoming: IncomingRequest) -> Meaning | None:
        """What the rules say about a request that is not replicated: it need not have what they refer to."""
        try:
            return self.meaning(service, await self._with_what_it_is_about(service, incoming))
        except ClientError:
            return None

    def rules(self, service: str) -> ServiceRules:
        return self._node.config.services[service].replication.rules

    async def _with_what_it_is_about(self, service: str, incoming: IncomingRequest) -> IncomingRequest:
        """The request, with its body in memory if a rule needs that."""
        head = incoming.head
        rule = rule_about_body(self.rules(service), head.method, head.target, head.headers)
        return await buffered(incoming, rule) if rule else incoming

    def meaning(self, service: str, incoming: IncomingRequest, *, any_query: bool = False) -> Meaning | None:
        """Raises ClientError."""
        head, body = incoming.head, incoming.content if isinstance(incoming, BufferedRequest) else None
        rules = self.rules(service)
        if body and form_of(head) is Form.JSON:  # as the operation will have it: with meta-ids
            body = to_meta(body, self._response_ids(service, head))
        target = joined(
            self._copies.index.path_with_meta_ids(service, canonical(split_target(head.target)[0])),
            split_target(head.target)[1],
        )
        return meaning_of(rules, head.method, target, head.headers, body, any_query=any_query)

    async def _refuse_not_replicated(self, service: str, head: RequestHead, route: Replicas) -> None:
        """Raises ClientError for a read of what is not replicated at the sites of its scope."""
        known = await self._locations.known_here(named_target(service, head).meta_id)
        if not set(route.sites) <= set(known):
            path = printable(shortened(split_target(head.target)[0]))
            raise ClientError(f"{path} is not replicated at {listed(route.sites)}", status=404)

    async def _refuse_if_replicated(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, rule: Rule
    ) -> None:
        """Raises ClientError: a change that no other site could repeat must not be made to what is replicated."""
        replicated = await self._replicated(service, incoming, rule)
        if route is not None or replicated:
            refuse_by_rule(service, incoming.head, rule, replicated)

    async def _replicated(self, service: str, incoming: IncomingRequest, rule: Rule) -> str:
        """What a request is about that is replicated; empty if nothing is. By default that is what its path leads to,
        or is below; if the rule says of what it is, only that."""
        head, index = incoming.head, self._copies.index
        path, query = split_target(head.target)
        if index.is_at(service, WHOLE):
            return "the whole service"
        paths = [trimmed(canonical(path))]
        if rule.of:
            values = rule.match(head.method, canonical(path), query) or {}
            body = incoming.content if isinstance(incoming, BufferedRequest) else None
            paths = paths_at(rule, rule.of, values, head.headers, query, body)
        elif target_of(index, service, path) is not None:
            return paths[0]
        elif touched := touched_by_move(index, service, head):
            return touched[0]
        for one in paths:
            found = index.whose_path(service, one) or meta_id_of("path", service, one)
            if await self._locations.known_here(found):
                return one
        return ""

    def _check(self, service: str, route: Replicas) -> None:
        route.check_level()
        known = self._node.snapshot().sites
        without_service = [site for site in route.sites if site in known and known[site].lacks(service)]
        if without_service:
            raise ClientError(f"there is no service '{service}' at {listed(without_service)}")
