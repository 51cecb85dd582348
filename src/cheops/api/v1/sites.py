"""Sites: who is there, how far, and who is not any more."""

import asyncio
import time
from collections.abc import Iterator
from itertools import combinations
from typing import Annotated

import aiohttp
import msgspec
from fastapi import APIRouter, Query
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import Distance, Forgotten, Health, Ping, Sites, SiteView, from_json
from cheops.api.openapi import responses
from cheops.api.operations import RefusedError
from cheops.api.permissions import check_site, principal_of
from cheops.api.request import NodeOf, SiteName, json_response
from cheops.api.v1.working import work_of_sites
from cheops.api.views.status import site_view, sites_view
from cheops.node.node import Node
from cheops.peers.prober import now
from cheops.text import listed

router = APIRouter(tags=["sites"])
_PING_S = 5.0
_MOST_NAMED = 100
_MOST_DISTANCES = 60  # sites, of which each pair has one


@router.get(
    "/sites",
    operation_id="listSites",
    summary="All sites that are known, and how they are",
    responses=responses(Sites, "The sites."),
)
async def list_sites(node: NodeOf, request: Request) -> Response:
    reach = principal_of(request).reach
    found = sites_view(node.mesh, now(), await work_of_sites(node))
    seen = tuple(site for site in found.sites if reach.sees((site.name,)))
    names = [site.name for site in seen if not site.here]
    return json_response(structs.replace(found, sites=seen, distances=tuple(_distances(node, names))))


def _distances(node: Node, names: list[str]) -> Iterator[Distance]:
    snapshot = node.snapshot()
    for one, other in combinations(names, 2) if len(names) <= _MOST_DISTANCES else ():
        if (rtt_ms := snapshot.rtt_ms(one, other)) is not None:
            yield Distance(one=one, other=other, rtt_ms=rtt_ms)


@router.get(
    "/sites/{name}",
    operation_id="getSite",
    summary="One site",
    responses=responses(SiteView, "The site.", 400, 404),
)
async def get_site(node: NodeOf, request: Request, name: SiteName) -> Response:
    check_site(principal_of(request), name)
    return json_response(site_view(node.mesh, now(), name))


@router.post(
    "/sites/{name}/ping",
    operation_id="pingSite",
    summary="Ask a site for a sign of life, now",
    responses=responses(Ping, "How it went.", 400, 404),
)
async def ping_site(node: NodeOf, request: Request, name: SiteName) -> Response:
    check_site(principal_of(request), name)
    return json_response(await ping(node, site_view(node.mesh, now(), name)))


async def ping(node: Node, site: SiteView) -> Ping:
    """By its agent's own word: another one may answer at its address."""
    begun_s = time.monotonic()
    health, detail = None, ""
    try:
        timeout = aiohttp.ClientTimeout(total=_PING_S)
        async with node.peer_client.request(site.name, "GET", "/healthz", address=site.url, timeout=timeout) as found:
            health = from_json(await found.read(), Health)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError) as error:
        detail = f"no answer: {error or type(error).__name__}"
    if health and health.site != site.name:
        detail = f"'{health.site}' answers at its address"
    return Ping(
        site=site.name,
        url=site.url,
        ok=not detail,
        took_ms=round((time.monotonic() - begun_s) * 1000, 3),
        answers_as=health.site if health else None,
        detail=detail,
    )


@router.post(
    "/sites/{name}/admit",
    operation_id="admitSite",
    summary="Take a forgotten site in again",
    responses=responses(SiteView, "The site.", 400, 404),
)
async def admit_site(node: NodeOf, name: SiteName) -> Response:
    site_view(node.mesh, now(), name)
    await node.decide_membership(name, forgotten=False)
    return json_response(site_view(node.mesh, now(), name))


@router.delete(
    "/sites/{name}",
    operation_id="forgetSite",
    summary="Remove a site from the mesh for good; the others hear of it",
    description="Refused for a site that is up, or that resources still list, unless it is forced.",
    responses=responses(Forgotten, "It is forgotten.", 400, 404, 409, 503),
)
async def forget_site(
    node: NodeOf,
    name: SiteName,
    force: Annotated[bool, Query(description="Whatever its state, and whatever it has.")] = False,
) -> Response:
    site = site_view(node.mesh, now(), name)
    resources = await _resources_at(node, name)
    if not force and site.state in ("up", "suspect"):
        raise RefusedError(f"{name} is up; stop its agent first, or force it")
    if not force and resources:
        raise RefusedError(
            f"{name} is on the list of {len(resources)} resources, such as {listed(resources[:3])}. Remove "
            "it there first, or force it"
        )
    await node.decide_membership(name, forgotten=True)
    return json_response(Forgotten(site=name, resources=resources[:_MOST_NAMED]))


async def _resources_at(node: Node, name: str) -> tuple[str, ...]:
    """The resources of this site that have the other on their list now; some may only have had it."""
    found = await asyncio.to_thread(node.store.involving, name)
    replicas = [await node.pump.replica(id_) for id_ in found[: 10 * _MOST_NAMED]]
    return tuple(replica.resource for replica in replicas if name in replica.history.site_list)
