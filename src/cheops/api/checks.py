"""The checks of `cheops check`: everything that an agent can check by itself, in groups.

Each check reports what was found; one that fails says what to do and where the documentation explains it. A warning
is about what works but may not be intended.
"""

import asyncio
import os
from collections.abc import Iterator

from msgspec import structs

from cheops import __version__
from cheops.api.models import CHECK_GROUPS, Check, Checks, Level
from cheops.api.security_checks import security_checks, trust_checks
from cheops.api.views.status import clock_is_wrong
from cheops.backends.protocol import Finding
from cheops.config.address import address_of_url
from cheops.config.services import ServiceConfig
from cheops.config.site import read_site
from cheops.errors import CheopsError
from cheops.gateway.server import Gateway
from cheops.node.node import Node
from cheops.peers.liveness import SiteState
from cheops.peers.prober import now
from cheops.peers.views import SiteView


async def plane_checks(gateway: Gateway | None) -> Iterator[tuple[str, str, str]]:
    """Name, what the check found, and what to do about it."""
    if gateway is None:
        return iter(())
    plane = gateway.plane
    if plane is None:
        detail, hint = "by the agent itself", ""
        if why := gateway.without_haproxy:
            detail += f": {why}"
            hint = "fix HAProxy and restart the agent, or set gateway.data_plane to builtin"
        return iter([("requests are forwarded", detail, hint)])
    await plane.refresh()
    served = plane.counters.by_haproxy + plane.counters.by_agent
    share = f"{plane.counters.by_haproxy / served:.1%} of {served:,} requests" if served else "no request yet"
    known = f"{len(plane.table):,} flows"
    if plane.carrier_cache is not None:
        known += f", {plane.carrier_cache.count:,} carrier values"
    detail = f"by HAProxy (process {plane.haproxy.pid}): {known}; {share} bypassed the agent"
    if plane.trouble:
        hint = f"see {plane.haproxy.folder / 'haproxy.log'}; the agent retries automatically"
        return iter([("requests are forwarded", f"{detail}; {plane.trouble}", hint)])
    return iter([("requests are forwarded", detail, "")])


DOCUMENT = "docs/troubleshooting.md"
_LITTLE_BYTES = 64 * 1024 * 1024
_CONNECT_S = 2.0


async def checks(node: Node, gateway: Gateway | None = None) -> Checks:
    peers = [view for view in node.mesh.sites(now()) if not view.here and view.state is not SiteState.FORGOTTEN]
    results = [
        *await asyncio.to_thread(lambda: list(_configuration(node))),
        *await asyncio.to_thread(lambda: list(_store(node))),
        *(_clock(peer) for peer in peers if peer.clock),
        *trust_checks(node),
        *await asyncio.to_thread(lambda: list(security_checks(node))),
        *_peers(node, peers),
        *await asyncio.gather(*(_front(one) for one in node.config.services.values() if one.listener.listen)),
        *(_check("services", *results) for results in await plane_checks(gateway)),
        *(_of_backend(finding) for finding in await node.backends.doctor()),
        *(_version(peer) for peer in peers if peer.version),
    ]
    results.sort(key=lambda check: CHECK_GROUPS.index(check.group))  # a backend reports in the group where readers look
    return Checks(site=node.name, ok=all(check.ok for check in results), checks=tuple(results))


def _check(group: str, name: str, detail: str, hint: str = "", level: Level | None = None) -> Check:
    """Right where there is nothing to do about it."""
    level = level or (Level.FAILED if hint else Level.OK)
    ok = level is not Level.FAILED
    anchor = f"{DOCUMENT}#{group}"
    return Check(group=group, name=name, level=level, ok=ok, detail=detail, hint=hint, anchor=anchor)


