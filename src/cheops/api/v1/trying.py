"""A dry run: all checks of an operation, and what it would do; with nothing done."""

from msgspec import structs

from cheops.api.models import ChangeSites, DryRun, SubmitRequest
from cheops.api.operations import ElsewhereError, Wanted, submitted
from cheops.api.v1.asking import resource_at, up
from cheops.api.v1.changing import deleting, moved
from cheops.api.v1.submitting import wanted_of
from cheops.api.views.dry_run import dry_run, refused
from cheops.engine.refusing import refusal
from cheops.errors import CheopsError
from cheops.log.operation import Kind
from cheops.node.node import Node
from cheops.node.pump import wall_ms
from cheops.security.principal import Principal


async def tried(node: Node, id_: str, asked: SubmitRequest, by: Principal) -> DryRun:
    """What is wrong with the request itself is refused as always; what the state forbids is the answer."""
    wanted = await _wanted(node, id_, asked, by)
    try:
        event = await submitted(node, wanted, "")
    except ElsewhereError as elsewhere:
        why = f"{node.name} is not involved; it would be forwarded to one of these sites, which knows more"
        return refused(id_, wanted.command, elsewhere.sites, why)
    except CheopsError as error:
        if error.status != 409:
            raise
        return refused(id_, wanted.command, (), str(error))
    replica = await node.pump.replica(id_)
    if problem := refusal(replica, event):
        return refused(id_, wanted.command, event.sites or replica.history.roster, problem)
    return dry_run(replica, event, up(node), wall_ms())


async def _wanted(node: Node, id_: str, asked: SubmitRequest, by: Principal) -> Wanted:
    if asked.kind is Kind.SITES:
        return await moved(node, id_, ChangeSites(sites=asked.sites), by)
    if asked.kind is Kind.DELETE and not asked.command.strip():
        asked = structs.replace(asked, command=deleting(await resource_at(node, id_), ""))
    return wanted_of(id_, asked, {}, by)
