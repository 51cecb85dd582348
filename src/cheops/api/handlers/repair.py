"""Handlers of what an operator decides about a resource: an outcome that nobody knows, a retry, a state for all sites.

A retry is done by each site for itself, so it is passed on to all of them. A state is read at the site that has it, and
submitted there as a forced operation: it is in the log like any other, so a site that is cut off gets it later.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import ExitStack, aclosing
from typing import Any

from msgspec import structs
from starlette.requests import Request

from cheops.api.endpoints.declaration import FreshParameters, TimeoutParameters
from cheops.api.endpoints.resources import PLAN_REPAIR, RESOLVE
from cheops.api.forms import CUT, check_showing, show_at
from cheops.api.handlers.operations import timeout_of
from cheops.api.handlers.resources import load_resource, sites_up
from cheops.api.models import to_json
from cheops.api.models.operations import Resolution, Resolved, ResolveRequest
from cheops.api.models.repair import Repairable, RepairedSite, RepairPlan
from cheops.api.request import ApiRequest, handles
from cheops.api.submission import HOP_HEADER, NO_REPLY_YET, OperationRequest, RequestError, execute, post_to_site
from cheops.api.views.operations import detail_text, find, names, sites_of, status_at
from cheops.api.views.status import resource_status, site_view
from cheops.engine.events import Answer, Retried
from cheops.engine.events import Resolved as ResolvedEvent
from cheops.engine.replica import Replica
from cheops.engine.status import operation_status, status
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import FileRef, Kind, OpId, Status
from cheops.node.node import Node
from cheops.peers.prober import now
from cheops.security.principal import Principal
from cheops.text import in_words, is_or_are

_POLL_S = 0.02
_IDLE_S = 5.0  # how long a run that is under way may take before a state is read
_ATTEMPTS = 3  # to read a state that does not change meanwhile
_MAX_WAIT_S = 20.0  # for the outcome of a retry at another site
_CONFLICT = 409
_WORST_FIRST = (Status.UNKNOWN, Status.KO, Status.RUNNING, Status.PENDING, Status.VOID, Status.SUPERSEDED, Status.OK)
REPAIR = "repair"  # the type of the operation


@handles(RESOLVE)
async def resolve(request: ApiRequest[TimeoutParameters, ResolveRequest]) -> Resolved:
    node, body = request.node, await request.body()
    if body.site and body.site != node.name and body.resolution is not Resolution.FORCE:
        return await _resolve_at(request, body.site, body)
    match body.resolution:
        case Resolution.FORCE:
            return await _force(node, request.id, body, timeout_of(request.parameters), request.principal)
        case Resolution.RETRY:
            return await _retry(request, body)
        case Resolution.STATE:
            return await _take_state(request, body)
    replica = await load_resource(node, request.id)
    op, happened = _unknown_operation(replica, body), body.resolution is Resolution.HAPPENED
    await node.backends.resolved(replica, op, happened=happened)
    node.pump.post(ResolvedEvent(request.id, op, happened))
    await node.pump.flushed()
    return Resolved(resource=request.id, site=node.name, operation=str(op), resolution=body.resolution)


async def _resolve_at(
    request: ApiRequest[TimeoutParameters, ResolveRequest], site: str, body: ResolveRequest
) -> Resolved:
    """Forward to the site that the decision is about."""
    node, http = request.node, request.http
    if http.headers.get(HOP_HEADER):
        raise RequestError(f"this is {node.name}, not {site}")
    site_view(node.mesh, now(), site)  # 404 for a site that is not known
    wait_s = min(timeout_of(request.parameters), _MAX_WAIT_S)
    path = f"{_path(http)}?timeout={wait_s:g}"
    return await post_to_site(node, site, path, to_json(body), Resolved, request.principal.reach, wait_s)


def _path(http: Request) -> str:
    """As the client encoded it: an id may have any character."""
    raw: bytes | None = http.scope.get("raw_path")
    return raw.decode("ascii").partition("?")[0] if raw else str(http.scope["path"])


def _unknown_operation(replica: Replica, body: ResolveRequest) -> OpId:
    """The operation that is UNKNOWN at this site: the one that is named, or the first."""
    unknown = [str(one.id) for one in replica.applied.all_unknown]
    if replica.applied.unknown is None:
        raise ClientError(f"nothing is UNKNOWN at {replica.site}{_unknown_elsewhere(replica)}", status=_CONFLICT)
    named = find(replica, body.operation).id if body.operation else replica.applied.unknown.id
    if not replica.applied.is_unknown(named):
        found = f"{in_words(unknown)} {is_or_are(unknown)} UNKNOWN at {replica.site}, not {body.operation}"
        raise ClientError(found, status=_CONFLICT)
    return named


def _unknown_elsewhere(replica: Replica) -> str:
    """What other sites have reported as UNKNOWN. An operation that is UNKNOWN at its origin is known only there."""
    sites = [site for site in status(replica, set()).sites if site.unknown]
    reported = [f"{in_words(map(str, site.unknown))} at {site.site}" for site in sites]
    return f"; {in_words(reported)} {is_or_are(reported)}: name that site with 'site'" if reported else ""


async def _force(node: Node, id_: str, body: ResolveRequest, timeout_s: float, by: Principal) -> Resolved:
    if not body.command.strip():
        raise RequestError("'force' needs a 'command' that makes the state")
    await load_resource(node, id_)
    wanted = OperationRequest(id_, body.type, body.command.strip(), kind=Kind.FORCE, by=by)
    accepted, _sites, answers = await execute(node, wanted, timeout_s)
    async for _ in answers:
        break  # it ran here, or the time is over
    return Resolved(resource=id_, site=node.name, operation=str(accepted.op), resolution=body.resolution)


# -- retry ------------------------------------------------------------------------------------------------------


async def _retry(request: ApiRequest[TimeoutParameters, ResolveRequest], body: ResolveRequest) -> Resolved:
    node, id_ = request.node, request.id
    replica = await load_resource(node, id_)
    wanted = (body.site,) if body.site else sites_of(replica)
    done = await asyncio.gather(*(_retry_at(request, site, body) for site in wanted))
    operation = next((one for site in done for one in site.operations), "")
    return Resolved(resource=id_, site=node.name, operation=operation, resolution=body.resolution, sites=tuple(done))


async def _retry_at(
    request: ApiRequest[TimeoutParameters, ResolveRequest], site: str, body: ResolveRequest
) -> RepairedSite:
    if site == request.node.name:
        return await _retry_here(request.node, request.id, min(timeout_of(request.parameters), _MAX_WAIT_S))
    try:
        response = await _resolve_at(request, site, structs.replace(body, site=site))
    except CheopsError as error:
        return RepairedSite(site=site, detail=str(error), reached=False)
    return next((one for one in response.sites if one.site == site), RepairedSite(site=site))


async def _retry_here(node: Node, id_: str, timeout_s: float) -> RepairedSite:
    """Run again what failed here, and wait for the outcome."""
    replica = await load_resource(node, id_)
    failed = tuple(op.id for op in replica.history.effective if op.id in replica.applied.failed)
    if not failed:
        return RepairedSite(site=node.name)
    node.pump.post(Retried(id_))
    await node.pump.flushed()
    end_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        replica = await node.pump.replica(id_)
        outcomes = {id_: operation_status(replica, id_, node.name) for id_ in failed}
        is_open = any(one in (Status.PENDING, Status.RUNNING) for one in outcomes.values())
        if not is_open or asyncio.get_running_loop().time() >= end_s:
            break
        await asyncio.sleep(_POLL_S)
    worst, detail = _worst(replica, outcomes)
    return RepairedSite(site=node.name, status=worst, operations=names(failed), detail=detail)


def _worst(replica: Replica, outcomes: dict[OpId, Status]) -> tuple[Status, str]:
    worst = next(status for status in _WORST_FIRST if status in outcomes.values())
    id_ = next(id_ for id_, status in outcomes.items() if status is worst)
    reply = replica.replies.get(id_, replica.site)
    if worst in (Status.PENDING, Status.RUNNING):
        return worst, replica.slot.retry_reason or NO_REPLY_YET
    return worst, detail_text(replica, reply.detail) if reply and worst in (Status.KO, Status.UNKNOWN) else ""


# -- the state of one site --------------------------------------------------------------------------------------


async def _take_state(request: ApiRequest[TimeoutParameters, ResolveRequest], body: ResolveRequest) -> Resolved:
    """Read the state of this site's application, and make it that of all sites."""
    node, id_, by = request.node, request.id, request.principal
    timeout_s = timeout_of(request.parameters)
    with ExitStack() as pins:  # they protect a file until an operation that names it is saved
        for attempt in range(_ATTEMPTS):
            wanted = await _state_request(node, id_, by, pins)
            try:
                accepted, sites, answers = await execute(node, wanted, timeout_s)
                break
            except ClientError as error:
                if error.status != _CONFLICT or attempt == _ATTEMPTS - 1:
                    raise
    operation = str(accepted.op)
    done = await _outcomes(node.name, operation, len(sites), answers)
    pending = RepairedSite(site="", status=Status.PENDING, operations=(operation,), detail=NO_REPLY_YET)
    return Resolved(
        resource=id_,
        site=node.name,
        operation=operation,
        resolution=body.resolution,
        sites=tuple(done.get(site) or structs.replace(pending, site=site) for site in sites),
    )


