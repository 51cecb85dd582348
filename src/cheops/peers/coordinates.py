"""Network coordinates: a place for each site, so that distances which nobody measured can be estimated.

Vivaldi (Dabek et al., 2004), with heights: three dimensions for the distance through the core of the
network, and a height for the access link, which every path of a site has to climb. Each measured round
trip moves a site's own place a little along the line to its peer, as a spring would; the less it trusts
its own place and the more it trusts the peer's, the further. Pure functions of values.
"""

from hashlib import blake2b
from math import hypot

import msgspec

_ERROR_WEIGHT = 0.25  # how fast the error estimate follows
_STEP = 0.25  # how far one sample moves a place
_LEAST_HEIGHT_MS = 0.01
_LEAST_RTT_MS = 0.05  # below this a measurement says more of the scheduler than of the network
MAX_MS = 100_000.0
SETTLED_ERROR = 0.5  # places that err more are not used for estimates


class Coordinate(msgspec.Struct, frozen=True, array_like=True):
    """A place, in milliseconds of round trip; `error` is relative, 1 where nothing is known yet."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    height: float = _LEAST_HEIGHT_MS
    error: float = 1.0

    @property
    def settled(self) -> bool:
        return self.error <= SETTLED_ERROR


def estimate_ms(one: Coordinate, other: Coordinate) -> float:
    """The round-trip time that two places suggest."""
    return hypot(one.x - other.x, one.y - other.y, one.z - other.z) + one.height + other.height


def moved(own: Coordinate, peer: Coordinate, rtt_ms: float, names: str) -> Coordinate:
    """The own place after a round trip. `names` gives two places that coincide a direction to part."""
    rtt_ms = min(max(rtt_ms, _LEAST_RTT_MS), MAX_MS)
    estimated_ms = max(estimate_ms(own, peer), 2 * _LEAST_HEIGHT_MS)
    trust = own.error / (own.error + peer.error) if own.error + peer.error > 0 else 0.5
    miss = abs(estimated_ms - rtt_ms) / rtt_ms
    share = _ERROR_WEIGHT * trust
    error = min(max(miss * share + own.error * (1 - share), 0.01), 1.0)
    force_ms = _STEP * trust * (rtt_ms - estimated_ms)
    ux, uy, uz = _direction(own, peer, names)
    height = own.height + force_ms * (own.height + peer.height) / estimated_ms
    return Coordinate(
        _bounded(own.x + force_ms * ux),
        _bounded(own.y + force_ms * uy),
        _bounded(own.z + force_ms * uz),
        min(max(height, _LEAST_HEIGHT_MS), MAX_MS),
        error,
    )


def rounded(own: Coordinate) -> Coordinate:
    """As it is told to others: no more digits than mean something."""
    return Coordinate(*(round(number, 3) for number in (own.x, own.y, own.z, own.height, own.error)))


def _direction(own: Coordinate, peer: Coordinate, names: str) -> tuple[float, float, float]:
    x, y, z = own.x - peer.x, own.y - peer.y, own.z - peer.z
    length = hypot(x, y, z)
    if length < 1e-6:
        digest = blake2b(names.encode(), digest_size=3).digest()
        x, y, z = (byte - 127.5 for byte in digest)
        length = hypot(x, y, z)
    return x / length, y / length, z / length


def _bounded(number: float) -> float:
    return min(max(number, -MAX_MS), MAX_MS)
