"""What explain says of what became of an operation: superseded, void, replayed, in part, folded, estranged."""

from dataclasses import replace
from typing import Any

from cheops.api.models.operations import Effect
from cheops.api.views.log import log_view
from cheops.api.views.operations import find, operation_view
from cheops.engine.events import SitesRemoved
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Status
from cheops.sim.apps import COUNTER, FILE, PCOUNTER
from tests.api.views_lab import cut_and_healed, deliver_to, explain, lab_with, status, text_of
from tests.engine.lab import Lab
from tests.engine.picky import diverged


def test_superseded_by_a_concurrent_one() -> None:
    lab = cut_and_healed(COUNTER, "set 0", "inc 13", "set 29", checkpoint=None)
    for site in "ab":
        assert status(lab, site).overall == "CONVERGED"
    lab = lab_with(COUNTER, checkpoint=None)
    lab.submit("a", "n", "set 0")
    lab.run()
    lab.write_apart("n", "inc 13", "set 29")
    lab.heal()
    deliver_to(lab, "a")
    replica = lab.at("a", "n")
    view = operation_view(replica, find(replica, "a:2"))
    assert (view.effect, view.rule, view.beaten_by) == (Effect.SUPERSEDED, 4, "b:1")
    assert view.sentence == "a concurrent operation replaces it"
    text = text_of(explain(lab, "a"))
    assert "concurrent with b:1" in text
    assert "superseded by b:1: a concurrent operation replaces it (rule 4)" in text


def test_void() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "fail")
    assert "void: it failed at its origin, so it has no effect anywhere (rule 1)" in text_of(explain(lab, "a"))
    assert "unknown command: fail" in text_of(explain(lab, "a"))


def test_replayed() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    assert lab.states("n", "ab") == [("base", "one", "two")] * 2
    text = text_of(explain(lab, "b"))
    ran = "b replayed to restore the order: it started again from a base and ran a:1, a:2 and b:1, in this order"
    assert ran in text.splitlines()
    assert "a replayed" not in text
    view = operation_view(lab.at("b", "n"), find(lab.at("b", "n"), "a:2"))
    assert [(reply.site, reply.status, reply.replayed) for reply in view.replies] == [
        ("a", Status.OK, False),
        ("b", Status.OK, True),
    ]


def test_a_replay_is_told_as_it_was_also_when_others_have_replaced_what_it_ran() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    lab.submit("a", "n", "set new")
    deliver_to(lab, "b")
    lab.submit("a", "n", "add more")
    lab.run()
    text = text_of(explain(lab, "b"))
    assert "ran a:1, a:2 and b:1, in this order; since then other operations have replaced all of these" in text


def test_a_long_replay_says_how_much_it_leaves_out() -> None:
    lab = lab_with(FILE, checkpoint=None)
    for line in ("set base", "add 1", "add 2", "add 3", "add 4"):
        lab.submit("a", "n", line)
        lab.run()
    lab.write_apart("n", "add one", "add two")
    lab.heal()
    lab.run()
    assert "ran 2 older ones, a:3, a:4, a:5, a:6 and b:1, in this order" in text_of(explain(lab, "b"))


def test_what_a_replay_did_not_wipe_it_did_not_run() -> None:
    """Keys that have nothing to do with each other: only those that the base wipes are run again."""
    entries = [
        Entry("set", "set", Result.TAKE_ONE),
        Entry("set", "add", Result.KEEP_ORDER),
        *(Entry(other, "note", Result.TAKE_BOTH) for other in ("set", "add", "note")),
    ]
    app = replace(FILE, matrix=Matrix(entries), run=lambda state, line: (*state, line))
    lab = lab_with(app, checkpoint=None, reset=None)
    lab.submit("a", "n", "note beside")
    lab.run()
    lab.submit("a", "n", "set base")
    lab.run()
    lab.write_apart("n", "add one", "add two")
    lab.heal()
    lab.run()
    text = text_of(explain(lab, "b"))
    assert "from a base and ran a:2, a:3 and b:1, in this order" in text


def stock_sold_twice(**changes: Any) -> Lab:
    """The report's P-counter: 50 and 51 of 100, at two sites that do not reach each other."""
    return cut_and_healed(PCOUNTER, "set 100", "dec 50", "dec 51", **changes)


def test_a_refused_unit_is_told_at_every_site() -> None:
    lab = stock_sold_twice()
    assert lab.states("n", "ab") == [0, 0]
    for site in "ab":
        found = explain(lab, site)
        at_a = "b:1 failed at a as a whole, and was applied there in unit steps: applied 50 units; unit 51 was refused"
        at_b = "a:2 failed at b as a whole, and was applied there in unit steps: applied 49 units; unit 50 was refused"
        assert f"{at_a}: 0 is less than 1" in text_of(found)
        assert f"{at_b}: 0 is less than 1" in text_of(found)
        step = next(step for step in found.steps if step.text.startswith("b:1 failed"))
        assert (step.operation, step.site) == ("b:1", "a")
        parts = "only partly applied, because a unit was refused: b:1 at a and a:2 at b"
        assert found.conclusion == f"CONVERGED: both sites are in sync; {parts}"


def test_a_refused_unit_is_past_when_something_has_replaced_it() -> None:
    lab = stock_sold_twice()
    lab.submit("a", "n", "set 7")
    lab.run()
    assert "unit" not in text_of(explain(lab, "b"))
    assert explain(lab, "b").conclusion == "CONVERGED: both sites are in sync"


def test_what_on_error_and_the_operator_did_is_told() -> None:
    lab, _ = diverged(Command("set 7"))
    assert "a:2 at b: handled by on_error" in text_of(explain(lab, "a"))
    assert "unit" not in explain(lab, "a").conclusion


def test_folded_and_forgotten() -> None:
    lab = lab_with(COUNTER)
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    replica = lab.at("a", "n")
    found = log_view(replica)
    assert found.checkpoint is not None
    assert {op.effect for op in found.operations if op.seq <= found.checkpoint["a"]} <= {Effect.FOLDED}
    assert "a checkpoint contains the state up to" in text_of(explain(lab, "a"))
    folded = [op for op in found.operations if op.effect is Effect.FOLDED]
    assert all(reply.status is Status.OK for op in folded for reply in op.replies)
    assert status(lab, "a").overall == "CONVERGED"


def test_orphaned() -> None:
    """Made at a site that lost its disk, after the others had sealed the past."""
    lab = lab_with(COUNTER, "ab", checkpoint=None)
    for line in ("set 1", "set 2", "set 3"):
        lab.submit("a", "n", line)
        lab.run()
    lab.partition("a", "b")
    lab.lose_disk("b")
    lab.restart("b")
    lab.submit("b", "n", "set 99")
    lab.heal()
    deliver_to(lab, "a")
    orphans = [op for op in log_view(lab.at("a", "n")).operations if op.effect is Effect.ORPHANED]
    assert [op.command for op in orphans] == ["set 99"]
    text = text_of(explain(lab, "a"))
    assert "without knowledge of what all sites had already settled for good" in text
    assert "rule 10" not in text  # only the eight rules have numbers that people see
    lab.run()
    assert lab.states("n", "ab") == [3, 3]


def test_a_resource_of_which_all_sites_were_removed_from_the_mesh() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.move("a", "n", "b")
    lab.run()
    lab.take("a", SitesRemoved(frozenset("b")))
    assert "'n' is at no site of the mesh: b was removed from it" in text_of(explain(lab, "a"))
