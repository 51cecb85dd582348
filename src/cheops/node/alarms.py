"""Alarms: proof that a site is in the wrong hands, kept until an operator has acted.

The engine reports what it sees once, and again when it loads a resource. `cheops check` must not depend on which
resources are in memory, so alarms are saved in a note of the store. An alarm ends with the next decision about the
site: it was forgotten, or invited again with new keys.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from cheops.bounded import BoundedMap
from cheops.engine.events import Notify
from cheops.peers.heartbeat import MembershipRecord

NOTE = "alarms"
_MOST = 1_000


class Alarm(msgspec.Struct, frozen=True, array_like=True):
    resource: str
    what: str
    op: str
    detail: str
    by: str  # the site
    at_ms: int


class Alarms:
    """The alarms of a site, the oldest first."""

    def __init__(self) -> None:
        self._alarms: BoundedMap[tuple[str, str, str], Alarm] = BoundedMap(_MOST)
        self.is_saved = True

    def restore(self, note: dict[str, Any] | None) -> None:
        for alarm in msgspec.convert((note or {}).get("alarms", []), list[Alarm]):
            self._put(alarm)

    def note(self) -> dict[str, Any]:
        """What to save; it counts as saved from now on."""
        self.is_saved = True
        return {"alarms": msgspec.to_builtins(list(self._alarms.values()))}

    def add(self, effect: Notify, now_ms: int) -> None:
        """An alarm that is known keeps its time: loading its resource again must not renew it."""
        alarm = Alarm(effect.resource, effect.what, str(effect.op or ""), effect.detail, effect.by, now_ms)
        if _key(alarm) not in self._alarms:
            self._put(alarm)
            self.is_saved = False

    def open(self, member_of: Callable[[str], MembershipRecord | None]) -> list[Alarm]:
        """Those without a later decision about their site."""
        return [alarm for alarm in self._alarms.values() if not _is_answered(alarm, member_of(alarm.by))]

    def _put(self, alarm: Alarm) -> None:
        self._alarms[_key(alarm)] = alarm


def _key(alarm: Alarm) -> tuple[str, str, str]:
    return alarm.resource, alarm.what, alarm.op


def _is_answered(alarm: Alarm, decision: MembershipRecord | None) -> bool:
    return decision is not None and decision.stamp_ms > alarm.at_ms
