"""What status, log, explain and dry run say, in each state that a resource can be in; sites driven by hand."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cheops.api import models
from cheops.api.models import Effect, Explanation, ResourceStatus, from_json, plain, to_json
from cheops.api.models.resources import Overall as OverallName
from cheops.api.views.dry_run import dry_run
from cheops.api.views.explain import explanation
from cheops.api.views.log import log_view, operations_page
from cheops.api.views.matrix import matrix_in_force, matrix_view
from cheops.api.views.naming import NoSuchOperationError, find, full_name
from cheops.api.views.operations import operation_view
from cheops.api.views.status import detail, resource_status, summary
from cheops.api.views.whereabouts import is_here, where_to_ask
from cheops.engine.events import Submitted
from cheops.engine.replica import Replica
from cheops.engine.status import Overall
from cheops.engine.types import Limits
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, Origin, Status
from cheops.sim.apps import COUNTER, FILE, PCOUNTER, App
from tests.engine.lab import Lab
from tests.engine.test_engine import diverged


def lab_with(app: App, sites: str = "ab", **changes: Any) -> Lab:
    lab = Lab(sites)
    lab.make("n", app, sites, **changes)
    return lab


def up(lab: Lab, site: str) -> set[str]:
    found = lab.nodes[site].site
    assert found
    return set(found.up)


def status(lab: Lab, site: str) -> ResourceStatus:
    return resource_status(lab.at(site, "n"), up(lab, site), lab.now_ms)


def explain(lab: Lab, site: str) -> Explanation:
    found = explanation(lab.at(site, "n"), up(lab, site), lab.now_ms)
    assert found.overall == status(lab, site).overall
    assert found.conclusion.startswith(found.overall)
    return found


def told(found: Explanation) -> str:
    return "\n".join(step.text for step in found.steps)


def cut_and_healed(app: App, base: str, one: str, other: str, **changes: Any) -> Lab:
    """Two operations that did not know of each other, after a common base."""
    lab = lab_with(app, **changes)
    lab.submit("a", "n", base)
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "n", one)
    lab.now_ms += 1_000
    lab.submit("b", "n", other)
    lab.heal()
    lab.run()
    return lab


def deliver_to(lab: Lab, site: str) -> None:
    """The operations that are on their way to a site; what it answers is not delivered yet."""
    for flight in [flight for flight in lab.flights if flight.peer == site and flight.message.ops]:
        lab.deliver(flight)


# -- status and explain, state by state ----------------------------------------------------------------------


def test_converged() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    found = status(lab, "b")
    assert (found.overall, found.sentence) == ("CONVERGED", "all 2 sites have applied the same")
    assert found.sites[0].digest == found.sites[1].digest != ""
    assert "so every site must have applied: a:1" in told(explain(lab, "b"))


def test_one_site_alone() -> None:
    lab = lab_with(COUNTER, "a")
    lab.submit("a", "n", "set 1")
    lab.run()
    assert status(lab, "a").sentence == "a has applied the same"


def test_converging_while_another_site_works() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.run()
    found = status(lab, "a")
    assert (found.overall, found.sites[1].pending) == ("CONVERGING", 1)
    assert found.sentence == "operations are still to be run at b (1)"
    assert "b has not dealt with a:2 yet" in told(explain(lab, "a"))
    marks = log_view(lab.at("a", "n")).lanes[1].marks
    assert [(mark.operation, mark.knows, mark.status) for mark in marks] == [
        ("a:1", True, Status.OK),
        ("a:2", True, Status.PENDING),
    ]


def test_a_first_operation_that_still_runs() -> None:
    lab = lab_with(COUNTER)
    lab.benches["a"].paused = True
    lab.submit("a", "n", "set 1")
    lab.run()
    found = status(lab, "a")
    assert (found.overall, found.sentence) == ("CONVERGING", "it is being run for the first time")
    assert "it is being run at its origin" in told(explain(lab, "a"))
    assert summary(lab.at("a", "n"), set()).sites == ("a", "b")
    assert detail(lab.at("a", "n"), set(), lab.now_ms).drafts == ("a:1",)
    assert log_view(lab.at("a", "n")).operations[0].effect is Effect.DRAFT


def test_cut_off() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    lab.now_ms += 12_000
    assert status(lab, "a").sentence == "b cannot be asked now; as far as is known, all is well"
    lab.submit("a", "n", "inc 1")
    lab.run()
    found = status(lab, "a")
    assert (found.overall, found.unreachable) == ("UNREACHABLE", ("b",))
    assert found.sites[1].as_of_s is not None
    assert found.sites[1].as_of_s >= 12
    text = told(explain(lab, "a"))
    assert "b cannot be reached; as far as is known it has not dealt with a:2 yet (as of" in text
    assert "They catch up by themselves" in explain(lab, "a").conclusion


def test_diverged_after_a_partial_error() -> None:
    lab, _ = diverged(None)
    for site in "ab":
        found = status(lab, site)
        assert found.overall == "DIVERGED"
        assert [one.operation for one in found.sites[1].failed] == ["a:2"]
        assert "no sevens here" in found.sites[1].failed[0].detail
        assert "a:2 went well at a but failed at b: no sevens here" in told(explain(lab, site))
    assert "cheops exec --force --id n" in explain(lab, "a").conclusion


def test_unknown_after_a_crash() -> None:
    lab = lab_with(COUNTER, reset=None, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.run()
    lab.crash("b")
    lab.restart("b")
    lab.run()
    for site in "ab":
        found = status(lab, site)
        assert found.overall == "DIVERGED"
        assert [one.operation for one in found.sites[1].unknown] == ["a:2"]
        assert "a:2 may have run at b, or not: the site stopped" in told(explain(lab, site))
    assert "cheops resolve n --site b --op a:2" in explain(lab, "a").conclusion
    view = operation_view(lab.at("a", "n"), find(lab.at("a", "n"), "a:2"))
    assert [reply.status for reply in view.replies] == [Status.OK, Status.UNKNOWN]


def test_unknown_at_the_origin_holds_what_comes_after_it() -> None:
    lab = lab_with(COUNTER, reset=None, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.submit("a", "n", "inc 2")
    lab.run()
    lab.crash("a")
    lab.restart("a")
    lab.run()
    text = told(explain(lab, "a"))
    assert "whether it ran is not known, so no other site has heard of it" in text
    assert "it waits behind a:2 at its origin" in text


def test_superseded_by_a_concurrent_one() -> None:
    lab = cut_and_healed(COUNTER, "set 0", "inc 13", "set 29", checkpoint=None)
    for site in "ab":
        assert status(lab, site).overall == "CONVERGED"
    lab = lab_with(COUNTER, checkpoint=None)
    lab.submit("a", "n", "set 0")
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "n", "inc 13")
    lab.submit("b", "n", "set 29")
    lab.heal()
    deliver_to(lab, "a")
    replica = lab.at("a", "n")
    view = operation_view(replica, find(replica, "a:2"))
    assert (view.effect, view.rule, view.beaten_by) == (Effect.SUPERSEDED, 4, "b:1")
    assert view.sentence == "an operation made at the same time replaces it"
    text = told(explain(lab, "a"))
    assert "without knowing of b:1" in text
    assert "superseded by b:1: an operation made at the same time replaces it (rule 4)" in text


def test_void() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "fail")
    assert "void: it failed at its origin, so it has no effect anywhere (rule 1)" in told(explain(lab, "a"))
    assert "unknown command: fail" in told(explain(lab, "a"))


def test_replayed() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    assert lab.states("n", "ab") == [("base", "one", "two")] * 2
    text = told(explain(lab, "b"))
    ran = (
        "b replayed: to have the effects in the order that counts, it began again at a base and ran a:1, a:2 "
        "and b:1, in this order"
    )
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
    text = told(explain(lab, "b"))
    assert (
        "ran a:1, a:2 and b:1, in this order; since then other operations have replaced all of that" in text
    )


def test_a_long_replay_says_how_much_it_leaves_out() -> None:
    lab = lab_with(FILE, checkpoint=None)
    for line in ("set base", "add 1", "add 2", "add 3", "add 4"):
        lab.submit("a", "n", line)
        lab.run()
    lab.partition("a", "b")
    lab.submit("a", "n", "add one")
    lab.now_ms += 1_000
    lab.submit("b", "n", "add two")
    lab.heal()
    lab.run()
    assert "ran 2 older ones, a:3, a:4, a:5, a:6 and b:1, in this order" in told(explain(lab, "b"))


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
    lab.partition("a", "b")
    lab.submit("a", "n", "add one")
    lab.now_ms += 1_000
    lab.submit("b", "n", "add two")
    lab.heal()
    lab.run()
    text = told(explain(lab, "b"))
    assert "at a base and ran a:2, a:3 and b:1, in this order" in text


def stock_sold_twice(**changes: Any) -> Lab:
    """The report's P-counter: 50 and 51 of 100, at two sites that do not reach each other."""
    return cut_and_healed(PCOUNTER, "set 100", "dec 50", "dec 51", **changes)


