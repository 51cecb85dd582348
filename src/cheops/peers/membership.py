"""Which sites exist: the catalogue of their own records, and the decisions to forget or admit a site.

Records spread as gossip, each new one a number of times that grows with the logarithm of the mesh
(`GossipQueue`). What gossip misses, anti-entropy brings: records lie in 32 buckets by their name, a heartbeat
carries one digest per bucket, and the answer brings records of the buckets that differ. So a new site learns
the whole mesh page by page, and two equal catalogues cost nothing.

The greater (revision, incarnation) of a site counts, so merging is commutative, associative and idempotent. A
peer from the configuration file has no record until its first heartbeat; its address is kept elsewhere.

A membership record exists for each site that was ever forgotten or invited. The greater stamp counts, and of two with
the same stamp the one that forgets. A live site does not refute its record; only a later decision (`admit`) does.
So old gossip cannot bring a removed site back. The records also revoke the site's certificates (enrollment.py).

With security on, only the authority's key makes a decision (proofs.py), and a stamp is not ahead of our clock by more
than `clock_skew`. So every decision in force can be outdone by a later one. None is ever dropped: documents outlive the
certificates of their signers, and a revocation without its record would be none. A decision that was verified once
stays in force here even when its authority is no longer trusted; a site with the new authority's key signs it anew.
"""

from collections.abc import Hashable, Iterable, KeysView, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct

from cheops.peers.heartbeat import BUCKETS, MembershipRecord, MeshError, SiteRecord, encode
from cheops.peers.proofs import Proofs, RecordError
from cheops.peers.settings import MeshSettings
from cheops.text import printable, shortened

Key = TypeVar("Key", bound=Hashable)