async def _outcomes(
    here: str, operation: str, most: int, answers: AsyncGenerator[Answer, None]
) -> dict[str, RepairedSite]:
    """What sites reply, until all have or the time is over; raises ClientError if it failed at its own site."""
    done: dict[str, RepairedSite] = {}
    async with aclosing(answers):
        async for answer in answers:
            if answer.status in (None, Status.PENDING, Status.UNKNOWN):
                continue
            detail = answer.detail if answer.status is not Status.OK else ""
            done[answer.site] = RepairedSite(
                site=answer.site, status=answer.status, operations=(operation,), detail=detail
            )
            if answer.site == here and answer.status is not Status.OK:
                raise ClientError(
                    f"nothing was changed at the other sites, because {here} itself did not take its state back: "
                    f"{detail or answer.status.value}",
                    status=_CONFLICT,
                )
            if len(done) == most:
                break
    return done


async def _state_request(node: Node, id_: str, by: Principal, pins: ExitStack) -> OperationRequest:
    replica = await _idle_resource(node, id_)
    check_showing(node, by, replica, "", sites_of(replica))
    revision = replica.revision

    async def keep(name: str, content: bytes) -> FileRef:
        return await _keep_file(node, name, content, pins)

    async with node.read_queue.place(str(by)):
        command = await node.backends.of_type(replica.type.name).capture(replica, keep)
    return OperationRequest(id_, REPAIR, command.line, files=command.files, kind=Kind.FORCE, by=by, revision=revision)


