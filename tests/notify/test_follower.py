"""The journal follows the store: once each, also over crashes, and before anything is forgotten."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cheops.engine.documents import key_of
from cheops.engine.events import Save
from cheops.log.operation import Applied, Kind, OpId, Reply, Status, Verdict
from cheops.notify.event import Event
from cheops.notify.follower import Follower, JournaledStore
from cheops.notify.journal import Journal
from cheops.notify.summaries import DeliveryState, PendingSummaries
from cheops.store.interface import StoreError
from cheops.store.memory import MemoryStore
from tests.notify.documents import HERE, THERE, operation, reply


class World:
    """A store that outlives its followers."""

    def __init__(self, path: Path) -> None:
        self.store = MemoryStore()
        self.store.incarnation = HERE.incarnation
        self.path = path
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.path)
        self.follower = Follower(self.store, self.journal, HERE.site, with_summaries=True, now_ms=lambda: 5)
        self.follower.follow()
        self.followed = JournaledStore(self.store, self.journal, self.follower)

    def crash(self) -> None:
        self.journal.close()

    def save(self, *documents: object) -> None:
        self.followed.commit([Save(documents)])  # type: ignore[arg-type]

    @property
    def events(self) -> tuple[Event, ...]:
        return self.journal.after(0, 1_000).events

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def waiting(self) -> PendingSummaries:
        found = self.follower.summaries
        assert found is not None
        return found

    def settle(self, **settled: int) -> list[str]:
        self.waiting.settle("n", DeliveryState(settled, has_left=False), 5)
        return [event.operation for event in self.events if event.kind == "summary"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "notify.db")
    with closing(made.followed):
        yield made


def run(seq: int, site: Reply) -> tuple[object, ...]:
    return operation(seq), site


def test_documents_become_events_in_their_order(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, origin=HERE))
    world.save(reply(1, op.id, output="hello"))
    assert world.kinds == ["decided", "ran", "ran"]
    assert [event.site for event in world.events] == ["site1", "site1", "site2"]
    assert {event.resource_type for event in world.events} == {"tally"}
    assert {event.type for event in world.events} == {"inc"}
    assert world.events[-1].output == "hello"


def test_a_draft_is_told_when_it_is_kept_and_in_its_turn(world: World) -> None:
    world.save(operation(1, verdict=None))
    world.save(operation(1), reply(1, OpId(HERE, 1), origin=HERE), operation(2, verdict=None))
    world.save(operation(2, verdict=Verdict.VOID, why="exit code 7"))
    told = [(event.kind, event.operation, event.status) for event in world.events]
    assert told[:5] == [
        ("accepted", "site1:1", "PENDING"),
        ("decided", "site1:1", "OK"),
        ("ran", "site1:1", "OK"),
        ("accepted", "site1:2", "PENDING"),
        ("void", "site1:2", "VOID"),
    ]
    assert world.settle(site1=0, site2=0) == [], "this site may still finish the first one"
    assert world.settle(site1=2, site2=0) == ["site1:2"], "no summary before its verdict"


def test_a_draft_beside_what_must_be_looked_up_is_told(world: World) -> None:
    """A list of sites may give old documents new numbers, so the feed is read."""
    world.save(operation(1, kind=Kind.SITES, sites=("site1",)), operation(2, verdict=None))
    assert sorted(world.kinds) == ["accepted", "sites"]


def test_drafts_that_are_the_sites_own_affair_are_not_told(world: World) -> None:
    world.save(operation(1, kind=Kind.SEAL, verdict=None))
    assert world.kinds == []


def test_what_is_saved_again_is_not_told_again(world: World) -> None:
    op = operation()
    world.save(op)
    world.save(op, operation(2))
    assert [event.operation for event in world.events] == ["site1:1", "site1:2"]


def test_a_list_of_sites_gives_old_documents_new_numbers_and_they_are_not_told_again(world: World) -> None:
    world.save(operation(1, sites=("site1",)), operation(2))
    world.save(operation(3, kind=Kind.SITES, sites=("site1", "site2")))
    world.save(operation(2), operation(4))
    assert [event.operation for event in world.events if event.kind != "summary"] == [
        f"site1:{seq}" for seq in range(1, 5)
    ]


def test_what_a_crash_left_between_is_followed_at_the_start(world: World) -> None:
    world.save(operation(1))
    world.crash()
    world.store.commit([Save((operation(2), reply(1, OpId(HERE, 2))))])
    world.start()
    world.save(operation(3))
    assert [(e.kind, e.operation) for e in world.events] == [
        ("decided", "site1:1"),
        ("decided", "site1:2"),
        ("ran", "site1:2"),
        ("decided", "site1:3"),
    ]


def test_a_journal_that_cannot_be_written_holds_up_the_commit_which_can_be_repeated(world: World) -> None:
    world.journal.close()
    with pytest.raises(StoreError):
        world.save(operation(1))
    world.start()
    world.save(operation(1))
    assert world.kinds == ["decided"]


def test_what_is_forgotten_was_told_before(world: World) -> None:
    op = operation()
    world.save(op)
    world.followed.commit([Save((operation(2),), (key_of(op),))])
    assert world.store.changes(0, 10)[0].key == key_of(operation(2))
    assert [event.operation for event in world.events] == ["site1:1", "site1:2"]


def test_unknown_and_resolved(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, Status.UNKNOWN), reply(2, op.id, Status.OK))
    world.save(reply(3, op.id, Status.OK))
    assert world.kinds == ["decided", "unknown", "resolved", "ran"]


def test_a_new_journal_begins_now(world: World) -> None:
    world.save(operation(1))
    world.crash()
    world.path.unlink()
    world.start()
    world.save(operation(2))
    assert [event.operation for event in world.events] == ["site1:2"]


def test_beside_another_store_it_begins_with_that_one_and_keeps_what_is_to_be_told(world: World) -> None:
    world.save(operation(1))
    world.crash()
    world.store = MemoryStore()
    world.start()
    assert [event.operation for event in world.events] == ["site1:1"]
    assert world.settle(site1=9) == [], "nobody will say what became of what another life made"


# -- summaries -------------------------------------------------------------------------------------------


def test_a_summary_comes_when_the_last_site_has_answered_and_once(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, origin=HERE))
    assert world.settle(site1=0, site2=0) == []
    world.save(reply(1, op.id, Status.KO, detail="exit code 1"))
    assert world.settle(site1=0, site2=0) == ["site1:1"]
    assert world.settle(site1=1, site2=1) == ["site1:1"]
    summary = world.events[-1]
    assert summary.status is Status.KO
    assert [(r.site, r.status, r.detail) for r in summary.results] == [
        ("site1", Status.OK, ""),
        ("site2", Status.KO, "exit code 1"),
    ]


def test_what_a_site_passed_over_is_settled_without_a_word(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, origin=HERE))
    with world.journal.writing() as db:
        world.waiting.lose_effect(db, "n", op.id)
    assert world.settle(site1=1, site2=1) == ["site1:1"]
    assert [r.status for r in world.events[-1].results] == [Status.OK, Status.SUPERSEDED]
    assert world.events[-1].status is Status.SUPERSEDED


def test_a_site_in_doubt_is_waited_for(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, origin=HERE), reply(1, op.id, Status.UNKNOWN))
    assert world.settle(site1=1, site2=0) == []
    world.save(reply(2, op.id))
    assert world.settle(site1=1, site2=0) == ["site1:1"]


def test_a_replay_counts_for_what_it_applied(world: World) -> None:
    ops = [operation(1), operation(2)]
    world.save(*ops, reply(1, ops[0].id, origin=HERE), reply(2, ops[1].id, origin=HERE))
    world.save(reply(1, None, replay=True, key="", applied=tuple(Applied(op.id, "inc") for op in ops)))
    assert world.settle(site1=0, site2=0) == ["site1:1", "site1:2"]


def test_what_has_no_effect_anywhere_is_summed_up_at_once(world: World) -> None:
    world.save(operation(1, verdict=Verdict.VOID, why="exit code 7"))
    summary = world.events[-1]
    assert (summary.status, summary.results[0].detail) == (Status.VOID, "exit code 7")
    assert not world.waiting.resources


def test_what_has_no_effect_does_not_overtake_what_is_finished_before(world: World) -> None:
    """Also if its commit comes before the first of them is examined, and over a crash."""
    for seq in (1, 2, 4):
        if seq == 4:
            world.save(operation(3, verdict=Verdict.VOID, why="exit code 7"))
        world.save(*run(seq, reply(seq, OpId(HERE, seq), origin=HERE)))
    world.crash()
    world.start()
    assert world.settle(site1=1, site2=1) == ["site1:1"], "examined before the others were settled"
    assert world.settle(site1=4, site2=2) == ["site1:1", "site1:2", "site1:3"]
    assert (world.events[-1].status, world.events[-1].results[0].detail) == (Status.VOID, "exit code 7")
    assert world.settle(site1=4, site2=4) == [f"site1:{seq}" for seq in range(1, 5)]
    assert not world.waiting.resources


def test_only_the_origin_sums_up_and_never_what_touches_no_application(world: World) -> None:
    world.save(operation(1, origin=THERE), operation(1, kind=Kind.SITES, sites=("site1",)))
    assert world.settle(site1=9, site2=9) == []


def test_summaries_wait_over_a_crash(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, origin=HERE))
    world.crash()
    world.start()
    assert world.waiting.resources == {"n"}
    assert world.settle(site1=1, site2=1) == ["site1:1"]


def test_a_site_that_left_sums_up_what_it_knows(world: World) -> None:
    op = operation()
    world.save(op, reply(1, op.id, origin=HERE))
    world.waiting.settle("n", DeliveryState({"site2": 0, "site3": 0}, has_left=True), 5)
    summary = world.events[-1]
    assert (summary.status, summary.complete) == (Status.PENDING, False)
    assert {r.site: r.status for r in summary.results} == dict.fromkeys(("site2", "site3"), Status.PENDING)


def test_a_site_far_behind_does_not_make_each_look_search_everything(world: World) -> None:
    """What cannot be due is not even read: see WaitingList._bound."""
    for seq in range(1, 200):
        world.save(*run(seq, reply(seq, OpId(HERE, seq), origin=HERE)))
    reads: list[str] = []
    world.journal._db.set_trace_callback(reads.append)
    assert world.settle(site1=199, site2=0) == []
    assert not [line for line in reads if "FROM words" in line and "seq = " in line]


# -- journalled together -----------------------------------------------------------------------------------


@pytest.fixture
def patient(world: World) -> World:
    """A world in which commits wait for each other."""
    world.followed = JournaledStore(world.store, world.journal, world.follower, delay_s=3600.0)
    return world


def test_commits_wait_for_each_other_and_are_told_in_order_with_their_own_times(patient: World) -> None:
    times = iter((5, 6, 7))
    patient.follower.now_ms = lambda: next(times)
    patient.save(operation(1))
    patient.save(operation(2), reply(1, OpId(HERE, 2)))
    patient.save(operation(2))
    assert (patient.kinds, patient.followed.is_journalled) == ([], False)
    patient.followed.journal_waiting()
    assert [(e.kind, e.operation, e.time[-4:-1]) for e in patient.events] == [
        ("decided", "site1:1", "005"),
        ("decided", "site1:2", "006"),
        ("ran", "site1:2", "006"),
    ]
    assert patient.followed.is_journalled


def test_a_draft_waits_for_nothing_and_takes_along_what_came_before(patient: World) -> None:
    """After a crash no feed has it."""
    patient.save(operation(1))
    patient.save(operation(2, verdict=None))
    assert patient.kinds == ["decided", "accepted"]
    patient.save(operation(2))
    patient.followed.journal_waiting()
    assert patient.kinds == ["decided", "accepted", "decided"]


def test_what_waits_is_told_before_it_is_forgotten(patient: World) -> None:
    op = operation()
    patient.save(op)
    patient.followed.commit([Save((operation(2),), (key_of(op),))])
    assert [event.operation for event in patient.events] == ["site1:1", "site1:2"]


def test_what_waits_is_told_after_a_crash_and_once(patient: World) -> None:
    patient.save(operation(1))
    patient.save(operation(3, kind=Kind.SITES, sites=("site1", "site2")))
    patient.crash()
    patient.start()
    patient.save(operation(4))
    assert [event.operation for event in patient.events if event.kind != "summary"] == ["site1:1", "site1:3", "site1:4"]


def test_commits_wait_beside_one_that_must_be_looked_up(patient: World) -> None:
    patient.save(operation(1, sites=("site1",)))
    patient.save(operation(2, kind=Kind.SITES, sites=("site1", "site2")))
    patient.save(operation(3))
    patient.followed.journal_waiting()
    patient.save(operation(4))
    patient.followed.journal_waiting()
    told = [event.operation for event in patient.events if event.kind != "summary"]
    assert told == [f"site1:{seq}" for seq in range(1, 5)]


def test_no_commit_is_taken_while_what_waits_cannot_be_journalled(patient: World) -> None:
    patient.followed = JournaledStore(patient.store, patient.journal, patient.follower, delay_s=1e-9)
    patient.save(operation(1))
    patient.journal.close()
    with pytest.raises(StoreError):
        patient.save(operation(2))
    assert patient.store.last_seq() == 1


def test_a_draft_whose_journal_failed_is_told_once(patient: World) -> None:
    patient.save(operation(1))
    broken, patient.journal._is_open = patient.journal._is_open, False
    with pytest.raises(StoreError):
        patient.save(operation(2, verdict=None))
    patient.journal._is_open = broken
    patient.save(operation(2, verdict=None))
    assert patient.kinds == ["decided", "accepted"]
