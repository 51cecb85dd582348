"""A tick does not repeat a step where that would do nothing (steadiness.py): the same histories with and without."""

from typing import Any

import pytest

from cheops.engine.events import Effect, Event
from cheops.engine.residency import Residency
from cheops.engine.site import Site
from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES

HISTORIES = (
    ("calm", 1),
    ("hostile", 4),
    ("moving", 4),
    ("members", 5),
    ("restored", 4),
)


def effects_of(profile: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Event, list[Effect]]]:
    """All events of a history, with their effects."""
    history: list[tuple[str, Event, list[Effect]]] = []
    step = Site.step

    def noted(site: Site, event: Event, now_ms: int) -> list[Effect]:
        effects = step(site, event, now_ms)
        history.append((site.origin, event, list(effects)))
        return effects

    with monkeypatch.context() as planted:
        planted.setattr(Site, "step", noted)
        assert not play(seed, 3, PROFILES[profile]).problems
    return history


@pytest.mark.parametrize(("profile", "seed"), HISTORIES)
def test_a_step_that_is_not_repeated_would_have_had_no_effect(
    profile: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    is_steady = Residency.is_steady

    def counted(*args: Any) -> bool:
        nonlocal asked
        asked += is_steady(*args)
        return is_steady(*args)

    monkeypatch.setattr(Residency, "is_steady", counted)
    skipping = effects_of(profile, seed, monkeypatch)
    assert asked > 50, "otherwise this tests nothing"
    monkeypatch.setattr(Residency, "is_steady", lambda _residency, _replica: False)
    assert effects_of(profile, seed, monkeypatch) == skipping