async def _idle_resource(node: Node, id_: str) -> Replica:
    """A resource while nothing runs on it: what a run is about to change must not be read."""
    await load_resource(node, id_)
    end_s = asyncio.get_running_loop().time() + _IDLE_S
    while True:
        replica = await node.pump.replica(id_)
        if replica.slot.running is None:
            return replica
        if asyncio.get_running_loop().time() >= end_s:
            raise CheopsError(f"an operation is running at {node.name}; try again later", status=503, definite=False)
        await asyncio.sleep(_POLL_S)


async def _keep_file(node: Node, name: str, content: bytes, pins: ExitStack) -> FileRef:
    """As `forms.keep_files`: the file may be deleted with another operation until it is pinned."""
    while True:
        hash_ = await asyncio.to_thread(node.files.put, [content])
        pins.enter_context(node.file_references.pin([hash_]))
        if node.files.has(hash_):
            return FileRef(name, hash_, len(content))


# -- the plan ---------------------------------------------------------------------------------------------------


@handles(PLAN_REPAIR)
async def plan_repair(request: ApiRequest[FreshParameters]) -> RepairPlan:
    node, who = request.node, request.principal
    replica = await load_resource(node, request.id, request.parameters.fresh)
    sites = sites_of(replica)
    check_showing(node, who, replica, "", sites)
    states = await asyncio.gather(*(_state_at(node, who, site, replica.resource) for site in sites))
    found = resource_status(replica, sites_up(node), node.now_ms())
    known = {one.site: one for one in found.sites}
    return RepairPlan(
        resource=replica.resource,
        overall=found.overall,
        sentence=found.sentence,
        same=all(one["Status"] == "OK" and CUT not in one for one in states)
        and len({one["Output"] for one in states}) == 1,
        sites=tuple(
            Repairable(
                site=site,
                reachable=known[site].reachable if site in known else False,
                read=state["Status"],
                state=state["Output"],
                failed=known[site].failed if site in known else (),
                unknown=known[site].unknown if site in known else (),
                discards=names(_discarded(replica, site)),
            )
            for site, state in zip(sites, states, strict=True)
        ),
        no_state=_no_state(node, replica),
    )


def _no_state(node: Node, replica: Replica) -> str:
    try:
        node.backends.of_type(replica.type.name).check_capture(replica)
    except ClientError as error:
        return str(error)
    return ""


async def _state_at(node: Node, who: Principal, site: str, id_: str) -> dict[str, Any]:
    """The state of the application at a site; that it cannot be shown is no failure of the plan."""
    try:
        return await show_at(node, who, site, id_, "")
    except ClientError as error:
        return {"Status": "KO", "Output": str(error)}


def _discarded(replica: Replica, site: str) -> Iterable[OpId]:
    """The operations in effect that a site is not known to hold."""
    return (op.id for op in replica.history.effective if status_at(replica, op, site) is not Status.OK)
