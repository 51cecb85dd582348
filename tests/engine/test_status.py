"""The contract of the engine, the life of an operation and the owners of state, as their pages say them."""

import ast
import doctest
import re

import cheops.engine
from cheops.engine import status
from cheops.engine.events import Outcome, Ran, Result
from cheops.engine.status import Phase, phase_at
from cheops.log.operation import Kind, OpId
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab
from tests.support.command import ROOT


def test_the_example_in_the_contract_runs_as_it_says() -> None:
    result = doctest.testmod(cheops.engine)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_table_of_the_life_of_an_operation_has_exactly_the_phases() -> None:
    table = re.findall(r"^    ([A-Z]+) {2,}", status.__doc__ or "", re.MULTILINE)
    assert table == [phase.name for phase in sorted(Phase)]


def phases(lab: Lab, id_: OpId, at: str = "ab") -> list[Phase | None]:
    return [phase_at(lab.at(site, "n"), id_) for site in at]


def test_an_operation_passes_through_all_phases() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].paused = lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    [draft] = lab.at("a", "n").drafts
    assert phases(lab, draft.id) == [Phase.DRAFT, None]
    lab.partition("a", "b")
    lab.resume("a")
    assert phases(lab, draft.id) == [Phase.SETTLED, None]
    lab.heal()
    lab.run()
    assert phases(lab, draft.id) == [Phase.SETTLED, Phase.DELIVERED]
    lab.resume("b")
    lab.run()
    assert phases(lab, draft.id) == [Phase.SETTLED] * 2
    while phases(lab, draft.id) != [Phase.FOLDED] * 2:  # until there are enough for a checkpoint
        assert len(lab.at("a", "n").history.ops) < 50
        lab.submit("a", "n", "inc 1")
        lab.run()


def test_what_is_superseded_is_sealed_and_pruned() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "set 2")
    lab.run()
    first, second = lab.at("a", "n").history.ops
    assert phases(lab, second) == [Phase.SETTLED] * 2
    lab.partition("a", "b")
    lab.submit("a", "n", "set 9", Kind.FORCE)
    lab.run()
    assert phases(lab, second) == [Phase.SETTLED] * 2, "b has not settled what supersedes it"
    lab.heal()
    lab.run()
    assert phases(lab, second) == [Phase.FOLDED] * 2
    assert phases(lab, first) == [Phase.SEALED] * 2, "kept without effect: it set the list of sites"


def test_an_operation_waits_as_decided_for_what_it_depends_on() -> None:
    lab = Lab("abc")
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 1")
    lab.run()
    lab.submit("b", "n", "inc 2")
    lab.run()
    later = lab.at("b", "n").history.ops[OpId(lab.at("b", "n").origin, 1)]
    replica = lab.at("c", "n")
    assert phase_at(replica, later.id) is None
    replica.inbox.hold(later)
    assert phase_at(replica, later.id) is Phase.DECIDED


def test_only_its_owner_changes_a_part_of_a_replica() -> None:
    """No module assigns to `replica.applied.agreed` and the like: it calls a method of the owner."""
    owners = {"applied", "slot", "drafts", "replies", "inbox", "outbox", "clients", "history"}
    found = []
    for path in sorted((ROOT / "src" / "cheops").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
            fields = [part for target in targets if target for part in ast.walk(target)]
            found += [
                f"{path.name}:{field.lineno} {field.value.attr}.{field.attr}"
                for field in fields
                if isinstance(field, ast.Attribute) and not isinstance(field.ctx, ast.Load)
                if isinstance(field.value, ast.Attribute) and field.value.attr in owners
                if isinstance(field.value.value, ast.Name) and field.value.value.id == "replica"
            ]
    assert found == []


def test_the_status_says_why_what_is_pending_could_not_run() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.run()
    running = lab.at("b", "n").slot.running
    assert running is not None
    lab.take("b", Ran("n", running.n, (Outcome(Result.RETRY, "no credentials"),)))
    here, there = (next(s for s in lab.status(site, "n").sites if s.site == "b") for site in "ba")
    assert (here.pending, here.retry_reason) == (1, "no credentials")
    assert (there.pending, there.retry_reason) == (1, "")  # only the site itself knows
    lab.now_ms += 60_000
    lab.resume("b")
    lab.run()
    assert next(s for s in lab.status("b", "n").sites if s.site == "b").retry_reason == ""
