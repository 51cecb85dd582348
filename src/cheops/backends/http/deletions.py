"""Deletions of what contains other replicants: a service deletes those, too, at each site by itself.

An operation that deletes such a thing names them, and how far its origin was with each (`Request.contains`). What the
origin knew is deleted everywhere: where it comes after the deletion, it is not run any more.

A site may also have changes that the origin did not know. There these are deleted with the rest, and elsewhere they may
come after the deletion, and stay: no log would show that the sites differ. So a site that deletes such changes says
that the applications may differ (`BackendContext.report_drift`), until a comparison of the sites finds no difference.
"""

import re

from cheops.backends.http.copies import Index
from cheops.backends.http.ids import is_meta_id, meta_id_of
from cheops.backends.http.order import has_run, known_to, places_above
from cheops.backends.http.paths import last_segment
from cheops.backends.http.payload import After, Request, request_of
from cheops.backends.http.sender import ServiceReply
from cheops.backends.http.submission import is_deleted
from cheops.backends.protocol import BackendContext
from cheops.engine.events import Run, Step
from cheops.engine.replica import Replica
from cheops.log.causality import contains, covers
from cheops.log.operation import Kind, Operation, OpId, Origin
from cheops.text import printable, shortened

MULTI_STATUS = 207
_CONFLICT = 409
_MOST_NAMED = 500  # those beyond count as changed: the sites are compared
_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)? ([45]\d\d)")


def contained(index: Index, request: Request, meta_id: str) -> list[str]:
    """The replicants that a deletion of a replicant deletes with it, as far as an operation names them."""
    return index.below(meta_id)[:_MOST_NAMED] if request.deletes and meta_id in index.copies else []


async def report_lost(context: BackendContext, index: Index, meta_id: str, request: Request, *, whole: bool) -> None:
    """Report the replicants below another one, which the service has deleted, if changes of them were lost that the
    origin of the deletion did not know. Without `whole` it has deleted some of them: then each may differ."""
    if meta_id not in index.copies:
        return
    known = {one.resource: one for one in request.contains}
    what = f"{printable(shortened(request.path))} was deleted at {context.config.name}"
    why = f"{what}, and this with it" if whole else f"{what} in part, and perhaps this with it"
    lost = []
    for one in index.below(meta_id):
        replica = await context.load(one)
        if not is_deleted(replica) and not (whole and _covers(known.get(one), replica)):
            lost.append(one)
    if lost:
        await context.report_drift(dict.fromkeys(lost, f"{why}: other sites may still have it"))


async def is_deleted_with(context: BackendContext, index: Index, service: str, run: Run, step: Step) -> bool:
    """Whether this site has deleted what contains a replicant, by an operation that had already seen this one."""
    request = request_of(step.payload)
    named = {request.within, *(one.resource for one in request.after)}
    for above in places_above(request):
        meta_id = last_segment(above).lower()
        if not is_meta_id(meta_id):
            meta_id = index.whose_path(service, above) or meta_id_of("path", service, above)
        if meta_id in index.copies or meta_id in named:
            parent = await context.load(meta_id)
            if any(_has_seen(op, run.resource, step.op) for op in parent.history.ops.values() if _deletes(parent, op)):
                return True
    return False


def _deletes(replica: Replica, op: Operation) -> bool:
    """Whether an operation is a deletion that was done at this site."""
    return op.kind is Kind.DELETE and has_run(replica, op.id)


def _has_seen(deletion: Operation, resource: str, op: OpId | None) -> bool:
    found = next((one for one in request_of(deletion.payload).contains if one.resource == resource), None)
    return op is not None and found is not None and contains(_vector(found), op)


def _vector(known: After) -> dict[Origin, int]:
    return {Origin(site, incarnation): n for site, incarnation, n in known.ops}


def _covers(named: After | None, replica: Replica) -> bool:
    """Whether the origin of a deletion knew all that this site knows of a replicant."""
    return named is not None and covers(_vector(named), _vector(known_to(replica)))


def waits_for_parts(index: Index, service: str, request: Request, reply: ServiceReply) -> bool:
    """Whether the service refuses to delete what is not empty, and what is in it may be about to be deleted."""
    return request.deletes and reply.status == _CONFLICT and index.has_below(service, request.path)


def failed_part(method: str, reply: ServiceReply) -> str:
    """Why a response with several statuses (WebDAV) is no success; empty if it is one. To a DELETE it never is: what
    was deleted has no status of its own."""
    if reply.status != MULTI_STATUS:
        return ""
    found = _STATUS_LINE.search(reply.body)
    if found is None and method != "DELETE":
        return ""
    return f"the service answers 207, and in it {found[1].decode() if found else 'nothing'} for a part of it"
