"""A deleted resource leaves: tombstone, promise, drop, and what may come after it."""

from dataclasses import replace

from cheops.engine.documents import Ledger
from cheops.engine.events import Enumerated, SitesRemoved
from cheops.engine.health import State
from cheops.engine.status import Overall
from cheops.log.operation import Kind, Operation
from cheops.sim.apps import COUNTER, FILE
from tests.engine.lab import Lab

_KEPT_MS = 60_000


def make_lab(sites: str = "abc", at: str = "abc", **limits: int) -> Lab:
    lab = Lab(sites, tombstone_ms=_KEPT_MS, **limits)
    lab.make("n", COUNTER, at, checkpoint=None)
    return lab


def delete(lab: Lab, site: str = "a") -> None:
    lab.submit(site, "n", "set 5")
    lab.run()
    lab.submit(site, "n", "set 0", Kind.DELETE)
    lab.run()


def sweep(lab: Lab, sites: str = "abc") -> None:
    """As agents do from time to time."""
    for site in sites:
        if due := lab.nodes[site].due(lab.now_ms):
            lab.take(site, Enumerated("", due))
    lab.run()


def ledger(lab: Lab, site: str) -> Ledger | None:
    return next((d for d in lab.nodes[site].disk.of_resource("n") if isinstance(d, Ledger)), None)


def test_what_all_sites_have_deleted_is_a_tombstone_and_is_dropped_after_its_time() -> None:
    lab = make_lab()
    delete(lab)
    for site in "abc":
        found = ledger(lab, site)
        assert found is not None
        assert (found.state, found.closed) == (State.DELETED, False)
        assert found.due_ms is not None
        kept = [d for d in lab.nodes[site].disk.of_resource("n") if isinstance(d, Operation)]
        assert len(kept) == 3, "the beginning with the list of sites, the deletion, the seal"
    sweep(lab)
    assert ledger(lab, "a"), "it is too early"
    lab.pass_time(_KEPT_MS)
    sweep(lab)
    for site in "abc":
        assert lab.nodes[site].disk.of_resource("n") == (), site
    assert lab.states("n", "abc") == [0, 0, 0]


def test_nothing_is_dropped_while_a_site_has_not_deleted_it() -> None:
    lab = make_lab()
    lab.submit("a", "n", "set 5")
    lab.run()
    lab.partition("ab", "c")
    lab.submit("a", "n", "set 0", Kind.DELETE)
    lab.run()
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    assert lab.at("a", "n").is_deleted
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [0, 0, 0]
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    assert [lab.nodes[site].disk.of_resource("n") for site in "abc"] == [(), (), ()]


def test_a_site_that_is_down_keeps_the_others_from_dropping_and_clients_may_go_on() -> None:
    lab = make_lab()
    delete(lab)
    lab.crash("c")
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab, "ab")
    found = ledger(lab, "a")
    assert found is not None
    assert not found.closed
    lab.submit("a", "n", "set 7")
    lab.run()
    lab.restart("c")
    lab.run()
    assert lab.states("n", "abc") == [7, 7, 7]


def test_the_name_can_be_used_again_and_numbers_begin_anew() -> None:
    lab = make_lab()
    delete(lab)
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    lab.submit("b", "n", "set 9")
    lab.run()
    assert lab.states("n", "abc") == [9, 9, 9]
    assert lab.status("a", "n").overall is Overall.CONVERGED
    history = lab.at("a", "n").history
    (origin,) = history.known
    assert (origin.site, origin.generation, history.known[origin]) == ("b", 1, 1)
    assert not lab.at("a", "n").proofs


def test_a_closed_log_takes_nothing_and_gives_way_to_the_next_life() -> None:
    """a and b have dropped it; c has promised, and has not heard of that."""
    lab = make_lab()
    delete(lab)
    lab.pass_time(2 * _KEPT_MS)
    lab.take("c", Enumerated("", ("n",)))
    while not lab.at("c", "n").is_closed:
        lab.pass_time()
    lab.submit("c", "n", "set 3")
    assert "try again in a moment" in lab.output[-1]
    sweep(lab, "ab")
    lab.submit("a", "n", "set 9")
    lab.run()
    assert lab.states("n", "abc") == [9, 9, 9]


def test_a_tombstone_stays_while_a_site_of_its_list_is_removed_from_the_mesh() -> None:
    lab = make_lab()
    delete(lab)
    lab.crash("c")
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset("c")))
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab, "ab")
    assert ledger(lab, "a")


def test_an_old_copy_that_still_has_it_is_not_believed() -> None:
    """c is restored from a backup that is older than the deletion, after the others have forgotten the resource."""
    lab = make_lab()
    lab.submit("a", "n", "set 5")
    lab.run()
    backup = lab.nodes["c"].back_up()
    lab.submit("a", "n", "set 0", Kind.DELETE)
    lab.run()
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    lab.crash("c")
    lab.nodes["c"].restore(backup, with_application=True)
    lab.restart("c")
    lab.submit("c", "n", "set 6")
    for _ in range(30):
        lab.pass_time(1_000)
        while lab.flights:
            lab.deliver(lab.flights[0])
    assert lab.states("n", "abc") == [0, 0, 6]
    status = lab.status("c", "n")
    assert status.overall is Overall.DIVERGED
    assert "report that all sites had deleted it" in status.drift


def test_a_site_that_left_joins_the_next_life_only_when_it_knows_that_the_last_is_over() -> None:
    lab = make_lab("abcd", "abc")
    lab.submit("a", "n", "set 5")
    lab.run()
    lab.move("a", "n", "ab")
    lab.run()
    lab.submit("a", "n", "set 0", Kind.DELETE)
    lab.run()
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab, "ab")
    assert not ledger(lab, "a")
    assert lab.at("c", "n").history.known
    lab.resources["n"] = replace(lab.resources["n"], sites=tuple("bcd"))
    lab.submit("d", "n", "set 8")  # which has never heard of the first life
    lab.run()
    assert lab.states("n", "bcd") == [8, 8, 8]
    assert lab.at("b", "n").history.known == lab.at("c", "n").history.known == lab.at("d", "n").history.known


def test_a_short_log_is_sealed_at_rest() -> None:
    lab = Lab("ab", seal_after=50)
    lab.make("f", FILE, "ab", checkpoint=None)
    for number in range(12):
        lab.submit("a", "f", f"set w{number}")
        lab.run()
    lab.pass_time(5_000)
    lab.run()
    assert len(lab.at("b", "f").history.ops) < 10
