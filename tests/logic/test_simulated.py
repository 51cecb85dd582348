"""The simulator finds a merge of texts that loses an edit, and one that differs between sites."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from cheops.engine.settings import Logic
from cheops.log.operation import Command, Operation
from cheops.sim.apps import ALL_APPS, TEXT
from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES

_MOST = 12  # histories
_calls = count()


def _loses_the_last(ops: Sequence[Operation]) -> tuple[Command, ...]:
    return _merged(ops[:-1])


def _differs(ops: Sequence[Operation]) -> tuple[Command, ...]:
    (command,) = _merged(ops)
    text = json.loads(command.line.removeprefix("write "))
    return (Command(f"write {json.dumps(text[::-1] if next(_calls) % 2 else text)}"),)


def _merged(ops: Sequence[Operation]) -> tuple[Command, ...]:
    assert TEXT.type.logic is not None
    return TEXT.type.logic(ops)


@pytest.mark.parametrize("logic", [_loses_the_last, _differs])
def test_a_wrong_merge_is_found(logic: Logic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALL_APPS, TEXT.name, replace(TEXT, type=replace(TEXT.type, logic=logic)))
    found = (play(seed, 3, PROFILES["texts"]).problems for seed in range(_MOST))
    assert any("the operations give" in str(problem) or "states differ" in str(problem) for problem in found)