def _configuration(node: Node) -> Iterator[Check]:
    path = node.config.source
    try:
        same = read_site(path) == node.config
    except CheopsError as error:
        yield _check("configuration", f"{path} can be read", str(error), "fix it before the next start")
        return
    if same:
        yield _check("configuration", f"{path} is in force", "unchanged since the agent started")
    else:
        hint = "restart the agent to apply it"
        yield _check("configuration", f"{path} is in force", "changed since the agent started", hint, Level.WARNING)
    for warning in node.config.warnings:
        hint = "run 'cheops config check' for details"
        yield _check("configuration", "configuration has no warnings", warning, hint, Level.WARNING)


def _store(node: Node) -> Iterator[Check]:
    trouble = node.pump.trouble
    hint = "free space or fix the disk: the agent then continues automatically" if trouble else ""
    yield _check("store", "store is writable", trouble or f"in {node.config.data}", hint)
    disk = os.statvfs(node.config.data)
    free = disk.f_bavail * disk.f_frsize
    hint = (
        "free space before the disk is full: the agent then accepts no more operations" if free < _LITTLE_BYTES else ""
    )
    level = Level.WARNING if hint else Level.OK
    yield _check("store", "disk has free space", f"{free / 1024**2:,.0f} MiB", hint, level)
    lacking = node.disk_quota.lacking() or ""
    hint = "until then the agent refuses operations from clients" if lacking else ""
    yield _check("store", "clients are within their quota", lacking or "'clients.store_size'", hint)
    trouble = node.audit.trouble or (f"{node.audit.lost} entries were lost" if node.audit.lost else "")
    hint = "free space or fix the disk: the agent then continues automatically" if trouble else ""
    yield _check("store", "audit log is writable", trouble or str(node.audit.path), hint)


def _clock(peer: SiteView) -> Check:
    offset = peer.clock.offset_ms if peer.clock else 0.0
    hint = "synchronize both clocks with NTP: 'last writer wins' depends on them" if clock_is_wrong(peer) else ""
    return _check("clocks", f"clock of {peer.name} agrees with ours", f"{offset:+,.0f} ms", hint)


def _peers(node: Node, peers: list[SiteView]) -> Iterator[Check]:
    for peer in peers:
        away = f"{peer.distance.rtt_ms:.1f} ms away" if peer.distance else "distance unknown"
        if peer.is_up:
            yield _check("peers", f"{peer.name} is up", f"{away} {peer.note}".strip())
        else:
            hint = f"check that its agent runs and that {peer.url or 'its address'} is reachable from here"
            yield _check("peers", f"{peer.name} is up", f"it is {peer.state.value}", hint)
    for text in node.mesh.problems():
        yield _check("peers", "sites agree on their identities", text, "see 'cheops site list'")


async def _front(service: ServiceConfig) -> Check:
    """Other sites use the address that this one advertises: check at least that it works from here."""
    url, name = service.listener.advertise, f"gateway listens for {service.name}"
    try:
        await _connected(url)
    except (OSError, TimeoutError) as error:
        hint = f"other sites use this address: fix 'services.{service.name}.advertise' or 'listen'"
        return _check("services", name, f"{url}: {error or 'no answer'}", hint)
    return _check("services", name, f"at {service.listener.listen}; other sites use {url}")


async def _connected(url: str) -> None:
    """Raises OSError or TimeoutError if nothing listens there."""
    place = address_of_url(url)
    _reader, writer = await asyncio.wait_for(asyncio.open_connection(place.host, place.port), _CONNECT_S)
    writer.close()


def _of_backend(finding: Finding) -> Check:
    level = Level.WARNING if finding.is_warning else None
    check = _check(finding.group, finding.name, finding.detail, finding.hint, level)
    return structs.replace(check, anchor=finding.anchor or check.anchor)


def _version(peer: SiteView) -> Check:
    hint = f"install the same version at {peer.name} and at this site" if peer.version != __version__ else ""
    level = Level.WARNING if hint else Level.OK
    name = f"{peer.name} runs the same version"
    return _check("versions", name, f"{peer.version} there, {__version__} here", hint, level)
