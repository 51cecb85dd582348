"""How the deliveries to receivers of notifications go: for the API, `cheops check` and `/metrics`.

A receiver that does not accept events loses none, as long as the journal has room, and holds up nobody else. So
nothing else shows that it is dead.
"""

from collections.abc import Iterator

from cheops.api.models.site import Check, NotificationTarget, make_check
from cheops.node.node import Node
from cheops.notify.follower import wall_ms
from cheops.notify.journal import MOST_KEPT
from cheops.text import printable

_GROUP = "notifications"
Sample = tuple[dict[str, str], float]


def notification_targets(node: Node) -> tuple[NotificationTarget, ...]:
    now_ms = wall_ms()
    return tuple(
        NotificationTarget(
            name=one.name,
            channel=one.channel,
            ok=not one.problem,
            backlog=one.backlog,
            deliveries=one.deliveries,
            failures=one.failures,
            failing_since_s=_seconds_since(one.failing_since_ms, now_ms),
            last_success_s=_seconds_since(one.last_success_ms, now_ms),
            problem=one.problem,
        )
        for one in node.notifier.status().targets
    )


def notification_checks(node: Node) -> Iterator[Check]:
    for one in notification_targets(node):
        name, waiting = printable(one.name), f"{one.backlog:,} event{'' if one.backlog == 1 else 's'} waiting"
        if one.ok:
            last = "nothing sent since the start" if one.last_success_s is None else _ago(one.last_success_s)
            yield make_check(_GROUP, f"{name} receives notifications", f"{one.channel}; {last}; {waiting}")
            continue
        failing = "" if one.failing_since_s is None else f" for {one.failing_since_s:,.0f} s"
        hint = (
            f"fix the receiver, or 'notify.{name}': delivery continues automatically. The oldest events are removed "
            f"when more than {MOST_KEPT:,} wait"
        )
        detail = f"{one.channel}, failing{failing}: {printable(one.problem)}; {waiting}"
        yield make_check(_GROUP, f"{name} does not accept notifications", detail, hint)


def notification_metrics(node: Node) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Name, kind, help and samples of each family. Those about time can be alerted on without a history."""
    statuses, now_ms = node.notifier.status().targets, wall_ms()
    labels = [{"target": one.name, "channel": one.channel} for one in statuses]

    def family(name: str, kind: str, help_: str, values: list[float]) -> tuple[str, str, str, list[Sample]]:
        return f"cheops_notify_{name}", kind, help_, list(zip(labels, values, strict=True))

    if not statuses:
        return
    yield family("backlog", "gauge", "Events that a receiver has not got yet.", [one.backlog for one in statuses])
    yield family("deliveries_total", "counter", "Events that it accepted.", [one.deliveries for one in statuses])
    yield family("failures_total", "counter", "Attempts that failed.", [one.failures for one in statuses])
    yield family(
        "failing_seconds",
        "gauge",
        "For how long every attempt has failed; 0 if the last one succeeded.",
        [_seconds_since(one.failing_since_ms, now_ms) or 0 for one in statuses],
    )
    yield family(
        "seconds_since_success",
        "gauge",
        "Since it last accepted an event, or since the start if it has not.",
        [(now_ms - (one.last_success_ms or one.started_ms)) / 1000 for one in statuses],
    )


def _seconds_since(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else max(now_ms - at_ms, 0) / 1000


def _ago(seconds: float) -> str:
    return f"last sent {seconds:,.0f} s ago"
