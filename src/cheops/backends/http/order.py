"""Order across resources: an operation waits at each site for what its origin had done before to what it touches.

A child comes after its parent, and what refers to a replicant after that one was created. So an operation names the
other replicants that it touches, and how far its origin was with each (`After`). A site runs it when it has settled
that much itself. Only what touches waits.

What clients name may also be referred to by its name alone, anywhere in a body, and nobody can see that. So an
operation also names what its origin changed shortly before (`earlier`). It does not wait for these. But if the service
answers 404, 409 or 424 while one of them is pending at the site, it is tried again, rather than failed.

Stamps of one origin grow, and within a resource operations run by stamp. So an operation waits only for earlier ones,
and no two wait for each other.
"""

from collections.abc import Callable, Iterable, Iterator

from cheops.backends.http.copies import Index
from cheops.backends.http.ids import is_meta_id, meta_id_of, meta_ids_in
from cheops.backends.http.interpretation import Meaning
from cheops.backends.http.paths import collection_of, prefixes
from cheops.backends.http.payload import DELETE, After, Request, decode_response, request_of
from cheops.backends.http.submission import sites_of
from cheops.backends.protocol import BackendContext
from cheops.bounded import BoundedMap
from cheops.config.services import PUT
from cheops.engine.events import Outcome, Result
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.log.causality import covers
from cheops.log.operation import Kind, Operation, OpId, Origin, Status
from cheops.node.node import Node
from cheops.text import in_words, printable, shortened

_MOST_EARLIER = 16
_MISSING = (404, 409, 424)  # a service may answer so if something that the request needs is not there yet


def named_in(request: Request, in_body: Iterable[str]) -> tuple[str, ...]:
    """The meta-ids in a request."""
    headers = " ".join(value for _, value in request.headers)
    return tuple(dict.fromkeys((*meta_ids_in(f"{request.path} {request.query} {headers}"), *in_body)))


def touched(index: Index, service: str, request: Request, own: str, in_body: Iterable[str]) -> list[str]:
    """The other replicants that a request touches: those that its path is below, and those that it names."""
    named = named_in(request, in_body)
    above = (index.whose_path(service, prefix) for prefix in places_above(request))
    return [one for one in dict.fromkeys((*named, *filter(None, above))) if one != own and one in index.copies]


def pending_above(service: str, request: Request, replica: Callable[[str], Replica | None]) -> list[str]:
    """The replicants above the path of a request about which this site still has something to run. The service may
    have them, or be about to create them, while this site has no copy: after a crash, say, or while it runs the create
    of another site. Those are in memory."""
    ids = [meta_id_of("path", service, place) for place in places_above(request)] if request.named else []
    return [id_ for id_ in ids if (found := replica(id_)) is not None and _is_pending(found)]


def _is_pending(replica: Replica) -> bool:
    return bool(replica.drafts) or not covers(replica.applied.settled, replica.history.known)


async def unnamed_above(context: BackendContext, index: Index, service: str, request: Request, own: str) -> str:
    """A replicant above what a client creates that is not at all of its sites yet, and not named by the operation: this
    site heard of it after it had taken the request. Elsewhere the operation would not wait for it, so it must not run
    here before. Empty if there is none."""
    if not request.named or own in index.copies:
        return ""
    named = (request.within, *(one.resource for one in request.after))
    for one in (*touched(index, service, request, own, ()), *pending_above(service, request, context.replica)):
        if one not in named and after(await context.load(one)) is not None:
            return one
    return ""


def needed_by(service: str, meaning: Meaning | None) -> dict[str, str]:
    """The other replicants that a request needs by its rule, with their paths."""
    return {meta_id_of("path", service, path): path for path in meaning.after} if meaning else {}


async def check_needed(node: Node, service: str, meaning: Meaning | None, sites: tuple[str, ...]) -> None:
    """Raises ClientError if a request needs what is not at all of its sites: there it could never run."""
    for meta_id, path in needed_by(service, meaning).items():
        replica = await node.pump.replica(meta_id)
        lacking = [site for site in sites if site not in sites_of(replica)]
        if lacking:
            raise ClientError(
                f"it needs {printable(shortened(path))}, which is not replicated at {in_words(lacking)}: first send "
                "that with the same sites in the scope",
                status=409,
            )


def places_above(request: Request) -> Iterator[str]:
    """The paths that a request is below."""
    for place in (request.item if request.named else request.path, request.to):
        if place.startswith("/") and place != "/":
            yield from prefixes(collection_of(place))


