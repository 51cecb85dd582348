"""The sites that exist, as each described itself: name, address, version, services.

News spreads as gossip, each new entry a number of times that grows with the logarithm of the mesh. What
gossip misses, anti-entropy brings: entries lie in 32 buckets by their name, a heartbeat carries one
digest per bucket, and the answer brings entries of the buckets that differ. So a new site learns the
whole mesh page by page, and two catalogues that are equal cost nothing.

Invariants: the greater (revision, incarnation) of a site counts, so merging is commutative, associative
and idempotent. A peer from the configuration file that was not heard of yet has no entry; its address is
kept apart.
"""

from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from cheops.sync.heartbeat import BUCKETS, Entry, encode
from cheops.sync.mesh_settings import MeshSettings
from cheops.sync.news import News


@dataclass(frozen=True, slots=True)
class _Held:
    entry: Entry
    bucket: int
    digest: int
    size: int


@lru_cache(maxsize=8_192)
def _held(entry: Entry) -> _Held:
    bucket = blake2b(entry.name.encode(), digest_size=1).digest()[0] % BUCKETS
    text = f"{entry.name}\0{entry.incarnation}\0{entry.revision}".encode()
    digest = int.from_bytes(blake2b(text, digest_size=4).digest(), "big")
    return _Held(entry, bucket, digest, len(encode(entry)))


def rank(entry: Entry) -> tuple[int, str]:
    """Which of two entries of a site is the later."""
    return entry.revision, entry.incarnation


class Catalogue:
    """All entries known, the site's own among them."""

    def __init__(self, own: Entry, settings: MeshSettings) -> None:
        self._settings = settings
        self._buckets: list[dict[str, _Held]] = [{} for _ in range(BUCKETS)]
        self._held: dict[str, _Held] = {}
        self._digests = [0] * BUCKETS
        self._news: News[str] = News(settings.max_sites)
        self._page_turn = 0
        self.refused = 0  # entries beyond the limit
        self.own = own
        self.take(own)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def names(self) -> KeysView[str]:
        return self._held.keys()

    def get(self, site: str) -> Entry | None:
        held = self._held.get(site)
        return held.entry if held else None

    def entries(self) -> list[Entry]:
        return [held.entry for held in self._held.values()]

    @property
    def digests(self) -> tuple[int, ...]:
        return tuple(self._digests)

    def describe(self, own: Entry) -> None:
        """The site has something new to say of itself."""
        self.own = own
        self.take(own)

    def take(self, entry: Entry, *, old: bool = False) -> bool:
        """Whether an entry was news to us; an old one is none to the others."""
        before = self._held.get(entry.name)
        if before is not None and (before.entry is entry or rank(entry) <= rank(before.entry)):
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

    def fresh(self) -> list[Entry]:
        """The next news to pass on."""
        names = self._news.take(self._settings.fresh_entries_per_message)
        return _within((self._held[name] for name in names), self._settings.entry_bytes_per_message)

    def page(self, theirs: Sequence[int], budget: int) -> list[Entry]:
        """Entries that somebody with these digests may lack: a bounded piece, and another the next time."""
        if len(theirs) != BUCKETS or tuple(theirs) == self.digests:
            return []
        differing = [
            b for b, mine, other in zip(self._buckets, self._digests, theirs, strict=True) if mine != other
        ]
        candidates = [held for bucket in differing for held in bucket.values()]
        if not candidates:
            return []
        start = self._page_turn % len(candidates)
        page = _within(candidates[start:] + candidates[:start], budget)
        self._page_turn += len(page)
        return page


def _within(candidates: Iterable[_Held], budget: int) -> list[Entry]:
    page = []
    for held in candidates:
        budget -= held.size
        if budget < 0:
            break
        page.append(held.entry)
    return page
