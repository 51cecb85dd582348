"""When the file of an operation is no longer needed here."""

from cheops.log.operation import OpId
from cheops.node.backends import is_settled_everywhere
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab


def test_a_file_is_kept_while_an_operation_may_arrive_that_makes_its_own_run_again() -> None:
    """The other site has made an operation without knowledge of this one, and it is not here yet."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    replica, id_ = lab.at("a", "n"), OpId(lab.nodes["a"].origin, 1)
    assert is_settled_everywhere(replica, id_)
    view, b = replica.peer("b"), lab.nodes["b"].origin
    view.known = {**view.known, b: 1}
    assert not is_settled_everywhere(replica, id_)


def test_a_file_is_kept_while_something_is_left_to_run() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    replica, id_ = lab.at("a", "n"), OpId(lab.nodes["a"].origin, 1)
    replica.applied.settled = {**replica.applied.settled, lab.nodes["b"].origin: 0}
    replica.history.known[lab.nodes["b"].origin] = 1
    assert not is_settled_everywhere(replica, id_)
