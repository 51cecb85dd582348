"""What a site can tell of: the kinds of events, as files (`notify.NAME.on`) and receivers name them."""

from enum import StrEnum


class EventKind(StrEnum):
    """What happened. docs/notifications.md has the same list."""

    ACCEPTED = "accepted"  # an operation is durable at its origin, and was not run yet
    DECIDED = "decided"  # an operation was run at its origin, and goes to the others
    VOID = "void"  # an operation failed at its origin: it has no effect anywhere
    SUPERSEDED = "superseded"  # another operation took the effect of this one
    ESTRANGED = "estranged"  # an operation came too late for what all sites had settled
    SITES = "sites"  # the list of sites of a resource was changed
    RAN = "ran"  # a site ran an operation
    REPLAYED = "replayed"  # a site ran operations again, in the right order
    DIVERGED = "diverged"  # an operation failed at a site, and not at its origin
    UNKNOWN = "unknown"  # nobody knows whether an operation ran at a site
    RESOLVED = "resolved"  # now it is known
    ORDER_NOT_ENFORCED = "order-not-enforced"
    UNIT_REFUSED = "unit-refused"
    CHECKPOINT = "checkpoint"
    NO_CHECKPOINT = "no-checkpoint"
    RESET_FAILED = "reset-failed"
    COPY_NOT_DELETED = "copy-not-deleted"  # a site that a resource left should have, and could not
    SITE_UP = "site-up"
    SITE_DOWN = "site-down"
    SUMMARY = "summary"  # all sites have dealt with an operation
    DROPPED = "dropped"  # too many events waited for a receiver: some are gone


# What can be asked for by name. A summary is asked for with `summary`; of what is dropped everybody hears.
CHOSEN = tuple(kind for kind in EventKind if kind not in (EventKind.SUMMARY, EventKind.DROPPED))
