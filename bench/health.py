"""Whether one DIVERGED resource is found as fast among many as among few, and right after a start."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.local_site import fill_store
from bench.measure import human, temporary_folder
from bench.report import Section
from bench.sites import SITES, raise_limits
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig, until
from tests.agent.types import FILE

_SIZES = (1_000, 100_000)
_ROUNDS = 15
_BAD = "the-bad-one"
_FAILS_AT_SITE2 = "test $(basename $PWD) = site1 && echo two >> __ID__"
_PLAIN = "/healthz"
# The views that name or count it, and what their answer has to contain.
_VIEWS = {
    "`cheops status`": ("/api/v1/status", _BAD),
    "`cheops check`": ("/api/v1/check", _BAD),
    "metrics": ("/metrics", 'cheops_resources{state="diverged"} 1'),
    "the list of diverged resources": ("/api/v1/resources?overall=DIVERGED", _BAD),
}
_ABOUT = (
    "One resource is DIVERGED, all others are at rest. Each view finds it; the times are those of its request, on "
    'loopback. "First" is the first request\nafter a start of the agent.'
)


def run() -> Iterator[Section]:
    with contextlib.ExitStack() as stack:
        rigs = {size: stack.enter_context(_sites(size)) for size in _SIZES}
        rows = list(_rows(rigs))
    few, many = (f"{size:,} resources" for size in _SIZES)
    columns = ("what finds it", f"first, {many}", few, many, "ratio", f"against `{_PLAIN}`", "target")
    yield Section("health", columns, tuple(rows), "One diverged resource among many", _ABOUT)


@contextlib.contextmanager
def _sites(size: int) -> Iterator[Rig]:
    """Two sites. The first has this number of resources, and one more, which is diverged."""
    with temporary_folder() as place:
        rig = Rig(place / "rig", {"file": FILE}, SITES[:2])
        raise_limits(rig)
        with contextlib.closing(rig):
            data = rig.folder("site1") / "data"
            data.mkdir(mode=0o700)
            _fill(data / "store.db", size)
            rig.start()
            rig.exec("site1", _BAD, "set", "echo one > __ID__")
            rig.exec("site1", _BAD, "add", _FAILS_AT_SITE2)
            until(lambda: _answer(rig, *_VIEWS["metrics"])[1], "for the resource to be diverged")
            yield rig


def _fill(path: Path, size: int) -> None:
    with contextlib.closing(SQLiteStore(path, "site1")) as store:
        fill_store(store, range(size), SITES[:2])


def _rows(rigs: dict[int, Rig]) -> Iterator[tuple[str, ...]]:
    many = rigs[_SIZES[1]]
    first = {}
    for what, (path, wanted) in _VIEWS.items():
        many.kill("site1")
        many.start("site1")
        first[what] = _found_s(many, path, wanted)
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(_ROUNDS):  # in turns, so that a busy moment is the same for all
        for size, rig in rigs.items():
            times.setdefault((_PLAIN, size), []).append(_found_s(rig, _PLAIN, ""))
            for what, (path, wanted) in _VIEWS.items():
                times.setdefault((what, size), []).append(_found_s(rig, path, wanted))
    medians = {key: statistics.median(samples) for key, samples in times.items()}
    for what, first_s in first.items():
        few_s, many_s = (medians[what, size] for size in _SIZES)
        plain_s = medians[_PLAIN, _SIZES[1]]
        ratios = (f"{many_s / few_s:.2f} x", f"{many_s / plain_s:.1f} x")
        yield what, human(first_s), human(few_s), human(many_s), *ratios, "< 1.5 x"


def _found_s(rig: Rig, path: str, wanted: str) -> float:
    took_s, is_found = _answer(rig, path, wanted)
    if not is_found:
        raise ValueError(f"{path} does not show the diverged resource")
    return took_s


def _answer(rig: Rig, path: str, wanted: str) -> tuple[float, bool]:
    began_s = time.perf_counter()
    answer = rig.request("site1", "GET", path).decode()
    return time.perf_counter() - began_s, wanted in answer
