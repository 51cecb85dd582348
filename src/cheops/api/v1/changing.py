"""Operations that are not commands of their own: a deletion, and another list of sites."""

from cheops.api.models import ChangeSites, SitesChange
from cheops.api.operations import RefusedError, RequestError, Wanted, sites_of
from cheops.api.replicants import deletion
from cheops.api.v1.asking import resource_at
from cheops.api.views import operations as views
from cheops.config.replication import service_of
from cheops.engine.replica import Replica
from cheops.log.operation import Kind
from cheops.node.node import Node
from cheops.security.principal import Principal


def deleting(replica: Replica, command: str) -> str:
    """What deletes a resource: a command, or else what its type has for that."""
    of_type = replica.type.reset.line if replica.type.reset else ""
    if service_of(replica.type.name):
        of_type = deletion(replica) or ""
    line = command.strip() or of_type
    if not line:
        raise RefusedError(
            f"the type '{replica.type.name}' has no 'reset', so say which command deletes the resource"
        )
    return line


async def moved(node: Node, id_: str, asked: ChangeSites, by: Principal) -> Wanted:
    """The operation that changes where a resource is."""
    replica = await resource_at(node, id_)
    if asked.delete_with and not asked.delete_copy:
        raise RequestError("'delete_with' says how to delete the copy: it needs 'delete_copy'")
    before = replica.history.roster or views.sites_of(replica)  # also those that are gone
    named = sites_of(asked.sites, node, also=before)
    after = {
        SitesChange.SET: named,
        SitesChange.ADD: tuple(dict.fromkeys((*before, *named))),
        SitesChange.REMOVE: tuple(site for site in before if site not in named),
    }[asked.how]
    if not after:
        raise RefusedError("a resource must stay at one site at least; to be rid of it, delete it")
    line = deleting(replica, asked.delete_with) if asked.delete_copy else ""
    return Wanted(id_, "sites", line, kind=Kind.SITES, names=after, by=by)
