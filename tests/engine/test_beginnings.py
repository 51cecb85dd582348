"""A resource that begins at two sites, and what a seal may take of it. Security is on: the type has a policy."""

from dataclasses import replace

from cheops.engine.events import Queried
from cheops.engine.status import Overall
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER, STORE, App
from tests.engine.lab import Lab
from tests.engine.thief import run, run_on


def begin_apart(lab: Lab, line: str, app: App = COUNTER) -> None:
    """b adds a, which is cut off; before a learns of it, a client begins the resource there. Then they meet."""
    lab.partition("a", "bc")
    lab.move("b", "n", "abc")
    lab.run()
    lab.make("n", app, "abc", checkpoint=None, policy=Policy())
    lab.submit("a", "n", line)
    lab.run()
    lab.heal()


def test_a_site_that_began_the_resource_before_it_learned_that_it_was_added_takes_the_others() -> None:
    """The first list of the others is not known to it, but they have changed it to the same one since."""
    lab = Lab("abc", seal_after=1_000)
    lab.make("n", COUNTER, "bc", checkpoint=None, policy=Policy())
    lab.submit("b", "n", "set 1")
    lab.run()
    begin_apart(lab, "inc 5")
    run(lab, 3)
    assert lab.at("a", "n").history.known == lab.at("b", "n").history.known == lab.at("c", "n").history.known
    assert lab.states("n", "abc") == [1, 1, 1]  # the set replaces the concurrent inc
    assert not lab.at("a", "n").inbox.refused


def test_a_site_gives_way_to_a_seal_that_all_others_signed() -> None:
    """It began the resource while the others, which had added it, had sealed theirs. It reports what it loses."""
    lab = Lab("abc", seal_after=1)
    lab.make("n", COUNTER, "bc", checkpoint=None, policy=Policy())
    for number in range(6):
        lab.submit("b", "n", f"set {number}")
        lab.run()
    run(lab, 3)
    assert lab.at("b", "n").history.seals
    begin_apart(lab, "set 50")
    run(lab, 4)
    assert lab.states("n", "abc") == [5, 5, 5]
    assert any("a notifies" in line and "estranged" in line for line in lab.output)


def test_a_site_gives_way_if_those_that_did_not_sign_a_seal_have_taken_it() -> None:
    """It began the resource with a list that also names d, which knows nothing of either."""
    lab = Lab("abcd", seal_after=1)
    lab.make("n", COUNTER, "bc", checkpoint=None, policy=Policy())
    for number in range(6):
        lab.submit("b", "n", f"set {number}")
        run(lab, 1)
    lab.partition("a", "bcd")
    lab.move("b", "n", "bcd")
    run(lab, 2)
    lab.make("n", COUNTER, "abcd", checkpoint=None, policy=Policy())
    lab.submit("a", "n", "set 50")
    run(lab, 1)
    lab.heal()
    run_on(lab, 20)
    lab.move("b", "n", "abcd")
    run_on(lab, 20)
    assert lab.states("n", "abcd") == [5, 5, 5, 5]
    assert any("a notifies" in line and "estranged" in line for line in lab.output)


def test_a_site_that_cannot_undo_what_lost_its_effect_says_so_after_a_restart_too() -> None:
    """All sites forget the operation in time. But the application of that site still holds what it did."""
    rules = Matrix([Entry("b", "b", Result.TAKE_ONE), Entry("a", "b", Result.TAKE_BOTH)])
    app = replace(STORE, matrix=rules, run=lambda state, line: STORE.run(state, f"put {line}"))
    lab = Lab("abc", seal_after=1)
    lab.make("n", app, "bc", policy=Policy())
    for number in range(6):
        lab.submit("b", "n", f"b {number}")
        run(lab, 1)
    begin_apart(lab, "a 1", app)
    run(lab, 10)
    assert not lab.at("a", "n").history.orphans, "it is forgotten"
    lab.crash("a")
    lab.restart("a")
    for site in "abc":
        lab.take(site, Queried("n"))
    lab.run()
    assert lab.states("n", "ab") == [(("a", "1"), ("b", "5")), (("b", "5"),)]
    assert [lab.status(site, "n").overall for site in "abc"] == [Overall.DIVERGED] * 3


def test_two_halves_that_cannot_outvote_each_other_all_say_that_they_differ() -> None:
    """b and c have sealed the resource, and add a and d, which have begun another one of its name."""
    lab = Lab("abcd", seal_after=1)
    lab.make("n", COUNTER, "bc", checkpoint=None, policy=Policy())
    for number in range(6):
        lab.submit("b", "n", f"set {number}")
        run(lab, 1)
    lab.partition("ad", "bc")
    lab.move("b", "n", "abcd")
    run(lab, 2)
    lab.make("n", COUNTER, "abcd", checkpoint=None, policy=Policy())
    lab.submit("a", "n", "set 50")
    run(lab, 1)
    lab.submit("d", "n", "inc 1")
    run(lab, 1)
    lab.heal()
    run_on(lab, 20)
    assert lab.states("n", "abcd") == [51, 5, 5, 51]
    for site in "abcd":
        assert lab.status(site, "n").overall is Overall.DIVERGED, site
    assert "a and d refuse operations that b has" in lab.status("b", "n").drift
