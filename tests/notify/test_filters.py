"""Which events a target wants: one table."""

from typing import Any

import pytest

from cheops.config.notify import SELECTABLE_EVENTS, CommandConfig, EventKind, TargetConfig
from cheops.log.operation import Status
from cheops.notify.delivery import wants
from cheops.notify.event import Event

EVENT = {
    "id": "x",
    "kind": EventKind.RAN,
    "time": "",
    "site": "site1",
    "resource": "counter-1",
    "resource_type": "counter",
    "type": "inc",
    "status": Status.KO,
}
SUMMARY = {"kind": EventKind.SUMMARY}


@pytest.mark.parametrize(
    ("settings", "event", "expected"),
    [
        ({}, {}, True),
        ({}, {"site": "site2"}, False),
        ({"others": True}, {"site": "site2"}, True),
        ({"on": (EventKind.RAN,)}, {}, True),
        ({"on": (EventKind.DECIDED,)}, {}, False),
        ({"types": ("counter", "file")}, {}, True),
        ({"types": ("file",)}, {}, False),
        ({"types": ("file",)}, {"resource_type": ""}, False),
        ({"operations": ("inc",)}, {}, True),
        ({"operations": ("set",)}, {}, False),
        ({"resources": ("counter-*",)}, {}, True),
        ({"resources": ("counter-?",)}, {}, True),
        ({"resources": ("COUNTER-*",)}, {}, False),
        ({"resources": ("file", "counter-[12]")}, {}, True),
        ({"resources": ("*",)}, {"resource": ""}, False),
        ({"statuses": (Status.KO, Status.UNKNOWN)}, {}, True),
        ({"statuses": (Status.OK,)}, {}, False),
        ({"statuses": (Status.OK,)}, {"status": None}, False),
        ({"types": ("counter",), "statuses": (Status.OK,)}, {}, False),
        ({}, SUMMARY, False),
        ({"summary": True}, SUMMARY, True),
        ({"summary": True, "on": ()}, {}, False),
        ({"summary": True, "statuses": (Status.OK,)}, SUMMARY, False),
        ({"summary": True, "others": False}, {**SUMMARY, "site": "site2"}, False),
        ({}, {"kind": EventKind.SITE_UP, "resource": ""}, True),
        ({"types": ("counter",)}, {"kind": EventKind.SITE_UP, "resource_type": ""}, False),
        ({"on": (), "summary": True, "types": ("file",)}, {"kind": EventKind.DROPPED}, True),
    ],
)
def test_filters(settings: dict[str, Any], event: dict[str, Any], expected: bool) -> None:
    target = TargetConfig("t", CommandConfig("true"), **settings)
    assert wants(target, Event(**{**EVENT, **event}), "site1") is expected


def test_without_a_filter_everything_but_summaries_is_told() -> None:
    assert set(EventKind) - set(SELECTABLE_EVENTS) == {EventKind.SUMMARY, EventKind.DROPPED}