def after(replica: Replica) -> After | None:
    """What an operation of this site waits for that touches a replicant; None if all of its sites have settled it."""
    known = _known(replica)
    others = [replica.peers.get(site) for site in sites_of(replica) if site != replica.site]
    if not known or all(view is not None and covers(view.settled, known) for view in others):
        return None
    return known_to(replica)


def known_to(replica: Replica) -> After:
    """How far this site is with a replicant."""
    ops = tuple((origin.site, origin.incarnation, n) for origin, n in sorted(_known(replica).items()))
    return After(replica.resource, ops, sites_of(replica))  # also if the service has just decided to create it


def _known(replica: Replica) -> dict[Origin, int]:
    known = dict(replica.history.known)
    for draft in replica.drafts:
        known[draft.origin] = max(known.get(draft.origin, 0), draft.seq)
    return known


def has_run(replica: Replica, op: OpId) -> bool:
    """Whether this site has applied an operation."""
    reply = replica.replies.get(op, replica.site)
    return reply is not None and reply.status is Status.OK


def must_wait(replica: Replica, before: After, own: Replica | None, id_: OpId) -> bool:
    """Whether an operation of `own` comes after one of `replica` that may still run at this site."""
    return not _is_settled(replica, before) and not (own and _is_forgotten(replica, before, own, id_))


def _is_settled(replica: Replica, before: After) -> bool:
    """Whether a site has settled what an operation waits for."""
    if replica.history.site_list and not replica.is_involved:
        return True  # it has left that resource since: nothing of it will run here
    wanted = {Origin(site, incarnation): n for site, incarnation, n in before.ops}
    return covers(replica.applied.settled, wanted)


def _is_forgotten(replica: Replica, before: After, own: Replica, id_: OpId) -> bool:
    """Whether what an operation of `own` waits for may have been deleted and forgotten everywhere since: a site with a
    new store runs old operations, and a resource may have been begun again."""
    wanted, known = [Origin(site, incarnation) for site, incarnation, _ in before.ops], replica.history.known
    if any(one.shares_store(two) and one.generation > two.generation for one in known for two in wanted):
        return known.keys().isdisjoint(wanted)
    op = own.history.ops.get(id_)
    if known or replica.inbox.waiting or op is None:
        return False
    heard_ms = max((view.last_contact_ms or 0 for view in own.peers.values()), default=0)
    return heard_ms - op.stamp.time_ms > own.limits.tombstone_ms


def creation_after(replica: Replica | None, id_: OpId | None) -> Operation | None:
    """The PUT that creates what an operation changes a part of, and comes after it; None if there is none, or if it
    must not run twice.

    What is `PUT o`, `PUT o?tagging`, `PUT o` where it was made, is `PUT o?tagging`, `PUT o` at a site that has run none
    of them, because the last one replaces the first. To run the last one before the part as well gives the same state,
    whether it keeps the part or not."""
    effective = replica.history.effective if replica else []
    place = next((n for n, op in enumerate(effective) if op.id == id_), None)
    if place is None or not effective[place].type.startswith((f"{PUT} ", f"{DELETE} ")):
        return None
    for op in effective[place + 1 :]:
        if op.kind is Kind.NORMAL and op.type == PUT:
            request = request_of(op.payload)
            return op if request.named and request.binds and not request.exists else None
    return None


def at_site(site: str, befores: Iterable[After]) -> Iterable[After]:
    """What an operation may wait for at a site. What is not at the site cannot come there."""
    return (one for one in befores if site in one.sites and is_meta_id(one.resource))


class RecentChanges:
    """The replicants that clients named and changed at this site last, for each service."""

    def __init__(self) -> None:
        self._by_service: dict[str, BoundedMap[str, None]] = {}

    def note(self, service: str, meta_id: str) -> None:
        known = self._by_service.setdefault(service, BoundedMap(_MOST_EARLIER))
        known.pop(meta_id, None)
        known[meta_id] = None

    def others(self, service: str, own: str) -> list[str]:
        return [one for one in self._by_service.get(service, ()) if one != own]

    def forget(self, service: str, meta_id: str) -> None:
        """All sites have settled it."""
        self._by_service[service].pop(meta_id, None)


def may_be_early(outcome: Outcome) -> bool:
    """Whether a service may have refused something only because what it needs is not there yet."""
    kept = decode_response(outcome.output) if outcome.result is Result.KO else None
    return kept is not None and kept.status in _MISSING
