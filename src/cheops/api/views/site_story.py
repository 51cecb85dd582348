"""How far one site is with a resource, and how it got there: a part of an explanation."""

from collections.abc import Iterator

from cheops.api.models import ExplanationStep
from cheops.api.views.naming import names
from cheops.api.views.operations import settled_at
from cheops.engine.replica import Replica
from cheops.engine.status import SiteStatus
from cheops.log.operation import Reply
from cheops.log.vector import contains
from cheops.text import in_words, shortened

_MOST_NAMED = 5
_MOST_DETAIL = 200


def site_steps(replica: Replica, found: SiteStatus, now_ms: int) -> Iterator[ExplanationStep]:
    site = found.site
    for reply in _replays(replica, site):
        ran = names(applied.id for applied in reply.applied[-_MOST_NAMED:])
        text = (
            f"{site} replayed: operations had come in another order than they count, so it began again at a "
            f"base; since then it has {in_words(ran) if ran else 'nothing'} applied, in this order"
        )
        yield ExplanationStep(text=text, site=site)
    for id_ in found.failed:
        why = shortened(replica.by_op[id_, site].detail, _MOST_DETAIL)
        text = f"{id_} went well at {id_.origin.site} but failed at {site}: {why}"
        yield ExplanationStep(text=text, operation=str(id_), site=site)
    for id_ in found.unknown:
        why = shortened(replica.by_op[id_, site].detail, _MOST_DETAIL)
        text = (
            f"{id_} may have run at {site}, or not: {why}. That is not guessed: nothing more is run there "
            "until somebody says what happened, or an operation comes that wipes it"
        )
        yield ExplanationStep(text=text, operation=str(id_), site=site)
    if site == replica.site and replica.order_not_enforced:
        yield _unenforced(replica, site)
    yield ExplanationStep(text=_how_far(replica, found, now_ms), site=site)


def _replays(replica: Replica, site: str) -> Iterator[Reply]:
    for origin, replies in sorted(replica.replies.items()):
        if origin.site == site:
            yield from (reply for reply in replies.values() if reply.replay)


def _unenforced(replica: Replica, site: str) -> ExplanationStep:
    ran = names(applied.id for applied in replica.applied[-_MOST_NAMED:])
    text = (
        f"{site} ran {in_words(ran) if ran else 'nothing'} in this order, which is not the one that counts; "
        "no operation that replaces stands before them, and the type has no 'reset' from which to replay"
    )
    return ExplanationStep(text=text, site=site)


def _how_far(replica: Replica, found: SiteStatus, now_ms: int) -> str:
    site, is_here = found.site, found.site == replica.site
    if found.heard_ms is None and not is_here:
        heard = "has not been heard of this resource"
        return f"{site} {heard}" if found.reachable else f"{site} cannot be reached, and {heard}"
    age_s = 0 if is_here else max(now_ms - (found.heard_ms or 0), 0) / 1000
    as_of = "" if is_here else f" (as of {age_s:.0f} s ago)"
    who = site if found.reachable else f"{site} cannot be reached; as far as is known it"
    return f"{who} {_done(replica, found)}{as_of}"


def _done(replica: Replica, found: SiteStatus) -> str:
    if not found.pending:
        failed = " but what failed" if found.failed else ""
        return f"has dealt with everything{failed}"
    settled = settled_at(replica, found.site)
    open_ = [op.id for op in replica.history.ops.values() if not contains(settled, op.id)]
    if found.site == replica.site:
        open_ += [draft.id for draft in replica.drafts]
    shown = [*names(open_[:_MOST_NAMED]), *(["others"] if len(open_) > _MOST_NAMED else [])]
    return f"has not dealt with {in_words(shown)} yet" if shown else "is still at work"
