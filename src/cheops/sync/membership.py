"""Which sites were removed from the mesh for good, and which of them were taken in again.

A record per site that was ever forgotten: the greater stamp counts, and of two with the same stamp the
one that forgets. A record is not refuted by the site itself being alive, only by a later decision
(`admit`). So old gossip cannot bring a dead site back, and a live one that was forgotten stays out,
visibly.

Records also revoke the certificates that a site had (node/identity.py), so they are kept for longer than any
of those lasts, 830 days, and up to 4,096. Whoever was cut off for longer, and still has the entry, can bring
it back, but not its certificate.
"""

from cheops.sync.heartbeat import Member
from cheops.sync.mesh_settings import MeshSettings
from cheops.sync.news import News

_TELLINGS = 16


class Membership:
    """The records that this site knows."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._records: dict[str, Member] = {}
        self._news: News[str] = News(settings.max_members)
        self._turn = 0
        self.decisions = 0  # how many were taken in: whoever remembers the number sees that one was

    def records(self) -> tuple[Member, ...]:
        return tuple(self._records.values())

    def of(self, site: str) -> Member | None:
        return self._records.get(site)

    def is_forgotten(self, site: str) -> bool:
        record = self._records.get(site)
        return record is not None and record.forgotten

    def forgotten(self) -> list[str]:
        return [record.name for record in self._records.values() if record.forgotten]

    def decide(self, site: str, wall_ms: float, *, forgotten: bool) -> Member:
        """A decision made here: later than all that is known of the site, whatever the clocks say."""
        before = self._records.get(site)
        stamp_ms = int(wall_ms) if before is None else max(int(wall_ms), before.stamp_ms + 1)
        record = Member(site, stamp_ms, forgotten)
        self.take(record, wall_ms)
        return record

    def take(self, record: Member, wall_ms: float) -> bool:
        """Whether a record was news."""
        before = self._records.get(record.name)
        if before is not None and _rank(record) <= _rank(before):
            return False
        if record.stamp_ms < wall_ms - self._settings.member_keep_ms:
            return False
        self.decisions += 1
        self._records.pop(record.name, None)
        self._records[record.name] = record
        self._news.add(record.name, _TELLINGS)
        if len(self._records) > self._settings.max_members:
            self._drop(min(self._records.values(), key=_rank).name)
        return True

    def gossip(self, most: int) -> list[Member]:
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


def _rank(record: Member) -> tuple[int, bool]:
    return record.stamp_ms, record.forgotten
