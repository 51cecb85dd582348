"""How a site learns what all others have: through one of them, the hub. So messages grow with the number of sites of a
resource, and not with its square.

The hub of an operation is the site that made it; if that is not up, the first site by name that is.

    push      The hub sends the operation to all sites (exchange.py).
    report    Each site runs it, and sends its reply to the hub alone. Every message is a report of its sender: what it
              knows, and has settled.
    pass on   When all sites that are up have settled the operation, or after a while, the hub sends every site the
              replies and reports of the others, in one message. It does so until each has acknowledged the replies.
    pull      A site that does not hear of another one for a while asks the hub; if there is no other hub, or that has
              nothing new, it asks the site itself.

Each site makes sure that the hub has its replies, and the hub that all others have them (`Replica.owes`). If the hub
crashes, it goes on when it is back. If it has lost its store, each site sends its replies to all others itself.
"""

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from cheops.engine import contents, dispatch
from cheops.engine.documents import Message, Report
from cheops.engine.events import Effects
from cheops.engine.intake import without_more_of
from cheops.engine.replica import Replica
from cheops.log.causality import NOTHING, Vector, covers, joined
from cheops.log.operation import Reply

_PAIR = 2  # sites, of which each reports to the other itself
_PATIENCE = 2  # pulls, before a site is asked itself


def hub_of(replica: Replica, maker: str, up: Container[str]) -> str:
    """The site that passes on what others reply to an operation of this one."""
    if maker == replica.site or (maker in up and replica.is_target(maker)):
        return maker
    return min(site for site in (replica.site, *replica.targets()) if site == replica.site or site in up)


def _last_hub(replica: Replica, up: Container[str]) -> str:
    """The hub of the last operation."""
    latest = replica.history.latest
    return hub_of(replica, latest.origin.site if latest else replica.site, up)


# -- who gets what from whom -----------------------------------------------------------------------------


def assign(replica: Replica, replies: Iterable[Reply], up: Container[str]) -> set[str]:
    """Note to whom this site owes new replies of its own; return the sites that get them now."""
    receivers: set[str] = set()
    for reply in replies:
        if reply.op is None:
            hub = _last_hub(replica, up)
        elif replica.replies.is_first(reply):
            hub = hub_of(replica, reply.op.origin.site, up)
        else:
            hub = replica.site  # nobody expects another reply, so nobody would miss it
        if hub == replica.site:
            replica.duties.owe(reply.origin, reply.n)
            receivers.update(site for site in replica.targets() if site in replica.history.site_list)
        else:
            replica.duties.owe(reply.origin, reply.n, hub)
            receivers.add(hub)
    return receivers


class ReplyBatch(NamedTuple):
    replies: tuple[Reply, ...]
    after: Vector  # they are all that this site has kept after these numbers


def batches_for(replica: Replica, peer: str) -> list[ReplyBatch]:
    """The replies that a peer gets from this site and that are not on their way to it, in parts that fit into one
    message each: at least one, which may be empty. The caller sends them."""
    view = replica.peer(peer)
    if view.is_unknown or view.is_catching_up or replica.was_absent(peer) or not replica.is_target(peer):
        return [ReplyBatch((), NOTHING)]
    owed = replica.owed_to(peer)
    own = replica.origin if peer in replica.history.site_list else None  # it gets all that this site has replied
    base = joined(view.known_replies, view.sent_replies) if view.sent_replies else view.known_replies
    lacking = replica.replies.beyond(base)
    wanted = [reply for reply in lacking if reply.origin == own or reply.n <= owed.get(reply.origin, 0)]
    if not wanted:
        return [ReplyBatch((), {})]
    found: list[ReplyBatch] = []
    for batch in dispatch.batches(wanted, replica.limits):
        base = joined(base, view.sent_replies) if found else base
        found.append(ReplyBatch(tuple(batch), {reply.origin: base.get(reply.origin, 0) for reply in batch}))
        view.note_replies(batch)
    return found


def reports_for(
    replica: Replica, peer: str, now_ms: int, sites: Iterable[str] | None = None
) -> tuple[dispatch.PassedReport, ...]:
    """The last reports of these sites, or of all, that a peer can get from this site."""
    found = replica.history.ever_listed if sites is None else sites
    views = (replica.peers.get(site) for site in sorted(found) if site not in (peer, replica.site))
    return tuple(
        dispatch.PassedReport(view.report, max(0, now_ms - view.report_ms))
        for view in views
        if view is not None and view.report is not None
    )


def relies_on(replica: Replica, peer: str, up: Container[str]) -> bool:
    """Whether a message to a peer is to be passed on: there is another site, the peer is a hub, and something in the
    message is news to it. Such a message needs a signature."""
    if len({*replica.sites, replica.site, *replica.targets()}) <= _PAIR:
        return False
    view, duties = replica.peer(peer), replica.duties
    is_hub = not covers(view.known_replies, duties.owed_to_one(peer)) or peer == _last_hub(replica, up)
    return is_hub and view.note_told((replica.history.known, replica.applied.settled, replica.next_reply))


# -- passing on ------------------------------------------------------------------------------------------


def note_message(  # noqa: PLR0913, PLR0917 - what is known of the message
    replica: Replica, peer: str, message: Message, had: Vector, up: Container[str], now_ms: int
) -> None:
    """A peer may rely on this site to pass a message on. `had` are the replies that were known before it came."""
    _note_unreached(replica, peer, message, up)
    if not message.for_others or peer not in replica.history.ever_listed:
        return
    known = replica.replies.known
    for one in message.replies:
        if one.origin.site == peer and had.get(one.origin, 0) < one.n <= known.get(one.origin, 0):
            replica.duties.owe(one.origin, one.n)
    replica.duties.note_news(peer, now_ms)


