"""Sites as the mesh sees them, in the API's words."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import structs

from cheops.api.models import Sites, SiteView
from cheops.errors import ClientError
from cheops.sync import mesh_view
from cheops.sync.mesh import Mesh
from cheops.sync.mesh_settings import Now
from cheops.sync.mesh_view import CLOCK_WARNING_MS
from cheops.text import listed, nearest, printable, shortened


class Work(NamedTuple):
    """What a site has to do with this one."""

    resources: int = 0  # known here, with the site on their list
    pending: int = 0  # operations at work here that it has not dealt with


_NONE = Work()


class NoSuchSiteError(ClientError):
    status = 404


def sites_view(mesh: Mesh, now: Now, work: Mapping[str, Work] | None = None) -> Sites:
    """`work`: of each site, what it has to do with this one."""
    of = work or {}
    views = tuple(
        structs.replace(_view(mesh, site), **of.get(site.name, _NONE)._asdict()) for site in mesh.sites(now)
    )
    return Sites(here=mesh.own.name, sites=views, problems=tuple(mesh.problems()))


def site_view(mesh: Mesh, now: Now, name: str) -> SiteView:
    found = {site.name: site for site in mesh.sites(now)}
    if name not in found:
        meant = nearest(name, found)
        hint = f"did you mean '{meant}'? " if meant else ""
        raise NoSuchSiteError(f"unknown site '{printable(shortened(name))}'; {hint}Known: {listed(found)}")
    return _view(mesh, found[name])


def _view(mesh: Mesh, site: mesh_view.SiteView) -> SiteView:
    distance = site.distance
    return SiteView(
        name=site.name,
        url=site.url,
        state="up" if site.here and not mesh.is_forgotten else site.state.value,
        here=site.here,
        as_of_s=0.0 if site.here else None if site.as_of_ms is None else site.as_of_ms / 1000,
        rtt_ms=distance.rtt_ms if distance else None,
        rtt_measured=distance.measured if distance else False,
        incarnation=site.incarnation,
        version=site.version,
        services=tuple(service for service, _ in site.services),
        clock_offset_ms=site.clock.offset_ms if site.clock else None,
        problems=tuple(_problems(site)),
    )


def _problems(site: mesh_view.SiteView) -> list[str]:
    found = [site.note] if site.note else []
    if site.clock and clock_is_wrong(site):
        found.append(f"its clock is {site.clock.offset_ms:+,.0f} ms from ours")
    return found


def clock_is_wrong(site: mesh_view.SiteView) -> bool:
    """Whether its clock is too far from ours for stamps to look right; causality does not depend on it."""
    return site.clock is not None and abs(site.clock.offset_ms) - site.clock.error_ms > CLOCK_WARNING_MS