def test_a_refused_unit_is_told_at_every_site() -> None:
    lab = stock_sold_twice()
    assert lab.states("n", "ab") == [0, 0]
    for site in "ab":
        found = explain(lab, site)
        at_a = "b:1 failed at a as a whole, and was done there in unit steps: applied 50 units; unit 51 was refused"
        at_b = "a:2 failed at b as a whole, and was done there in unit steps: applied 49 units; unit 50 was refused"
        assert f"{at_a}: 0 is less than 1" in told(found)
        assert f"{at_b}: 0 is less than 1" in told(found)
        step = next(step for step in found.steps if step.text.startswith("b:1 failed"))
        assert (step.operation, step.site) == ("b:1", "a")
        parts = "done only in part, because a unit was refused: b:1 at a and a:2 at b"
        assert found.conclusion == f"CONVERGED: all 2 sites have applied the same; {parts}"


def test_a_refused_unit_is_past_when_something_has_replaced_it() -> None:
    lab = stock_sold_twice()
    lab.submit("a", "n", "set 7")
    lab.run()
    assert "unit" not in told(explain(lab, "b"))
    assert explain(lab, "b").conclusion == "CONVERGED: all 2 sites have applied the same"


def test_what_on_error_and_the_operator_did_is_told() -> None:
    lab, _ = diverged(Command("set 7"))
    assert "a:2 at b: handled by on_error" in told(explain(lab, "a"))
    assert "unit" not in explain(lab, "a").conclusion


