"""How far one site is with a resource, and how it got there: a part of an explanation."""

import re
from collections.abc import Iterator

from cheops.api.models import ExplanationStep
from cheops.api.views.naming import names
from cheops.api.views.operations import settled_at
from cheops.engine.replica import Replica
from cheops.engine.status import SiteStatus
from cheops.log.matrix import is_wiped
from cheops.log.operation import OpId, Reply, Status
from cheops.log.vector import contains
from cheops.text import in_words, shortened

_MOST_NAMED = 5
_MOST_DETAIL = 200
_UNITS = re.compile(r"applied \d+ units; ")  # how the engine begins what it says of unit steps


def site_steps(replica: Replica, found: SiteStatus, now_ms: int) -> Iterator[ExplanationStep]:
    site = found.site
    if replay := _last_replay(replica, site):
        yield ExplanationStep(text=_replayed(replica, replay), site=site)
    for reply in _unlike_their_origin(replica, site):
        yield ExplanationStep(text=_other_way(reply), operation=str(reply.op), site=site)
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


# -- replays ---------------------------------------------------------------------------------------------


def _last_replay(replica: Replica, site: str) -> Reply | None:
    """A later replay says all that an earlier one does, so there is one of each life of a site."""
    replays = [
        reply
        for origin, replies in replica.replies.items()
        if origin.site == site
        for reply in replies.values()
        if reply.replay
    ]
    return max(replays, key=lambda reply: reply.timing.at_ms, default=None)


def _replayed(replica: Replica, reply: Reply) -> str:
    ran = _run_by(reply)
    lost = [id_ for id_ in ran if _has_lost_its_effect(replica, id_)]
    older = f"{len(ran) - _MOST_NAMED} older ones, " if len(ran) > _MOST_NAMED else ""
    shown = f"{older}{in_words(names(ran[-_MOST_NAMED:]))}" if ran else "nothing more"
    order = ", in this order" if len(ran) > 1 else ""
    return (
        f"{reply.origin.site} replayed: to have the effects in the order that counts, it began again at a "
        f"base and ran {shown}{order}{_since(ran, lost)}"
    )


def _has_lost_its_effect(replica: Replica, id_: OpId) -> bool:
    """What a checkpoint holds has not, though it is no operation of its own any more."""
    history = replica.history
    return (id_ in history.fates or id_ not in history.ops) and not contains(history.folded, id_)


def _run_by(reply: Reply) -> list[OpId]:
    """What a replay ran. It wiped those first; what it did not wipe had been applied before, and stayed."""
    wiped = reply.wiped or ("*",)
    return [applied.id for applied in reply.applied if is_wiped(wiped, applied.key)]


def _since(ran: list[OpId], lost: list[OpId]) -> str:
    if not lost:
        return ""
    if len(lost) == len(ran):
        return "; since then other operations have replaced all of that"
    shown = names(lost[:_MOST_NAMED])
    more = ["others"] if len(lost) > _MOST_NAMED else []
    have, their = ("has", "its") if len(lost) == 1 else ("have", "their")
    return f"; since then {in_words([*shown, *more])} {have} lost {their} effect"


# -- what was not simply run -----------------------------------------------------------------------------


def _unlike_their_origin(replica: Replica, site: str) -> Iterator[Reply]:
    """Operations that count, and that a site has applied in a way of its own: in unit steps, by the type's
    `on_error`, or by the operator's word. A replay that ran them after that is the last word."""
    replay = _last_replay(replica, site)
    again = set(_run_by(replay)) if replay else set()
    for op in replica.history.effective:
        reply = replica.by_op.get((op.id, site))
        if reply is None or reply.op != op.id or reply.status is not Status.OK or not reply.detail:
            continue
        if not (replay and reply.origin == replay.origin and reply.n < replay.n and op.id in again):
            yield reply


def _other_way(reply: Reply) -> str:
    at, detail = f"at {reply.origin.site}", shortened(reply.detail, _MOST_DETAIL)
    if _UNITS.match(reply.detail):
        return f"{reply.op} failed {at} as a whole, and was done there in unit steps: {detail}"
    return f"{reply.op} {at}: {detail}"


def refused_units(replica: Replica, site: str) -> list[OpId]:
    """Operations of which a site has done only a part, because a unit was refused."""
    return [
        reply.op for reply in _unlike_their_origin(replica, site) if reply.op and _UNITS.match(reply.detail)
    ]


# -- how far ---------------------------------------------------------------------------------------------


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
