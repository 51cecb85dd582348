"""Drift: the applications of the sites differ, although all sites have applied the same operations.

Something other than Cheops has changed one of them. The engine cannot see that; a driver that compares the real states
reports it (`Verified`). A finding belongs to the site that has made it, and only that site takes it back: a stolen site
can raise an alarm, but cannot end those of others. A finding ends

- when its site finds the applications equal,
- with a later operation that leaves nothing of what was: a forced one (`cheops repair --from`), or a deletion,
- when its site is no longer one of the resource.

It is part of the ledger, so it outlives a restart.
"""

from cheops.engine import ledger
from cheops.engine.documents import Drift
from cheops.engine.events import Effects, Notify, Verified
from cheops.engine.replica import Replica
from cheops.log.causality import contains
from cheops.log.operation import Kind

DRIFTED = "drifted"
_NEW_BASES = (Kind.FORCE, Kind.DELETE)


def record(replica: Replica, finding: Verified, out: Effects) -> None:
    """Record what a site of the resource has found."""
    # What is being created here may be lost before its operation is decided; its list of sites is in the draft.
    drafted = next((draft.sites for draft in replica.drafts if draft.sites), ())
    if finding.by not in (replica.sites or drafted):
        return
    before = replica.drifts.pop(finding.by, None)
    if finding.differs:
        if before is None or not _counts(replica, before):
            out.others.append(Notify(replica.resource, DRIFTED, None, finding.differs, str(finding.at_ms)))
        replica.drifts[finding.by] = Drift(finding.by, finding.differs, dict(replica.history.known))
    if before is not None or finding.differs:
        ledger.save(replica, out)


def found(replica: Replica) -> str:
    """How the applications differ, as the first site has found it; empty if that is not known."""
    return next((one.differs for one in replica.drifts.values() if _counts(replica, one)), "")


def _counts(replica: Replica, drift: Drift) -> bool:
    if drift.by not in replica.sites:
        return False
    bases = (op for op in replica.history.effective if op.kind in _NEW_BASES)
    return all(contains(drift.known, op.id) for op in bases)
