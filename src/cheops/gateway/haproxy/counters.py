"""What HAProxy served: read from it only when the counters are requested, so that it costs nothing otherwise.

HAProxy counts by itself, and keeps the latest requests with a scope in a ring in its memory. Each refresh adds the
difference to the values of the refresh before, for every worker.
"""

import asyncio
from collections import Counter
from urllib.parse import unquote

from msgspec import Struct

from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.flows import FlowKind
from cheops.gateway.haproxy.frontends import MESH, REFUSED, RING
from cheops.gateway.haproxy.layout import Layout
from cheops.gateway.haproxy.runtime import RuntimeSocket, RuntimeSocketError, Worker
from cheops.gateway.request_log import RequestLog, ServedRequest
from cheops.gateway.unknown_calls import UnknownCallPolicy
from cheops.security.audit import time_text
from cheops.security.refusals import Refusals
from cheops.security.tls import BAD_HANDSHAKE, NO_CERTIFICATE, TOO_MANY_OF_ONE, reason_of

_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
_FIELDS, _HANDSHAKE_FIELDS = 10, 5
_NO_CERTIFICATE = "peer did not return a certificate"


class Backend(Struct, frozen=True):
    """The service and site behind a backend of HAProxy."""

    service: str
    kind: FlowKind | None  # None: the agent
    site: str
    is_unknown: bool = False  # for calls without a known scope


class LoggedRequest(Struct, frozen=True):
    """A request as HAProxy's ring has it."""

    at_ms: int
    service: str
    backend: str
    server: str
    status: int
    took_ms: float
    method: str
    key: str  # of its scope
    path: str
    recovered: bool = False


def parse_request_line(line: str) -> LoggedRequest | None:
    """A line of the ring; None for an incomplete one."""
    words = line.split(" ")
    if len(words) != _FIELDS:
        return None
    at, _count, service, backend, server, status, took, method, key, path = words
    try:
        return LoggedRequest(
            int(at), unquote(service), backend, server, int(status), max(float(took), 0.0), method,
            key.removeprefix(haproxy_names.RECOVERED), unquote(path, encoding="latin-1"),
            key.startswith(haproxy_names.RECOVERED),
        )  # fmt: skip
    except ValueError:
        return None


def parse_handshake_line(line: str) -> tuple[str, str, str] | None:
    """The reason, the address and OpenSSL's text of a refused handshake; None for another line."""
    words = line.split(" ")
    if len(words) != _HANDSHAKE_FIELDS or not words[3].isdigit():
        return None
    _at, _count, address, code, text = words
    detail = unquote(text)
    if int(code):
        return reason_of(int(code)), address, detail
    is_bare = _NO_CERTIFICATE in detail
    return NO_CERTIFICATE if is_bare else BAD_HANDSHAKE, address, detail