class GossipQueue(Generic[Key]):
    """News to pass on: keys, each with the number of times it is still to be sent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, times: int) -> None:
        """Add a key, or renew it: then it keeps its place in the queue."""
        if key not in self._waiting and len(self._waiting) >= self._most:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[key] = times

    def take(self, most: int) -> list[Key]:
        """The next keys to send; each moves to the end of the queue until it was sent often enough."""
        taken = list(islice(self._waiting, most))
        for key in taken:
            left = self._waiting.pop(key) - 1
            if left > 0:
                self._waiting[key] = left
        return taken

    def drop(self, key: Key) -> None:
        self._waiting.pop(key, None)


class _Stored(Struct, frozen=True):
    """An entry with what is computed from it."""

    entry: SiteRecord
    bucket: int
    digest: int
    size: int


@lru_cache(maxsize=8_192)
def _stored(entry: SiteRecord) -> _Stored:
    bucket = blake2b(entry.name.encode(), digest_size=1).digest()[0] % BUCKETS
    text = f"{entry.name}\0{entry.incarnation}\0{entry.revision}".encode()
    digest = int.from_bytes(blake2b(text, digest_size=4).digest(), "big")
    return _Stored(entry, bucket, digest, len(encode(entry)))


def record_rank(entry: SiteRecord) -> tuple[int, str]:
    """The order of the entries of one site: the greatest is the latest."""
    return entry.revision, entry.incarnation


class Catalogue:
    """All known entries, including the own."""

    def __init__(self, own: SiteRecord, settings: MeshSettings) -> None:
        self._settings = settings
        self._buckets: list[dict[str, _Stored]] = [{} for _ in range(BUCKETS)]
        self._stored: dict[str, _Stored] = {}
        self._digests = [0] * BUCKETS
        self._shown_digests: tuple[int, ...] | None = None  # made once, because every heartbeat has them
        self._news: GossipQueue[str] = GossipQueue(settings.max_sites)
        self._page_turn = 0
        self.refused = 0  # entries beyond the limit
        self.changes = 0  # grows with each entry that is taken
        self.own = own
        self.take(own)

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def names(self) -> KeysView[str]:
        return self._stored.keys()

    def get(self, site: str) -> SiteRecord | None:
        stored = self._stored.get(site)
        return stored.entry if stored else None

    def entries(self) -> list[SiteRecord]:
        return [stored.entry for stored in self._stored.values()]

    @property
    def digests(self) -> tuple[int, ...]:
        if self._shown_digests is None:
            self._shown_digests = tuple(self._digests)
        return self._shown_digests

    def describe(self, own: SiteRecord) -> None:
        """Replace the own entry."""
        self.own = own
        self.take(own)

    def is_news(self, entry: SiteRecord) -> bool:
        """Whether `take` would take it: cheap, so that what is known already is not verified again."""
        before = self._stored.get(entry.name)
        return before is None or (before.entry is not entry and record_rank(entry) > record_rank(before.entry))

    def take(self, entry: SiteRecord, *, old: bool = False) -> bool:
        """Take an entry. Returns whether it is new. An `old` one, from the disk, is not passed on as news."""
        if not self.is_news(entry):
            return False
        before = self._stored.get(entry.name)
        if before is None and len(self._stored) >= self._settings.max_sites:
            self.refused += 1
            return False
        self.changes += 1
        stored = _stored(entry)
        # XOR, so that the digest of a bucket does not depend on the order in which entries came.
        self._change_digest(stored.bucket, stored.digest ^ (before.digest if before else 0))
        self._stored[entry.name] = self._buckets[stored.bucket][entry.name] = stored
        if not old:
            # An epidemic reaches all sites after about log2(sites) rounds; twice that leaves room for lost messages.
            self._news.add(entry.name, 2 * len(self._stored).bit_length())
        return True

    def drop(self, site: str) -> None:
        stored = self._stored.pop(site, None)
        if stored is not None:
            del self._buckets[stored.bucket][site]
            self._change_digest(stored.bucket, stored.digest)
            self._news.drop(site)

    def _change_digest(self, bucket: int, by: int) -> None:
        self._digests[bucket] ^= by
        self._shown_digests = None

    def fresh(self) -> list[SiteRecord]:
        """The next new entries to pass on."""
        names = self._news.take(self._settings.fresh_entries_per_message)
        return _within((self._stored[name] for name in names), self._settings.entry_bytes_per_message)

    def page(self, theirs: Sequence[int], budget: int) -> list[SiteRecord]:
        """Entries that a site with these digests may lack: as many as fit, and others the next time."""
        if len(theirs) != BUCKETS or tuple(theirs) == self.digests:
            return []
        differing = [b for b, mine, other in zip(self._buckets, self._digests, theirs, strict=True) if mine != other]
        candidates = [stored for bucket in differing for stored in bucket.values()]
        if not candidates:
            return []
        start = self._page_turn % len(candidates)
        page = _within(candidates[start:] + candidates[:start], budget)
        self._page_turn += len(page)
        return page


def _within(candidates: Iterable[_Stored], budget: int) -> list[SiteRecord]:
    page = []
    for stored in candidates:
        budget -= stored.size
        if budget < 0:
            break
        page.append(stored.entry)
    return page


FUTURE_DECISION, TOO_MANY_DECISIONS = "membership decision of the future", "too many membership decisions"
_REPEATS = 16  # of a decision; it must reach every site, so it is sent more often than a record needs


class Membership:
    """The decisions that this site knows, and which other sites have confirmed them.

    A heartbeat carries a digest of all decisions that its sender has. Where that equals our own, the sender has all
    of ours. It counts for the sender alone, so that no site can confirm anything for another.
    """

    def __init__(self, settings: MeshSettings, proofs: Proofs) -> None:
        self._settings = settings
        self._proofs = proofs
        self._records: dict[str, MembershipRecord] = {}
        self._numbers: dict[str, int] = {}  # of each record: `decisions` when it was taken
        self._news: GossipQueue[str] = GossipQueue(settings.max_members)
        self._turn = 0
        self._confirmed: dict[str, tuple[str, int]] = {}  # by site: its incarnation, and our `decisions` at that time
        self.digest = 0
        self.decisions = 0  # how many were taken; a caller compares the number to see whether there are new ones
        self.refused = 0  # beyond the limit

    def records(self) -> tuple[MembershipRecord, ...]:
        return tuple(self._records.values())

    def of(self, site: str) -> MembershipRecord | None:
        return self._records.get(site)

    def is_forgotten(self, site: str) -> bool:
        record = self._records.get(site)
        return record is not None and record.forgotten

    def forgotten(self) -> list[str]:
        return [record.name for record in self._records.values() if record.forgotten]

    def decide(self, site: str, wall_ms: float, *, forgotten: bool) -> MembershipRecord:
        """Decide about a site. The stamp is later than that of any known decision, even if this clock is behind.

        Raises ClientError where this site has no right to decide."""
        before = self._records.get(site)
        stamp_ms = int(wall_ms) if before is None else max(int(wall_ms), before.stamp_ms + 1)
        record = self._proofs.sign_decision(MembershipRecord(site, stamp_ms, forgotten))
        self._put(record)
        return record

    def take(self, record: MembershipRecord, wall_ms: float) -> bool:
        """Take a decision. Returns whether it is new; raises RecordError if it is not true, or cannot be yet."""
        before = self._records.get(record.name)
        if before is not None and _rank(record) <= _rank(before):
            if _rank(record) == _rank(before) and record != before:
                self._replace_proof(before, record)
            return False
        shown = printable(shortened(record.name))
        if record.stamp_ms > self._settings.latest_ms(wall_ms):
            ahead_s = (record.stamp_ms - wall_ms) / 1000
            raise RecordError(
                FUTURE_DECISION, f"the decision about '{shown}' is stamped {ahead_s:,.0f} s ahead of our clock"
            )
        self._proofs.check_decision(record)
        if before is None and len(self._records) >= self._settings.max_members:
            self.refused += 1
            raise RecordError(
                TOO_MANY_DECISIONS, f"the decision about '{shown}' is one more than {self._settings.max_members:,}"
            )
        self._put(record)
        return True

    def restore(self, record: MembershipRecord) -> bool:
        """Take a decision that this site had verified before it restarted. Returns whether it is new."""
        before = self._records.get(record.name)
        if before is not None and _rank(record) <= _rank(before):
            return False
        self._put(record)
        return True

    def renew_proofs(self) -> None:
        """Sign every decision in force anew that no trusted authority has signed, if this site has the key."""
        if self._proofs.may_decide:
            for record in self.records():
                if not self._is_proved(record):
                    self._put_proof(self._proofs.sign_decision(record))

    def gossip(self, most: int) -> list[MembershipRecord]:
        """New records first, then all others in turn, a few at a time, for sites that missed them."""
        names = dict.fromkeys(self._news.take(most))
        every = list(self._records)
        for _ in range(min(most - len(names), len(every))):
            self._turn = (self._turn + 1) % len(every)
            names[every[self._turn]] = None
        # One of an authority that is no longer trusted would count as forged elsewhere.
        return [record for name in names if self._is_proved(record := self._records[name])]

    # -- which sites have them ---------------------------------------------------------------------------

    def note_digest(self, site: str, incarnation: str, digest: int) -> None:
        """A site says which decisions it has."""
        if digest == self.digest:
            self._confirmed[site] = (incarnation, self.decisions)
        elif site in self._confirmed and self._confirmed[site][0] != incarnation:
            del self._confirmed[site]  # it lost its store

    def has_confirmed(self, site: str, about: str) -> bool:
        """Whether a site has the decision about another; also if there never was one."""
        return self._confirmed.get(site, ("", 0))[1] >= self._numbers.get(about, 0)

    # -- changes -----------------------------------------------------------------------------------------

    def _put(self, record: MembershipRecord) -> None:
        before = self._records.pop(record.name, None)
        self.digest ^= _digest(record) ^ (_digest(before) if before else 0)
        self._records[record.name] = record
        self.decisions += 1
        self._numbers[record.name] = self.decisions
        self._confirmed.pop(record.name, None)
        self._news.add(record.name, _REPEATS)

    def _replace_proof(self, before: MembershipRecord, record: MembershipRecord) -> None:
        """The same decision with another signature: taken where only the new one is by a trusted authority."""
        if not self._is_proved(before) and self._is_proved(record):
            self._put_proof(record)

    def _put_proof(self, record: MembershipRecord) -> None:
        self._records[record.name] = record
        self._news.add(record.name, _REPEATS)

    def _is_proved(self, record: MembershipRecord) -> bool:
        try:
            self._proofs.check_decision(record)
        except MeshError:
            return False
        return True


def _rank(record: MembershipRecord) -> tuple[int, bool]:
    return record.stamp_ms, record.forgotten


def _digest(record: MembershipRecord) -> int:
    """48 bits: XOR makes the digest of all records independent of their order."""
    text = f"{record.name}\0{record.stamp_ms}\0{record.forgotten}".encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "big")
