"""Events over HTTP: as a stream and as pages, of one resource and of all, even over restarts."""

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, get_type_hints
from urllib.request import urlopen

import msgspec
import pytest

from cheops.api.endpoints.site import LIST_CHANGES, STREAM_EVENTS
from cheops.api.models.operations import SubmitRequest
from cheops.client import Agent, AgentError
from cheops.notify.event import Event
from tests.agent.rig import MakeRig, Rig
from tests.api.agents import TYPES, two_sites


@contextmanager
def streaming(agent: Agent, id_: str | None, last: str) -> Iterator[Iterator[Event]]:
    with closing(agent.events(id_, last)) as stream:  # type: ignore[type-var]
        yield stream


def one_site(make_rig: MakeRig) -> tuple[Rig, Agent]:
    rig = make_rig(TYPES, "site1")
    rig.start()
    return rig, Agent(rig.url("site1"))


def do(agent: Agent, *ids: str, sites: str = "site1") -> None:
    for id_ in ids:
        agent.submit(id_, SubmitRequest(type="add", command="true", sites=sites, resource_type="file"))


def kinds(events: Any) -> list[tuple[str, str]]:
    return [(event.kind, event.resource) for event in events]


RAN = ["accepted", "decided", "ran"]


def of(*ids: str) -> list[tuple[str, str]]:
    return [(kind, id_) for id_ in ids for kind in RAN]


def test_an_event_is_what_receivers_get_and_has_a_position() -> None:
    assert STREAM_EVENTS.response is Event
    assert get_type_hints(LIST_CHANGES.response)["events"] == tuple[Event, ...]
    event = Event(id="x", kind="ran", time="2026-11-16T01:41:31.885Z", site="site1")
    assert set(msgspec.to_builtins(event)) == {"id", "kind", "time", "site"}
    assert "place" in msgspec.to_builtins(msgspec.structs.replace(event, place="6f1c9a-118"))


def test_of_one_resource_and_of_all(make_rig: MakeRig) -> None:
    sites = two_sites(make_rig)
    agent = sites["site1"]
    sites.sees("site1", "site2", "up")
    start = agent.changes().last
    do(agent, "seen", "other", sites="site1 & site2")
    seen = agent.changes("seen", start)
    assert [event.kind for event in seen.events] == [*RAN, "ran"]
    assert [event.site for event in seen.events] == ["site1", "site1", "site1", "site2"]
    assert {(event.resource, event.resource_type, event.teller) for event in seen.events} == {("seen", "file", "site1")}
    with streaming(agent, "seen", start) as stream:
        assert [next(stream) for _ in seen.events] == list(seen.events)
    assert [event.place for event in agent.changes("seen", start, limit=2).events] == [
        event.place for event in seen.events[:2]
    ]
    assert agent.changes("seen", seen.events[2].place).events == seen.events[3:]
    everything = agent.changes(None, start).events
    assert {event.resource for event in everything} >= {"seen", "other"}
    with streaming(agent, None, everything[0].place) as stream:
        assert [next(stream) for _ in everything[1:]] == list(everything[1:])
    assert [event for event in everything if event.resource == "seen"] == list(seen.events)
    nothing = agent.changes("seen", agent.changes().last)
    assert (nothing.events, nothing.reset) == ((), False)
    assert b'cheops_events_total{kind="ran",status="OK"} 4\n' in sites.rig.request("site1", "GET", "/metrics")
    sites.rig.stop("site2")
    with streaming(agent, None, everything[-1].place) as stream:
        down = next(event for event in stream if event.kind == "site-down")
        assert (down.site, down.sites) == ("site1", ("site2",))


def test_in_the_form_of_notifications(make_rig: MakeRig) -> None:
    rig, agent = one_site(make_rig)
    start = agent.changes().last
    do(agent, "n")
    found = json.loads(rig.request("site1", "GET", f"/api/v1/changes?since={start}"))["events"][-1]
    assert found == {
        "place": f"{start.split('-')[0]}-{found['sequence']}",
        "id": found["id"],
        "kind": "ran",
        "time": found["time"],
        "site": "site1",
        "resource": "n",
        "resource_type": "file",
        "operation": "site1:1",
        "type": "add",
        "status": "OK",
        "sequence": found["sequence"],
        "teller": "site1",
    }
    assert found["id"].startswith("ran:reply/n/site1/")


