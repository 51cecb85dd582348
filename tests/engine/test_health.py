"""The state that a resource is counted in: what changes it, and that it is saved with what has changed it."""

from itertools import pairwise

import pytest
from msgspec import structs

from cheops.engine import health
from cheops.engine.documents import Ledger, Message
from cheops.engine.events import Outcome, Queried, Ran, Received, Result, Retried, Tick, Verified
from cheops.engine.health import State
from cheops.engine.replies import Replies
from cheops.engine.status import Overall
from cheops.log.causality import contains
from cheops.log.operation import Kind, OpId, Origin, Reply, Status
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab
from tests.engine.picky import diverged


def saved(lab: Lab, resource: str = "n", at: str = "ab") -> list[str]:
    """What is durable."""
    for site in at:
        lab.nodes[site].disk.sync()
    ledgers = [lab.nodes[site].disk.durable.get(("ledger", resource)) for site in at]
    return [ledger.state if isinstance(ledger, Ledger) else "no ledger" for ledger in ledgers]


def rest(lab: Lab) -> None:
    """Time passes, so that resources come to rest."""
    for _ in range(3):
        lab.now_ms += 2_000
        for site in lab.nodes:
            lab.take(site, Tick())
        lab.run()


def deliver(lab: Lab) -> None:
    """Everything that is on its way, in no time."""
    for site in lab.nodes:
        lab.take(site, Tick())
    while lab.flights:
        lab.deliver(lab.flights[0])


def made(at: str = "ab") -> Lab:
    lab = Lab(at)
    lab.make("n", COUNTER, at)
    lab.submit("a", "n", "set 1")
    lab.run()
    rest(lab)
    return lab


def test_a_new_operation_is_converging_until_all_sites_have_reported() -> None:
    lab = made()
    assert saved(lab) == ["converged", "converged"]
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.run()
    assert saved(lab) == ["converging", "converging"]
    lab.resume("b")
    lab.run()
    rest(lab)
    assert saved(lab) == ["converged", "converged"]


def test_a_resource_at_one_site_is_converged_as_well() -> None:
    lab = made("a")
    assert saved(lab, at="a") == ["converged"]


def test_a_failure_is_counted_at_the_failing_site_and_at_the_origin_at_once() -> None:
    lab, picky = diverged(on_error=None)
    assert saved(lab) == ["diverged", "diverged"]
    rest(lab)
    assert saved(lab) == ["diverged", "diverged"]
    picky.refuse = False
    lab.take("b", Retried("n"))
    lab.run()
    assert "diverged" not in saved(lab)
    rest(lab)
    assert saved(lab) == ["converged", "converged"]


def test_drift_is_counted_until_it_is_over() -> None:
    lab = made()
    lab.take("a", Verified("n", "b", "b differs", lab.now_ms))
    assert saved(lab, at="a") == ["diverged"]
    lab.take("a", Verified("n", "b", "", lab.now_ms))
    lab.run()
    rest(lab)
    assert saved(lab, at="a") == ["converged"]


def test_an_operation_of_unknown_outcome_is_counted_as_diverged() -> None:
    lab = made()
    lab.benches["a"].paused = True
    lab.submit("a", "n", "inc 1")
    running = lab.at("a", "n").slot.running
    assert running is not None
    lab.take("a", Ran("n", running.n, (Outcome(Result.MAYBE, "timeout"),)))
    assert saved(lab, at="a") == ["diverged"]


def test_the_trouble_of_a_lost_store_does_not_come_back_with_a_restart() -> None:
    lab = made()
    lab.benches["b"].paused = True
    lab.submit("a", "n", "inc 1")
    lab.run()
    running = lab.at("b", "n").slot.running
    assert running is not None
    lab.take("b", Ran("n", running.n, (Outcome(Result.MAYBE, "timeout"),)))
    lab.run()
    assert saved(lab, at="a") == ["diverged"]
    lab.benches["b"].paused = False
    lab.lose_disk("b")
    lab.restart("b")
    lab.run()
    rest(lab)
    assert saved(lab) == ["converged", "converged"]
    lab.crash("a")
    lab.restart("a")
    lab.take("a", Queried("n"))
    assert health.state_of(lab.at("a", "n")) is State.CONVERGED


@pytest.mark.parametrize("first", [0, 1])
def test_the_reply_of_the_present_store_counts_whenever_it_comes(first: int) -> None:
    id_, met = OpId(Origin("a", "1"), 1), {"b": "1"}
    lost = Reply("n", Origin("b", "1"), 2, id_, "inc", Status.UNKNOWN)
    present = Reply("n", Origin("b", "2"), 1, id_, "inc", Status.OK)
    for is_met_first in (True, False):
        replies = Replies(Origin("a", "1"), met)
        met["b"] = "2" if is_met_first else "1"
        replies.take((lost, present)[first])
        replies.take((present, lost)[first])
        met["b"] = "2"
        replies.prefer(Origin("b", "2"))
        assert replies[id_, "b"] is present
        assert not replies.troubles


def test_a_wrong_order_has_a_state_of_its_own() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", reset=None, checkpoint=None)
    lab.submit("a", "n", "inc 1")
    assert lab.at("a", "n") is lab.at("a", "n")  # in memory
    lab.at("a", "n").applied.order_not_enforced = True
    assert health.state_of(lab.at("a", "n")) is State.ORDER_NOT_ENFORCED
    assert lab.status("a", "n").overall is Overall.DIVERGED


