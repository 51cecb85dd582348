"""What a site says of the others: that they have something, lack it, or that this is not known."""

from cheops.engine.documents import Ledger, Message
from cheops.engine.events import ClientLeft, Effects, Queried
from cheops.engine.evidence import Presence, evidence_of, pending_at
from cheops.engine.ledger import save as save_ledger
from cheops.engine.settings import Limits
from cheops.engine.status import Overall, SiteStatus, status
from cheops.log.operation import Operation, Origin
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab

_REST_MS = Limits().idle_ms + 3_000


def begun(sites: str = "abc", operations: int = 5) -> Lab:
    lab = Lab(sites, seal_after=50)
    lab.make("n", COUNTER, sites, checkpoint=None)
    for number in range(operations):
        lab.submit("a", "n", f"inc {number}" if number else "set 1")
        lab.run()
    return lab


def at_rest(lab: Lab, site: str = "a") -> None:
    """Let time pass until the resource has left the memory of a site."""
    lab.pass_time(_REST_MS)
    engine = lab.nodes[site].site
    assert engine is not None
    assert "n" not in engine.replicas


def load(lab: Lab, site: str = "a") -> None:
    lab.take(site, Queried("n", refresh=False))


def seen(lab: Lab, site: str, of: str) -> SiteStatus:
    return next(one for one in lab.status(site, "n").sites if one.site == of)


def presences(lab: Lab, site: str, of: str) -> list[Presence]:
    evidence = evidence_of(lab.at(site, "n"), of)
    return [evidence.received(op) for op in ops(lab, site)]


def ops(lab: Lab, site: str) -> list[Operation]:
    return sorted(lab.at(site, "n").history.ops.values(), key=lambda op: op.stamp)


def ledger(lab: Lab, site: str) -> Ledger:
    return next(d for d in lab.nodes[site].disk.of_resource("n") if isinstance(d, Ledger))


def test_after_a_rest_a_site_that_is_cut_off_has_what_it_had() -> None:
    lab = begun()
    at_rest(lab)
    lab.partition("ab", "c")
    load(lab)
    found = seen(lab, "a", "c")
    assert (found.pending, found.reachable) == (0, False)
    assert found.last_contact_ms is not None
    assert presences(lab, "a", "c") == [Presence.HAS] * 5
    lab.submit("a", "n", "inc 7")
    lab.run()
    assert presences(lab, "a", "c") == [Presence.HAS] * 5 + [Presence.LACKS]
    assert seen(lab, "a", "c").pending == 1
    engine = lab.nodes["a"].site
    assert engine is not None
    assert pending_at(engine.replicas.values()) == {"a": 0, "b": 0, "c": 1}


def test_so_it_has_after_a_restart() -> None:
    lab = begun()
    at_rest(lab)
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 7")
    lab.run()
    lab.crash("a")
    lab.restart("a")
    lab.run()
    assert presences(lab, "a", "c") == [Presence.HAS] * 5 + [Presence.LACKS]
    assert lab.status("a", "n").overall is Overall.UNREACHABLE


def test_a_parked_resource_keeps_what_it_knows_when_it_leaves_memory() -> None:
    lab = Lab("abc", seal_after=50, parked=0)
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 1")
    lab.run()
    lab.take("a", ClientLeft("n", ops(lab, "a")[1].id))
    at_rest(lab)
    load(lab)
    assert presences(lab, "a", "c") == [Presence.HAS, Presence.LACKS]
    assert presences(lab, "a", "b") == [Presence.HAS] * 2


def test_a_site_that_has_everything_is_not_asked_again() -> None:
    lab = begun()
    at_rest(lab)
    load(lab)
    assert not lab.flights
    assert lab.status("a", "n").overall is Overall.CONVERGED
    lab.submit("b", "n", "inc 1")
    lab.run()
    assert lab.status("a", "n").overall is Overall.CONVERGED


def test_a_new_store_begins_from_nothing() -> None:
    lab = begun()
    at_rest(lab)
    lab.lose_disk("c")
    lab.restart("c")
    lab.partition("ab", "c")  # they have met the new store, which has not reported anything
    load(lab)
    assert presences(lab, "a", "c") == [Presence.NOT_KNOWN] * 5
    assert seen(lab, "a", "c").pending is None
    lab.heal()
    lab.run()
    assert presences(lab, "a", "c") == [Presence.HAS] * 5


