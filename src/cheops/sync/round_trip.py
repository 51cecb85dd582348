"""What the probes to one peer tell: the round-trip time, smoothed, and how far the two clocks are apart.

Four timestamps, as in NTP: sent, received, answered, arrived. The time that the peer took is not
distance. A sample can be too large (a busy machine, a new connection) but hardly too small, so the
smoothed value follows the least of the last few; the clocks are compared with the quickest of the last
eight, where the answer's way can have distorted least.
"""

from dataclasses import dataclass, replace

_LEAST_OF = 3
_KEPT = 8
_GAIN = 1 / 8
_VARIANCE_GAIN = 1 / 4


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How much the peer's clock is ahead of ours, give or take `error_ms`."""

    offset_ms: float
    error_ms: float


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The samples of one peer. `samples` are (round trip, clock offset), the last ones."""

    rtt_ms: float
    variance_ms: float
    samples: tuple[tuple[float, float], ...]
    at_ms: float

    @property
    def clock(self) -> ClockOffset:
        rtt_ms, offset_ms = min(self.samples)
        return ClockOffset(offset_ms, rtt_ms / 2)


def sampled(before: RoundTrip | None, rtt_ms: float, offset_ms: float, now_ms: float) -> RoundTrip:
    """What is known after one more sample."""
    if before is None:
        return RoundTrip(rtt_ms, rtt_ms / 2, ((rtt_ms, offset_ms),), now_ms)
    samples = (*before.samples, (rtt_ms, offset_ms))[-_KEPT:]
    least_ms = min(sample for sample, _ in samples[-_LEAST_OF:])
    gain = max(
        _GAIN, 1 / len(samples)
    )  # the first samples are a mean, so that the very first does not linger
    return replace(
        before,
        rtt_ms=before.rtt_ms + gain * (least_ms - before.rtt_ms),
        variance_ms=before.variance_ms + _VARIANCE_GAIN * (abs(rtt_ms - before.rtt_ms) - before.variance_ms),
        samples=samples,
        at_ms=now_ms,
    )
