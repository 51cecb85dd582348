"""Settings of the mesh, and its clock. `config/` sets a few of them (`heartbeat` in the configuration file)."""

from math import ceil
from typing import NamedTuple

from msgspec import Struct


class Now(NamedTuple):
    """A moment by two clocks: one that never jumps, for intervals, and the wall clock, to compare with other sites."""

    mono_ms: float
    wall_ms: float


class MeshSettings(Struct, frozen=True):
    """The defaults suit 3 to 1,000 sites."""

    period_ms: float = 1_000
    max_timeout_ms: float = 3_000

    # Probes per period. Their sum bounds what an agent sends, however many sites there are.
    interest_probes: int = 4  # sites that share resources with this one
    urgent_probes: int = 2  # sites in doubt, and sites that come back
    near_probes: int = 1
    random_probes: int = 2  # they spread gossip to all sites, and join parts that were cut off

    # What one heartbeat carries.
    beats_per_message: int = 64
    fresh_entries_per_message: int = 8
    entry_bytes_per_message: int = 32_768  # not less than one entry may have; one with a certificate has 1.2 KiB
    pairs_per_message: int = 12
    places_per_message: int = 8
    members_per_message: int = 8
    full_answers_per_period: int = 32  # further answers carry a few entries, and no other gossip
    referral_bytes: int = 4_096
    regulars_per_period: int = 32  # with more regular probers, all are asked to come less often
    max_every: int = 32

    # Own evidence (see liveness.py).
    least_misses: int = 4
    most_misses: int = 14
    false_alarm: float = 1e-6  # how likely a run of misses may be by mere loss
    flap_half_life_ms: float = 60_000
    most_hits: int = 6

    # Hearsay: a base, and more with the number of sites, because a bounded message needs more rounds to cover them all.
    suspect_after_ms: float = 10_000
    down_after_ms: float = 20_000
    per_site_ms: float = 30

    # What is kept.
    max_sites: int = 4_096
    near_sites: int = 8
    row_size: int = 16  # measured distances that a site announces
    pairs_per_s: float = 24  # of the whole mesh: sets how often a site repeats its row
    max_members: int = 65_536  # decisions; no more are taken, and none is ever dropped

    # How far the numbers of other sites that are wall times may be ahead of our clock.
    clock_skew_ms: float = 60_000

    @classmethod
    def from_heartbeat(cls, every_s: float, down_after_s: float, clock_skew_s: float = 60.0) -> "MeshSettings":
        """From the configuration file. The first miss comes up to a period after the site went down, hence one less."""
        misses = max(2, ceil(down_after_s / every_s) - 1)
        period_ms = every_s * 1_000
        return cls(
            period_ms=period_ms,
            max_timeout_ms=3 * period_ms,
            least_misses=misses,
            most_misses=max(14, 2 * misses),
            suspect_after_ms=10 * period_ms,
            down_after_ms=20 * period_ms,
            per_site_ms=0.03 * period_ms,
            clock_skew_ms=clock_skew_s * 1_000,
        )

    def latest_ms(self, wall_ms: float) -> float:
        """The latest wall time that another site can truthfully have written down by now."""
        return wall_ms + self.clock_skew_ms

    def suspect_ms(self, sites: int) -> float:
        """How old the youngest sign of life may be before a site is in doubt."""
        return self.suspect_after_ms + self.per_site_ms * sites

    def down_ms(self, sites: int) -> float:
        return self.down_after_ms + self.per_site_ms * sites

    def row_periods(self, sites: int) -> int:
        """After how many periods a site repeats its row: all rows together stay within pairs_per_s."""
        return max(30, ceil(sites * self.row_size / self.pairs_per_s))


class SteadyClock:
    """Time that stands still while this agent does: a suspended machine, a stopped process.

    Otherwise all other sites would seem silent after a pause, and be reported down. `pauses` counts the pauses, so that
    a caller sees whether an interval had one in it.
    """

    def __init__(self, longest_gap_ms: float) -> None:
        self._longest_gap_ms = longest_gap_ms
        self._paused_ms = 0.0
        self._ticked_ms: float | None = None
        self.pauses = 0

    def tick(self, now: Now) -> float:
        """The time at a tick. Ticks are regular, so a long gap is a pause."""
        if self._ticked_ms is not None and now.mono_ms - self._ticked_ms > self._longest_gap_ms:
            self._paused_ms += now.mono_ms - self._ticked_ms
            self.pauses += 1
        self._ticked_ms = now.mono_ms
        return self.time_ms(now)

    def time_ms(self, now: Now) -> float:
        return now.mono_ms - self._paused_ms
