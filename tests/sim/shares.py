"""In what share of histories each planted bug shows: `python -m tests.sim.shares [HISTORIES] [BUG...]`.

After a change of what the simulator plays. Where fewer than one history in five shows a bug, its situation should be
played more often, or by a course of events.
"""

import sys
import time

from tests.sim.planted import BUGS, Histories
from tests.sim.test_planted_bugs import is_shown


def main(number: int, *bugs: str) -> None:
    for bug in bugs or BUGS:
        planted = BUGS[bug]
        if isinstance(planted.shown_by, Histories):
            began_s = time.process_time()
            shown = sum(is_shown(seed, planted, planted.shown_by) for seed in range(number))
            used_s = time.process_time() - began_s
            sys.stdout.write(f"{shown:3} of {number}, {used_s:5.1f} s  {planted.shown_by.profile.name:10} {bug}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 40, *sys.argv[2:])
