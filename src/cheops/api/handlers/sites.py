"""Handlers of sites: the mesh as this site knows it, invitations, and the cuts of the demo."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
from msgspec import structs

from cheops.api.endpoints.declaration import NoParameters
from cheops.api.endpoints.site import (
    ADMIT_SITE,
    CUT_SITE,
    DECIDE_SITE,
    FORGET_SITE,
    GET_SITE,
    GET_WIRES,
    INVITE_SITE,
    JOIN_SITE,
    LIST_SITES,
    PING_SITE,
    ForgetParameters,
)
from cheops.api.models import from_json
from cheops.api.models.site import (
    Decided,
    Distance,
    Health,
    Invitation,
    InviteRequest,
    Ping,
    SignedDecision,
    Sites,
    SiteView,
    Wiring,
)
from cheops.api.permissions import check_site
from cheops.api.request import ApiRequest, handles
from cheops.api.server import short_socket_path
from cheops.api.views.status import Work, site_view, sites_view
from cheops.engine.evidence import pending_at
from cheops.errors import CheopsError, ClientError
from cheops.node.node import Node
from cheops.peers.client import connection_problem
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.liveness import SiteState
from cheops.peers.prober import now
from cheops.scope.names import name_problem, normal
from cheops.text import listed

_PING_TIMEOUT_S, _PING_BYTES = 5.0, 1_000_000
_ANNOUNCE_TIMEOUT_S = 4.0  # for the answers of the other sites to a decision
_MAX_NAMED = 100
_MAX_DISTANCES = 60  # sites; they have 1,770 pairs, and each pair has a distance


@handles(LIST_SITES)
async def list_sites(request: ApiRequest) -> Sites:
    node, reach = request.node, request.principal.reach
    everything = sites_view(node.mesh, now(), await _work_of_sites(node))
    visible = tuple(site for site in everything.sites if reach.sees((site.name,)))
    others = [site.name for site in visible if not site.here]
    return structs.replace(everything, sites=visible, distances=tuple(_distances(node, others)))


def _distances(node: Node, names: list[str]) -> Iterator[Distance]:
    snapshot = node.snapshot()
    for one, other in combinations(names, 2) if len(names) <= _MAX_DISTANCES else ():
        if (rtt_ms := snapshot.rtt_ms(one, other)) is not None:
            yield Distance(one=one, other=other, rtt_ms=rtt_ms)


@handles(GET_SITE)
async def get_site(request: ApiRequest) -> SiteView:
    name = request.segment("name")
    check_site(request.principal, name)
    return site_view(request.node.mesh, now(), name)


@handles(PING_SITE)
async def ping_site(request: ApiRequest) -> Ping:
    """The response must name the site: another agent may have its address by now."""
    node, name = request.node, request.segment("name")
    check_site(request.principal, name)
    site = site_view(node.mesh, now(), name)
    begun_s = time.monotonic()
    health, detail = None, ""
    try:
        _, body = await node.channels.http.request(
            site.name, "GET", "/healthz", timeout_s=_PING_TIMEOUT_S, most_bytes=_PING_BYTES, address=site.url
        )
        health = from_json(body, Health)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        detail = connection_problem(error)
    if health and health.site != site.name:
        detail = f"'{health.site}' responds at its address"
    return Ping(
        site=site.name,
        url=site.url,
        ok=not detail,
        took_ms=round((time.monotonic() - begun_s) * 1000, 3),
        answers_as=health.site if health else None,
        detail=detail,
    )


@handles(ADMIT_SITE)
async def admit_site(request: ApiRequest) -> Decided:
    node, name = request.node, request.segment("name")
    _check_known(node, name)
    await node.decide_membership(name, forgotten=False)
    return await _decided(node, name)


@handles(FORGET_SITE)
async def forget_site(request: ApiRequest[ForgetParameters]) -> Decided:
    node, name = request.node, request.segment("name")
    _check_known(node, name)
    resources = await _check_unused(node, name, force=request.parameters.force)
    await node.decide_membership(name, forgotten=True)
    return await _decided(node, name, resources)


@handles(DECIDE_SITE)
async def decide_site(request: ApiRequest[ForgetParameters, SignedDecision]) -> Decided:
    """The name may be one that this site has never heard of: the authority knows which certificates it has issued."""
    node, name, signed = request.node, request.segment("name"), await request.body()
    if node.keyring is None:
        raise ClientError("without security there is no authority: use the command without --ca", status=409)
    if problem := name_problem(name):
        raise ClientError(problem)
    if name == node.name:
        raise ClientError(f"'{name}' cannot decide about itself; send the decision to another site")
    resources: tuple[str, ...] = ()
    if signed.forgotten:
        resources = await _check_unused(node, name, force=request.parameters.force)
    elif not node.mesh.is_site_forgotten(name):
        raise ClientError(f"'{name}' was not forgotten, so there is nothing to undo")
    await node.take_decision(
        MembershipRecord(name, signed.stamp_ms, signed.forgotten, signed.authority, signed.signature)
    )
    return await _decided(node, name, resources)


def _check_known(node: Node, name: str) -> None:
    """A site that was admitted again is on no list until it has sent a heartbeat, but can be forgotten."""
    if node.mesh.member_of(name) is None:
        site_view(node.mesh, now(), name)  # 404 for a site that is not known


async def _check_unused(node: Node, name: str, *, force: bool) -> tuple[str, ...]:
    """The resources that list a site which is about to be forgotten; raises ClientError if it is still in use."""
    resources = await _resources_at(node, name)
    if not force and node.mesh.state_of(name, now()).is_up:
        raise ClientError(f"{name} is up; stop its agent first, or use --force", status=409)
    if not force and resources:
        raise ClientError(
            f"{name} is on the list of {len(resources)} resources, such as {listed(resources[:3])}. Remove "
            "it there first, or use --force",
            status=409,
        )
    return resources


async def _decided(node: Node, name: str, resources: tuple[str, ...] = ()) -> Decided:
    """Wait a little for the other sites, and report what is known: no site counts that has not said so itself."""
    mesh = node.mesh
    await node.prober.announce(name, _ANNOUNCE_TIMEOUT_S)
    missing = mesh.without_decision(name)
    unreachable = [site for site in missing if site not in mesh.up]
    others = [site.name for site in mesh.sites(now()) if not site.here and site.state is not SiteState.FORGOTTEN]
    return Decided(
        site=name,
        forgotten=mesh.is_site_forgotten(name),
        resources=resources[:_MAX_NAMED],
        confirmed=tuple(site for site in others if site not in missing and site != name),
        waiting=tuple(site for site in missing if site not in unreachable),
        unreachable=tuple(unreachable),
    )


async def _resources_at(node: Node, name: str) -> tuple[str, ...]:
    """The resources of this site that list the other site now. The store also finds those that listed it once."""
    candidates = await asyncio.to_thread(node.store.involving, name)
    # A bound on what one request loads into memory; the response names fewer.
    replicas = await node.pump.readable(candidates[: 10 * _MAX_NAMED])
    return tuple(replica.resource for replica in replicas if name in replica.history.site_list)


@handles(INVITE_SITE)
async def invite_site(request: ApiRequest[NoParameters, InviteRequest]) -> Invitation:
    wanted = await request.body()
    node, site = request.node, normal(wanted.site)
    invite = node.enrollment.invite_again if wanted.again else node.enrollment.invite
    is_renewed = wanted.again or node.mesh.member_of(site) is not None
    code, expires_ms = await invite(site, tuple(wanted.addresses), wanted.valid_for_s)
    # Also for a name that no site has shown yet: somebody else may have used an earlier code, here or at another site
    # that issues, and wait with the certificate. So each invitation decides that only later certificates count.
    await node.end_certificates(site)
    return Invitation(site=code.site, code=str(code), expires_ms=expires_ms, ends_certificates=is_renewed)


# -- shared resources and pending operations --------------------------------------------------------------------

_MIN_INTERVAL_S = 1.0  # between two counts
_COUNT_SHARE = 20  # counting takes at most one twentieth of the time
_MAX_WAIT_S = 0.05  # for a new count, if there is an older one


@dataclass(slots=True)
class _SharedCount:
    """How many resources each site shares with this one. The count takes a while in a large store, and pages request
    it every other second: so it runs in the background, and clients get the last result."""

    shares: dict[str, int] | None = None
    next_s: float = 0.0
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    async def get(self, node: Node) -> dict[str, int]:
        is_idle = self.task is None or self.task.done()
        if is_idle and time.monotonic() >= self.next_s:
            self.task = asyncio.create_task(self._count(node))
        if self.task is not None and not self.task.done():
            await asyncio.wait((self.task,), timeout=None if self.shares is None else _MAX_WAIT_S)
        return self.shares or {}

    async def _count(self, node: Node) -> None:
        begun_s = time.monotonic()
        self.shares = await asyncio.to_thread(node.store.shares)
        took_s = time.monotonic() - begun_s
        self.next_s = time.monotonic() + max(_MIN_INTERVAL_S, _COUNT_SHARE * took_s)


_shared_counts: WeakKeyDictionary[Node, _SharedCount] = WeakKeyDictionary()


async def _work_of_sites(node: Node) -> dict[str, Work]:
    shares = await _shared_counts.setdefault(node, _SharedCount()).get(node)
    pending = pending_at(node.pump.site.replicas.values())
    return {site: Work(shares.get(site, 0), pending.get(site, 0)) for site in {*shares, *pending}}


# -- the demo ---------------------------------------------------------------------------------------------------

_WIRES_TIMEOUT_S = 5.0
_MAX_WIRES_BYTES = 65_536


class _WiresResponse(msgspec.Struct):
    """One line from the process that runs the demo and owns the links between its sites."""

    cut: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@handles(GET_WIRES)
async def get_wires(request: ApiRequest) -> Wiring:
    if request.node.config.wires is None:
        return Wiring(on=False, cut=())
    return await _change_wires(request.node, {"do": "look"})


@handles(JOIN_SITE)
async def join_site(request: ApiRequest) -> Wiring:
    return await _change_wires(request.node, {"do": "join", "site": request.segment("name")})


@handles(CUT_SITE)
async def cut_site(request: ApiRequest) -> Wiring:
    return await _change_wires(request.node, {"do": "cut", "site": request.segment("name")})


async def _change_wires(node: Node, command: dict[str, str]) -> Wiring:
    path = node.config.wires
    if path is None:
        raise ClientError("this agent is not in demo mode, so it cannot cut sites off", status=404)
    try:
        async with asyncio.timeout(_WIRES_TIMEOUT_S):
            line = await _send_line(path, msgspec.json.encode(command))
            response = msgspec.json.decode(line, type=_WiresResponse)
    except (OSError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
        raise CheopsError(f"the demo process does not respond: {error}", status=503, definite=False) from None
    if response.problem:
        raise ClientError(response.problem)
    return Wiring(on=True, cut=response.cut)


async def _send_line(path: Path, line: bytes) -> bytes:
    with short_socket_path(path) as name:
        reader, writer = await asyncio.open_unix_connection(name, limit=_MAX_WIRES_BYTES)
    try:
        writer.write(line + b"\n")
        return await reader.readline()
    finally:
        writer.close()
