"""Messages between simulated sites as agents send them: signed, packed as bytes, and checked by the receiver.

Signing, encoding, decoding and the checks of the receiver are the production code. Each site has one key, which follows
from its name, so that a history gives the same bytes in every process. There are no certificates: a receiver knows the
keys of all sites, and knows by which site a body came.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from hashlib import sha256
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from cheops.engine.documents import Message
from cheops.engine.events import Save
from cheops.log.operation import Operation, Reply
from cheops.log.policy import may_have_taken
from cheops.peers import links
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.intake import DocumentVerifier
from cheops.peers.origin_tables import OriginTables
from cheops.peers.reports import ReportSigner
from cheops.security.certificates import Identity
from cheops.security.refusals import RefusalLog
from cheops.security.signatures import Signer
from cheops.sim.node import Node
from cheops.store.batch import DocumentSigner, writes_of
from cheops.store.codec import content_of

CLOCK_SKEW_S = 20.0  # far beyond what the clocks of honest sites differ by

_Signed = TypeVar("_Signed", Operation, Reply)
_Result = TypeVar("_Result")


@cache
def _signer(site: str) -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(sha256(site.encode()).digest()))


@cache
def _identity(site: str) -> Identity:
    return Identity(site, _signer(site).public_key, made_ms=0, from_s=0.0, until_s=1e12, der=b"")


class _Keys:
    """The keys of all sites, which every site knows from the start."""

    def __init__(self, sites: tuple[str, ...]) -> None:
        self._sites = frozenset(sites)

    def get(self, site: str, key_id: str) -> Identity | None:
        known = site in self._sites and _signer(site).key_id == key_id
        return _identity(site) if known else None

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None:
        """Nobody has any other keys."""


class RefusalCounter(RefusalLog):
    """Counts what a site refused, by reason; no audit log."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def document(self, reason: str, site: str, what: str = "", resource: str = "", detail: str = "") -> None:
        del site, what, resource, detail
        self.reasons[reason] += 1


class Wire:
    """Signs and packs for every site, and checks for every receiver."""

    def __init__(
        self,
        sites: tuple[str, ...],
        now_ms: Callable[[str], int],
        member_of: Callable[[str, str], MembershipRecord | None],
        report_unknown: Callable[[str, str], None] = lambda _receiver, _sender: None,
    ) -> None:
        """`now_ms` is the clock of a site; `member_of` what a site knows to be decided about another one.
        `report_unknown` gets a receiver that does not know what a sender has referred to."""
        self._keys = _Keys(sites)
        self._now_ms = now_ms
        self._member_of = member_of
        self._report_unknown = report_unknown
        self._tables: dict[tuple[str, str], OriginTables] = {}  # of a site, for a peer
        self._verifiers: dict[str, DocumentVerifier] = {}
        self.refused = RefusalCounter()

    def sign(self, node: Node, save: Save) -> None:
        """As a store does before it writes: encode every document, and sign those of this site; raises CodecError."""
        writes_of([save], DocumentSigner(node.origin, _signer(node.name).sign).signed)

    def signed(self, document: _Signed, by: str) -> _Signed:
        """The document with a signature of a site, which need not be that of its origin."""
        (signature,) = _signer(by).sign([content_of(replace(document, signature=""))])
        return replace(document, signature=signature)

    def pack(self, sender: str, *messages: Message, to: str = "") -> bytes:
        """`to`: the site that gets it; empty: any."""
        tables = self.tables(sender, to) if to else None
        return links.pack(sender, [self.with_report(sender, message) for message in messages], to, tables)

    def tables(self, site: str, peer: str) -> OriginTables:
        return self._tables.setdefault((site, peer), OriginTables())

    def restart(self, site: str) -> None:
        """A site has restarted. Others notice only when it does not know what they refer to: an agent would see that
        the connection has ended."""
        for pair in [pair for pair in self._tables if pair[0] == site]:
            del self._tables[pair]

    def with_report(self, sender: str, message: Message) -> Message:
        """A message that its receiver can pass on, if the sender wants that."""
        return ReportSigner(sender, _signer(sender).sign, _signer(sender).sign).signed(message)

    def unpack(self, receiver: Node, sender: str, body: bytes) -> list[Message]:
        """The messages in a body, without what the receiver refuses; raises CheopsError if it refuses all of it."""
        unpacked = links.unpack(body, lambda _claimed: self.tables(receiver.name, sender))
        if unpacked.site != sender:
            self.refused.document("forged sender", sender)
            return []
        for error in unpacked.refused:
            self.refused.document(error.reason, sender)
        if unpacked.is_unknown:
            self._report_unknown(receiver.name, sender)
        return _ended(self._verifier(receiver).verify(sender, unpacked.messages))

    def _verifier(self, node: Node) -> DocumentVerifier:
        if node.name not in self._verifiers:

            async def is_involved(site: str, resource: str) -> bool:
                replica = node.replica(resource)
                return replica is None or may_have_taken(site, replica.history)

            self._verifiers[node.name] = DocumentVerifier(
                self._keys,
                self.refused,
                lambda site: self._member_of(node.name, site),
                is_involved,
                clock_skew_s=CLOCK_SKEW_S,
                now_s=lambda: self._now_ms(node.name) / 1_000,
            )
        return self._verifiers[node.name]


def _ended(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end. It waits for nothing but its turn, and has the whole process to itself."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
