"""Handlers of resources: lists, status, explanation, log, matrix, and the state of the application at each site."""

import asyncio
from collections.abc import Sequence
from difflib import unified_diff

from cheops.api.endpoints.declaration import FreshParameters
from cheops.api.endpoints.resources import (
    EXPLAIN_RESOURCE,
    GET_LANES,
    GET_LOG,
    GET_MATRIX,
    GET_RESOURCE,
    GET_SITE_HEALTH,
    GET_STATUS,
    GET_TYPE_MATRIX,
    LIST_RESOURCES,
    LIST_TYPES,
    VERIFY_RESOURCE,
    LogParameters,
    ResourceFilter,
    VerifyParameters,
)
from cheops.api.forms import check_showing, show_at
from cheops.api.health import site_health
from cheops.api.models.operations import Explanation, Lanes, LogView, MatrixView, StateAt, Verification
from cheops.api.models.resources import (
    Overall,
    ResourceDetail,
    Resources,
    ResourceStatus,
    ResourceSummary,
    SiteHealth,
    Types,
    TypeView,
)
from cheops.api.permissions import check_type, may_see
from cheops.api.request import ApiRequest, handles
from cheops.api.views.explanation import explanation
from cheops.api.views.log import lanes, log_view, matrix_in_force, matrix_view
from cheops.api.views.operations import sites_of
from cheops.api.views.status import detail, is_here, not_here_text, resource_status, summary, unreadable_summary
from cheops.config.types import TypeConfig
from cheops.engine.documents import Ledger, key_of
from cheops.engine.health import TROUBLED, State
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.node.node import Node
from cheops.security.principal import Principal
from cheops.store.codec import ascii_lower
from cheops.store.interface import Store

_POLL_S = 0.01  # between two looks for reports of other sites
_MAX_EXAMINED = 1_000  # resources for one page: each of them is loaded from the store
_EXAMINED_S = 0.5  # beyond this no further batch is examined: a busy site takes longer to load one
_BATCH = 200  # resources that are loaded at once
# The states of resources that may have this status. It is not stored, as it depends on which sites are up now; and a
# resource that has just converged is counted as converging for a moment.
_HEALTHY = (State.CONVERGED, State.CONVERGING, State.UNKNOWN)
_LISTED = tuple(state for state in State if state is not State.DELETED)
_STATES: dict[Overall, tuple[State, ...]] = {
    "DIVERGED": TROUBLED,
    "CONVERGING": (State.CONVERGING, State.UNKNOWN),
    "CONVERGED": _HEALTHY,
    "UNREACHABLE": _HEALTHY,
}

# -- one resource -----------------------------------------------------------------------------------------------


@handles(GET_RESOURCE)
async def get_resource(request: ApiRequest[FreshParameters]) -> ResourceDetail:
    return detail(await _fresh_resource(request), sites_up(request.node), request.node.now_ms())


@handles(GET_STATUS)
async def get_status(request: ApiRequest[FreshParameters]) -> ResourceStatus:
    return resource_status(await _fresh_resource(request), sites_up(request.node), request.node.now_ms())


@handles(EXPLAIN_RESOURCE)
async def explain(request: ApiRequest[FreshParameters]) -> Explanation:
    return explanation(await _fresh_resource(request), sites_up(request.node), request.node.now_ms())


@handles(GET_LOG)
async def get_log(request: ApiRequest[LogParameters]) -> LogView:
    wanted = request.parameters
    replica = await load_resource(request.node, request.id, wanted.fresh)
    return log_view(replica, wanted.cursor, wanted.limit)


@handles(GET_LANES)
async def get_lanes(request: ApiRequest[FreshParameters]) -> Lanes:
    return lanes(await _fresh_resource(request), sites_up(request.node), request.node.now_ms())


@handles(GET_MATRIX)
async def get_matrix(request: ApiRequest) -> MatrixView:
    return matrix_in_force(await load_resource(request.node, request.id))


async def _fresh_resource(request: ApiRequest[FreshParameters]) -> Replica:
    return await load_resource(request.node, request.id, request.parameters.fresh)


async def load_resource(node: Node, id_: str, fresh_s: float = 0.0) -> Replica:
    """A resource as this site knows it, after the other sites had `fresh_s` seconds to report their state."""
    replica = await node.pump.replica(id_)
    if not is_here(replica):
        raise ClientError(not_here_text(replica, _other_sites(node), node.address_of), status=404)
    await refresh_from_peers(node, [id_], fresh_s)
    return await node.pump.replica(id_)


