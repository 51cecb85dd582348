"""A deleted resource leaves: tombstone, promise, drop, and what may come after it."""

from collections.abc import Callable
from dataclasses import replace

from cheops.engine import tombstones
from cheops.engine.documents import Ledger, Message
from cheops.engine.events import Enumerated, Queried, Received, SitesRemoved, StoreOutdated
from cheops.engine.health import State
from cheops.engine.status import Overall
from cheops.log.causality import Clock
from cheops.log.operation import Kind, Operation
from cheops.sim.apps import COUNTER, FILE
from cheops.sim.scripted_world import Flight
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


def close_only(lab: Lab, sites: str) -> None:
    """Have only these sites promise to add nothing: the others have not heard that they are ready."""
    forget(
        lab,
        lambda: all(lab.at(site, "n").is_closed for site in sites),
        lambda one: (one.message.ready or one.message.closed) and one.peer not in sites,
    )
    assert {site for site in lab.nodes if lab.at(site, "n").is_closed} == set(sites)


def forget(lab: Lab, is_done: Callable[[], bool], is_lost: Callable[[Flight], bool]) -> None:
    """Have the sites forget the resource, up to some moment; some messages are lost, also those that come then."""
    lab.pass_time(2 * _KEPT_MS)
    for site in lab.nodes:
        lab.take(site, Enumerated("", ("n",)))
    for _ in range(50):
        lab.pass_time()
        while not is_done() and lab.flights:
            flight = lab.flights[0]
            if is_lost(flight):
                lab.flights.remove(flight)
            else:
                lab.deliver(flight)
    lab.flights.clear()
    assert is_done()


def write(lab: Lab, site: str, line: str) -> bool:
    """Whether the site accepts it."""
    lab.output.clear()
    lab.submit(site, "n", line)
    return not any("about to forget it" in said for said in lab.output)


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
    close_only(lab, "c")
    assert not write(lab, "c", "set 3")
    assert "try again in a moment" in lab.output[-1]
    forget(
        lab, lambda: not ledger(lab, "a") and not ledger(lab, "b"), lambda one: one.message.closed and one.peer == "c"
    )
    assert lab.at("c", "n").is_closed
    lab.submit("a", "n", "set 9")
    lab.run()
    assert lab.states("n", "abc") == [9, 9, 9]


def test_a_promise_ends_when_a_site_that_has_not_promised_goes_on() -> None:
    lab = make_lab()
    delete(lab)
    close_only(lab, "ab")
    assert write(lab, "c", "set 7")
    lab.run()
    assert lab.states("n", "abc") == [7, 7, 7]
    for site in "abc":
        assert write(lab, site, "inc 1"), f"{site} serves clients again"
        lab.run()
    assert lab.states("n", "abc") == [10, 10, 10]
    assert [ledger(lab, site).closed for site in "abc"] == [False] * 3  # type: ignore[union-attr]
    lab.crash("a")
    lab.restart("a")
    assert write(lab, "a", "inc 1"), "also after a restart"
    lab.run()
    delete(lab)
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    assert [lab.nodes[site].disk.of_resource("n") for site in "abc"] == [(), (), ()]


def test_a_promise_is_about_one_log_only() -> None:
    """A promise that comes late does not count for what was added since."""
    lab = make_lab()
    delete(lab)
    close_only(lab, "ab")
    late = [replace(one) for one in promises(lab, "b")]
    assert write(lab, "c", "set 7")
    lab.run()
    delete(lab, "c")
    close_only(lab, "a")
    for flight in late:
        lab.flights.append(flight)
        lab.deliver(flight)
    assert "b" in tombstones.unconfirmed(lab.at("a", "n"))


def promises(lab: Lab, site: str) -> list[Flight]:
    """What a site that has promised sends to the others."""
    lab.take(site, Queried("n", refresh=True))
    found = [one for one in lab.flights if one.sender == site and one.message.closed]
    lab.flights.clear()
    return found


def test_a_log_that_is_alive_again_does_not_give_way_to_a_site_that_has_lost_its_store() -> None:
    lab = make_lab()
    delete(lab)
    close_only(lab, "ab")
    assert write(lab, "c", "set 7")
    lab.run()
    lab.partition("ab", "c")
    lab.lose_disk("c")
    lab.restart("c")
    assert write(lab, "c", "inc 1")
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [7, 7, 7], "what goes on without knowledge of it loses, by the matrix"


