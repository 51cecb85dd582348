"""Which sites have a resource: newcomers, leavers, the dead, the reborn, and two of one name."""

from dataclasses import replace

import pytest

from cheops.engine import tombstones
from cheops.engine.admission import refusal
from cheops.engine.documents import Message
from cheops.engine.events import SitesRemoved, Submitted
from cheops.engine.progress import PeerProgress
from cheops.engine.settings import Limits
from cheops.engine.status import Overall
from cheops.log.causality import covers
from cheops.log.operation import Command, Kind, OpId, Origin
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that has left a resource counts what it once heard of the others as what they have now."""
    monkeypatch.setattr(tombstones, "is_undecided", lambda *_: False)


def test_a_newcomer_gets_what_others_have_not_forgotten() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab", checkpoint=None)
    for line in ("set 1", "inc 2", "set 10", "inc 5", "inc 6"):
        lab.submit("a", "n", line)
        lab.run()
    assert OpId(lab.nodes["a"].origin, 2) not in lab.at("a", "n").history.ops, "what was superseded is forgotten"
    lab.move("b", "n", "abc")
    lab.run()
    assert lab.states("n", "abc") == [21, 21, 21]
    assert lab.status("c", "n").overall is Overall.CONVERGED


def test_a_newcomer_gets_a_checkpoint() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab")
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    assert lab.at("a", "n").applied.base is not None
    assert len(lab.at("a", "n").history.ops) < 8
    lab.move("a", "n", "abc")
    lab.run()
    lab.submit("c", "n", "inc 100")
    lab.run()
    assert lab.states("n", "abc") == [112, 112, 112]


@pytest.mark.usefixtures("trusting")
def test_a_site_that_left_deletes_also_the_copy_of_a_resource_that_gives_way() -> None:
    """d, cut off, begins the resource anew and gives it to c, which had left and deleted its copy."""
    lab = Lab("abcd")
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.take("a", Submitted("leave", "n", "sites", Command("set 0"), Kind.SITES, "n", ("a", "b")))
    lab.run()
    assert lab.states("n", "abc") == [1, 1, 0]
    lab.partition("ab", "cd")
    for number in range(2, 7):
        lab.submit("b", "n", f"set {number}")
        lab.run()
    assert lab.at("b", "n").history.seals
    lab.resources["n"] = replace(lab.resources["n"], sites=tuple("abcd"))
    lab.submit("d", "n", "set 50")
    lab.run()
    assert lab.states("n", "cd") == [50, 50]
    lab.heal()
    for _ in range(5):
        lab.run()
        lab.pass_time(1_000)
    assert lab.at("c", "n").history.site_list == ("a", "b")
    assert lab.states("n", "abc") == [6, 6, 0]


@pytest.mark.usefixtures("trusting")
def test_a_site_that_left_learns_that_a_failed_beginning_gives_way() -> None:
    """d, cut off, begins the resource anew with c, which had left it. The command fails, and its list of sites counts
    there until c has the seal."""
    lab = Lab("abcd")
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.move("a", "n", "ab")
    lab.run()
    lab.partition("ab", "cd")
    for number in range(2, 7):
        lab.submit("b", "n", f"set {number}")
        lab.run()
    lab.resources["n"] = replace(lab.resources["n"], sites=tuple("abcd"))
    lab.submit("d", "n", "fail")
    lab.run()
    assert lab.at("c", "n").history.site_list == tuple("abcd")
    lab.heal()
    for _ in range(5):
        lab.run()
        lab.pass_time(1_000)
    assert [lab.at(site, "n").history.site_list for site in "abcd"] == [("a", "b")] * 4


def test_a_site_that_leaves_stops_and_can_come_back() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.move("a", "n", "ab")
    lab.run()
    lab.submit("b", "n", "set 2")
    lab.run()
    assert lab.states("n", "abc") == [2, 2, 1]
    lab.submit("c", "n", "inc 1")
    assert "not involved; the resource is at a, b" in lab.output[-1]
    for _ in range(12):
        lab.submit("a", "n", "inc 1")
        lab.run()
    lab.move("b", "n", "abc")
    lab.run()
    assert lab.states("n", "abc") == [14, 14, 14]


def test_a_site_reborn_with_an_empty_disk_gets_everything_again() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("c", "n", "inc 4")
    lab.run()
    lab.lose_disk("c")
    lab.restart("c")
    lab.run()
    assert lab.states("n", "abc") == [5, 5, 5]
    lab.submit("c", "n", "inc 1")
    lab.run()
    assert lab.states("n", "abc") == [6, 6, 6]


def test_a_leaver_that_is_still_running_something_is_waited_for() -> None:
    """What it made without knowing that it left must not meet a checkpoint that was made without it."""
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["c"].paused = True
    lab.submit("c", "n", "inc 5")
    lab.submit("a", "n", "set 3")
    lab.run()
    lab.move("a", "n", "ab")
    lab.run()
    for _ in range(9):
        lab.submit("a", "n", "inc 1")
        lab.run()
    lab.resume("c")
    lab.run()
    assert len(set(lab.states("n", "ab"))) == 1
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}


def test_a_site_that_is_gone_for_good_does_not_count_until_it_is_back() -> None:
    """It stays on the list, which only an operation changes."""
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 5")
    lab.run()
    assert lab.status("a", "n").overall is Overall.UNREACHABLE
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset("c")))
    lab.submit("b", "n", "inc 7")
    lab.run()
    for site in "ab":
        found = lab.status(site, "n")
        assert (found.overall, [one.site for one in found.sites]) == (Overall.CONVERGED, ["a", "b"])
        assert lab.at(site, "n").history.site_list == ("a", "b", "c")
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset()))
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [13, 13, 13]
    assert {lab.status(site, "n").overall for site in "abc"} == {Overall.CONVERGED}


def test_a_site_that_was_gone_takes_the_checkpoint_that_the_other_made_alone() -> None:
    """It holds what the site made itself, and nobody else has signed it."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("b", "n", "inc 1")
    lab.run()
    lab.partition("a", "b")
    lab.take("a", SitesRemoved(frozenset("b")))
    for _ in range(12):
        lab.submit("a", "n", "inc 2")
        lab.run()
    assert lab.at("a", "n").history.folded, "a made a checkpoint alone"
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset(), frozenset("b")))
    lab.heal()
    lab.run()
    assert lab.states("n", "ab") == [25, 25]
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}