def test_order_not_enforced() -> None:
    app = App("file", (), FILE.run, Matrix(), FILE.type, FILE.invent)
    lab = cut_and_healed(app, "add base", "add one", "add two", reset=None)
    assert lab.states("n", "ab") == [("base", "one", "two"), ("base", "two", "one")]
    found = status(lab, "b")
    assert (found.overall, found.order_not_enforced) == ("DIVERGED", True)
    assert "b ran a:1, b:1 and a:2 in this order, which is not the one that counts" in told(explain(lab, "b"))
    assert status(lab, "a").overall == "DIVERGED"
    assert "the same operations differently" in status(lab, "a").sentence


def test_folded_and_forgotten() -> None:
    lab = lab_with(COUNTER)
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    replica = lab.at("a", "n")
    found = log_view(replica)
    assert found.checkpoint is not None
    assert {op.effect for op in found.operations if op.seq <= found.checkpoint["a"]} <= {Effect.FOLDED}
    assert "a checkpoint holds the state up to" in told(explain(lab, "a"))
    folded = [op for op in found.operations if op.effect is Effect.FOLDED]
    assert all(reply.status is Status.OK for op in folded for reply in op.replies)
    assert status(lab, "a").overall == "CONVERGED"


def test_estranged() -> None:
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
    strangers = [op for op in log_view(lab.at("a", "n")).operations if op.effect is Effect.ESTRANGED]
    assert [op.command for op in strangers] == ["set 99"]
    assert "without knowing what all sites had settled for good (rule 10)" in told(explain(lab, "a"))
    lab.run()
    assert lab.states("n", "ab") == [3, 3]


def test_a_change_of_sites_is_silent() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.move("a", "n", "abc")
    lab.run()
    found = next(op for op in log_view(lab.at("b", "n")).operations if op.kind is Kind.SITES)
    assert (found.effect, found.sites) == (Effect.SILENT, ("a", "b", "c"))
    assert {reply.status for reply in found.replies} == {Status.OK}
    assert "'n' is at a, b and c, as a:2 says" in told(explain(lab, "c"))


def test_a_deletion_shows() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    assert not summary(lab.at("b", "n"), set()).deleted
    lab.submit("a", "n", "set 0", Kind.DELETE)
    lab.run()
    assert summary(lab.at("b", "n"), set()).deleted


def test_a_site_that_a_resource_left_says_where_it_went() -> None:
    lab = Lab("abcdefg")
    lab.make("n", COUNTER, "abcdefg")
    lab.submit("a", "n", "set 1")
    lab.run()
    assert is_here(lab.at("a", "n"))
    lab.move("a", "n", "bcdefg")
    lab.run()
    left = lab.at("a", "n")
    assert not is_here(left)
    addresses = {"b": "http://b"}
    assert where_to_ask(left, ["z"], addresses.get) == (
        "'n' has left a, which has heard nothing of it since; ask b (http://b), c, d, e, f and 1 more"
    )


def test_a_site_that_never_had_a_resource_names_others() -> None:
    nothing = Replica("n", Origin("a", "1"), lambda _hash: Matrix(), Limits())
    assert not is_here(nothing)
    said = "no resource 'n' is known at a; only the sites of a resource know of it"
    assert where_to_ask(nothing, ["b"], lambda _site: None) == f"{said}. Others to ask: b"
    assert where_to_ask(nothing, [], lambda _site: None) == f"{said}, and no other site is known here"