def test_what_all_have_is_written_once() -> None:
    lab = begun()
    at_rest(lab)
    progress = ledger(lab, "a").progress
    assert progress is not None
    assert progress.known == lab.at("a", "n").history.known
    for record in progress.peers.values():
        assert (record.known, record.known_replies, record.settled, record.digest) == ({}, {}, {}, None)
    assert list(progress.peers) == ["b", "c"]


def test_of_a_site_that_lags_only_the_difference_is_written() -> None:
    lab = begun()
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 7")
    lab.run()
    a = lab.nodes["a"].origin
    out = Effects()
    save_ledger(lab.at("a", "n"), out)
    [saved] = [d.progress for d in out.documents.values() if isinstance(d, Ledger)]
    assert saved is not None
    assert (saved.known[a], saved.peers["b"].known, saved.peers["c"].known) == (6, {}, {a: 5})


def test_a_site_that_names_any_number_of_origins_is_not_saved() -> None:
    lab = begun()
    invented = {Origin(f"x{n}", "1"): 1 for n in range(6_000)}
    lab.at("a", "n").peer("c").observe(Message("n", "1", known=invented), lab.now_ms)
    out = Effects()
    save_ledger(lab.at("a", "n"), out)
    [saved] = [d.progress for d in out.documents.values() if isinstance(d, Ledger)]
    assert saved is not None
    assert list(saved.peers) == ["b"]


def test_a_look_at_a_resource_at_rest_writes_nothing() -> None:
    lab = begun()
    at_rest(lab)
    before = ledger(lab, "a")
    lab.take("a", Queried("n", refresh=True))
    lab.run()
    at_rest(lab)
    assert ledger(lab, "a") is before


def test_where_two_sites_never_meet_a_third_passes_on_what_they_did() -> None:
    lab = Lab("abc", seal_after=50)
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.partition("b", "ac")
    lab.set_cut({("a", "c"), ("c", "a")})
    for line in ("set 1", "inc 1", "inc 2"):
        lab.submit("a", "n", line)
        lab.run()
    assert lab.states("n", "abc") == [4, 4, 4]
    found = seen(lab, "a", "c")
    assert (found.pending, found.relayed, found.digest) == (0, False, lab.at("b", "n").applied.digest())
    assert lab.status("a", "n").overall is Overall.UNREACHABLE, "c may have changed since b has heard of it"
    # As where only the way from c to a is blocked: c answers probes, and its messages come through b.
    assert status(lab.at("a", "n"), {"b", "c"}).overall is Overall.CONVERGED
    assert lab.status("b", "n").overall is Overall.CONVERGED


def test_what_nothing_proves_is_not_known() -> None:
    lab = begun("abc", operations=1)
    lab.set_cut({("a", "c"), ("c", "a")})
    lab.submit("a", "n", "inc 1")
    lab.run()  # through b, and the reply of c comes back through b
    lab.partition("a", "bc")
    lab.submit("a", "n", "inc 2")
    lab.run()
    assert presences(lab, "a", "b") == [Presence.HAS, Presence.HAS, Presence.LACKS]
    assert presences(lab, "a", "c") == [Presence.HAS, Presence.HAS, Presence.LACKS]
    assert seen(lab, "a", "c").pending == 1


def test_a_site_without_a_report_lacks_nothing_but_what_was_made_here() -> None:
    lab = Lab("abc", seal_after=50)
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.partition("a", "b", "c")
    lab.submit("a", "n", "set 1")
    lab.run()
    assert (seen(lab, "a", "c").pending, seen(lab, "a", "c").last_contact_ms) == (1, None)
    lab.crash("a")
    lab.restart("a")
    lab.run()
    assert seen(lab, "a", "c").pending is None, "it may have reported before the crash"


def test_what_a_site_has_run_is_not_pending_while_it_is_busy() -> None:
    """It reports that all is settled only when nothing is left to run; after a start that is nothing at all."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    for _ in range(5):
        lab.submit("a", "n", "inc 1")
        lab.run()
    lab.crash("b")
    lab.restart("b")
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    while lab.flights:
        lab.deliver(lab.flights[0])
    assert lab.at("b", "n").slot.running
    assert evidence_of(lab.at("b", "n"), "b").pending() == 1
    assert evidence_of(lab.at("a", "n"), "b").pending() == 1
