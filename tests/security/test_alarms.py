"""Alarms of `cheops check`: kept over restarts, bounded, and over when an operator has decided about the site."""

from cheops.engine.contents import BROKEN_STATEMENT, EQUIVOCATION
from cheops.engine.events import Notify
from cheops.log.operation import OpId, Origin
from cheops.node.alarms import Alarms
from cheops.peers.heartbeat import MembershipRecord
from cheops.store.memory import MemoryStore


def alarm(what: str = BROKEN_STATEMENT, resource: str = "menu", by: str = "site3") -> Notify:
    return Notify(resource, what, OpId(Origin("site2", "x"), 2), "it says what is not", what, by)


def undecided(_site: str) -> None:
    return None


def test_they_outlive_a_restart() -> None:
    alarms, store = Alarms(), MemoryStore()
    alarms.add(alarm(), 7)
    alarms.add(alarm(EQUIVOCATION), 8)
    assert not alarms.is_saved
    store.put_note("alarms", alarms.note())
    again = Alarms()
    again.restore(store.note("alarms"))
    assert again.open(undecided) == alarms.open(undecided)
    assert [(one.what, one.op, one.at_ms) for one in again.open(undecided)] == [
        (BROKEN_STATEMENT, "site2:2", 7),
        (EQUIVOCATION, "site2:2", 8),
    ]
    again.add(alarm(), 99)
    assert again.is_saved, "the engine repeats an alarm when it loads the resource"
    Alarms().restore(None)


def test_a_later_decision_about_the_site_ends_them() -> None:
    """Forgotten, or invited again. An alarm after that counts; one that is repeated does not."""
    alarms = Alarms()
    alarms.add(alarm(), 7)
    alarms.add(alarm(by="site4", resource="other"), 7)
    for forgotten in (True, False):
        decisions = {"site3": MembershipRecord("site3", 8, forgotten)}
        assert [one.by for one in alarms.open(decisions.get)] == ["site4"]
    alarms.add(alarm(), 9)
    assert [one.by for one in alarms.open(decisions.get)] == ["site4"]
    alarms.add(alarm(resource="new"), 9)
    assert [one.resource for one in alarms.open(decisions.get)] == ["other", "new"]


def test_they_are_bounded() -> None:
    alarms = Alarms()
    for number in range(3_000):
        alarms.add(alarm(resource=str(number)), number)
    assert len(alarms.open(undecided)) == 1_000
