"""A site that receives: everything between the bytes of another site and the store, with real signatures.

    bytes → unpack → signatures → intake → engine → what it wants saved, encoded → store in memory

Three sites: *here* receives, *paris* is honest, *lyon* is hostile and has its own key. `counter` is a resource of all
three, `honest` one of here and paris only, with operations that are acknowledged before the input comes. After each
input the receiver must be as good as before: `check` says what is not.

Keys and times are fixed, so an input is the same each time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from cheops.engine.documents import Document, Message
from cheops.engine.events import (
    Answer,
    Effect,
    Event,
    Fault,
    Load,
    Loaded,
    Outcome,
    PeerUp,
    Queried,
    Ran,
    Result,
    Run,
    Save,
    Send,
    Stage,
    Submitted,
    Tick,
)
from cheops.engine.replica import Replica
from cheops.engine.settings import ResourceType, Settings
from cheops.engine.site import Site
from cheops.log.causality import contains
from cheops.log.matrix import Entry, Matrix
from cheops.log.matrix import Result as Rule
from cheops.log.names import command_problem
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Reply, Stamp, Verdict
from cheops.log.policy import Policy
from cheops.peers.intake import DocumentIntake, DocumentVerifier
from cheops.peers.links import unpack
from cheops.security.audit import AuditWriter
from cheops.security.certificates import Identity, raw_public_key
from cheops.security.refusals import RefusalLog, Refusals
from cheops.security.signatures import Signer, key_id
from cheops.store.batch import DocumentSigner
from cheops.store.codec import content_of, encode_message
from cheops.store.memory import MemoryStore

NOW_MS = 1_700_000_100_000
SKEW_S = 60.0
HERE, PARIS, LYON = Origin("here", "1"), Origin("paris", "3f2a"), Origin("lyon", "91c0")
RULES = Matrix([Entry("set", "set", Rule.TAKE_ONE), Entry("set", "inc", Rule.KEEP_ORDER)])
_BORN = Stamp(1_700_000_000_000, 0, PARIS)
_REF = MatrixRef(RULES.hash, _BORN)
_KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b".")) for name in ("here", "paris", "lyon")
}
SIGNERS = {name: Signer(key) for name, key in _KEYS.items()}
SHARED, HONEST = "counter", "honest"
_SITES = {SHARED: ("paris", "lyon", "here"), HONEST: ("paris", "here")}
_ACKNOWLEDGED = 2  # operations of paris on each resource before an input comes


class HarmError(AssertionError):
    """An input has done something to the receiver that no message of another site may do."""


def operation(origin: Origin, n: int, kind: Kind = Kind.NORMAL, **changes: Any) -> Operation:
    fields: dict[str, Any] = {
        "resource": SHARED,
        "rtype": "t",
        "type": "set" if n % 2 else "inc",
        "kind": kind,
        "payload": Command(f"set {n}"),
        "origin": origin,
        "seq": n,
        "deps": {origin: n - 1} if n > 1 else {},
        "stamp": Stamp(_BORN.time_ms + n, 0, origin),
        "matrix": _REF,
        "sites": None,
        "verdict": Verdict.OK,
    }
    return Operation(**(fields | changes))


def signed(document: Any, site: str) -> Any:
    """The document with a signature by this site, whoever its origin is."""
    bare = replace(document, signature="")
    return replace(bare, signature=SIGNERS[site].sign([content_of(bare)])[0])


@cache
def of_paris(resource: str, n: int) -> Operation:
    sites = _SITES[resource] if n == 1 else None
    found: Operation = signed(operation(PARIS, n, resource=resource, sites=sites), "paris")
    return found


class _Keys:
    def __init__(self) -> None:
        self._known = {}
        for name, key in _KEYS.items():
            public = raw_public_key(key)
            self._known[name, key_id(public)] = Identity(name, public, _BORN.time_ms, 0.0, 4e9, b"")

    def get(self, site: str, key: str) -> Identity | None:
        return self._known.get((site, key))

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None:
        """No other key is to be had."""


def _problem_of_commands(rtype: str, resource: str) -> str | None:
    """As a site decides that runs commands on all resources."""
    del rtype
    return command_problem(resource)


class Receiver:
    """One site, with what was acknowledged before; `intake` takes what a hostile site sends."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        """By default with all that is prepared; `store` is for its preparation."""
        self.store = _copied(_prepared()) if store is None else store
        self.store.add_signatures = DocumentSigner(HERE, SIGNERS["here"].sign).signed
        types = {"t": ResourceType("t", reset=Command("reset"), policy=Policy())}
        self.site = Site(HERE, Settings(types, unknown_policy=Policy()))
        self.answers: list[Answer] = []
        refusal_log = RefusalLog(Refusals(), AuditWriter(Path("never-started.log")))
        verifier = DocumentVerifier(
            _Keys(),
            refusal_log,
            lambda _site: None,
            self._is_involved,
            clock_skew_s=SKEW_S,
            now_s=lambda: NOW_MS / 1000,
        )
        self.intake = DocumentIntake(self, verifier, lambda: None, refusal_log, _problem_of_commands)
        self.post(self.store.recovered())
        self.post(PeerUp("paris", PARIS.incarnation))
        self.post(PeerUp("lyon", LYON.incarnation))
        self._before = self._documents(HONEST)
        self._shared_before = self._documents(SHARED)

    def prepare(self) -> None:
        """Take operations of paris."""
        for resource in (SHARED, HONEST):
            ops = tuple(of_paris(resource, n) for n in range(1, _ACKNOWLEDGED + 1))
            known = {PARIS: _ACKNOWLEDGED}
            self.take("paris", [Message(resource, PARIS.incarnation, ops, matrices=(RULES,), known=known)])
        self.post(Tick())

    async def _is_involved(self, site: str, resource: str) -> bool:
        return site in (await self.replica(resource)).history.ever_listed

    # -- as the pump ---------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Pass an event to the engine, and carry out what follows, until nothing does. What runs, succeeds."""
        waiting = [event]
        while waiting:
            for effect in self.site.step(waiting.pop(0), NOW_MS):
                waiting += self._carried_out(effect)

    def _carried_out(self, effect: Effect) -> list[Event]:
        match effect:
            case Save():
                self.store.commit([effect])
            case Send():
                encode_message(effect.message)
            case Load():
                return [Loaded(effect.resource, self.store.load(effect.resource))]
            case Run():
                return [Ran(effect.resource, effect.n, (Outcome(Result.OK, "1"),) * len(effect.steps))]
            case Answer():
                self.answers.append(effect)
            case Fault():
                raise effect.error
        return []

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica:
        if resource not in self.site.replicas:
            self.post(Queried(resource, refresh))
        return self.site.replicas[resource]

    async def flushed(self) -> None:
        """Everything is carried out at once."""

    # -- inputs --------------------------------------------------------------------------------------------

    def take(self, sender: str, messages: Sequence[Message]) -> None:
        wait(self.intake.take(sender, messages))

    def take_body(self, body: bytes) -> None:
        """A request of lyon, as its connection proves; raises EnvelopeError."""
        self.take("lyon", unpack(body).messages)

    def accept(self, documents: Sequence[Document]) -> None:
        wait(self.intake.accept(documents))

    # -- what must hold afterwards -------------------------------------------------------------------------

    def check(self) -> None:
        """Raises HarmError."""
        self.post(Tick())
        ahead_ms = self.site.clock.time_ms - NOW_MS
        if ahead_ms > SKEW_S * 1000:
            raise HarmError(f"the clock of the site was moved {ahead_ms:,} ms into the future")
        if self._documents(HONEST) != self._before:
            raise HarmError("a resource that the hostile site has nothing to do with has changed")
        known = wait(self.replica(SHARED)).history.known
        if known.get(PARIS, 0) < _ACKNOWLEDGED:
            raise HarmError(f"{_ACKNOWLEDGED} operations of paris were acknowledged, and {known.get(PARIS, 0)} count")
        if not known.keys() - {PARIS, HERE} and not self._shared_before <= self._documents(SHARED):
            # Only an operation can make others superfluous, and none was taken.
            raise HarmError("acknowledged operations were erased")
        self._check_honest_operation()
        self._check_own_operation()

    def _check_honest_operation(self) -> None:
        op = of_paris(HONEST, _ACKNOWLEDGED + 1)
        self.take("paris", [Message(HONEST, PARIS.incarnation, (op,), known={PARIS: op.seq})])
        if not contains(wait(self.replica(HONEST)).history.known, op.id):
            raise HarmError("an honest operation is not taken any more")

    def _check_own_operation(self) -> None:
        self.answers.clear()
        self.post(Submitted("request", HONEST, "set", Command("set 9"), rtype="t", matrix=RULES))
        if Stage.ACCEPTED not in {one.stage for one in self.answers}:
            detail = [one.detail for one in self.answers]
            raise HarmError(f"an operation of this site's own clients is not accepted any more: {detail}")

    def _documents(self, resource: str) -> set[bytes]:
        shared = [one for one in self.store.load(resource) if isinstance(one, Operation | Reply)]
        return {content_of(one) for one in shared}


@cache
def _prepared() -> MemoryStore:
    receiver = Receiver(MemoryStore())
    receiver.prepare()
    return receiver.store


def _copied(store: MemoryStore) -> MemoryStore:
    copied, memo = MemoryStore(), {id(one): one for one in store._feeds}  # the names of some feeds are mere objects
    for name, value in vars(store).items():
        if name not in ("_lock", "add_signatures"):
            setattr(copied, name, deepcopy(value, memo))
    return copied


_loop = cache(asyncio.new_event_loop)


def wait(coroutine: Any) -> Any:
    return _loop().run_until_complete(coroutine)
