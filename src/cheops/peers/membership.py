"""Which sites exist: the catalogue of their own records, and the decisions to forget or admit a site.

Records spread as gossip, each new one a number of times that grows with the logarithm of the mesh
(`GossipQueue`). What gossip misses, anti-entropy brings: records lie in 32 buckets by their name, a heartbeat
carries one digest per bucket, and the answer brings records of the buckets that differ. So a new site learns
the whole mesh page by page, and two equal catalogues cost nothing.

The greater (revision, incarnation) of a site counts, so merging is commutative, associative and idempotent. A
peer from the configuration file that was not heard of yet has no record; its address is kept apart.

A membership record exists for each site that was ever forgotten. The greater stamp counts, and of two with the
same stamp the one that forgets. A live site does not refute its record; only a later decision (`admit`) does.
So old gossip cannot bring a dead site back. The records also revoke the site's certificates
(enrollment.py), so they are kept longer than any certificate lasts: 830 days, and up to 4,096 of them.
"""

from collections.abc import Hashable, Iterable, KeysView, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Generic, TypeVar

from cheops.peers.heartbeat import BUCKETS, MembershipRecord, SiteRecord, encode
from cheops.peers.settings import MeshSettings

Key = TypeVar("Key", bound=Hashable)


class GossipQueue(Generic[Key]):
    """Keys, each with the number of times it is still to be sent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, times: int) -> None:
        """Something is news (again): it keeps its place in the queue, if it has one."""
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


@dataclass(frozen=True, slots=True)
class _Held:
    entry: SiteRecord
    bucket: int
    digest: int
    size: int


@lru_cache(maxsize=8_192)
def _held(entry: SiteRecord) -> _Held:
    bucket = blake2b(entry.name.encode(), digest_size=1).digest()[0] % BUCKETS
    text = f"{entry.name}\0{entry.incarnation}\0{entry.revision}".encode()
    digest = int.from_bytes(blake2b(text, digest_size=4).digest(), "big")
    return _Held(entry, bucket, digest, len(encode(entry)))


def record_rank(entry: SiteRecord) -> tuple[int, str]:
    """Which of two entries of a site is the later."""
    return entry.revision, entry.incarnation


class Catalogue:
    """All entries known, the site's own among them."""

    def __init__(self, own: SiteRecord, settings: MeshSettings) -> None:
        self._settings = settings
        self._buckets: list[dict[str, _Held]] = [{} for _ in range(BUCKETS)]
        self._held: dict[str, _Held] = {}
        self._digests = [0] * BUCKETS
        self._news: GossipQueue[str] = GossipQueue(settings.max_sites)
        self._page_turn = 0
        self.refused = 0  # entries beyond the limit
        self.own = own
        self.take(own)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def names(self) -> KeysView[str]:
        return self._held.keys()

    def get(self, site: str) -> SiteRecord | None:
        held = self._held.get(site)
        return held.entry if held else None

    def entries(self) -> list[SiteRecord]:
        return [held.entry for held in self._held.values()]

    @property
    def digests(self) -> tuple[int, ...]:
        return tuple(self._digests)

    def describe(self, own: SiteRecord) -> None:
        """The site has something new to say of itself."""
        self.own = own
        self.take(own)

    def take(self, entry: SiteRecord, *, old: bool = False) -> bool:
        """Whether an entry was news to us; an old one is none to the others."""
        before = self._held.get(entry.name)
        if before is not None and (before.entry is entry or record_rank(entry) <= record_rank(before.entry)):
            return False
        if before is None and len(self._held) >= self._settings.max_sites:
            self.refused += 1
            return False
        held = _held(entry)
        self._digests[held.bucket] ^= held.digest ^ (before.digest if before else 0)
        self._held[entry.name] = self._buckets[held.bucket][entry.name] = held
        if not old:
            self._news.add(entry.name, 2 * len(self._held).bit_length())
        return True

    def drop(self, site: str) -> None:
        held = self._held.pop(site, None)
        if held is not None:
            del self._buckets[held.bucket][site]
            self._digests[held.bucket] ^= held.digest
            self._news.drop(site)

    def fresh(self) -> list[SiteRecord]:
        """The next news to pass on."""
        names = self._news.take(self._settings.fresh_entries_per_message)
        return _within((self._held[name] for name in names), self._settings.entry_bytes_per_message)

    def page(self, theirs: Sequence[int], budget: int) -> list[SiteRecord]:
        """Entries that somebody with these digests may lack: a bounded piece, and another the next time."""
        if len(theirs) != BUCKETS or tuple(theirs) == self.digests:
            return []
        differing = [b for b, mine, other in zip(self._buckets, self._digests, theirs, strict=True) if mine != other]
        candidates = [held for bucket in differing for held in bucket.values()]
        if not candidates:
            return []
        start = self._page_turn % len(candidates)
        page = _within(candidates[start:] + candidates[:start], budget)
        self._page_turn += len(page)
        return page


def _within(candidates: Iterable[_Held], budget: int) -> list[SiteRecord]:
    page = []
    for held in candidates:
        budget -= held.size
        if budget < 0:
            break
        page.append(held.entry)
    return page


_REPEATS = 16


class Membership:
    """The records that this site knows."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._records: dict[str, MembershipRecord] = {}
        self._news: GossipQueue[str] = GossipQueue(settings.max_members)
        self._turn = 0
        self.decisions = 0  # how many were taken in: whoever remembers the number sees that one was

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
        """A decision made here: later than all that is known of the site, whatever the clocks say."""
        before = self._records.get(site)
        stamp_ms = int(wall_ms) if before is None else max(int(wall_ms), before.stamp_ms + 1)
        record = MembershipRecord(site, stamp_ms, forgotten)
        self.take(record, wall_ms)
        return record

    def take(self, record: MembershipRecord, wall_ms: float) -> bool:
        """Whether a record was news."""
        before = self._records.get(record.name)
        if before is not None and _rank(record) <= _rank(before):
            return False
        if record.stamp_ms < wall_ms - self._settings.member_keep_ms:
            return False
        self.decisions += 1
        self._records.pop(record.name, None)
        self._records[record.name] = record
        self._news.add(record.name, _REPEATS)
        if len(self._records) > self._settings.max_members:
            self._drop(min(self._records.values(), key=_rank).name)
        return True

    def gossip(self, most: int) -> list[MembershipRecord]:
        """News first; then all others in turn, a few at a time, for those who missed them."""
        names = dict.fromkeys(self._news.take(most))
        every = list(self._records)
        for _ in range(min(most - len(names), len(every))):
            self._turn = (self._turn + 1) % len(every)
            names[every[self._turn]] = None
        return [self._records[name] for name in names]

    def expire(self, wall_ms: float) -> None:
        oldest_ms = wall_ms - self._settings.member_keep_ms
        for record in self.records():
            if record.stamp_ms < oldest_ms:
                self._drop(record.name)

    def _drop(self, site: str) -> None:
        del self._records[site]
        self._news.drop(site)


def _rank(record: MembershipRecord) -> tuple[int, bool]:
    return record.stamp_ms, record.forgotten