def _note_unreached(replica: Replica, peer: str, message: Message, up: Container[str]) -> None:
    """A peer cannot reach some sites. The first one of the others asks them what they have, and sends it to them."""
    if not message.unreached:
        return
    for site in sorted(set(message.unreached).intersection(replica.targets())):  # a peer may name one many times
        others = [one for one in replica.sites if one not in (peer, site)]
        if site in up and min(others, default="") == replica.site:
            replica.peer(site).take_charge()


def pass_on(replica: Replica, up: Container[str], out: Effects, now_ms: int) -> None:
    """Send what others have replied and reported, when all have, or after a while."""
    duties = replica.duties
    if not duties.unsent:
        return
    receivers = [peer for peer in replica.targets() if peer in up]
    known = replica.history.known
    is_complete = covers(replica.applied.settled, known) and all(
        covers(replica.peer(peer).settled, known) for peer in receivers
    )
    if not is_complete and not duties.timer.is_due(now_ms):
        return
    news = set(duties.unsent)
    duties.note_passed_on(now_ms, is_complete=is_complete)
    for peer in receivers:
        if not replica.peer(peer).is_catching_up:
            _send(replica, peer, reports_for(replica, peer, now_ms, news), out, now_ms)


def _send(replica: Replica, peer: str, reports: tuple[dispatch.PassedReport, ...], out: Effects, now_ms: int) -> None:
    """Send a peer these reports, and the replies that it gets from this site."""
    for number, batch in enumerate(batches_for(replica, peer)):
        passed = reports if number == 0 else ()
        if batch.replies:
            replica.note_push(peer, now_ms)
        if batch.replies or passed:
            dispatch.send(replica, peer, out, replies=batch.replies, replies_after=batch.after, passed=passed)


# -- receiving -------------------------------------------------------------------------------------------


def take_reports(replica: Replica, message: Message, is_current: Callable[[str, Report], bool], now_ms: int) -> None:
    """Take what other sites have reported to the sender of a message."""
    for number, report in enumerate(message.reports):
        site = report.origin.site
        if site == replica.site or site not in replica.history.ever_listed or not is_current(site, report):
            continue
        replica.forget_incarnation(site, report.incarnation)
        view = replica.peer(site)
        said = without_more_of(replica.origin, report, replica.history.known, replica.replies.known)
        # The age is the word of the sender: without the bound, others could not read it when this site passes it on.
        heard_ms = max(0, now_ms - (message.ages[number] if number < len(message.ages) else 0))
        if view.observe_report(said, heard_ms):
            view.keep_report(report, heard_ms)
            contents.note_summary(replica, view, said)


# -- pulling ---------------------------------------------------------------------------------------------


def awaited(replica: Replica) -> list[str]:
    """The sites that are not known to have settled everything, or to have replied."""
    own, history = replica.site, replica.history
    if own not in history.site_list:
        return []
    sites = replica.sites
    missing = [site for site in sites if site != own and replica.awaits(site)]
    if history.ever_listed.issubset(history.site_list):  # the usual case: nobody has left
        return missing
    return missing + [site for site in replica.targets() if site not in sites]  # not known to have left


def pull(replica: Replica, up: Container[str], out: Effects, now_ms: int) -> None:
    """If nothing is heard of some sites, ask the hub, or themselves."""
    duties, missing = replica.duties, awaited(replica)
    duties.note_awaited((missing, replica.history.known), now_ms)
    if not missing or not _goes_on(replica, missing, up) or not duties.is_pull_due(now_ms):
        return
    duties.note_pull(now_ms)
    hub = _last_hub(replica, up)
    # Not of a hub that lacks something itself: an operation may come here in its name, and not from it.
    is_informed = hub != replica.site and covers(replica.peer(hub).known, replica.history.known)
    if is_informed:
        dispatch.send(replica, hub, out, pull=True)
    if not is_informed or duties.pulls > _PATIENCE:
        for site in missing:
            if site in up:
                dispatch.send(replica, site, out, ask=True)


def is_pulling(replica: Replica, up: Container[str]) -> bool:
    """Whether this site goes on asking."""
    missing = awaited(replica)
    if not missing or not _goes_on(replica, missing, up):
        return False
    return any(site in up for site in missing) or _last_hub(replica, up) != replica.site


def _goes_on(replica: Replica, missing: Iterable[str], up: Container[str]) -> bool:
    """Whether to ask again. A site that has everything, and has not settled it, reports by itself when it has; but one
    that lacks something must get it, however long that takes."""
    return replica.duties.may_pull or any(site in up and replica.is_behind(site) for site in missing)


def answer(replica: Replica, peer: str, message: Message, out: Effects, now_ms: int) -> None:
    """A peer asks for what it lacks."""
    if not message.pull or not replica.is_target(peer):
        return
    replies, _ = dispatch.first_batch(dispatch.replies_beyond(replica, peer, message.known_replies), replica.limits)
    after = {reply.origin: message.known_replies.get(reply.origin, 0) for reply in replies}
    passed = reports_for(replica, peer, now_ms)
    dispatch.send(replica, peer, out, replies=tuple(replies), replies_after=after, passed=passed)