def _other_sites(node: Node) -> list[str]:
    """The other known sites, reachable ones first."""
    others = set(node.snapshot().sites) - {node.name}
    return sorted(others, key=lambda name: (name not in node.mesh.up, name))


async def refresh_from_peers(node: Node, ids: Sequence[str], fresh_s: float) -> None:
    """Request the state of these resources from their sites, and wait for the responses up to `fresh_s` seconds."""
    if fresh_s <= 0:
        return
    begun_ms, end_s = node.now_ms(), asyncio.get_running_loop().time() + fresh_s
    replicas = [await node.pump.replica(id_, refresh=True) for id_ in ids]
    while any(is_awaited(node, replica, begun_ms) for replica in replicas):
        if asyncio.get_running_loop().time() >= end_s:
            return
        await asyncio.sleep(_POLL_S)


def is_awaited(node: Node, replica: Replica, since_ms: int) -> bool:
    """Whether a reachable site has not responded yet."""
    for site in replica.history.site_list:
        if site != node.name and site in node.mesh.up:
            view = replica.peers.get(site)
            if view is None or (view.last_contact_ms or 0) < since_ms:
                return True
    return False


def sites_up(node: Node) -> set[str]:
    return set(node.mesh.up)


@handles(GET_SITE_HEALTH)
async def get_site_health(request: ApiRequest) -> SiteHealth:
    return await site_health(request.node)


# -- lists ------------------------------------------------------------------------------------------------------


@handles(LIST_RESOURCES)
async def list_resources(request: ApiRequest[ResourceFilter]) -> Resources:
    """The store filters by the text of an id, by site and by state. Type and outcome are known only of a resource in
    memory, and so is which sites are up: for these, one page examines a limited number of resources. It may hold fewer
    than requested, or none, and still have a next."""
    node, wanted, by = request.node, request.parameters, request.principal
    cursor, limit = wanted.cursor, wanted.limit
    clock = asyncio.get_running_loop().time
    end_s, stop_s = clock() + wanted.fresh, clock() + _EXAMINED_S  # of the whole page, however many are examined
    if not _needs_examination(wanted):
        ids, more = await _matching_ids(node, wanted, cursor, limit)
        page = await _fresh_summaries(node, ids, wanted, end_s, by)
        return Resources(resources=page, next=ids[-1] if ids and more else None)
    matches: list[ResourceSummary] = []
    examined, more = 0, True
    while more and len(matches) < limit and examined < _MAX_EXAMINED and (not examined or clock() < stop_s):
        ids, more = await _matching_ids(node, wanted, cursor, _BATCH)
        examined += len(ids)
        found = [one for one in await _fresh_summaries(node, ids, wanted, end_s, by) if _is_match(wanted, one)]
        matches += found[: limit - len(matches)]
        if len(matches) == limit:  # the next page begins after the last one that is shown
            more = more or matches[-1].id != ids[-1]
            cursor = matches[-1].id
        else:
            cursor = ids[-1] if ids else cursor
    return Resources(resources=tuple(matches), next=cursor if more else None)


def _needs_examination(wanted: ResourceFilter) -> bool:
    """Whether resources must be loaded: the store knows their ids, sites and states, and nothing else."""
    return bool(wanted.type or wanted.overall or wanted.outcome)


def _may_match(wanted: ResourceFilter, one: ResourceSummary) -> bool:
    """Whether a resource can be listed, whatever other sites report of it."""
    return one.id.startswith(wanted.prefix) and (not wanted.type or one.type == wanted.type)


def _is_match(wanted: ResourceFilter, one: ResourceSummary) -> bool:
    return (
        _may_match(wanted, one)
        and (wanted.overall is None or one.overall == wanted.overall)
        and (wanted.outcome is None or one.last_outcome is wanted.outcome)
    )


async def _matching_ids(node: Node, wanted: ResourceFilter, cursor: str, limit: int) -> tuple[list[str], bool]:
    states = _STATES[wanted.overall] if wanted.overall else (State.DELETED,) if wanted.deleted else _LISTED
    return await page_of_ids(node, wanted.prefix, cursor, limit, states, wanted.search, wanted.site)


