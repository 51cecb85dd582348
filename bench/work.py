"""The processor time of one signed operation: to submit it durably, and to take it from another site.

    python bench/work.py submit|channel     prints microseconds; in any checkout, with that checkout's own code
    python bench/work.py submit-parts       those of a submit, one by one (SUBMIT_PARTS)
    python bench/work.py parts              those of the channel, one by one (PARTS)
    python bench/work.py count N            for a tool that counts instructions: N submits per client; prints how many

It uses only what does not change from one version to the next, so that `python -m bench security` can compare this
checkout with an earlier one (CHEOPS_BENCH_BASE): in turns, in processes of their own. Processor time, because other
programs on the machine change it little.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))
if Path(sys.path[1]).name == "bench":
    del sys.path[1]  # this file's folder, with modules of the same names

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from bench import local_site
from bench.local_site import running_site
from bench.measure import temporary_folder
from cheops.engine.documents import Message
from cheops.engine.events import Load, Loaded, PeerUp, Received, Save
from cheops.engine.settings import ResourceType, Settings
from cheops.engine.site import Site
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Stamp, Verdict
from cheops.peers.intake import DocumentVerifier
from cheops.peers.links import pack, unpack
from cheops.security.audit import AuditWriter
from cheops.security.certificates import Identity, raw_public_key
from cheops.security.refusals import RefusalLog, Refusals
from cheops.security.signatures import Signer, key_id
from cheops.store import sqlite
from cheops.store.codec import content_of, encode

_CLIENTS, _OPERATIONS = 32, 40
_MESSAGES, _TOGETHER = 60, 8
SUBMIT_PARTS = ("engine", "encode", "write", "rest")
PARTS = ("pack", "unpack", "verify", "engine", "encode")
_NOW_MS = 1_700_000_100_000
_KEY = Ed25519PrivateKey.from_private_bytes(b"a key of benchmarks, no secret..")
_HERE, _THERE = Origin("site1", "1"), Origin("site2", "2")
_RULES = Matrix([Entry("set", "set", Result.TAKE_ONE), Entry("inc", "inc", Result.TAKE_BOTH)])


async def submit_us() -> list[float]:
    """Engine, pump, store and signatures, for many clients at once."""
    return [await _submits_s(_OPERATIONS) / (_CLIENTS * _OPERATIONS) * 1e6]


async def _submits_s(times: int, begin: Callable[[], None] = lambda: None) -> float:
    """The processor time of so many submits of each client, after some that do not count."""
    with temporary_folder() as place:
        async with running_site(place / "store.db", Signer(_KEY).sign) as site:

            async def client(number: int, times: int) -> None:
                for _ in range(times):
                    await site.submit(f"own-{number}")

            await asyncio.gather(*(client(number, 3) for number in range(_CLIENTS)))
            begin()
            began_s = time.process_time()
            await asyncio.gather(*(client(number, times) for number in range(_CLIENTS)))
            return time.process_time() - began_s


class _SameThread(Executor):
    """Instead of the thread that commits: every run does the same in the same order, and its parts add up."""

    def __init__(self, _name: object) -> None: ...

    def call(self, fn: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(self.submit(fn, *args))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


# Under the names that this version and earlier ones have.
_NO_THREAD = {"StoreThread": _SameThread, "ThreadPoolExecutor": _SameThread}


async def submit_parts_us() -> list[float]:
    parts_s = dict.fromkeys(SUBMIT_PARTS, 0.0)

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **kwargs: Any) -> Any:
            began_s = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                parts_s[part] += time.process_time() - began_s

        return measured

    for part, owner, name in (
        ("engine", Site, "step"),
        ("encode", sqlite, "writes_of"),
        ("write", sqlite.Writer, "commit"),
    ):
        setattr(owner, name, timed(part, getattr(owner, name)))
    vars(local_site).update(_NO_THREAD)
    all_s = await _submits_s(_OPERATIONS, lambda: parts_s.update(dict.fromkeys(SUBMIT_PARTS, 0.0)))
    parts_s["rest"] = all_s - sum(parts_s.values())
    return [part_s / (_CLIENTS * _OPERATIONS) * 1e6 for part_s in parts_s.values()]


async def count() -> list[float]:
    """Submit, and give the number of operations."""
    # Without ticks: how many there are would depend on the time.
    vars(local_site).update(_NO_THREAD, _TICK_S=1_000.0)
    times = int(sys.argv[2])
    await _submits_s(times)
    return [times * _CLIENTS]


class _Keys:
    def __init__(self) -> None:
        self._identity = Identity("site2", raw_public_key(_KEY), _NOW_MS - 1_000_000, 0.0, 4e9, b"")
        self._id = key_id(self._identity.signing_key)

    def get(self, site: str, key: str) -> Identity | None:
        return self._identity if (site, key) == ("site2", self._id) else None

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None: ...


def _operations() -> list[Operation]:
    """Of one site, signed some at a time, as a commit does."""
    made = [_operation(n) for n in range(1, _MESSAGES * _TOGETHER + 1)]
    signed: list[Operation] = []
    for start in range(0, len(made), _TOGETHER):
        some = made[start : start + _TOGETHER]
        signatures = Signer(_KEY).sign([content_of(one) for one in some])
        signed += [replace(one, signature=text) for one, text in zip(some, signatures, strict=True)]
    return signed


def _operation(n: int) -> Operation:
    fields: dict[str, Any] = {"resource": "counter", "rtype": "t", "type": "inc", "kind": Kind.NORMAL}
    fields |= {"payload": Command("redis-cli incrby counter 13"), "origin": _THERE, "seq": n}
    fields |= {"deps": {_THERE: n - 1} if n > 1 else {}, "stamp": Stamp(_NOW_MS - 90_000 + n, 0, _THERE)}
    fields |= {"matrix": MatrixRef(_RULES.hash, Stamp(_NOW_MS - 90_000, 0, _THERE)), "verdict": Verdict.OK}
    return Operation(**fields, sites=("site1", "site2") if n == 1 else None)


async def channel_us() -> list[float]:
    return [sum(await parts_us())]


async def parts_us() -> list[float]:
    """From the messages of one engine to what another wants saved: packed, unpacked, verified, taken, encoded."""
    operations = _operations()
    site = Site(_HERE, Settings({"t": ResourceType("t")}))
    log = RefusalLog(Refusals(), AuditWriter(Path("never-started.log")))

    async def is_involved(_site: str, _resource: str) -> bool:
        return True

    verifier = DocumentVerifier(
        _Keys(), log, lambda _site: None, is_involved, clock_skew_s=60, now_s=lambda: _NOW_MS / 1000
    )
    site.step(PeerUp("site2", "2"), _NOW_MS)
    parts_s = dict.fromkeys(PARTS, 0.0)
    last_s = time.process_time()

    def note(part: str) -> None:
        nonlocal last_s
        now_s = time.process_time()
        parts_s[part] += now_s - last_s
        last_s = now_s

    for start in range(0, len(operations), _TOGETHER):
        some = tuple(operations[start : start + _TOGETHER])
        message = Message("counter", "2", some, matrices=(_RULES,), known={_THERE: some[-1].seq})
        body = pack("site2", [message])
        note("pack")
        messages = unpack(body)[1]
        note("unpack")
        (verified,) = await verifier.verify("site2", messages)
        note("verify")
        effects = site.step(Received("site2", verified), _NOW_MS)
        for load in [effect for effect in effects if isinstance(effect, Load)]:
            effects += site.step(Loaded(load.resource, ()), _NOW_MS)
        note("engine")
        for effect in effects:
            for document in effect.documents if isinstance(effect, Save) else ():
                encode(document)
        note("encode")
    if site.replicas["counter"].history.known.get(_THERE) != len(operations):
        raise RuntimeError("the operations were not taken, so the measurement is invalid")
    return [part_s / len(operations) * 1e6 for part_s in parts_s.values()]


MEASURES = {
    "submit": submit_us,
    "submit-parts": submit_parts_us,
    "channel": channel_us,
    "parts": parts_us,
    "count": count,
}

if __name__ == "__main__":
    gc.freeze()  # as an agent does: one collection of everything imported would cost a third of the whole channel
    sys.stdout.write(" ".join(f"{us:.2f}" for us in uvloop.run(MEASURES[sys.argv[1]]())) + "\n")