def test_a_site_that_takes_a_checkpoint_still_counts_as_forgotten_what_it_has_forgotten_alone() -> None:
    """Each of the two was gone for the other. What b forgets, a has got before."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("b", "n", "inc 1")
    lab.run()
    lab.partition("a", "b")
    lab.take("a", SitesRemoved(frozenset("b")))
    for _ in range(12):
        lab.submit("a", "n", "inc 2")
        lab.run()
    assert lab.at("a", "n").history.folded, "a made a checkpoint alone"
    lab.take("a", SitesRemoved(frozenset(), frozenset("b")))
    lab.set_cut({("a", "b")})
    for line in ("inc 1", "inc 1"):
        lab.submit("b", "n", line)
        lab.run()
    assert lab.at("a", "n").history.known[lab.nodes["b"].origin] == 3
    lab.partition("a", "b")
    lab.take("b", SitesRemoved(frozenset("a")))
    for line in ("set 30", "inc 3"):
        lab.submit("b", "n", line)
        lab.run()
    floor = dict(lab.at("b", "n").history.floor)
    assert floor, "b has forgotten something alone"
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset(), frozenset("ab")))
    lab.heal()
    lab.run()
    assert covers(lab.at("b", "n").history.floor, floor)
    assert len(set(lab.states("n", "ab"))) == 1
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}


def test_two_sites_that_both_made_a_checkpoint_alone_do_not_say_that_they_are_equal() -> None:
    """Nobody has what the one holds and the other does not. An operator must choose."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("b", "n", "inc 1")
    lab.run()
    lab.partition("a", "b")
    for site, other in ("ab", "ba"):
        lab.take(site, SitesRemoved(frozenset(other)))
        for _ in range(12):
            lab.submit(site, "n", "inc 2" if site == "a" else "inc 100")
            lab.run()
        assert lab.at(site, "n").history.folded
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset(), frozenset("ab")))
    lab.heal()
    lab.run()
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.DIVERGED}


def test_what_is_at_a_gone_site_can_be_named_with_it_or_without() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.take("a", SitesRemoved(frozenset("c")))
    for sites, is_right in (("ab", True), ("abc", True), ("a", False)):
        event = Submitted("r", "n", "inc", Command("inc 1"), sites=tuple(sites))
        assert (refusal(lab.at("a", "n"), event) is None) is is_right


def test_a_dead_site_that_left_is_waited_for_until_it_is_said_to_be_gone() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "abc")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("ab", "c")
    lab.submit("c", "n", "inc 100")  # which nobody else hears of
    lab.move("a", "n", "ab")
    lab.run()
    for number in range(5):
        lab.submit("a", "n", f"set {number}")
        lab.run()
    kept = len(lab.at("a", "n").history.ops)
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset("c")))
    lab.run()
    lab.submit("a", "n", "set 7")
    lab.run()
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}
    assert len(lab.at("a", "n").history.ops) < kept, "what it kept others from forgetting is forgotten"
    # It is back after all, and has to give way.
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset()))
    lab.heal()
    lab.run()
    assert lab.states("n", "ab") == [7, 7]
    assert lab.at("c", "n").history.site_list == ("a", "b")
    assert {lab.status(site, "n").overall for site in "ab"} == {Overall.CONVERGED}


def test_a_reborn_site_is_recognised_also_after_our_own_restart() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 7")
    lab.run()
    lab.crash("a")
    lab.lose_disk("b")
    lab.restart("a")
    lab.restart("b")
    lab.run()
    assert lab.states("n", "ab") == [7, 7]


def test_of_two_resources_of_one_name_the_one_sealed_first_stands() -> None:
    lab = Lab("abcd")
    for sites, step in (("ab", 1), ("cd", 100)):
        lab.make("n", COUNTER, sites)
        for _ in range(10):
            lab.submit(sites[0], "n", f"inc {step}")
            lab.run()
    assert lab.states("n", "abcd") == [10, 10, 1000, 1000]
    lab.move("d", "n", "bcd")  # the two meet at b
    lab.run()
    assert lab.states("n", "ab") == [10, 10]
    lab.move("a", "n", "abcd")
    lab.run()
    assert lab.states("n", "abcd") == [10, 10, 10, 10]
    assert all(lab.status(site, "n").overall is Overall.CONVERGED for site in "abcd")
    for site in "abcd":
        lab.crash(site)
        lab.restart(site)
    lab.submit("c", "n", "inc 5")
    lab.run()
    assert lab.states("n", "abcd") == [15, 15, 15, 15]


def test_a_peer_that_refuses_a_batch_is_not_sent_it_again_at_once() -> None:
    """It acknowledges each batch without progress: then the next attempt waits for its time."""
    limits = Limits()
    view = PeerProgress(limits)
    view.observe(Message("n", "1"), 0)
    view.note_batch({Origin("a", "1"): 1}, {}, 0, unfinished=True)
    view.observe(Message("n", "1"), 1)
    assert not view.resend.is_due(1)
    view.observe(Message("n", "1", known={Origin("a", "1"): 1}), 2)
    assert view.resend.is_due(2)
