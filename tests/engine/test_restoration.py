"""A replica that the driver restores before the step: it is used only if the step would restore the same."""

import pytest

from cheops.engine import ledger, restoration
from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import (
    Effect,
    Load,
    Loaded,
    Outcome,
    PeerUp,
    Queried,
    Ran,
    Recovered,
    Result,
    Run,
    Save,
    Submitted,
    Tick,
)
from cheops.engine.replica import Replica
from cheops.engine.restoration import restored
from cheops.engine.settings import Limits, Settings
from cheops.engine.site import Site
from cheops.log.causality import Clock
from cheops.log.operation import Command, Origin
from cheops.sim.apps import COUNTER

HERE = Origin("a", "1")


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoration, "MANY", 3)


def _documents() -> tuple[Document, ...]:
    """Of a resource with three operations."""
    site, saved = Site(HERE, Settings()), dict[Key, Document]()
    events: list[object] = [
        Submitted(f"r{n}", "n", "inc", Command(f"inc {n}"), sites=("a",), matrix=COUNTER.matrix) for n in range(3)
    ]
    while events:
        for effect in site.step(events.pop(0), 1_000):  # type: ignore[arg-type]
            match effect:
                case Load():
                    events.insert(0, Loaded(effect.resource, ()))
                case Run():
                    events.insert(0, Ran(effect.resource, effect.n, (Outcome(Result.OK),) * len(effect.steps)))
                case Save():
                    saved |= {key_of(one): one for one in effect.documents}
    return tuple(one for key, one in saved.items() if len(key) > 1 and key[0] != "matrix")


def _site() -> Site:
    site = Site(HERE, Settings())
    site.matrices |= {COUNTER.matrix.hash: COUNTER.matrix}
    site.step(Queried("n"), 2_000)
    return site


def _loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources that are restored from now on."""
    found: list[str] = []
    load = ledger.load

    def counted(replica: Replica, documents: tuple[Document, ...]) -> object:
        found.append(replica.resource)
        return load(replica, documents)

    monkeypatch.setattr(ledger, "load", counted)
    return found


def test_a_step_uses_what_the_driver_has_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = _documents()
    plain, site = _site(), _site()
    effects = plain.step(Loaded("n", documents), 2_000)
    event = restored(site, Loaded("n", documents))
    assert event.restored
    loads = _loads(monkeypatch)
    assert site.step(event, 2_000) == effects
    assert not loads
    assert site.replicas["n"] is event.restored.replica
    one, other = plain.replicas["n"], site.replicas["n"]
    assert (one.revision, one.applied.entries, one.state) == (other.revision, other.applied.entries, other.state)


def test_a_step_restores_again_what_relied_on_another_store_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site()
    event = restored(site, Loaded("n", _documents()))
    site.step(PeerUp("b", "new"), 2_000)
    loads = _loads(monkeypatch)
    site.step(event, 2_000)
    assert loads == ["n"]


def test_a_failure_is_left_to_the_step() -> None:
    site = _site()
    site.matrices.clear()
    event = Loaded("n", _documents())
    assert restored(site, event) is event


def test_few_documents_are_left_to_the_step() -> None:
    event = Loaded("n", _documents()[:2])
    assert restored(_site(), event) is event


def test_the_backlog_waits_for_the_loads_under_way() -> None:
    """What clients want would otherwise wait behind all that is unsynced after a start."""
    site = Site(HERE, Settings(limits=Limits(wake=4)))
    names = tuple(f"r{number}" for number in range(10))
    assert _loaded_names(site.step(Recovered(Clock(), (), names), 1_000)) == ["r0", "r1", "r2", "r3"]
    assert _loaded_names(site.step(Tick(), 1_100)) == []
    assert _loaded_names(site.step(Queried("wanted"), 1_100)) == ["wanted"]
    for name in ("wanted", "r0", "r1"):
        site.step(Loaded(name, ()), 1_100)
    assert _loaded_names(site.step(Tick(), 1_200)) == ["r4", "r5"]


def _loaded_names(effects: list[Effect]) -> list[str]:
    return [effect.resource for effect in effects if isinstance(effect, Load)]
