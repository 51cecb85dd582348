"""Metrics for Prometheus, in its text format (version 0.0.4).

Without a client library: other modules keep the counters, and the format takes a few lines.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

from cheops import __version__
from cheops.api.disk_usage import DiskUsage
from cheops.api.notifications import notification_metrics
from cheops.engine.evidence import pending_at
from cheops.engine.health import State
from cheops.gateway.server import Gateway
from cheops.node.node import Node
from cheops.peers.prober import now

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


def metrics(node: Node, states: Mapping[State, int], usage: DiskUsage, gateway: Gateway | None = None) -> str:
    """`states`: how many resources are in each state."""
    families = (*_families(node, states), *_disk(node, usage), *(_gateway(gateway) if gateway else ()))
    return "".join(f"{line}\n" for family in families for line in family)


def _families(node: Node, states: Mapping[State, int]) -> Iterator[Iterable[str]]:
    site, events = node.pump.site, node.notifier.journal.tail.counts
    yield _family("cheops_info", "gauge", "The agent.", [({"site": node.name, "version": __version__}, 1)])
    yield _family(
        "cheops_events_total",
        "counter",
        "Events since the start, as in /api/v1/events.",
        [({"kind": kind, "status": status}, n) for (kind, status), n in sorted(events.items())],
    )
    yield _family("cheops_ready", "gauge", "Whether operations are accepted.", [({}, node.problem is None)])
    yield _family(
        "cheops_resources",
        "gauge",
        "Resources by state, those not in memory in the state that they last had.",
        [({"state": state.value}, n) for state, n in states.items()],
    )
    replicas = list(site.replicas.values())
    yield _family("cheops_resources_in_memory", "gauge", "Resources at work.", [({}, len(replicas))])
    yield _family(
        "cheops_drafts",
        "gauge",
        "Operations before their first run.",
        [({}, sum(len(r.drafts) for r in replicas))],
    )
    yield _family("cheops_running", "gauge", "Runs now.", [({}, sum(r.slot.running is not None for r in replicas))])
    yield _family(
        "cheops_unknown",
        "gauge",
        "Of unknown outcome, in memory.",
        [({}, sum(r.applied.unknown is not None for r in replicas))],
    )
    yield _family(
        "cheops_failed", "gauge", "Failed here only, in memory.", [({}, sum(len(r.applied.failed) for r in replicas))]
    )
    yield _family("cheops_drifted", "gauge", "Applications differ (verify_every).", [({}, len(node.drifted))])
    yield _family(
        "cheops_refused_total",
        "counter",
        "Requests refused for reasons of security, by reason and sender.",
        [({"reason": one.reason, "who": one.who}, one.times) for one in node.refusals.all()],
    )
    if node.keyring:
        left_s = node.keyring.identity.until_s - time.time()
        yield _family("cheops_certificate_seconds_left", "gauge", "Until the certificate ends.", [({}, left_s)])
    yield from (_family(*family) for family in notification_metrics(node))
    yield from _peers(node)


def _disk(node: Node, usage: DiskUsage) -> Iterator[Iterable[str]]:
    kinds = [({"kind": kind}, size) for kind, size in usage.kinds().items()]
    yield _family("cheops_store_bytes", "gauge", "The files of the site. live, free, wal: the store.", kinds)
    limit = node.config.clients.store_bytes
    yield _family("cheops_store_limit_bytes", "gauge", "clients.store_size, for live and wal.", [({}, limit)])


def _peers(node: Node) -> Iterator[Iterable[str]]:
    peers = [view for view in node.mesh.sites(now()) if not view.here]
    yield _family("cheops_site_up", "gauge", "Whether a site is up.", [({"peer": p.name}, p.is_up) for p in peers])
    yield _family(
        "cheops_site_rtt_seconds",
        "gauge",
        "The round-trip time to a site.",
        [({"peer": p.name}, p.distance.rtt_ms / 1000) for p in peers if p.distance],
    )
    pending = pending_at(node.pump.site.replicas.values())
    yield _family(
        "cheops_site_pending",
        "gauge",
        "Operations in memory here that a site had not settled when it last reported. No value: not known.",
        [({"peer": p.name}, n) for p in peers if (n := pending.get(p.name, 0)) is not None],
    )
    yield _family(
        "cheops_site_clock_offset_seconds",
        "gauge",
        "How far the clock of a site is ahead.",
        [({"peer": p.name}, p.clock.offset_ms / 1000) for p in peers if p.clock],
    )
    sent = sorted(node.links.counts().items())
    for name, help_, counts in (
        ("messages", "Messages about resources that were sent to a site.", [counts.messages for _, counts in sent]),
        ("documents", "Operations, replies and statements in them.", [counts.documents for _, counts in sent]),
        ("bytes", "Their bytes, compressed, without TLS.", [counts.bytes for _, counts in sent]),
        ("dropped", "Messages that could not be sent; what they said is sent later.", [c.dropped for _, c in sent]),
    ):
        samples = [({"peer": peer}, n) for (peer, _), n in zip(sent, counts, strict=True)]
        yield _family(f"cheops_sent_{name}_total", "counter", help_, samples)


def _gateway(gateway: Gateway) -> Iterator[Iterable[str]]:
    record = gateway.request_log
    yield _family(
        "cheops_gateway_requests_total",
        "counter",
        "Requests to services, by route and status.",
        [
            ({"service": service, "route": route, "status": status}, n)
            for (service, route, status), n in sorted(record.requests.items())
        ],
    )
    yield _family(
        "cheops_gateway_refused_total",
        "counter",
        "Input that was not a valid request.",
        [({"status": str(status)}, n) for status, n in sorted(record.refused.items())],
    )
    for name, help_, counts in (
        ("fallbacks", "Requests that another site served after the first one failed.", record.fallbacks),
        (
            "recovered_scopes",
            "Requests of the application whose scope a carrier restored.",
            record.recovered,
        ),
        (
            "unknown_calls",
            "Calls of the application without a scope or a known carrier, while scopes were remembered.",
            record.unknown_calls,
        ),
    ):
        samples = [({"service": service}, n) for service, n in sorted(counts.items())]
        yield _family(f"cheops_gateway_{name}_total", "counter", help_, samples)
    for name, help_, n in (
        ("connections", "Connections of clients and of other gateways.", gateway.connections),
        ("warm_connections", "Connections to services and other gateways that wait for use.", gateway.warm),
    ):
        yield _family(f"cheops_gateway_{name}", "gauge", help_, [({}, n)])


def _family(name: str, kind: str, help_: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{_labels(labels)} {float(value):.10g}" for labels, value in samples]


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
