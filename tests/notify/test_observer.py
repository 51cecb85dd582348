"""Looks: what the engine knows is told once, however often it is looked at."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cheops.config.notify import EventKind
from cheops.engine.events import Notify, PeerDown, PeerUp
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.matrix import Matrix
from cheops.log.operation import OpId, Origin
from cheops.log.rules import Fate, Rule
from cheops.notify.follower import Follower
from cheops.notify.journal import Journal
from cheops.notify.observer import EngineObserver
from cheops.notify.summaries import delivery_state
from cheops.store.interface import DamagedError, StoreError
from cheops.store.memory import MemoryStore
from tests.notify.documents import HERE, THERE, operation


class Engine:
    """What looks need of the pump, with one resource in it."""

    def __init__(self) -> None:
        self.one = Replica("n", HERE, lambda _hash: Matrix(), Limits())
        self.site = cast("Any", SimpleNamespace(replicas={"n": self.one}))
        self.damaged = Replica("damaged", HERE, lambda _hash: Matrix(), Limits())

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica:
        del refresh
        if resource == "damaged":
            raise DamagedError("store.db", resource, ["op/damaged/site1/aaa/1"])
        assert resource == "n"
        return self.one

    async def flushed(self) -> None:
        return None

    def beat(self, *seqs: int) -> None:
        """Operations of this site, superseded by one of another."""
        for seq in seqs:
            op = operation(seq)
            self.one.history.ops[op.id] = op
            self.one.history.fates[op.id] = Fate(Rule.REPLACE_WINS_OVER_CONCURRENT, OpId(THERE, 1))


class World:
    def __init__(self, path: Path) -> None:
        store = MemoryStore()
        store.incarnation = HERE.incarnation
        self.engine = Engine()
        self.journal = Journal(path)
        self.follower = Follower(store, self.journal, HERE.site)
        self.broken = False
        self.start()

    def start(self) -> None:
        self.looks = EngineObserver(self.journal, self.follower, self.engine, self._in_thread, lambda: None)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self.broken:
            raise StoreError("full")
        return work()

    def look(self) -> list[str]:
        self.looks.mark(["n"], 1)
        asyncio.run(self.looks._round())
        return [event.operation or event.kind for event in self.journal.after(0, 100).events]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "notify.db")
    with closing(made.journal):
        yield made


def test_each_fate_is_told_once_also_over_a_restart(world: World) -> None:
    world.engine.beat(1, 2)
    assert world.look() == ["site1:1", "site1:2"]
    world.engine.beat(3)
    assert world.look()[2:] == ["site1:3"]
    world.start()
    assert len(world.look()) == 3


def test_fates_that_are_judged_again_or_forgotten_hide_no_new_one(world: World) -> None:
    world.engine.beat(1, 2, 3)
    world.look()
    fates = world.engine.one.history.fates
    del fates[OpId(HERE, 1)]
    world.engine.beat(4)
    fates[OpId(HERE, 2)] = fates.pop(OpId(HERE, 2))  # to the end
    assert world.look()[3:] == ["site1:4"]


def test_what_could_not_be_written_is_written_later(world: World) -> None:
    world.engine.beat(1)
    world.looks.add_peer_event(PeerDown("site2"))
    world.broken = True
    with pytest.raises(StoreError):
        world.look()
    world.broken = False
    world.looks.add_peer_event(PeerUp("site2", "x"))
    assert world.look() == ["site-down", "site-up", "site1:1"]


def test_a_resource_that_cannot_be_loaded_holds_up_no_other_event(world: World) -> None:
    before = world.journal.note("examined")
    world.looks.mark(["damaged"], 1)
    world.looks.add_notice(Notify("damaged", EventKind.DAMAGED, None, "damaged", "damaged"))
    world.engine.beat(1)
    assert world.look() == ["damaged", "site1:1"]
    assert world.journal.note("examined") == before  # after a crash, it must be examined again
    world.engine.site.replicas["damaged"] = world.engine.damaged
    world.looks._poll()
    world.looks.add_peer_event(PeerDown("site2"))
    assert world.look()[2:] == ["site-down"]
    assert world.journal.note("examined") == 1


def test_a_site_that_goes_down_is_reported_with_the_reason(world: World) -> None:
    world.looks.add_peer_event(PeerDown("site2"), "the connection is refused")
    assert world.look() == ["site-down"]
    assert [event.detail for event in world.journal.after(0, 100).events] == ["the connection is refused"]


def test_a_notice_of_the_same_state_is_told_once(world: World) -> None:
    notice = Notify("n", "order-not-enforced")
    for _ in range(2):
        world.looks.add_notice(notice)
        world.start() if world.look() else None
    assert world.look() == ["order-not-enforced"]
    world.engine.one.history.known[THERE] = 4
    world.looks.add_notice(notice)
    world.looks.add_notice(Notify("n", "diverged"))  # a reply tells that
    assert world.look() == ["order-not-enforced"] * 2


# -- how far the sites are -------------------------------------------------------------------------------


def test_a_site_counts_as_far_as_we_know_all_its_replies() -> None:
    replica = Engine().one
    replica.history.site_list = ("site1", "site2", "site3")
    replica.applied.settled = {HERE: 7}
    view = replica.peer("site2")
    view.incarnation, view.settled, view.known_replies = "bbb", {HERE: 5}, {THERE: 3}
    replica.replies.known = {THERE: 2}
    assert delivery_state(replica).settled == {"site1": 7, "site2": 0, "site3": 0}
    replica.replies.known = {THERE: 3, Origin("site2", "earlier"): 1}
    assert delivery_state(replica).settled == {"site1": 7, "site2": 5, "site3": 0}
    view.incarnation = ""
    assert delivery_state(replica).settled["site2"] == 0
    assert not delivery_state(replica).has_left
    replica.history.site_list = ("site2", "site3")
    assert delivery_state(replica).has_left
