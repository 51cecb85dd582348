"""Compares the applications of all sites from time to time, resource by resource: `verify_every` of a service or type.

The log cannot show what something other than Cheops has changed. So the first site of a resource that is up reads the
application at all its sites, as `cheops verify` does, and reports to all of them if the states differ (`Verified`).

Nothing is called drift that may be an operation on its way: every site must have reported before and after the read
that it has applied the same, nothing may have happened in between, and a second comparison must find a difference too.
A state that cannot be read is no difference; that a service does not have the resource is one.

Resources are compared one after the other, and few at a time, so the load is spread. A resource that was found to
differ, and has changed since, is compared again at once.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from cheops.api.forms import CUT, show_at
from cheops.api.handlers.resources import is_awaited, page_of_ids, refresh_from_peers, sites_up
from cheops.api.views.operations import sites_of
from cheops.api.views.status import is_deleted, is_here, is_void
from cheops.backoff import jittered
from cheops.engine import drift
from cheops.engine.events import Verified
from cheops.engine.replica import Replica
from cheops.engine.status import Overall, status
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.requests import RequestKind
from cheops.security.principal import Kind, Principal, Role
from cheops.text import in_words, printable, shortened

_AT_ONCE = 2  # comparisons at a time, over all types
_PAGE = 100
_FRESH_S = 2.0  # for the reports of the other sites
_AGAIN_S = 1.0  # before a difference is confirmed
_LEAST_PAUSE_S = 0.02  # after each resource: an agent with many has other work too
_RECHECK_S = 1.0
_FIRST_S = 60.0  # the first round begins within this time
_REPORT_S = 10.0
_MOST_ANSWER = 64 * 1024  # bytes
# As the HTTP backend reads a state.
_NO_COPY = "there is no copy of "
_ABSENT = ("the service answers 404", "the service answers 410", _NO_COPY)
_WHO = Principal(Kind.LOCAL, "verify_every", Role.VIEWER)
_log = logging.getLogger(__name__)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """The store cannot be read, too many reads are waiting, and so on: another round will come."""
    try:
        yield
    except CheopsError as error:
        _log.info("%s was given up: %s", printable(what), error)


class DriftDetector:
    """Belongs to one event loop, until `run` is cancelled."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._compared: dict[str, str] = {}  # of those that differ: the revision that was compared last
        self._incomparable: set[str] = set()  # types of which that was reported
        self._told: dict[str, str] = {}  # what all other sites know that this one has found

    async def run(self) -> None:
        config = self._node.config
        types = {**config.types, **config.http_types}
        periods = {name: one.verify_every_s for name, one in types.items() if one.verify_every_s is not None}
        await asyncio.gather(self._recheck(), *(self._rounds(*one) for one in periods.items()))

    async def _rounds(self, rtype: str, every_s: float) -> None:
        await asyncio.sleep(jittered(min(every_s, _FIRST_S)))  # sites that start together must not read together
        while True:
            begun_s = asyncio.get_running_loop().time()
            with _logged("a comparison of the applications"):
                await self._round(rtype)
            await asyncio.sleep(max(begun_s + every_s - asyncio.get_running_loop().time(), _LEAST_PAUSE_S))

    async def _round(self, rtype: str) -> None:
        cursor, more = "", True
        while more:
            ids, more = await page_of_ids(self._node, "", cursor, _PAGE)
            for id_ in ids:
                await self._check_if_due(id_, rtype)
                await asyncio.sleep(_LEAST_PAUSE_S)
            cursor = ids[-1] if ids else cursor

    async def _recheck(self) -> None:
        """Compare again what differed and has changed since; and forget what a repair has ended."""
        while True:
            await asyncio.sleep(_RECHECK_S)
            loaded = self._node.pump.site.replicas
            self._node.drifted.update(id_ for id_, replica in loaded.items() if drift.found(replica))
            for id_ in sorted(self._node.drifted):
                with _logged(id_):
                    await self._recheck_one(id_)

    async def _recheck_one(self, id_: str) -> None:
        replica = await self._node.pump.replica(id_)
        if not drift.found(replica):
            self._node.drifted.discard(id_)
            self._compared.pop(id_, None)
            self._told.pop(id_, None)
            return
        await self._tell_own(replica)
        if replica.revision != self._compared.get(id_):
            await self._check_if_due(id_, replica.type.name)

    async def _tell_own(self, replica: Replica) -> None:
        """Tell the other sites what this one has found by itself, before they can be compared."""
        own = replica.drifts.get(self._node.name)
        if own is None or self._told.get(replica.resource) == own.differs:
            return
        others = [site for site in sites_of(replica) if site != self._node.name]
        got = await asyncio.gather(*(self._tell(site, replica.resource, own.differs) for site in others))
        if all(got):
            self._told[replica.resource] = own.differs

    async def _check_if_due(self, id_: str, rtype: str) -> None:
        with _logged(id_):
            replica = await self._node.pump.replica(id_)
            if drift.found(replica):
                self._node.drifted.add(id_)
            if replica.type.name == rtype and self._leads(replica):
                async with self._slots:
                    await self.check(id_)

    def _leads(self, replica: Replica) -> bool:
        """Whether this site compares a resource: the first one that is up, or one that has found a difference, which
        nobody else takes back."""
        sites = sites_of(replica)
        if len(sites) < 2 or not is_here(replica) or is_deleted(replica) or is_void(replica):
            return False
        own = self._node.name
        first_up = next((site for site in sites if site == own or site in self._node.mesh.up), "")
        return own in replica.drifts or own == first_up

    # -- one resource --------------------------------------------------------------------------------------

    async def check(self, id_: str) -> str | None:
        """Compare a resource and report the result: how its sites differ, or empty; None if nobody can say."""
        found = await self._compare(id_)
        if found:
            await asyncio.sleep(_AGAIN_S)
            found = await self._compare(id_)
        if found is not None:
            await self._report(id_, found)
        return found

    async def _compare(self, id_: str) -> str | None:
        before = await self._at_rest(id_)
        if before is None:
            return None
        revision, sites = before.revision, sites_of(before)
        found = await asyncio.gather(*(show_at(self._node, _WHO, site, id_, "") for site in sites))
        after = await self._at_rest(id_)
        if after is None or (after.revision, sites_of(after)) != (revision, sites):
            return None
        differs = difference(dict(zip(sites, found, strict=True)))
        if differs is None and before.type.name not in self._incomparable:
            self._incomparable.add(before.type.name)
            _log.warning(
                "%s cannot be compared, and perhaps others of %s: %s",
                printable(id_),
                printable(before.type.name),
                printable(shortened(next(iter(found))["Output"])),
            )
        if differs:
            self._compared[id_] = revision
        return differs

    async def _at_rest(self, id_: str) -> Replica | None:
        """A resource that every site has just reported to have applied in the same way; None if it is not so."""
        begun_ms = self._node.now_ms()
        await refresh_from_peers(self._node, [id_], _FRESH_S)
        replica = await self._node.pump.replica(id_)
        if is_awaited(self._node, replica, begun_ms):
            return None
        overall = status(replica, sites_up(self._node), with_drift=False).overall
        return replica if overall is Overall.CONVERGED else None

    async def _report(self, id_: str, differs: str) -> None:
        """Report to all sites. That the sites are equal is recorded here last: if another site has not got it, the
        next round reports it again."""
        node = self._node
        replica = await node.pump.replica(id_)
        if not differs and node.name not in replica.drifts:
            return
        others = [site for site in sites_of(replica) if site != node.name]
        got = await asyncio.gather(*(self._tell(site, id_, differs) for site in others))
        if differs or all(got):
            await record(node, Verified(id_, node.name, differs, node.now_ms()))

    async def _tell(self, site: str, id_: str, differs: str) -> bool:
        body = {"resource": id_, "by": self._node.name, "differs": differs}
        try:
            status, _ = await self._node.channels.request(
                site, RequestKind.VERIFIED, msgspec.json.encode(body), timeout_s=_REPORT_S, most_bytes=_MOST_ANSWER
            )
        except OSError as error:
            _log.info("%s has not got the result of a comparison of %s: %s", site, id_, error)
            return False
        return status < 300


def difference(states: Mapping[str, Mapping[str, str]]) -> str | None:
    """How the states of sites differ; empty if they are equal, None if one of them is not known."""
    found: dict[str, tuple[bool, str]] = {}
    for site, state in states.items():
        is_absent = state["Status"] == "KO" and state["Output"].startswith(_ABSENT)
        if state["Status"] != "OK" and not is_absent:
            return None
        found[site] = (is_absent, "" if is_absent else state["Output"])
    if all(is_absent and _NO_COPY not in states[site]["Output"] for site, (is_absent, _) in found.items()):
        return None  # it is not deleted, and no service has it: this GET need not show its state
    first = next(iter(found))
    if differ := [site for site, state in found.items() if state != found[first]]:
        return f"the application at {in_words(differ)} differs from that at {first}, although all sites ran the same"
    return None if any(CUT in state for state in states.values()) else ""


async def record(node: Node, finding: Verified) -> None:
    """Pass a finding to the engine."""
    node.pump.post(finding)
    replica = await node.pump.replica(finding.resource)
    if drift.found(replica):
        node.drifted.add(finding.resource)
    else:
        node.drifted.discard(finding.resource)