async def page_of_ids(  # noqa: PLR0913, PLR0917 - what a list can be about
    node: Node,
    prefix: str,
    cursor: str,
    limit: int,
    states: Sequence[State] = _LISTED,
    search: str = "",
    site: str = "",
) -> tuple[list[str], bool]:
    """The ids of a page, and whether there are more. The store returns ids greater than a text, so an id that equals
    the prefix is looked up separately."""
    after = max(cursor, prefix)
    rest = await asyncio.to_thread(node.store.in_states, states, search, site or None, after, limit + 1)
    ids = [id_ for id_ in rest if id_.startswith(prefix)]
    if prefix and not cursor and await asyncio.to_thread(_is_in_state, node.store, prefix, states, site):
        ids = [prefix, *ids] if ascii_lower(search) in ascii_lower(prefix) else ids
    return ids[:limit], len(ids) > limit


def _is_in_state(store: Store, resource: str, states: Sequence[State], site: str) -> bool:
    key = key_of(Ledger(resource))
    ledger = store.read([key]).get(key)
    return isinstance(ledger, Ledger) and ledger.state in states and (not site or site in store.sites_of(resource))


async def _fresh_summaries(
    node: Node, ids: Sequence[str], wanted: ResourceFilter, end_s: float, by: Principal
) -> tuple[ResourceSummary, ...]:
    """`end_s`: until when other sites may report, in the time of the event loop."""
    found = await _summaries(node, ids, by)
    in_doubt = [one.id for one in found if one.overall == "CONVERGING" and _may_match(wanted, one)]
    fresh_s = end_s - asyncio.get_running_loop().time()
    if not in_doubt or fresh_s <= 0:
        return found
    # A resource that was not used for a while has left memory, and with it the reports of the other sites.
    await refresh_from_peers(node, in_doubt, fresh_s)
    return await _summaries(node, ids, by)


async def _summaries(node: Node, ids: Sequence[str], by: Principal) -> tuple[ResourceSummary, ...]:
    replicas = await node.pump.readable(ids)
    visible = [replica for replica in replicas if is_here(replica) and may_see(by, replica)]
    found = [summary(replica, sites_up(node)) for replica in visible]
    # What is not readable stays in the list: its sites are all that is known of it.
    damaged = [] if by.is_limited else [id_ for id_ in ids if id_ in node.store.damaged]
    found += [unreadable_summary(id_, await asyncio.to_thread(node.store.sites_of, id_)) for id_ in damaged]
    return tuple(sorted(found, key=lambda one: one.id))


# -- the state of the application -------------------------------------------------------------------------------


@handles(VERIFY_RESOURCE)
async def verify(request: ApiRequest[VerifyParameters]) -> Verification:
    node, command = request.node, request.parameters.command
    replica = await load_resource(node, request.id)
    sites = sites_of(replica)
    who = request.principal
    check_showing(node, who, replica, command, sites)
    results = await asyncio.gather(*(show_at(node, who, site, replica.resource, command) for site in sites))
    states = tuple(
        StateAt(site=site, status=one["Status"], output=one["Output"]) for site, one in zip(sites, results, strict=True)
    )
    good = [state for state in states if state.status == "OK"]
    return Verification(
        resource=replica.resource,
        same=len(good) == len(states) and len({state.output for state in states}) == 1,
        states=states,
        diff={state.site: _diff(good[0], state) for state in good[1:] if state.output != good[0].output},
    )


def _diff(one: StateAt, other: StateAt) -> tuple[str, ...]:
    before, after = one.output.splitlines(), other.output.splitlines()
    return tuple(unified_diff(before, after, one.site, other.site, lineterm=""))


# -- types ------------------------------------------------------------------------------------------------------


@handles(LIST_TYPES)
async def list_types(request: ApiRequest) -> Types:
    reach = request.principal.reach
    visible = [one for one in request.node.config.types.values() if reach.has_type(one.name, None)]
    return Types(types=tuple(map(_type_view, sorted(visible, key=lambda one: one.name))))


def _type_view(one: TypeConfig) -> TypeView:
    return TypeView(
        name=one.name,
        operations=one.matrix.types,
        allow=tuple(one.command.allow),
        reads=one.read is not None,
        resets=one.engine.reset is not None,
    )


@handles(GET_TYPE_MATRIX)
async def get_type_matrix(request: ApiRequest) -> MatrixView:
    name = request.segment("name")
    check_type(request.principal, name)
    return matrix_view(request.node.config.type_named(name).matrix)