def test_a_closed_log_is_not_lost_because_a_site_has_lost_its_store() -> None:
    """c has promised nothing, and has gone on; then it loses its store, and begins the resource again."""
    lab = make_lab()
    delete(lab)
    close_only(lab, "a")
    lab.partition("a", "bc")
    assert write(lab, "b", "set 7")
    lab.run()
    lab.partition("a", "b", "c")
    lab.lose_disk("c")
    lab.restart("c")
    lab.partition("ac", "b")
    assert write(lab, "c", "inc 1")
    lab.pass_time(1_000)
    while lab.flights:
        lab.deliver(lab.flights[0])
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [7, 7, 7], "what goes on without knowledge of it loses, by the matrix"
    assert lab.status("b", "n").overall is Overall.CONVERGED


def test_a_promise_does_not_outlive_the_removal_of_a_site() -> None:
    lab = make_lab()
    delete(lab)
    close_only(lab, "a")
    lab.crash("c")
    assert not write(lab, "a", "set 7")
    assert "c is not up" in lab.output[-1]
    for site in "ab":
        lab.take(site, SitesRemoved(frozenset("c")))
    lab.run()
    assert ledger(lab, "a") is ledger(lab, "b") is None
    assert write(lab, "a", "set 7")


def test_sites_that_keep_tombstones_for_different_times_do_not_refuse_clients_meanwhile() -> None:
    lab = make_lab()
    slow = replace(lab.settings, limits=replace(lab.settings.limits, tombstone_ms=20 * _KEPT_MS))
    lab.nodes["c"].settings = slow
    lab.crash("c")
    lab.restart("c")
    delete(lab)
    lab.pass_time(3 * _KEPT_MS)
    sweep(lab)
    assert all(write(lab, site, "set 7") for site in "abc")


