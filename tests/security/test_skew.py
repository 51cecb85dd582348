"""Clocks that are wrong: whose operations are taken when, and who hears of it in time."""

from collections.abc import Iterator
from http.client import HTTPException

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.engine.documents import SiteClock
from cheops.engine.events import Save
from cheops.engine.intake import FUTURE_STAMP
from cheops.log.causality import Clock
from cheops.log.operation import Origin, Stamp
from cheops.node.limits import stamp_problem
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.security.rogue import Rogue, operations
from tests.security.sites import all_up, refused
from tests.security.test_forgery import ADD, TALLY, TYPES, begun, tally

HOUR_MS = 3_600_000
SKEW_MS = 60_000
times = st.integers(0, 10**13)


def test_a_site_that_once_was_ahead_hears_of_it() -> None:
    """Its stamps never go back; the hybrid clock goes on from the greatest."""
    clock = Clock().tick(2 * HOUR_MS).tick(HOUR_MS)
    told = stamp_problem(clock.time_ms, HOUR_MS, SKEW_MS)
    assert told
    assert "was 60 min ahead when it made its last operations" in told
    assert "only in 59 min" in told
    assert "cheops clock --cure" in told
    assert stamp_problem(HOUR_MS + SKEW_MS, HOUR_MS, SKEW_MS) is None


@given(times, times)
def test_what_is_let_through_is_taken_by_most_clocks(newest_ms: int, common_ms: int) -> None:
    """The stamp that follows is one that a site with that clock takes, and the other way round."""
    stamp = Clock(newest_ms).tick(common_ms).stamp(Origin("a", "1"))
    is_taken = stamp.time_ms - common_ms <= SKEW_MS
    assert (stamp_problem(newest_ms, common_ms, SKEW_MS) is None) == is_taken


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("skew") / "rig", TYPES, ("site1", "site2", "site3"), secure=True)
    for name in made.names:  # a little patience only, so that its end can be waited for
        path = made.folder(name) / "site.yaml"
        path.write_text(path.read_text().replace("folder: tls", "folder: tls\n  clock_skew: 1s"))
    try:
        made.start()
        all_up(made)
        yield made
    finally:
        made.close()


def test_what_is_stamped_ahead_is_taken_when_its_time_has_come(rig: Rig) -> None:
    op = begun(rig, "patience")
    thief = Rogue.of(rig, "site3")
    origin = Origin("site3", "rogue")
    early = thief.operation(op, ADD, stamp=Stamp(op.stamp.time_ms + 4_000, 0, origin))
    thief.send("site2", early)
    until(lambda: refused(rig, "site2", FUTURE_STAMP), "for it to be counted")
    assert tally(rig, "site2", "patience") == 1

    def is_taken() -> bool:
        thief.send("site2", early)  # as whoever has it does
        return "site3:1" in operations(rig, "site2", "patience")

    until(is_taken, "for its time to come")
    until(lambda: tally(rig, "site2", "patience") == 2, "for it to be run")


def test_a_site_whose_stamps_are_ahead_cures_itself(rig: Rig) -> None:
    """With the clock of the store far ahead, as it is after a day with a wrong clock. Most sites agree on the time, so
    the site begins a new incarnation, and what it makes is taken at once."""
    rig.stop("site1")
    _advance_clock(rig, "site1", 24 * HOUR_MS)
    rig.start("site1")

    def is_taken() -> bool:
        try:
            lines = rig.exec("site1", "late", "inc", ADD, sites="site1 & site2", timeout=5, **TALLY)
        except (RefusedByAgentError, OSError, HTTPException):
            return False  # it is refused, or the agent starts again
        return {line["Site"] for line in lines if line["Status"] == "OK"} == {"site1", "site2"}

    until(lambda: "24.0 h ahead" in rig.log("site1"), "for site1 to see that its stamps are ahead")
    until(is_taken, "for site2 to take what site1 makes")


def _advance_clock(rig: Rig, site: str, by_ms: int) -> None:
    store = SQLiteStore(rig.folder(site) / "data" / "store.db", site)
    clock = store.recovered().clock
    store.commit([Save((SiteClock(Clock(clock.time_ms + by_ms)),))])
    store.close()
