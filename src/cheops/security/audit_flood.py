"""Refusals too fast for the audit log: of each sender some are told one by one, the rest by number."""

from msgspec.structs import replace

from cheops.security.audit_entry import Entry

SINGLY = 20  # refusals of one sender that are told one by one …
WINDOW_S = 10.0  # … within this time
_MOST_KINDS = 1_000  # that are counted apart


class Flood:
    """Counts what is not told yet, by its kind."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._singly: dict[str, int] = {}
        self._counted: dict[tuple[str, ...], Entry] = {}

    def takes(self, entry: Entry, now_s: float) -> bool:
        """Whether it is counted here, to be told later."""
        if now_s - self._since_s >= WINDOW_S:
            self._since_s = now_s
            self._singly.clear()
        told = self._singly.get(entry.source, 0)
        if told < SINGLY and (told or len(self._singly) < _MOST_KINDS):
            self._singly[entry.source] = told + 1
            return False
        key: tuple[str, ...] = (entry.source, entry.who, entry.what, entry.reason)
        if key not in self._counted and len(self._counted) >= _MOST_KINDS:
            key = ("others",)
            entry = replace(entry, source="others", who="others", what="others", reason="others", resource="")
        before = self._counted.get(key)
        self._counted[key] = replace(entry, times=(before.times if before else 0) + entry.times)
        return True

    def told(self, now_s: float, *, at_end: bool) -> list[Entry]:
        """What was counted, once its time is over."""
        if not at_end and now_s - self._since_s < WINDOW_S:
            return []
        found = list(self._counted.values())
        self._counted.clear()
        return found