def test_a_site_that_is_not_on_the_list_does_not_shorten_the_time() -> None:
    lab = make_lab("abcd", "abc")
    delete(lab)
    lab.pass_time(_KEPT_MS // 2)
    known = dict(lab.at("a", "n").history.known)
    lab.take("a", Received("d", Message("n", "x", known=known, settled=known, ready=True, closed=True)))
    lab.run()
    assert ledger(lab, "a")
    assert not lab.at("a", "n").is_ready


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
    lab.partition("ab", "c")
    lab.pass_time(10 * _KEPT_MS)
    lab.crash("c")
    lab.restart("c")
    assert lab.status("c", "n").overall is Overall.DIVERGED, "also when nobody can repeat it"


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


def leave_and_forget(lab: Lab) -> None:
    """c leaves; then the others delete the resource, and forget it. c has its log, without anything that b made."""
    lab.crash("b")
    lab.submit("a", "n", "set 5")
    run_for(lab, 1_000)
    lab.move("a", "n", "ab")
    run_for(lab, 1_000)
    lab.restart("b")
    run_for(lab, 10_000, deaf="c")
    lab.submit("a", "n", "set 0", Kind.DELETE)
    run_for(lab, 10_000, deaf="c")
    run_for(lab, 2 * _KEPT_MS, deaf="c")
    for site in "ab":
        lab.take(site, Enumerated("", ("n",)))
    run_for(lab, 10_000, deaf="c")
    assert ledger(lab, "a") is ledger(lab, "b") is None


def run_for(lab: Lab, duration_ms: int, deaf: str = "") -> None:
    """Let time pass. What is sent to one site is lost."""
    end_ms = lab.now_ms + duration_ms
    while lab.now_ms < end_ms:
        lab.pass_time()
        lab.flights = [one for one in lab.flights if one.peer != deaf]
        while lab.flights:
            lab.deliver(lab.flights[0])
            lab.flights = [one for one in lab.flights if one.peer != deaf]


def test_a_site_that_left_does_not_bring_back_what_others_have_dropped() -> None:
    lab = make_lab()
    leave_and_forget(lab)
    assert not [one for one in lab.at("c", "n").replies.known if one.site == "b"]
    lab.crash("c")
    lab.restart("c")
    lab.run()
    assert not lab.nodes["b"].disk.of_resource("n")
    lab.resources["n"] = replace(lab.resources["n"], sites=tuple("ab"))
    lab.submit("b", "n", "set 8")
    lab.crash("c")
    lab.restart("c")
    lab.run()
    assert [len(lab.at(site, "n").history.known) for site in "ab"] == [1, 1], "nor into the next life"
    assert lab.states("n", "ab") == [8, 8]


def test_what_a_site_kept_when_it_left_is_merged_if_all_others_were_removed_from_the_mesh() -> None:
    """Nobody can say whether they have dropped it: it may be all that is left of the resource."""
    lab = make_lab("abcd", "ac")
    lab.submit("a", "n", "set 5")
    lab.run()
    lab.move("a", "n", "a")
    lab.run()
    lab.crash("a")
    for site in "bcd":
        lab.take(site, SitesRemoved(frozenset("a")))
    lab.resources["n"] = replace(lab.resources["n"], sites=tuple("acd"))
    lab.submit("d", "n", "inc 8")
    lab.run()
    assert lab.states("n", "cd") == [5, 5], "'set' wins over a concurrent 'inc'"
    lab.submit("d", "n", "inc 8")
    lab.run()
    assert lab.states("n", "cd") == [13, 13]
    assert lab.status("d", "n").overall is Overall.CONVERGED
    lab.restart("a")
    for site in "abcd":
        lab.take(site, SitesRemoved(frozenset(), frozenset("a")))
    lab.run()
    assert lab.states("n", "acd") == [13, 13, 13]
    assert lab.status("a", "n").overall is Overall.CONVERGED


def test_a_copy_from_before_others_replied_is_not_believed() -> None:
    """The others recognise nothing in it; but it is of a store that its site does not have any more."""
    lab = make_lab()
    for site in "bc":
        lab.crash(site)
    lab.submit("a", "n", "set 5")
    lab.pass_time(1_000)
    backup = lab.nodes["a"].back_up()
    for site in "bc":
        lab.restart(site)
    lab.run()
    lab.submit("b", "n", "set 0", Kind.DELETE)
    lab.run()
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    assert ledger(lab, "b") is None
    lab.crash("a")
    lab.nodes["a"].restore(backup, with_application=True)
    lab.restart("a")
    lab.take("a", StoreOutdated("b has seen a later state of it", Clock(lab.now_ms)))
    run_for(lab, 30_000)
    assert lab.states("n", "abc") == [5, 0, 0]
    assert lab.status("a", "n").overall is Overall.DIVERGED
    lab.output.clear()
    lab.submit("a", "n", "set 0", Kind.DELETE)
    run_for(lab, 1_000)
    answers = [line.rpartition(" is ")[2] for line in lab.output if line.startswith("a answers: ")]
    assert {"OK at b", "OK at c"} <= set(answers), "the client does not wait for sites that have nothing of it"
    run_for(lab, 30_000)
    assert lab.states("n", "abc") == [0, 0, 0]
    sweep(lab)
    lab.pass_time(2 * _KEPT_MS)
    sweep(lab)
    assert ledger(lab, "a") is None


def test_an_old_copy_is_not_mixed_with_the_next_life() -> None:
    """It stays DIVERGED until somebody deletes it; then the site joins the next life."""
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
    run_for(lab, 20_000)
    lab.submit("a", "n", "set 9")
    for _ in range(5):
        run_for(lab, 5_000)
        lab.take("c", Queried("n", refresh=True))
        run_for(lab, 1_000)
        assert lab.status("c", "n").overall is Overall.DIVERGED
        assert lab.status("a", "n").overall is not Overall.CONVERGED
    assert lab.states("n", "abc") == [9, 9, 5]
    lab.submit("c", "n", "set 0", Kind.DELETE)
    run_for(lab, 60_000)
    assert lab.states("n", "abc") == [9, 9, 9]
    for site in "abc":
        lab.take(site, Queried("n", refresh=True))
    run_for(lab, 1_000)
    assert [lab.status(site, "n").overall for site in "abc"] == [Overall.CONVERGED] * 3


def test_a_site_does_not_promise_while_it_is_about_to_add_something() -> None:
    """A client's operation runs when the other sites promise."""
    lab = make_lab()
    delete(lab)
    close_only(lab, "ab")
    lab.benches["c"].paused = True
    assert write(lab, "c", "set 7")
    run_for(lab, 3_000)
    assert not lab.at("c", "n").is_closed
    assert ledger(lab, "a")
    lab.resume("c")
    lab.run()
    assert lab.states("n", "abc") == [7, 7, 7]
