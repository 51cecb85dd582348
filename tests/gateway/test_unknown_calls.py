"""Calls of an application that passes nothing on: they are reported, refused or allowed."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cheops.config.gateway import ServiceListener, UnknownCalls
from cheops.config.services import ServiceConfig
from cheops.errors import ClientError
from cheops.gateway.carriers import Carriers
from cheops.gateway.request_log import RequestLog
from cheops.gateway.unknown_calls import UnknownCallPolicy
from tests.agent.rig import until
from tests.gateway.service import Service, calling
from tests.gateway.stage import Stage, both_planes
from tests.gateway.test_sharing import all_up

plane = both_planes
SHARED = "{compute: site1, image: site2}"
SITES = ("site1", "site2")


@pytest.fixture
def make_stage(tmp_path: Path, plane: str) -> Iterator[Callable[[str], Stage]]:
    """Two sites with an image service each; compute is at site1 and calls it."""
    started: list[Stage] = []
    services: list[Service] = []

    def make(policy: str) -> Stage:
        stage = Stage(tmp_path / "rig", SITES, ("image", "compute"), outbound=True, plane=plane, unknown_calls=policy)
        started.append(stage)
        services.extend(Service(f"image of {site}", stage.own(site)) for site in SITES)
        stage.rig.start()
        until(lambda: all_up(stage), "for the sites to see each other")
        return stage

    yield make
    for stage in started:
        stage.rig.close()
    for one in services:
        one.close()


@pytest.fixture
def compute() -> Iterator[Callable[[Stage, tuple[str, ...]], None]]:
    running: list[Service] = []

    def make(stage: Stage, passes_on: tuple[str, ...]) -> None:
        for one in running:
            one.close()
        running[:] = [Service("compute", stage.own("site1", "compute"))]
        running[0].answering = calling(stage.address("site1", "image", "outbound"), passes_on)

    yield make
    for one in running:
        one.close()


Compute = Callable[[Stage, tuple[str, ...]], None]


def called(stage: Stage, scope: str | None) -> tuple[int, str]:
    """The status that the image service gave compute, and which one it was."""
    told = stage.ask("site1", "/img", scope, service="compute").json["called"]
    return told["status"], told.get("served_by", told.get("detail", ""))


def unknown_calls(stage: Stage) -> int:
    text = stage.rig.request("site1", "GET", "/metrics").decode()
    found = re.search(r'cheops_gateway_unknown_calls_total\{service="image"\} (\d+)', text)
    return int(found[1]) if found else 0


def warnings(stage: Stage) -> list[str]:
    checks = json.loads(stage.rig.request("site1", "GET", "/api/v1/check"))["checks"]
    return [one["name"] for one in checks if one["level"] == "warning"]


def test_a_call_that_carries_nothing_is_reported(make_stage: Callable[[str], Stage], compute: Compute) -> None:
    stage = make_stage("warn")
    compute(stage, ())
    assert called(stage, None) == (200, "image of site1")
    assert unknown_calls(stage) == 0  # no request had a scope yet, so no call can belong to one
    assert called(stage, SHARED) == (200, "image of site1")
    until(lambda: unknown_calls(stage) == 1, "for the call to be counted")
    assert "calls to image have no known scope" in warnings(stage)
    assert "services.image.unknown_calls" in stage.rig.log("site1")


def test_a_call_that_carries_nothing_is_refused(make_stage: Callable[[str], Stage], compute: Compute) -> None:
    stage = make_stage("refuse")
    compute(stage, ("x-request-id",))
    assert called(stage, SHARED) == (200, "image of site2")
    assert called(stage, None) == (200, "image of site1")  # known to have no scope, by a carrier that was added
    compute(stage, ())
    for scope in (SHARED, None):
        status, detail = called(stage, scope)
        assert status == 409
        assert "services.image.unknown_calls" in detail
    assert unknown_calls(stage) == 2
    answer = stage.ask("site1", "/", "", way="outbound")
    assert answer.json["served_by"] == "image of site1"


def test_a_call_that_carries_nothing_can_be_allowed(make_stage: Callable[[str], Stage], compute: Compute) -> None:
    stage = make_stage("allow")
    compute(stage, ())
    assert called(stage, SHARED) == (200, "image of site1")
    assert unknown_calls(stage) == 0


def test_the_log_has_one_line_a_minute_and_service(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    carriers = Carriers(10, 600.0, lambda: now_s[0])
    carriers.begin([("x-request-id", "1")], "{image: site2}")
    services = {name: ServiceConfig(name, "http://127.0.0.1:1") for name in ("image", "compute")}
    policy = UnknownCallPolicy(services, carriers, RequestLog(), lambda: now_s[0])
    with caplog.at_level(logging.WARNING):
        for now_s[0] in (1.0, 30.0, 60.0, 61.0):
            policy.apply("image")
            policy.apply("compute", 5)
    assert len(caplog.messages) == 4


def test_nothing_is_refused_once_no_scope_is_remembered() -> None:
    now_s = [0.0]
    carriers = Carriers(10, 600.0, lambda: now_s[0])
    listener = ServiceListener(unknown_calls=UnknownCalls.REFUSE)
    policy = UnknownCallPolicy(
        {"image": ServiceConfig("image", "http://127.0.0.1:1", listener=listener)},
        carriers,
        RequestLog(),
        lambda: now_s[0],
    )
    policy.apply("image")
    use = carriers.begin([("x-request-id", "1")], "{image: site2}")
    with pytest.raises(ClientError):
        policy.apply("image")
    use.end()
    now_s[0] = 599.0
    with pytest.raises(ClientError):
        policy.apply("image")
    now_s[0] = 601.0
    policy.apply("image")
