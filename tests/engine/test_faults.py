"""A bug costs one event of one resource: the rest of the site goes on, and the store has the truth."""

from typing import Any

import pytest

from cheops.engine import exchange, scheduler
from cheops.engine.documents import Document, Message, key_of
from cheops.engine.events import (
    Answer,
    Effect,
    Fault,
    Load,
    Loaded,
    Outcome,
    Ran,
    Received,
    Result,
    Run,
    Save,
    Stage,
    Submitted,
    Tick,
    Unstorable,
)
from cheops.engine.settings import Settings
from cheops.engine.site import Site
from cheops.log.operation import Command, Origin


class Driver:
    """A site with a disk, driven by hand."""

    def __init__(self) -> None:
        self.site = Site(Origin("a", "1"), Settings())
        self.disk: dict[Any, Document] = {}
        self.now_ms = 1_000

    def step(self, event: Any) -> list[Effect]:
        """Carry out what an event causes, loads included; gives all effects."""
        self.now_ms += 1
        effects = self.site.step(event, self.now_ms)
        for effect in list(effects):
            if isinstance(effect, Save):
                for key in effect.forget:
                    self.disk.pop(key, None)
                self.disk |= {key_of(document): document for document in effect.documents}
            if isinstance(effect, Load):
                found = tuple(d for d in self.disk.values() if getattr(d, "resource", None) == effect.resource)
                effects += self.step(Loaded(effect.resource, found))
        return effects

    def submit(self, resource: str, request: str = "r") -> list[Effect]:
        return self.step(Submitted(request, resource, "inc", Command("inc"), sites=("a", "b")))


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    for resource in ("one", "two"):
        (run,) = (effect for effect in driver.submit(resource) if isinstance(effect, Run))
        driver.step(Ran(resource, run.n, (Outcome(Result.OK),)))
    return driver


def break_one(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    works = getattr(module, name)

    def broken(replica: Any, *args: Any, **more: Any) -> Any:
        if replica.resource == "one":
            raise OverflowError("planted")
        return works(replica, *args, **more)

    monkeypatch.setattr(module, name, broken)


def test_an_event_that_fails_costs_its_resource_that_event(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted:
        break_one(planted, exchange, "take")
        effects = driver.step(Received("b", Message("one", "1")))
    (fault,) = effects
    assert isinstance(fault, Fault)
    assert (fault.resource, str(fault.error)) == ("one", "planted")
    effects = driver.submit("one", "again")
    assert [e.stage for e in effects if isinstance(e, Answer)] == [Stage.ACCEPTED]
    assert driver.site.replicas["one"].history.ops, "its operations are loaded again from the store"


def test_a_client_whose_event_fails_gets_an_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    break_one(monkeypatch, scheduler, "advance")
    effects = driver.submit("one", "mine")
    (answer,) = (effect for effect in effects if isinstance(effect, Answer))
    assert (answer.request, answer.stage) == ("mine", Stage.REFUSED)
    assert "nothing was done" in answer.detail
    assert not any(isinstance(effect, Save | Run) for effect in effects)


def test_a_tick_that_fails_for_one_resource_works_for_the_others(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_one(monkeypatch, scheduler, "advance")
    driver.site._residency.active |= {"one", "two"}
    effects = driver.step(Tick())
    assert [e.resource for e in effects if isinstance(e, Fault)] == ["one"]
    assert "two" in driver.site.replicas
    assert "one" not in driver.site.replicas


def test_a_resource_that_fails_again_is_loaded_ever_more_rarely(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_one(monkeypatch, scheduler, "advance")
    driver.site._residency.active.add("one")
    faults = 0
    for _ in range(1_000):
        driver.now_ms += 99
        faults += sum(isinstance(effect, Fault) for effect in driver.step(Tick()))
    assert 5 < faults < 20, "100 seconds: after 0.2 s, 0.4 s, … 30 s"


def test_a_run_that_is_under_way_goes_on_and_is_not_taken_for_a_crash(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = (effect for effect in driver.submit("one", "mine") if isinstance(effect, Run))
    with monkeypatch.context() as planted:
        break_one(planted, exchange, "take")
        driver.step(Received("b", Message("one", "1")))
    effects = driver.step(Ran("one", run.n, (Outcome(Result.OK, "done"),)))
    (answer,) = (e for e in effects if isinstance(e, Answer) and e.stage is Stage.DECIDED)
    assert (answer.request, answer.output) == ("mine", "done")
    assert driver.site.replicas["one"].applied.unknown is None


def test_what_cannot_be_stored_is_loaded_again(driver: Driver) -> None:
    known = dict(driver.site.replicas["one"].history.known)
    driver.site.step(Submitted("lost", "one", "inc", Command("inc")), driver.now_ms)  # its Save never becomes durable
    (fault,) = driver.step(Unstorable("one", ValueError("too large")))
    assert isinstance(fault, Fault)
    assert "one" not in driver.site.replicas
    driver.submit("one", "again")
    assert driver.site.replicas["one"].history.known == known
    assert [draft.seq for draft in driver.site.replicas["one"].drafts] == [2]
