"""One mesh in a virtual time, which hears all that its peers would say: who is alive, how far, and where.

Its probes are answered by what such a peer would say: bounded lists, as full as they may be.
"""

import time
from itertools import count, cycle, islice, pairwise
from random import Random

from cheops.scope.parse import parse
from cheops.scope.resolve import resolve
from cheops.sync.coordinates import Coordinate
from cheops.sync.heartbeat import Entry, Heartbeat, Pair, Saved, decode, encode
from cheops.sync.mesh import Mesh
from cheops.sync.mesh_settings import MeshSettings, Now

_WALL_MS = 1_700_000_000_000.0
_SCOPE = "site1 & site2 & site3"


class Heard:
    """The mesh of site1, and everybody else."""

    def __init__(self, sites: int) -> None:
        self._random = Random(1)
        self._settings = MeshSettings()
        entries = [
            Entry(f"site{number}", "1", f"http://10.0.0.1:{number}", 1, "1.0")
            for number in range(1, sites + 1)
        ]
        self._now_ms = 0.0
        self._own, *self._others = entries
        self._mesh = Mesh(self._own, {}, self._now(), self._settings, Saved(self._own, tuple(self._others)))
        self._mesh.interest(("site2", "site3"))
        self._turns = cycle(self._others)
        self._beats = count(int(_WALL_MS))

    def period(self) -> float:
        """Seconds for one period of the mesh: choose whom to probe, make the probes, take their answers."""
        self._now_ms += 1.2 * self._settings.period_ms
        start = time.perf_counter()
        probes, _ = self._mesh.tick(self._now(), self._random.randrange)
        spent_s = time.perf_counter() - start
        self._now_ms += 20
        for probe in probes:
            answer = self._said_by(probe.to_site)
            start = time.perf_counter()
            encode(probe.payload)
            self._mesh.probe_answered(probe.id, decode(answer), self._now())
            spent_s += time.perf_counter() - start
        return spent_s

    def answer(self) -> float:
        """Seconds to answer somebody's probe."""
        asked = self._said_by(next(self._turns).name)
        start = time.perf_counter()
        answer, _ = self._mesh.received_probe(decode(asked), self._now())
        encode(answer)
        return time.perf_counter() - start

    def look(self) -> float:
        """Seconds to find out who there is, which the agent does at most once a second."""
        start = time.perf_counter()
        self._snapshot = self._mesh.snapshot(self._now())
        return time.perf_counter() - start

    def resolve(self) -> float:
        """Seconds to find the sites that a request names, as the agent does for each."""
        start = time.perf_counter()
        resolve(parse(_SCOPE), None, self._snapshot)
        return time.perf_counter() - start

    def _now(self) -> Now:
        return Now(self._now_ms, _WALL_MS + self._now_ms)

    def _said_by(self, site: str) -> bytes:
        settings, beat = self._settings, next(self._beats)
        told = list(islice(self._turns, settings.beats_per_message))
        near = told[: settings.pairs_per_message]
        heartbeat = Heartbeat(
            site,
            "1",
            1,
            beat,
            self._now().wall_ms,
            seen=(self._mesh.own.revision, 1),
            coordinate=self._place(),
            beats=tuple({entry.name: (entry.name, beat) for entry in told}.values()),
            pairs=tuple(self._pair(one, other, beat) for one, other in pairwise(near)),
            places=tuple((entry.name, beat, self._place()) for entry in told[: settings.places_per_message]),
        )
        return encode(heartbeat)

    def _pair(self, one: Entry, other: Entry, beat: int) -> Pair:
        return one.name, other.name, 5 + 50 * self._random.random(), beat

    def _place(self) -> Coordinate:
        x, y, z = (100 * self._random.random() for _ in range(3))
        return Coordinate(x, y, z, 1.0, 0.2)