def test_a_stream_says_at_once_where_it_is(make_rig: MakeRig) -> None:
    """So a browser that is cut off before the first event goes on from there."""
    _, agent = one_site(make_rig)
    do(agent, "n")
    with urlopen(f"{agent.url}/api/v1/events") as stream:  # noqa: S310 - our own agent
        said = [stream.readline().decode() for _ in range(3)]
    assert said == [": here\n", f"id: {agent.changes().last}\n", "\n"]


def test_asking_waits_for_what_concerns_it(make_rig: MakeRig) -> None:
    _, agent = one_site(make_rig)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.changes, "n", agent.changes().last, wait_s=60)
        do(agent, "other", "n")
        found = waiting.result()
    assert (found.events[0].resource, found.reset) == ("n", False)
    silent = agent.changes("n", agent.changes().last, wait_s=0.05)
    assert (silent.events, silent.reset) == ((), False)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_goes_on_after_a_restart(make_rig: MakeRig, how: str) -> None:
    rig, agent = one_site(make_rig)
    do(agent, "before")
    start = agent.changes().last
    do(agent, "n", "other")
    with streaming(agent, None, start) as stream:
        read = next(stream)
    getattr(rig, how)("site1")
    rig.start("site1")
    do(agent, "n")
    everything = agent.changes(None, start)
    assert (kinds(everything.events), everything.reset) == (of("n", "other", "n"), False)
    assert everything.events[0] == read
    with streaming(agent, None, read.place) as stream:
        assert [next(stream) for _ in range(8)] == list(everything.events[1:])
    with streaming(agent, "n", read.place) as stream:
        assert kinds(next(stream) for _ in range(5)) == of("n", "n")[1:]


def test_a_place_in_another_journal(make_rig: MakeRig) -> None:
    """Nobody can say what came after it, so it goes on from now; and that is said."""
    rig, agent = one_site(make_rig)
    do(agent, "n")
    last = agent.changes().last
    rig.stop("site1")
    for path in (rig.folder("site1") / "data").glob("notify.db*"):
        path.unlink()
    rig.start("site1")
    do(agent, "n")
    lost = agent.changes("n", last, wait_s=60)
    assert (lost.events, lost.reset, lost.last) == ((), True, agent.changes().last)
    with streaming(agent, "n", last) as stream:
        reset = next(stream)
        assert (reset.kind, reset.place, reset.site) == ("reset", lost.last, "site1")
        do(agent, "n")
        assert kinds(next(stream) for _ in range(3)) == of("n")


def test_a_place_of_which_events_are_gone(make_rig: MakeRig) -> None:
    rig, agent = one_site(make_rig)
    start = agent.changes().last
    do(agent, "gone", "left")
    rig.stop("site1")
    with (
        closing(sqlite3.connect(rig.folder("site1") / "data" / "notify.db")) as db,
        db,
    ):  # as time would do it
        db.execute("DELETE FROM events WHERE resource = 'gone'")
        db.execute("INSERT INTO meta SELECT 'trimmed', min(seq) - 1 FROM events")
    rig.start("site1")
    left = agent.changes(None, start)
    assert (kinds(left.events), left.reset) == (of("left"), True)
    with streaming(agent, None, start) as stream:
        reset = next(stream)
        assert reset.kind == "reset"
        assert [next(stream) for _ in RAN] == list(left.events)
    again = agent.changes(None, reset.place)
    assert (again.events, again.reset) == (left.events, False)


def test_what_is_no_place_is_refused(make_rig: MakeRig) -> None:
    _, agent = one_site(make_rig)
    for ask in (lambda: agent.changes(None, "yesterday"), lambda: next(agent.events("n", "yesterday"))):
        with pytest.raises(AgentError, match="a position in the feed looks like") as refused:
            ask()
        assert refused.value.http_status == 400


def test_the_stop_of_the_agent_ends_streams(make_rig: MakeRig) -> None:
    """In good order: one that is broken off in the end would be an error here."""
    rig, agent = one_site(make_rig)
    start = agent.changes().last
    do(agent, "n")
    with streaming(agent, None, start) as of_all, streaming(agent, "n", start) as of_n:
        assert kinds(next(stream) for stream in (of_all, of_n) for _ in RAN) == of("n", "n")
        assert rig.stop("site1") == 0
        assert (list(of_all), list(of_n)) == ([], [])
