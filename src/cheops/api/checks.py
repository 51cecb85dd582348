"""Is all as it should be: everything an agent can look at by itself, in groups.

Each check says what was found; one that is not right also says what to do, and where the documentation speaks
of it. A warning is about what works but may not be meant so.
"""

import asyncio
import os
import shlex
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

from cheops import __version__
from cheops.api.models import Check, Checks, Level
from cheops.api.views.sites import clock_is_wrong
from cheops.config.site import read_site
from cheops.config.types import TypeConfig
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.sync.heart import now
from cheops.sync.liveness import State
from cheops.sync.mesh_view import SiteView

DOCUMENT = "docs/troubleshooting.md"
GROUPS = ("configuration", "store", "clocks", "peers", "services", "backends", "versions")
_LITTLE_BYTES = 64 * 1024 * 1024
_CONNECT_S = 2.0


async def checks(node: Node) -> Checks:
    peers = [view for view in node.mesh.sites(now()) if not view.here and view.state is not State.FORGOTTEN]
    found = [
        *await asyncio.to_thread(lambda: list(_configuration(node))),
        *await asyncio.to_thread(lambda: list(_store(node))),
        *(_clock(peer) for peer in peers if peer.clock),
        *_peers(node, peers),
        *await asyncio.gather(*(_service(name, one.url) for name, one in node.config.services.items())),
        *await asyncio.to_thread(lambda: list(_backends(node))),
        *(_version(peer) for peer in peers if peer.version),
    ]
    return Checks(site=node.name, ok=all(check.ok for check in found), checks=tuple(found))


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
        yield _check("configuration", f"{path} can be read", str(error), "mend it before the next start")
        return
    if same:
        yield _check("configuration", f"{path} is what runs", "not changed since the agent started")
    else:
        hint = "restart the agent to have it in force"
        yield _check("configuration", f"{path} is what runs", "it was changed", hint, Level.WARNING)
    for warning in node.config.warnings:
        hint = "'cheops config check' says more"
        yield _check("configuration", "nothing looks unintended", warning, hint, Level.WARNING)


def _store(node: Node) -> Iterator[Check]:
    trouble = node.pump.trouble
    hint = "make room, or mend the disk: the agent goes on by itself" if trouble else ""
    yield _check("store", "what happens can be saved", trouble or f"in {node.config.data}", hint)
    disk = os.statvfs(node.config.data)
    free = disk.f_bavail * disk.f_frsize
    hint = "make room before it is full: then nothing is accepted any more" if free < _LITTLE_BYTES else ""
    level = Level.WARNING if hint else Level.OK
    yield _check("store", "there is room", f"{free / 1024**2:,.0f} MiB are free", hint, level)


def _clock(peer: SiteView) -> Check:
    offset = peer.clock.offset_ms if peer.clock else 0.0
    hint = "let both keep time by NTP: 'last writer' goes by these clocks" if clock_is_wrong(peer) else ""
    return _check("clocks", f"the clock of {peer.name} is as ours", f"{offset:+,.0f} ms", hint)


def _peers(node: Node, peers: list[SiteView]) -> Iterator[Check]:
    for peer in peers:
        away = f"{peer.distance.rtt_ms:.1f} ms away" if peer.distance else "its distance is not known"
        if peer.is_up:
            yield _check("peers", f"{peer.name} is up", f"{away} {peer.note}".strip())
        else:
            hint = f"see that its agent runs, and that {peer.url or 'its address'} can be reached from here"
            yield _check("peers", f"{peer.name} is up", f"it is {peer.state.value}", hint)
    for text in node.mesh.problems():
        yield _check("peers", "the sites agree on who is who", text, "see 'cheops site list'")


async def _service(name: str, url: str) -> Check:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _reader, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), _CONNECT_S)
    except (OSError, TimeoutError) as error:
        hint = f"start the service, or mend 'services.{name}.url'"
        return _check("services", f"{name} accepts connections", f"{url}: {error or 'no answer'}", hint)
    writer.close()
    return _check("services", f"{name} accepts connections", url)


def _backends(node: Node) -> Iterator[Check]:
    for type_ in node.config.types.values():
        yield from _programs(type_)


def _programs(type_: TypeConfig) -> Iterator[Check]:
    """Whether what the configuration itself runs is there."""
    for key, line in type_.written_commands():
        program = _program(line)
        if type_.command.shell or program is None:
            continue
        found = shutil.which(program, path=str(type_.command.cwd or "") if "/" in program else None)
        hint = "" if found else f"install {program}, or mend 'types.{type_.name}.{key}'"
        yield _check("backends", f"{type_.name}: {key} can run", found or f"no program {program}", hint)


def _program(line: str) -> str | None:
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    return words[0] if words else None


def _version(peer: SiteView) -> Check:
    hint = f"bring {peer.name} and this site to the same version" if peer.version != __version__ else ""
    level = Level.WARNING if hint else Level.OK
    name = f"{peer.name} has the same version"
    return _check("versions", name, f"{peer.version} there, {__version__} here", hint, level)