def test_a_site_that_has_more_is_not_taken_for_one_that_differs() -> None:
    """A message that brings an operation is lost, and the next one shows that the site has it."""
    lab = made()
    lab.submit("b", "n", "inc 1")
    lab.flights.clear()
    replica = lab.at("a", "n")
    ahead = lab.at("b", "n")
    message = Message(
        "n",
        "1",
        known=dict(ahead.history.known),
        known_replies=dict(ahead.replies.known),
        settled=dict(ahead.applied.settled),
        digest=ahead.applied.digest(),
    )
    lab.take("a", Received("b", message))
    assert not contains(replica.history.known, OpId(lab.nodes["b"].origin, 1))
    assert health.state_of(replica) is State.CONVERGING
    assert lab.status("a", "n").overall is Overall.CONVERGING


# -- what is not known ---------------------------------------------------------------------------------


def restarted(lab: Lab, site: str, *, with_reports: bool = True) -> None:
    """The site starts again, and no other is up yet. Reports too long for a ledger are not saved."""
    lab.partition("a", "b")
    lab.crash(site)
    disk = lab.nodes[site].disk
    ledger = disk.durable[("ledger", "n")]
    if not with_reports and isinstance(ledger, Ledger):
        disk.put(structs.replace(ledger, progress=None))
    lab.restart(site)


def load(lab: Lab, site: str) -> None:
    lab.take(site, Queried("n", refresh=False))


def test_what_the_others_reported_counts_after_a_restart() -> None:
    lab = made()
    restarted(lab, "a")
    load(lab, "a")
    assert saved(lab, at="a") == ["converged"]


def test_what_was_converged_is_not_shown_so_where_no_report_was_saved() -> None:
    lab = made()
    restarted(lab, "a", with_reports=False)
    assert saved(lab, at="a") == ["converged"]  # nobody has looked: the state that it last had
    load(lab, "a")
    assert saved(lab, at="a") == ["unknown"]
    assert lab.status("a", "n").overall is not Overall.CONVERGED
    lab.heal()
    lab.run()
    rest(lab)
    assert saved(lab, at="a") == ["converged"]


def test_what_was_diverged_stays_so_until_the_others_have_reported() -> None:
    lab = made()
    load(lab, "a")
    deliver(lab)
    lab.at("a", "n").peer("b").digest = "another"  # b has applied the same, and says that it ended elsewhere
    lab.take("a", Retried("n"))
    assert saved(lab, at="a") == ["diverged"]
    restarted(lab, "a", with_reports=False)
    load(lab, "a")
    status = lab.status("a", "n")
    assert (status.overall, status.last_known) == (Overall.DIVERGED, True)
    assert saved(lab, at="a") == ["diverged"]
    lab.heal()
    lab.run()
    rest(lab)
    assert saved(lab, at="a") == ["converged"]


def test_looking_for_a_resource_that_does_not_exist_saves_nothing() -> None:
    lab = made()
    lab.take("a", Queried("nothing", refresh=False))
    rest(lab)
    assert saved(lab, "nothing", at="a") == ["no ledger"]


def test_a_site_that_left_does_not_count_the_resource() -> None:
    lab = made("abc")
    lab.move("a", "n", "ab")
    lab.run()
    rest(lab)
    assert saved(lab, at="abc") == ["converged", "converged", ""]


# -- what it costs -------------------------------------------------------------------------------------


def test_the_ledger_is_not_written_for_every_operation() -> None:
    lab = made()
    ledgers = []
    for _ in range(5):
        lab.submit("a", "n", "inc 1")
        deliver(lab)
        ledgers.append(lab.nodes["a"].disk.durable[("ledger", "n")])
    assert all(one is other for one, other in pairwise(ledgers[1:]))


def test_a_resource_that_somebody_looks_at_all_the_time_is_saved_as_converged() -> None:
    """The answers of other sites, which whoever asks waits for, keep it from coming to rest."""
    lab = made()
    lab.submit("a", "n", "inc 1")
    deliver(lab)
    assert saved(lab, at="a") == ["converging"]
    for _ in range(20):
        lab.now_ms += 200
        lab.take("a", Queried("n", refresh=True))
        deliver(lab)
    assert saved(lab, at="a") == ["converged"]


@pytest.mark.parametrize("kind", [Kind.NORMAL, Kind.FORCE])
def test_the_saved_state_is_the_computed_one_at_rest(kind: Kind) -> None:
    lab = made("abc")
    for site in "abc":
        lab.submit(site, "n", "set 2", kind)
    lab.run()
    rest(lab)
    for site in "abc":
        load(lab, site)
        assert saved(lab, at=site) == [health.counted_state(lab.at(site, "n"))]


def test_documents_from_before_states_were_saved_are_read() -> None:
    lab = made()
    node = lab.nodes["a"]
    lab.crash("a")
    ledger = node.disk.durable[("ledger", "n")]
    assert isinstance(ledger, Ledger)
    node.disk.put(structs.replace(ledger, state=""))
    lab.restart("a")
    load(lab, "a")
    assert saved(lab, at="a") == ["unknown"]
    lab.run()
    rest(lab)
    assert saved(lab, at="a") == ["converged"]


def test_what_waits_for_a_refused_operation_is_counted_as_diverged() -> None:
    lab = made()
    load(lab, "a")
    deliver(lab)
    replica = lab.at("a", "n")
    (op,) = replica.history.ops.values()
    refused = structs.replace(op, seq=2, deps={op.origin: 1})
    replica.inbox.refuse(refused, "the policy of its type")
    assert health.state_of(replica) is State.CONVERGED
    replica.inbox.hold(structs.replace(op, seq=3, deps={op.origin: 2}))
    lab.take("a", Retried("n"))
    assert saved(lab, at="a") == ["diverged"]