# -- the log ---------------------------------------------------------------------------------------------------


def test_pages_hold_everything_once() -> None:
    lab = lab_with(COUNTER, checkpoint=None)
    for number in range(7):
        lab.submit("a", "n", f"inc {number}")
        lab.run()
    replica = lab.at("b", "n")

    def pages() -> Iterator[str]:
        cursor: str | None = ""
        while cursor is not None:
            page = operations_page(replica, cursor, 3)
            assert len(page.operations) <= 3
            yield from (op.command for op in page.operations)
            cursor = page.next

    assert list(pages()) == [f"inc {number}" for number in range(7)]


def test_operations_are_found_by_both_names() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    replica = lab.at("b", "n")
    op = find(replica, "a:1")
    assert find(replica, full_name(op.id)) is op
    with pytest.raises(NoSuchOperationError, match="the newest are a:1"):
        find(replica, "a:2")


# -- the matrix ------------------------------------------------------------------------------------------------


def test_the_matrix_shows_what_follows() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "inc 1")
    lab.run()
    found = matrix_in_force(lab.at("b", "n"))
    pairs = {(pair.before, pair.after): (pair.result, pair.class_, pair.inferred) for pair in found.pairs}
    assert pairs["set", "inc"] == ("take-both-keep-order", 2, False)
    assert pairs["inc", "set"] == ("take-both-reverse-order", 2, True)
    assert (found.introduced_by, found.resource) == ("a:1", "n")
    assert found.replaces == {"set": ("inc", "set")}
    assert plain(found)["pairs"][0]["class"] == 2
    assert matrix_view(Matrix(), ["odd"]).never_mentioned == ("odd",)


# -- dry run ---------------------------------------------------------------------------------------------------


def tried(lab: Lab, site: str, line: str, **changes: Any) -> models.DryRun:
    replica = lab.at(site, "n")
    before = (list(replica.history.ops), dict(replica.history.fates), list(replica.history.effective))
    asked = Submitted("", "n", line.split(maxsplit=1)[0], Command(line), rtype="n", **changes)
    found = dry_run(replica, asked, up(lab, site), lab.now_ms)
    assert before == (list(replica.history.ops), dict(replica.history.fates), list(replica.history.effective))
    return found


def test_a_dry_run_says_what_would_be_superseded_and_does_nothing() -> None:
    lab = lab_with(COUNTER, checkpoint=None)
    for line in ("set 1", "inc 2"):
        lab.submit("a", "n", line)
        lab.run()
    found = tried(lab, "b", "set 9")
    assert [(one.operation, one.rule) for one in found.would_supersede] == [("a:1", 3), ("a:2", 3)]
    assert (found.runs_here, found.first_at, found.sites) == (("new",), "b", ("a", "b"))
    assert found.replayed == {"a": (), "b": ()}
    assert lab.states("n", "ab") == [3, 3]
    assert tried(lab, "b", "inc 9").would_supersede == ()


def test_a_dry_run_names_who_is_out_of_reach() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    assert tried(lab, "a", "inc 1").unreachable == ("b",)


def test_a_dry_run_counts_what_waits_before_it() -> None:
    lab = lab_with(COUNTER, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].paused = True
    lab.submit("a", "n", "inc 5")
    found = tried(lab, "a", "set 2")
    assert [one.operation for one in found.would_supersede] == ["a:1", "a:2"]
    assert any("1 operations wait for their first run" in note for note in found.notes)


def test_a_dry_run_foresees_what_really_happens() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    found = tried(lab, "a", "add three")
    assert (found.runs_here, found.replayed, found.order_not_enforced) == (
        ("new",),
        {"a": (), "b": ()},
        False,
    )
    brought = tried(lab, "a", "add three", matrix=COUNTER.matrix)
    assert any("another matrix" in note for note in brought.notes)


# -- models ----------------------------------------------------------------------------------------------------


def test_models_are_read_as_they_were_written() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    replica = lab.at("a", "n")
    for model in (
        status(lab, "a"),
        explain(lab, "a"),
        log_view(replica),
        matrix_in_force(replica),
        summary(replica, set()),
        detail(replica, set(), lab.now_ms),
        tried(lab, "a", "add three"),
    ):
        assert from_json(to_json(model), type(model)) == model


def test_the_names_of_the_verdicts_are_the_engine_s() -> None:
    assert set(OverallName.__args__) == {overall.value for overall in Overall}  # type: ignore[attr-defined]
