"""What an operation would do, from what this site knows: nothing is run, saved or sent.

The operation is added to a copy of the history, as if it had just succeeded. Rules and plan are those of the engine.
"""

import copy
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from cheops.api.models.operations import DryRun, WouldSupersede
from cheops.api.views.operations import fate_of, sites_of
from cheops.engine.events import Submitted
from cheops.engine.evidence import Presence, evidence_of
from cheops.engine.replica import Replica
from cheops.log.causality import joined
from cheops.log.contents import ContentSums
from cheops.log.epochs import Epoch, FindMatrix
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Applied, Kind, MatrixRef, Operation, OpId, Stamp, Verdict
from cheops.log.plan import Plan, plan
from cheops.log.rules import Fate
from cheops.text import in_words

NEW = "new"
_BEFORE_ALL_MS = 0  # the stamp of the empty matrix: any that an operation brings is newer


def dry_run(replica: Replica, event: Submitted, up: set[str], now_ms: int) -> DryRun:
    """`event`: what the engine would get."""
    op, history = _extended_history(replica, event, now_ms)
    sites = history.site_list or event.sites or ()
    plans = {site: _plan_at(replica, history, site) for site in sites if not op.is_silent}
    here = plans.get(replica.site, Plan())
    return DryRun(
        resource=replica.resource,
        sites=sites,
        first_at=replica.site,
        command=event.payload.line,
        would_supersede=tuple(_beaten(replica, history, op)),
        superseded_by=_superseded(op, history.reason(op.id)),
        runs_here=tuple(_name(o, op) for o in here.run),
        replayed={site: _again(replica, plan_, site, op) for site, plan_ in plans.items()},
        order_not_enforced=any(plan_.order_not_enforced for plan_ in plans.values()),
        unreachable=tuple(site for site in sites if site != replica.site and site not in up),
        refused=None,
        notes=tuple(_notes(replica, event, sites)),
    )


def refused(resource: str, event_line: str, sites: tuple[str, ...], why: str) -> DryRun:
    """The dry run of an operation that would be refused."""
    return DryRun(
        resource=resource,
        sites=sites,
        first_at=None,
        command=event_line,
        would_supersede=(),
        superseded_by=None,
        runs_here=(),
        replayed={},
        order_not_enforced=False,
        unreachable=(),
        refused=why,
        notes=(),
    )


# -- the history as it would be --------------------------------------------------------------------------


def _extended_history(replica: Replica, event: Submitted, now_ms: int) -> tuple[Operation, History]:
    """The operation, and the history with it. Drafts of this site would run first: assume that they succeed."""
    matrices = {event.matrix.hash: event.matrix} if event.matrix else {}

    def find(hash_: str) -> Matrix:
        return matrices.get(hash_) or replica.history.find_matrix(hash_)

    history = _copied(replica.history, find)
    for draft in replica.drafts:
        history.add(replace(draft, verdict=Verdict.OK))
    op = _operation(replica, history, event, now_ms)
    history.add(op)
    return op, history


def _copied(history: History, find: FindMatrix) -> History:
    """A copy with collections and sums of its own. Other items are immutable, so both histories can share them."""
    copied = copy.copy(history)
    for name, value in vars(history).items():
        if isinstance(value, dict):
            setattr(copied, name, {key: _own(item) for key, item in value.items()})
        else:
            setattr(copied, name, _own(value))
    copied.find_matrix = find
    return copied


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set | Epoch | ContentSums) else value


def _operation(replica: Replica, history: History, event: Submitted, now_ms: int) -> Operation:
    latest = history.latest
    # As the clock of the engine would: later than every operation that is known here.
    stamp = Stamp(max(now_ms, latest.time_ms + 1 if latest else 0), 0, replica.origin)
    own = history.known.get(replica.origin, 0)
    adopted = history.adopted or MatrixRef(Matrix().hash, Stamp(_BEFORE_ALL_MS, 0, replica.origin))
    new_rules = event.matrix is not None and event.matrix.hash != adopted.hash
    ref = MatrixRef(event.matrix.hash, stamp) if new_rules and event.matrix else adopted
    return Operation(
        event.resource,
        event.rtype,
        event.type,
        event.kind,
        event.payload,
        replica.origin,
        own + 1,
        joined(history.known, {}),
        stamp,
        ref,
        event.sites if not history.site_list or event.kind is Kind.SITES else None,
        verdict=Verdict.OK,
    )


# -- what follows ----------------------------------------------------------------------------------------


def _beaten(replica: Replica, history: History, op: Operation) -> Iterator[WouldSupersede]:
    """Operations that are in effect or waiting now, and would be superseded."""
    for other in (*replica.history.effective, *replica.drafts):
        fate = history.reason(other.id)
        if fate is not None and fate_of(replica, other) is None and other != op:
            yield _superseding(other.id, fate, op)


def _superseded(op: Operation, fate: Fate | None) -> WouldSupersede | None:
    return _superseding(fate.by or op.id, fate, op) if fate else None


def _superseding(id_: OpId, fate: Fate, op: Operation) -> WouldSupersede:
    name = NEW if id_ == op.id else str(id_)
    return WouldSupersede(operation=name, rule=fate.rule.value, sentence=fate.rule.sentence)


def _plan_at(replica: Replica, history: History, site: str) -> Plan:
    """What a site would run. Of another site only what it has settled is known; assume that it ran in order."""
    if site == replica.site:
        applied, failed = replica.applied.entries, replica.applied.failed
    else:
        evidence = evidence_of(replica, site)
        # What is not known to be missing counts as applied: only what a site lacks would make it run more.
        settled = (o for o in replica.history.effective if evidence.has_settled(o) is not Presence.LACKS)
        applied = [Applied(o.id, o.key) for o in settled]
        failed = {}
    start = replica.type.reset is not None or replica.applied.base is not None
    return plan(applied, history.effective, history.matrix, is_failed=failed.__contains__, has_start=start)


def _again(replica: Replica, plan_: Plan, site: str, op: Operation) -> tuple[str, ...]:
    """The operations of a replay that the site has run before."""
    if not plan_.replay:
        return ()
    ran = replica.replies.operations_of(site)
    return tuple(_name(o, op) for o in plan_.run if o.id in ran)


def _name(o: Operation, op: Operation) -> str:
    return NEW if o == op else str(o.id)


def _notes(replica: Replica, event: Submitted, sites: tuple[str, ...]) -> Iterator[str]:
    if not replica.history.site_list and not replica.drafts:
        yield f"the resource is new: it would be created at {in_words(sites) if sites else 'no site'}"
    if replica.applied.unknown:
        yield f"{replica.applied.unknown.id} is UNKNOWN here: until resolved, only an operation that replaces it runs"
    elif replica.drafts:
        yield f"{len(replica.drafts)} operations are waiting for their first run here, and would run first"
    if event.matrix is not None and event.matrix.hash != replica.matrix.hash and sites_of(replica):
        yield "it brings another matrix, which would apply to all operations from then on"
    yield f"based on what {replica.site} knows now; operations made elsewhere meanwhile may change it"
