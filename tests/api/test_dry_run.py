"""What a dry run says an operation would do, and that it does nothing; sites driven by hand."""

from cheops.sim.apps import COUNTER, FILE
from tests.api.views_lab import cut_and_healed, lab_with, status, try_out


def test_a_dry_run_says_what_would_be_superseded_and_does_nothing() -> None:
    lab = lab_with(COUNTER, checkpoint=None)
    for line in ("set 1", "inc 2"):
        lab.submit("a", "n", line)
        lab.run()
    found = try_out(lab, "b", "set 9")
    assert [(one.operation, one.rule) for one in found.would_supersede] == [("a:1", 3), ("a:2", 3)]
    assert (found.runs_here, found.first_at, found.sites) == (("new",), "b", ("a", "b"))
    assert found.replayed == {"a": (), "b": ()}
    assert lab.states("n", "ab") == [3, 3]
    assert try_out(lab, "b", "inc 9").would_supersede == ()


def test_sites_agree_after_a_dry_run() -> None:
    """A dry run must not count in the sums of contents that sites compare."""
    lab = lab_with(COUNTER, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    before = lab.at("b", "n").history.summary()
    try_out(lab, "b", "set 9")
    try_out(lab, "b", "inc 9", matrix=FILE.matrix)
    lab.submit("a", "n", "inc 2")
    lab.run()
    assert lab.at("b", "n").history.summary() == lab.at("a", "n").history.summary() != before
    assert status(lab, "b").overall == "CONVERGED"


def test_a_dry_run_names_who_is_out_of_reach() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    assert try_out(lab, "a", "inc 1").unreachable == ("b",)


def test_a_dry_run_counts_what_waits_before_it() -> None:
    lab = lab_with(COUNTER, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["a"].paused = True
    lab.submit("a", "n", "inc 5")
    found = try_out(lab, "a", "set 2")
    assert [one.operation for one in found.would_supersede] == ["a:1", "a:2"]
    assert any("1 operations are waiting for their first run" in note for note in found.notes)


def test_a_dry_run_foresees_what_really_happens() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    found = try_out(lab, "a", "add three")
    assert (found.runs_here, found.replayed, found.order_not_enforced) == (
        ("new",),
        {"a": (), "b": ()},
        False,
    )
    brought = try_out(lab, "a", "add three", matrix=COUNTER.matrix)
    assert any("another matrix" in note for note in brought.notes)


def test_a_dry_run_leaves_what_sites_compare_as_it_was() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    before = [lab.at(site, "n").history.summary() for site in "ab"]
    try_out(lab, "a", "add three")
    assert [lab.at(site, "n").history.summary() for site in "ab"] == before
