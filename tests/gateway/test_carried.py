"""Scopes of the application's own calls cached in HAProxy: after the first, and never one that the
agent would not say.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.raw import connected
from tests.gateway.service import Seen, Service
from tests.gateway.stage import Stage
from tests.gateway.test_sharing import all_up
from tests.support.command import run_process

SITES = ("site1", "site2")
SHARED = "{compute: site1, image: site2}"
OTHER = "{compute: site1, image: site1}"
SPAN = "00f067aa0ba902b7"
CARRIERS = ["X-Request-Id", "traceparent", "X-Odd'$#%|Name"]


class Play:
    """Requests that stay under way at compute of site1 while the test calls out in its place."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._go_on: dict[str, threading.Event] = {}
        self._came: dict[str, threading.Event] = {}
        self._given: dict[str, dict[str, str]] = {}
        self._called: dict[str, Any] = {}
        self._number = 0

    def answering(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        """Call out at once, with what the client gave, and wait."""
        self._called[seen.path] = self.call(self._given[seen.path])
        self._came[seen.path].set()
        self._go_on[seen.path].wait(60)
        return 200, {}

    @contextmanager
    def open_requests(self, scope: str | None, headers: dict[str, str]) -> Iterator[Any]:
        """A request; gives what its first call was answered."""
        self._number += 1
        path = f"/{self._number}"
        came, go_on = threading.Event(), threading.Event()
        self._came[path], self._go_on[path], self._given[path] = came, go_on, headers

        def ask() -> None:
            self.stage.ask("site1", path, scope, service="compute", headers=headers)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            until(came.is_set, "for the request to be there")
            yield self._called[path]
        finally:
            go_on.set()
            thread.join()

    def call(self, headers: dict[str, str]) -> Any:
        """A call of compute to the image service: who served it, or why nobody did."""
        answer = self.stage.ask("site1", "/img", headers=headers, way="outbound")
        return answer.json["served_by"] if answer.status == 200 else answer.status

    def counts(self) -> tuple[int, int]:
        told = self.flows()
        return told["fast"], told["slow"]

    def flows(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.stage.rig.request("site1", "GET", "/api/v1/flows"))
        return told

    def fast(self, headers: dict[str, str]) -> Any:
        """What a call is answered once HAProxy answers it alone."""

        def found() -> Any:
            fast, slow = self.counts()
            served_by = self.call(headers)
            return served_by if self.counts() == (fast + 1, slow) else None

        return until(found, f"for HAProxy to know {headers}")


def trace(digit: str, span: str = SPAN) -> dict[str, str]:
    return {"traceparent": f"00-{digit * 32}-{span}-01"}


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    stage = Stage(
        tmp_path_factory.mktemp("carried") / "rig",
        SITES,
        ("image", "compute"),
        outbound=True,
        plane="haproxy",
        carriers=CARRIERS,
        gateway={"carriers_for": "4s"},
    )
    made = Play(stage)
    images = [Service(f"image of {site}", stage.own(site)) for site in SITES]
    compute = Service("compute of site1", stage.own("site1", "compute"), made.answering)
    try:
        stage.rig.start()
        until(lambda: all_up(stage), "for the sites to see each other")
        with made.open_requests(SHARED, {"X-Request-Id": "before all"}):
            made.fast({"X-Request-Id": "before all"})  # from here on there is a flow to site2
        yield made
    finally:
        stage.rig.close()
        for one in (*images, compute):
            one.close()


def test_the_agent_is_needed_for_the_first_call_only(play: Play) -> None:
    fast, slow = play.counts()
    with play.open_requests(SHARED, {"X-Request-Id": "one"}) as first_call:
        assert first_call == "image of site2"
        assert play.counts() == (fast, slow + 1)
        assert play.fast({"X-Request-Id": "one"}) == "image of site2"
        assert play.flows()["carried"] >= 1
        shown = run_process("get", "flows", "--url", play.stage.rig.url("site1")).out.splitlines()
        assert "carrier values; " in shown[0]


def test_a_call_that_is_cached_in_haproxy_is_passed_on_with_its_scope(play: Play) -> None:
    with play.open_requests(SHARED, {"X-Request-Id": "told"}):
        play.fast({"X-Request-Id": "told"})
        fast, slow = play.counts()
        answer = play.stage.ask("site1", "/img?x=y", headers={"X-Request-Id": "told"}, way="outbound")
        assert play.counts() == (fast + 1, slow)
        headers = {name.lower(): value for name, value in answer.json["headers"].items()}
        assert (headers["scope"], headers["x-request-id"]) == (SHARED, "told")
        assert (answer.site, answer.json["path"]) == ("site2", "/img?x=y")
        (seen,) = json.loads(play.stage.rig.request("site1", "GET", "/api/v1/requests?limit=1"))["requests"]
        assert (seen["path"], seen["scope"], seen["recovered"]) == ("/img", SHARED, True)


def test_a_call_with_a_scope_of_its_own_is_a_flow_as_any_other(play: Play) -> None:
    assert play.fast({"Scope": "{image:  site2}", "X-Request-Id": "nobody"}) == "image of site2"
    assert play.fast({}) == "image of site1"
    assert play.call({"X-Request-Id": "nobody"}) == "image of site1"


def test_a_value_that_comes_to_mean_something_else_is_forgotten_before_it_does(play: Play) -> None:
    """The second request calls out as soon as it is there, and must not find what the first one meant."""
    for number in range(5):
        value = {"X-Request-Id": f"shared {number}"}
        with ExitStack() as requests:
            assert requests.enter_context(play.open_requests(SHARED, value)) == "image of site2"
            assert play.fast(value) == "image of site2"
            second = (OTHER, None)[number % 2]
            assert requests.enter_context(play.open_requests(second, value)) == 409
            assert play.call(value) == 409
    with play.open_requests(SHARED, {"X-Request-Id": "same"}), play.open_requests(SHARED, {"X-Request-Id": "same"}):
        assert play.fast({"X-Request-Id": "same"}) == "image of site2"


def test_all_carriers_of_a_call_count(play: Play) -> None:
    both = {"X-Request-Id": "r", **trace("a")}
    with play.open_requests(SHARED, both):
        assert play.fast(both) == "image of site2"
        assert play.fast({"X-Request-Id": "r", **trace("a", "b7ad6b7169203331")}) == "image of site2"
        assert play.fast(trace("a")) == "image of site2"
        with play.open_requests(OTHER, trace("a")):
            assert play.call(trace("a")) == 409
            assert play.call({"X-Request-Id": "r"}) == "image of site2"
            assert play.fast(both) == "image of site2"
    with play.open_requests(SHARED, trace("d")), play.open_requests(OTHER, {"X-Request-Id": "s"}):
        assert play.fast(trace("d")) == "image of site2"
        assert play.call({"X-Request-Id": "s", **trace("d")}) == 409


def test_values_that_look_alike_are_not_taken_for_each_other(play: Play) -> None:
    alike = [
        {"X-Request-Id": "a b|c%20"},
        {"X-Request-Id": "a%20b|c%20"},
        {"X-Request-Id": "a%20b%7Cc%2520"},
        {"X-Request-Id": 'a ; del map "\\'},
        {"X-Request-Id": "\xe9\xff"},
        {CARRIERS[2]: "a b|c%20"},
        {CARRIERS[2]: "|"},
    ]
    for number in range(len(alike)):
        found = [{name: f"{number}{value}" for name, value in one.items()} for one in alike]
        value, others = found[number], found[:number] + found[number + 1 :]
        with ExitStack() as requests:
            requests.enter_context(play.open_requests(SHARED, value))
            for other in others:
                requests.enter_context(play.open_requests(OTHER, other))
            assert play.fast(value) == "image of site2"
            assert {play.call(other) for other in others} == {"image of site1"}


@pytest.mark.parametrize(
    "value",
    [
        {"X-Request-Id": "x" * 600},
        {"X-Request-Id": "%" * 9_000},
        {"traceparent": f"00-{'B' * 32}-{SPAN}-01"},
    ],
)
def test_what_is_unusual_is_the_agents(value: dict[str, str], play: Play) -> None:
    with play.open_requests(SHARED, value):
        for _ in range(3):
            fast, slow = play.counts()
            assert play.call(value) == "image of site2"
            assert play.counts() == (fast, slow + 1)


def test_what_is_no_trace_stands_for_nothing(play: Play) -> None:
    with play.open_requests(SHARED, trace("c")):
        assert play.fast(trace("c")) == "image of site2"
        for text in (f"zz-{'c' * 32}-{SPAN}-01", f"00-{'c' * 32}", "c" * 32, f"x-{'c' * 32}-"):
            assert play.call({"traceparent": text}) == "image of site1"


def test_of_a_carrier_that_is_there_twice_the_first_counts(play: Play) -> None:
    with (
        play.open_requests(SHARED, {"X-Request-Id": "first"}),
        play.open_requests(OTHER, {"X-Request-Id": "last"}),
        connected(play.stage.address("site1", "image", "outbound")) as client,
    ):
        assert play.fast({"X-Request-Id": "first"}) == "image of site2"
        for one, other, served_by in (("first", "last", 2), ("last", "first", 1)):
            client.send("GET / HTTP/1.1", "Host: h", f"X-Request-Id: {one}", f"X-Request-Id: {other}")
            answer = client.head()
            assert json.loads(client.body(answer))["served_by"] == f"image of site{served_by}"


def test_nobody_is_another_gateway_at_this_address(play: Play) -> None:
    answer = play.stage.ask("site1", "/", "site2", headers={"Cheops-Hop": "site2"}, way="outbound")
    assert answer.json["served_by"] == "image of site2"


def test_a_request_is_refused_where_haproxy_cannot_be_told_what_it_changes(play: Play) -> None:
    value = {"X-Request-Id": "cannot be told"}
    pid = play.stage.rig.haproxy("site1")
    assert pid
    with play.open_requests(SHARED, value):
        assert play.fast(value) == "image of site2"
        os.kill(pid, signal.SIGSTOP)  # its worker goes on
        try:
            answer = play.stage.ask("site1", "/refused", OTHER, service="compute", headers=value)
            assert answer.status == 503
            assert "HAProxy does not respond" in answer.json["detail"]
            assert play.call(value) == "image of site2"
        finally:
            os.kill(pid, signal.SIGCONT)
        with play.open_requests(OTHER, value) as first_call:
            assert first_call == 409


def test_a_value_ends_in_time(play: Play) -> None:
    with play.open_requests(SHARED, {"X-Request-Id": "ends"}):
        assert play.fast({"X-Request-Id": "ends"}) == "image of site2"
    until(lambda: play.call({"X-Request-Id": "ends"}) == "image of site1", "for it to be forgotten")
    until(lambda: play.flows()["carried"] == 0, "for all of it to be forgotten")


def test_an_agent_that_takes_haproxy_over_begins_with_nothing(play: Play) -> None:
    rig, value = play.stage.rig, {"X-Request-Id": "outlives"}
    pid = rig.haproxy("site1")
    with play.open_requests(SHARED, value):
        assert play.fast(value) == "image of site2"
        rig.kill_agent("site1")
        assert play.call(value) == "image of site2"  # HAProxy goes on with what it has
        assert play.call({"X-Request-Id": "unknown"}) == 503
    rig.start("site1")
    with play.open_requests(OTHER, value) as first_call:
        assert first_call == "image of site1"
        assert play.call(value) == "image of site1"
    assert rig.haproxy("site1") == pid
    until(lambda: all_up(play.stage), "for the sites to see each other")
    with play.open_requests(SHARED, {"X-Request-Id": "after"}):
        assert play.fast({"X-Request-Id": "after"}) == "image of site2"


def test_scopes_follow_calls_between_sites_with_certificates(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Over the address for gateways: a request with a scope that another site sent on gets a carrier, and the
    call it causes is cached in HAProxy."""
    base = tmp_path_factory.mktemp("carried") / "rig"
    stage = Stage(base, SITES, ("image", "compute"), outbound=True, plane="haproxy", secure=True)
    play = Play(stage)
    added: list[dict[str, str]] = []

    def answering(seen: Seen) -> tuple[int, dict[str, Any]]:
        added.append({"X-Request-Id": seen.headers["X-Request-Id"]})
        return 200, {"called": play.call(added[-1])}

    services = [Service(f"image of {site}", stage.own(site)) for site in SITES]
    services.append(Service("compute of site1", stage.own("site1", "compute"), answering))
    try:
        stage.rig.start()
        until(lambda: all_up(stage), "for the sites to see each other")
        for _ in range(3):  # the first with a certificate is the agent's in any case
            answer = stage.ask("site2", "/", SHARED, service="compute")
            assert answer.json["called"] == "image of site2"
        assert play.fast(added[-1]) == "image of site2"
    finally:
        stage.rig.close()
        for one in services:
            one.close()
