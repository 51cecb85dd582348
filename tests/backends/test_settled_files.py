"""When the file of an operation is no longer needed here."""

from cheops.engine.replica import Replica
from cheops.log.operation import OpId, Origin
from cheops.node.backends import is_settled_everywhere
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab


def settled() -> tuple[Replica, OpId, Origin]:
    """A resource at a with one operation that both sites have; that operation; and the origin of the other site."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    return lab.at("a", "n"), OpId(lab.nodes["a"].origin, 1), lab.nodes["b"].origin


def test_a_file_is_kept_while_an_operation_may_arrive_that_makes_its_own_run_again() -> None:
    """The other site has made an operation without knowledge of this one, and it is not here yet."""
    replica, id_, b = settled()
    assert is_settled_everywhere(replica, id_)
    view = replica.peer("b")
    view.known = {**view.known, b: 1}
    assert not is_settled_everywhere(replica, id_)


def test_a_file_is_kept_while_something_is_left_to_run() -> None:
    replica, id_, b = settled()
    replica.applied.settled = {**replica.applied.settled, b: 0}
    replica.history.known[b] = 1
    assert not is_settled_everywhere(replica, id_)
