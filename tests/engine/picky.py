"""An application that refuses at some sites what it did at others, so that a resource diverges."""

from cheops.log.operation import Command
from cheops.sim.apps import COUNTER, App, RefusedError
from tests.engine.lab import Lab


class Picky:
    """An application that refuses some commands at some sites only."""

    refuse = False

    def run(self, state: int, line: str) -> int:
        if line == "mend":
            return 99
        if line == "inc 7" and self.refuse:
            raise RefusedError("no sevens here")
        return COUNTER.run(state, line)  # type: ignore[no-any-return]


def diverged(on_error: Command | None) -> tuple[Lab, Picky]:
    picky = Picky()
    app = App("picky", 0, picky.run, COUNTER.matrix, COUNTER.type, COUNTER.invent)
    lab = Lab("ab")
    lab.make("n", app, "ab", on_error=on_error, reset=None, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "inc 7")
    picky.refuse = True
    lab.run()
    return lab, picky
