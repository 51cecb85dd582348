"""What Cheops cannot know, the operator says: whether an UNKNOWN operation took effect, or what is to be."""

from starlette.requests import Request

from cheops.api.forwarding import HOP_HEADER
from cheops.api.models import Resolution, Resolved, ResolveRequest, to_json
from cheops.api.operations import RefusedError, RequestError, Wanted, carried_out
from cheops.api.reach import principal_of
from cheops.api.v1.asking import resource_at
from cheops.api.v1.handing_on import asked_of
from cheops.api.views.naming import find
from cheops.api.views.sites import site_view
from cheops.engine.events import Resolved as ResolvedEvent
from cheops.engine.replica import Replica
from cheops.engine.status import status
from cheops.log.operation import Kind, OpId
from cheops.node.node import Node
from cheops.security.principal import Principal
from cheops.sync.heart import now
from cheops.text import in_words, is_or_are


async def resolved(
    node: Node, request: Request, id_: str, asked: ResolveRequest, timeout_s: float
) -> Resolved:
    if asked.resolution is Resolution.FORCE:
        return await _forced(node, id_, asked, timeout_s, principal_of(request))
    if asked.site and asked.site != node.name:
        if request.headers.get(HOP_HEADER):
            raise RequestError(f"this is {node.name}, not {asked.site}")
        site_view(node.mesh, now(), asked.site)  # or it is not known
        reach = principal_of(request).reach
        return await asked_of(node, asked.site, request.scope["path"], to_json(asked), Resolved, reach)
    replica = await resource_at(node, id_)
    op = _unknown(replica, asked)
    node.pump.post(ResolvedEvent(id_, op, asked.resolution is Resolution.HAPPENED))
    await node.pump.flushed()
    return Resolved(resource=id_, site=node.name, operation=str(op), resolution=asked.resolution)


def _unknown(replica: Replica, asked: ResolveRequest) -> OpId:
    """The operation that is UNKNOWN at this site; there is at most one."""
    unknown = replica.unknown
    if unknown is None:
        raise RefusedError(f"nothing is UNKNOWN at {replica.site}{_elsewhere(replica)}")
    if asked.operation and find(replica, asked.operation).id != unknown.id:
        raise RefusedError(f"{unknown.id} is UNKNOWN at {replica.site}, not {asked.operation}")
    return unknown.id


def _elsewhere(replica: Replica) -> str:
    """What this site has heard to be UNKNOWN at others; of what is so where it was made nobody hears."""
    sites = [site for site in status(replica, set()).sites if site.unknown]
    heard = [f"{in_words(map(str, site.unknown))} at {site.site}" for site in sites]
    return f"; {in_words(heard)} {is_or_are(heard)}: say so with 'site'" if heard else ""


async def _forced(node: Node, id_: str, asked: ResolveRequest, timeout_s: float, by: Principal) -> Resolved:
    if not asked.command.strip():
        raise RequestError("'force' needs a 'command' that makes the state")
    await resource_at(node, id_)
    wanted = Wanted(id_, asked.type, asked.command.strip(), kind=Kind.FORCE, by=by)
    accepted, _sites, answers = await carried_out(node, wanted, timeout_s)
    async for _ in answers:
        break  # it was run here, or the time is over
    return Resolved(resource=id_, site=node.name, operation=str(accepted.op), resolution=asked.resolution)
