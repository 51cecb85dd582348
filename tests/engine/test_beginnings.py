"""A resource that begins at two sites, and what a seal may take of it. Security is on: the type has a policy."""

from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab
from tests.engine.thief import run


def begin_apart(lab: Lab, line: str) -> None:
    """b adds a, which is cut off; before a learns of it, a client begins the resource there. Then they meet."""
    lab.partition("a", "bc")
    lab.move("b", "n", "abc")
    lab.run()
    lab.make("n", COUNTER, "abc", checkpoint=None, policy=Policy())
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
