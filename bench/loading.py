"""What a resource with very many operations takes, and the first list of resources after a start."""

import contextlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from bench.local_site import COUNTER, fill_store
from bench.measure import human, temporary_folder
from bench.report import Section
from bench.sites import SITES, cpu_s, raise_limits, rss_bytes
from cheops.engine.documents import Document, Ledger, PeerRecord, Progress
from cheops.engine.events import Loaded, Queried, Save
from cheops.engine.settings import Settings
from cheops.engine.site import Site
from cheops.log.operation import (
    Command,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Reply,
    Stamp,
    Status,
    Timing,
    Verdict,
)
from cheops.store.codec import encode
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig
from tests.agent.types import FILE

_OPERATIONS, _RESOURCES = 50_000, 20_000
LARGE = "the-large-one"  # after the others: it is not on the first page
_PLAIN = "/healthz"
_START_MS, _STEP_MS = 1_700_000_000_000, 137
_PER_COMMIT = 2_000
_MIB = 1024 * 1024
_VIEWS = {  # after the resource is loaded
    "the first page of its log": (f"/api/v1/resources/{LARGE}/log?limit=500&fresh=0", "< 1 s"),
    "`cheops explain`": (f"/api/v1/resources/{LARGE}/explain?fresh=0", "< 1 s"),
    "`cheops status ID`": (f"/api/v1/resources/{LARGE}/status?fresh=0", "< 1 s"),
}
_LISTS = {  # each right after a start
    "the first `GET /resources`": ("", "< 0.2 s"),
    "the same, with a filter that the store cannot apply": ("?type=none", "< 1 s"),
    "the same, of a page with the large resource": (f"?prefix={LARGE}", ""),
}
_ABOUT = (
    f"A resource of {_OPERATIONS:,} operations of three sites, each with the replies of all three; and a site with\n"
    f"{_RESOURCES:,} other resources, right after a start. Times are those of one request, or of the command, on "
    f"loopback. The reference is `{_PLAIN}`\nof the same agent, or what the documents take on the disk."
)


def run() -> Iterator[Section]:
    with temporary_folder() as place:
        rig = Rig(place / "rig", {"file": FILE}, SITES[:1])
        raise_limits(rig)
        with contextlib.closing(rig):
            data = rig.folder(SITES[0]) / "data"
            data.mkdir(mode=0o700)
            size = _fill(data / "store.db")
            rows = [*_of_lists(rig), *_of_large(rig, size)]
    columns = ("what", "measured", "reference", "ratio", "target")
    yield Section("loading", columns, tuple(rows), "A large resource, and many", _ABOUT)


def _of_lists(rig: Rig) -> Iterator[tuple[str, ...]]:
    for what, (path, target) in _LISTS.items():
        rig.start(SITES[0])
        plain_s = min(_took_s(rig, _PLAIN) for _ in range(20))
        took_s = _took_s(rig, f"/api/v1/resources{path}")
        yield what, human(took_s), human(plain_s), f"{took_s / plain_s:,.0f} x", target
        rig.kill(SITES[0])


def _of_large(rig: Rig, size: int) -> Iterator[tuple[str, ...]]:
    rig.start(SITES[0])
    pid = rig.processes[SITES[0]].pid
    plain_s = min(_took_s(rig, _PLAIN) for _ in range(20))
    rest, most = rss_bytes(pid), MostMemory(pid)
    with most:
        load_s = _took_s(rig, f"/api/v1/resources/{LARGE}/status?fresh=0")
    memory = most.bytes - rest
    stored = f"{size / _MIB:.0f} MiB"
    yield "memory above rest, at most (RSS)", f"{memory / _MIB:.0f} MiB", stored, f"{memory / size:.1f} x", "< 100 MiB"
    yield "to load it, and get its status", human(load_s), human(plain_s), f"{load_s / plain_s:,.0f} x", ""
    for what, (path, target) in _VIEWS.items():
        took_s = min(_took_s(rig, path) for _ in range(5))
        yield what, human(took_s), human(plain_s), f"{took_s / plain_s:.0f} x", target
    version_s = _command_s(rig, "--version")
    used_s = cpu_s(pid) + _children_cpu_s()
    log_s = _command_s(rig, "log", LARGE)
    used_s = cpu_s(pid) + _children_cpu_s() - used_s
    reference = f"{human(version_s)} (`cheops --version`)"
    yield "`cheops log`, the whole", human(log_s), reference, f"{log_s / version_s:.0f} x", "< 3 s"
    yield "its processor time, agent and command", human(used_s), reference, f"{used_s / version_s:.0f} x", "< 3 s"
    rig.stop(SITES[0])


class MostMemory:
    """The most memory that a process has, while the block runs."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.01):
            self.bytes = max(self.bytes, rss_bytes(self._pid))


def _took_s(rig: Rig, path: str) -> float:
    began_s = time.perf_counter()
    rig.request(SITES[0], "GET", path)
    return time.perf_counter() - began_s


def _command_s(rig: Rig, *words: str) -> float:
    url = ("--url", rig.url(SITES[0])) if words[0] == "log" else ()
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cheops", *words, *url], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def _children_cpu_s() -> float:
    """The processor time of commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- the store -------------------------------------------------------------------------------------------


def _fill(path: Path) -> int:
    """Fill the store; return the number of bytes of the documents of the large resource."""
    with contextlib.closing(SQLiteStore(path, SITES[0])) as store:
        fill_store(store, range(_RESOURCES), SITES)
        documents = large_resource(store.incarnation, _OPERATIONS)
        for first in range(0, len(documents), _PER_COMMIT):
            store.commit([Save(tuple(documents[first : first + _PER_COMMIT]))])
    return sum(len(encode(document)) for document in documents)


def large_resource(incarnation: str, count: int, sites: tuple[str, ...] = SITES) -> list[Document]:
    """The documents of a resource at sites that make operations in turns, and have run all of them."""
    origins = [Origin(sites[0], incarnation), *(Origin(site, "other") for site in sites[1:])]
    documents: list[Document] = []
    known: dict[Origin, int] = {}
    matrix = MatrixRef(COUNTER.hash, Stamp(_START_MS, 0, origins[0]))
    for n in range(count):
        origin, at_ms = origins[n % len(origins)], _START_MS + n * _STEP_MS
        command, listed = Command(f"redis-cli incrby counter {n}"), sites if n == 0 else None
        op = Operation(
            LARGE,
            "",
            "inc",
            Kind.NORMAL,
            command,
            origin,
            known.get(origin, 0) + 1,
            dict(known),
            Stamp(at_ms, 0, origin),
            matrix,
            listed,
            verdict=Verdict.OK,
        )
        known[origin] = op.seq
        documents.append(op)
        documents += (
            Reply(LARGE, by, n + 1, OpId(origin, op.seq), "inc", Status.OK, output="13\n", timing=Timing(at_ms, 2))
            for by in origins
        )
    replies = dict.fromkeys(origins, count)
    ledger = Ledger(LARGE, reply_floor=replies, adopted=matrix, state="converged")
    peers = {origin.site: PeerRecord(origin.incarnation, _START_MS) for origin in origins[1:]}
    digest = _digest(origins[0], [*documents, ledger])
    return [*documents, structs.replace(ledger, progress=Progress(known, replies, digest, peers))]


def _digest(here: Origin, documents: list[Document]) -> str:
    """What a site with all of these reports."""
    site = Site(here, Settings())
    site.matrices[COUNTER.hash] = COUNTER
    site.step(Queried(LARGE), _START_MS)
    site.step(Loaded(LARGE, tuple(documents)), _START_MS)
    return site.replicas[LARGE].applied.digest()