class TrafficCounters:
    """Adds what HAProxy served to the request log and to the refusals."""

    def __init__(self, runtime: RuntimeSocket, request_log: RequestLog, refusals: Refusals) -> None:
        self._runtime = runtime
        self._request_log = request_log
        self._refusals = refusals
        self.backends: dict[str, Backend] = {}  # by name, of all configurations since the start
        self._before: dict[int, dict[str, Counter[str]]] = {}
        self._seen: set[str] = set()
        self._lock = asyncio.Lock()
        self.by_haproxy = self.by_agent = self.clients = 0
        self.unknown_calls: UnknownCallPolicy | None = None

    def add_layout(self, layout: Layout) -> None:
        """Add the backends of a new configuration."""
        here, known = layout.here, self.backends
        known[haproxy_names.MESH_AGENT] = Backend("", None, here)
        for service in (one.name for one in layout.services):
            known[haproxy_names.agent_of(service)] = Backend(service, None, here)
            known[haproxy_names.calls_of(service)] = Backend(service, None, here)
            known[haproxy_names.own_of(service)] = Backend(service, FlowKind.LOCAL, here)
            known[haproxy_names.sent_of(service)] = Backend(service, FlowKind.LOCAL, here)
            known[haproxy_names.own_or_of(service)] = Backend(service, FlowKind.IN_TURN, here)
            known[haproxy_names.unknown_of(service)] = Backend(service, FlowKind.LOCAL, here, is_unknown=True)
        for peer in layout.peers:
            known[haproxy_names.peer_of(peer.service, peer.site)] = Backend(peer.service, FlowKind.FORWARD, peer.site)
            known[haproxy_names.peer_or_of(peer.service, peer.site)] = Backend(
                peer.service, FlowKind.IN_TURN, peer.site
            )

    async def refresh(self) -> list[LoggedRequest]:
        """Count what is new; returns the new requests with a scope, the earliest first. One refresh at a time, or two
        would count the same."""
        async with self._lock:
            return await self._refresh()

    async def _refresh(self) -> list[LoggedRequest]:
        try:
            workers = await self._runtime.workers()
            self.clients = 0
            for worker in workers:
                await self._count(worker)
            lines = await self._lines(workers, RING)
            handshakes = await self._lines(workers, REFUSED)
        except RuntimeSocketError:
            return []  # HAProxy has ended, and its counters with it
        new = [one for line in lines - self._seen if (one := parse_request_line(line))]
        for line in handshakes - self._seen:
            if refusal := parse_handshake_line(line):
                self._refusals.count(*refusal)
        self._seen = lines | handshakes
        alive = {worker.pid for worker in workers}
        self._before = {pid: counts for pid, counts in self._before.items() if pid in alive}
        new.sort(key=lambda one: one.at_ms)
        for one in new:
            self._remember(one)
        return new

    async def _lines(self, workers: list[Worker], ring: str) -> set[str]:
        """The lines of a ring, of all workers; each line has its own number."""
        return {
            line
            for worker in workers
            for line in (await self._runtime.command_worker(worker, f"show events {ring}")).splitlines()
        }

    async def _count(self, worker: Worker) -> None:
        totals: dict[str, Counter[str]] = {}
        for row in await self._runtime.statistics(worker):
            name, server = row.get("pxname", ""), row.get("svname", "")
            if server == "FRONTEND":
                self.clients += int(row.get("scur") or 0)
                if name == MESH:
                    totals[MESH] = Counter({"rejected": int(row.get("dcon") or 0)})
            if name not in self.backends or server not in ("BACKEND", "agent"):
                continue
            counts = Counter({one: int(row.get(f"hrsp_{one}") or 0) for one in _CLASSES})
            total = totals.setdefault(name, Counter())
            if server == "BACKEND":
                total.update(counts)
            elif self.backends[name].kind is not None:
                total.subtract(counts)  # the agent counts these itself
                total["again"] += sum(counts.values())
        before = self._before.setdefault(worker.pid, {})
        for name, total in totals.items():
            earlier = before.get(name, Counter())
            if name == MESH:
                self._count_rejected(total["rejected"] - earlier["rejected"])
            else:
                self._add(self.backends[name], total, earlier)
            before[name] = total

    def _count_rejected(self, new: int) -> None:
        """Connections refused because their source had too many; HAProxy does not report which."""
        if new > 0:
            self._request_log.refused[503] += new
            self._refusals.count(TOO_MANY_OF_ONE, times=new)

    def _add(self, backend: Backend, now: Counter[str], before: Counter[str]) -> None:
        for one in _CLASSES:
            new = max(now[one] - before[one], 0)
            if backend.kind is None:
                self.by_agent += new
            elif new:
                self.by_haproxy += new
                self._request_log.requests[backend.service, backend.kind.value, one] += new
                if backend.is_unknown and self.unknown_calls is not None:
                    self.unknown_calls.apply(backend.service, new)
        self.by_agent += max(now["again"] - before["again"], 0)

    def _remember(self, one: LoggedRequest) -> None:
        backend = self.backends.get(one.backend)
        if backend is None or backend.kind is None or one.server == "agent":
            return  # the agent served it, and has logged it
        self._request_log.remember(
            ServedRequest(
                at=time_text(one.at_ms / 1000),
                service=one.service,
                method=one.method[:32],
                path=one.path,
                scope=unquote(one.key, encoding="latin-1"),
                route=backend.kind.value,
                site=backend.site,
                status=one.status or None,
                took_ms=round(one.took_ms, 3),
                recovered=one.recovered,
            )
        )
