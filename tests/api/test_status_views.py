"""What status and explain say of a resource, in each state that it can be in; sites driven by hand."""

from cheops.api.models.operations import Effect
from cheops.api.views.log import log_view
from cheops.api.views.operations import find, operation_view
from cheops.api.views.status import detail, is_here, not_here_text, summary
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.matrix import Matrix
from cheops.log.operation import Kind, Origin, Status
from cheops.sim.apps import COUNTER, FILE, App
from tests.api.views_lab import cut_and_healed, explain, lab_with, status, text_of
from tests.engine.lab import Lab
from tests.engine.picky import diverged


def test_converged() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    found = status(lab, "b")
    assert (found.overall, found.sentence) == ("CONVERGED", "both sites are in sync")
    assert found.sites[0].digest == found.sites[1].digest != ""
    assert "every site must therefore have applied: a:1" in text_of(explain(lab, "b"))


def test_one_site_alone() -> None:
    lab = lab_with(COUNTER, "a")
    lab.submit("a", "n", "set 1")
    lab.run()
    assert status(lab, "a").sentence == "a, its only site, is up to date"


def test_converging_while_another_site_works() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.run()
    found = status(lab, "a")
    assert (found.overall, found.sites[1].pending) == ("CONVERGING", 1)
    assert found.sentence == "operations are pending at b (1)"
    assert "b still has to process a:2" in text_of(explain(lab, "a"))
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
    assert (found.overall, found.sentence) == ("CONVERGING", "its first operation is running")
    assert "running at its origin" in text_of(explain(lab, "a"))
    assert summary(lab.at("a", "n"), set()).sites == ("a", "b")
    assert detail(lab.at("a", "n"), set(), lab.now_ms).drafts == ("a:1",)
    assert log_view(lab.at("a", "n")).operations[0].effect is Effect.DRAFT


def test_cut_off() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    lab.now_ms += 12_000
    assert status(lab, "a").sentence == "b is unreachable (last report 22 s ago); no operation was pending"
    lab.submit("a", "n", "inc 1")
    lab.run()
    found = status(lab, "a")
    assert (found.overall, found.unreachable) == ("UNREACHABLE", ("b",))
    assert found.sites[1].as_of_s is not None
    assert found.sites[1].as_of_s >= 12
    text = text_of(explain(lab, "a"))
    assert "b is unreachable; by its last report it still had to process a:2 (as of" in text
    assert "Unreachable sites catch up automatically" in explain(lab, "a").conclusion


def test_diverged_after_a_partial_error() -> None:
    lab, _ = diverged(None)
    for site in "ab":
        found = status(lab, site)
        assert found.overall == "DIVERGED"
        assert [one.operation for one in found.sites[1].failed] == ["a:2"]
        assert "no sevens here" in found.sites[1].failed[0].detail
        assert "a:2 succeeded at a but failed at b: no sevens here" in text_of(explain(lab, site))
    assert "cheops repair n" in explain(lab, "a").conclusion


def test_a_refusal_has_its_own_advice() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "n", "inc 1")
    lab.run()
    lab.at("a", "n").peer("b").refuses = True
    conclusion = explain(lab, "a").conclusion
    assert conclusion.startswith("DIVERGED: b refuses operations that a has: 'cheops status' there says which, and why")
    assert "cheops repair" not in conclusion


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
        assert "it is unknown whether a:2 ran at b: the site stopped" in text_of(explain(lab, site))
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
    text = text_of(explain(lab, "a"))
    assert "it is unknown whether it ran, so it was not sent to other sites" in text
    assert "waiting behind a:2 at its origin" in text


def test_order_not_enforced() -> None:
    app = App("file", (), FILE.run, Matrix(), FILE.type, FILE.invent)
    lab = cut_and_healed(app, "add base", "add one", "add two", reset=None)
    assert lab.states("n", "ab") == [("base", "one", "two"), ("base", "two", "one")]
    found = status(lab, "b")
    assert (found.overall, found.order_not_enforced) == ("DIVERGED", True)
    assert "b ran a:1, b:1 and a:2 in this order, which is not the agreed one" in text_of(explain(lab, "b"))
    assert status(lab, "a").overall == "DIVERGED"
    assert "the same operations but differ" in status(lab, "a").sentence


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
    assert "'n' is at a, b and c, set by a:2" in text_of(explain(lab, "c"))


def test_a_deletion_shows() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    assert not summary(lab.at("b", "n"), set()).deleted
    lab.submit("a", "n", "set 0", Kind.DELETE)
    lab.run()
    assert summary(lab.at("b", "n"), set()).deleted
    assert status(lab, "b").sentence == "deleted; both sites are in sync"
    assert explain(lab, "b").conclusion == "CONVERGED: deleted; both sites are in sync"


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
    assert not_here_text(left, ["z"], addresses.get) == (
        "'n' is no longer at a, which gets no news of it; ask b (http://b), c, d, e, f and 1 more"
    )


def test_a_site_that_never_had_a_resource_names_others() -> None:
    nothing = Replica("n", Origin("a", "1"), lambda _hash: Matrix(), Limits())
    assert not is_here(nothing)
    said = "no resource 'n' is known at a; only the sites of a resource know it"
    assert not_here_text(nothing, ["b"], lambda _site: None) == f"{said}. Other sites: b"
    assert not_here_text(nothing, [], lambda _site: None) == f"{said}, and no other site is known here"
