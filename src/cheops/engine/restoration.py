"""A replica that is restored from its documents before the engine handles `Loaded`.

That takes a second for 50,000 operations. A driver may have it done elsewhere meanwhile, in a thread: `restored` only
reads what belongs to the site. Whether the result can be used is decided in the step. Otherwise the step does it again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cheops.engine import ledger
from cheops.engine.documents import Started
from cheops.engine.events import Loaded
from cheops.engine.incarnation import Incarnations
from cheops.engine.replica import Replica

if TYPE_CHECKING:
    from cheops.engine.site import Site

MANY = 2_000  # documents from which on it is worth a thread


class Restored(Struct, frozen=True):
    """The replica, the run that was under way, and the incarnations of other sites."""

    replica: Replica
    started: Started | None
    met: Mapping[str, str]  # as of then: that of the replica follows the site


def restored(site: "Site", event: Loaded) -> Loaded:
    """The event with its replica, if there are many documents. A failure is left to the step, which handles it."""
    if len(event.documents) < MANY:
        return event
    try:
        replica = site.new_replica(event.resource, event.documents)
        met = dict(replica.met)
        return replace(event, restored=Restored(replica, ledger.load(replica, event.documents), met))
    except Exception:
        return event


def usable_replica(event: Loaded, incarnations: Incarnations) -> Replica | None:
    """The replica of an event, if it is what the step would restore: which replies count depends on the incarnations
    of other sites, and closed incarnations of this store take documents back."""
    found = event.restored
    return found.replica if found and found.met == found.replica.met and not incarnations.closed else None
