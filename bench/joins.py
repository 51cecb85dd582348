"""What a site that joins a long resource costs: documents sent to it, and memory of both agents."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from bench.loading import LARGE, MostMemory, large_resource
from bench.local_site import COUNTER
from bench.measure import human, temporary_folder
from bench.report import Section
from bench.sites import raise_limits, rss_bytes
from cheops.engine.documents import Document
from cheops.engine.events import Save
from cheops.log.operation import Command, Operation, Reply
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig, until
from tests.agent.types import COUNTER_MATRIX

_OLD, _NEW = "site1", "site2"
_TYPES = {"bench": {"allow": ["true", "cat"], "matrix": COUNTER_MATRIX}}
_PER_COMMIT = 500
_PATIENCE_S = 1_200.0
_PAUSE_S = 2.0
_MIB = 1024 * 1024
_ABOUT = (
    "A resource at one site gets a second site, which has nothing of it. Sent are the operations and replies in the\n"
    "messages to that site (`cheops_sent_documents_total`), until both say CONVERGED. Memory is the most that an\n"
    "agent has above what it had before (RSS)."
)


@dataclass(frozen=True)
class _Case:
    operations: int
    output_bytes: int = 0

    @property
    def name(self) -> str:
        outputs = f" with outputs of {self.output_bytes // 1000} kB" if self.output_bytes else ""
        return f"{self.operations:,} operations{outputs}"


CASES = (_Case(16_000), _Case(600, 60_000))


def run() -> Iterator[Section]:
    columns = ("joined", "documents", "sent", "ratio", "target", "memory: first", "second", "target", "took")
    yield Section("joins", columns, tuple(map(_measured, CASES)), "A site that joins", _ABOUT)


def _measured(case: _Case) -> tuple[str, ...]:
    with temporary_folder() as place:
        rig = Rig(place / "rig", _TYPES, (_OLD, _NEW))
        raise_limits(rig)
        with contextlib.closing(rig):
            _fill(rig.folder(_OLD), case)
            rig.start()
            until(lambda: _is_up(rig), "for the two sites to meet")
            rig.request(_OLD, "GET", f"/api/v1/resources/{LARGE}/status?fresh=0")  # loads it
            began_s = time.perf_counter()
            with _memory(rig, _OLD) as of_old, _memory(rig, _NEW) as of_new:
                body = f'{{"sites": "{_OLD} & {_NEW}"}}'
                path = f"/api/v1/resources/{LARGE}/sites"
                rig.request(_OLD, "PUT", path, body, {"Content-Type": "application/json"})
                until(lambda: _is_converged(rig), "for the second site to have run all", _PATIENCE_S)
            took_s = time.perf_counter() - began_s
            needed, sent = 2 * case.operations + 2, _sent(rig)
    return (
        case.name,
        f"{needed:,}",
        f"{sent:,}",
        f"{sent / needed:.2f} x",
        "≤ 1.2 x",
        f"{of_old[0] / _MIB:.0f} MiB",
        f"{of_new[0] / _MIB:.0f} MiB",
        "< 200 MB",
        human(took_s),
    )


@contextlib.contextmanager
def _memory(rig: Rig, site: str) -> Iterator[list[int]]:
    """What the agent of a site takes at most in the block, above what it has now: in the list after the block."""
    pid = rig.processes[site].pid
    rest, most, found = rss_bytes(pid), MostMemory(pid), [0]
    with most:
        yield found
    found[0] = most.bytes - rest


def _is_up(rig: Rig) -> bool:
    return f'cheops_site_up{{peer="{_NEW}"}} 1' in rig.request(_OLD, "GET", "/metrics").decode()


def _is_converged(rig: Rig) -> bool:
    """By the word of the newcomer, too: the first site says it as soon as that one has reported. To ask all the time
    would slow both down: a status looks at all operations."""
    time.sleep(_PAUSE_S)
    path = f"/api/v1/resources/{LARGE}/status?fresh=0"
    return all(b'"overall":"CONVERGED"' in rig.request(site, "GET", path).replace(b": ", b":") for site in (_OLD, _NEW))


def _sent(rig: Rig) -> int:
    metrics = rig.request(_OLD, "GET", "/metrics").decode()
    found = re.search(rf'^cheops_sent_documents_total{{peer="{_NEW}"}} (\S+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0


# -- the store -------------------------------------------------------------------------------------------


def _fill(folder: Path, case: _Case) -> None:
    """The resource with all its operations and replies, as its only site has it. The newcomer prints as much."""
    output = "x" * case.output_bytes
    text = folder.parent / "output"
    text.write_text(output)
    command = Command(f"cat {text}" if output else "true")
    data = folder / "data"
    data.mkdir(mode=0o700)
    with contextlib.closing(SQLiteStore(data / "store.db", _OLD)) as store:
        found = large_resource(store.incarnation, case.operations, sites=(_OLD,))
        documents = [COUNTER, *(_with(document, command, output) for document in found)]
        for first in range(0, len(documents), _PER_COMMIT):
            store.commit([Save(tuple(documents[first : first + _PER_COMMIT]))])


def _with(document: Document, command: Command, output: str) -> Document:
    if isinstance(document, Operation):
        return structs.replace(document, rtype="bench", payload=command)
    return structs.replace(document, output=output) if isinstance(document, Reply) else document
