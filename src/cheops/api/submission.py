"""From a client's request to an operation of the engine: checked, and at a site that may take it."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from cheops.api.permissions import ForbiddenError, check_change, check_sites
from cheops.api.views import operations as views
from cheops.config.site import DEFAULT_TYPE
from cheops.engine.admission import policy_violation
from cheops.engine.events import Answer, Stage, Submitted
from cheops.engine.replica import Replica
from cheops.errors import CheopsError, ClientError
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Kind
from cheops.node.effects import Answers
from cheops.node.node import Node
from cheops.plugins import scope_functions
from cheops.scope.parser import parse
from cheops.scope.route import One, Replicas, resolve
from cheops.scope.snapshot import SiteInfo
from cheops.security.principal import NOBODY, Principal
from cheops.security.principal import Kind as Asker
from cheops.security.refusals import AGAINST_POLICY
from cheops.text import listed, printable, shortened

NO_ANSWER_YET = "no reply yet; delivery continues in the background"
SUPERSEDED = "superseded by another operation"
MAX_ID_CHARACTERS = 256
_ACCEPTED_S = 2.0
MAX_COMMAND_BYTES = 128 * 1024
MAX_TYPE_CHARACTERS = 100


class RequestError(ClientError):
    """What a client asks for cannot be done as asked."""


class RefusedError(ClientError):
    """The site cannot take the operation."""

    status = 409


class NotAcceptedError(CheopsError):
    """Nobody can say yet whether it is accepted."""

    status = 503
    definite = False


class NotInvolvedError(CheopsError):
    """The operation belongs to other sites: to be forwarded, or told to the client."""

    status = 503
    definite = False

    def __init__(self, sites: tuple[str, ...], name: str) -> None:
        super().__init__(
            f"this site, {name}, is not involved, and none of {listed(sites)} can be reached from here now"
        )
        self.sites = sites


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """An operation as a client asks for it."""

    resource: str
    type: str
    command: str
    sites: str = ""  # scope-lang, bare form; may be left out for a resource that is there
    rtype: str = ""
    matrix: Matrix | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # name → hash
    kind: Kind = Kind.NORMAL
    names: tuple[str, ...] = ()  # the sites, where they are known already; instead of `sites`
    by: Principal = NOBODY  # who asks; that it may do such things at all was seen to before


def check_names(resource: str, type_: str = "-") -> None:
    for what, text, most in (("id", resource, MAX_ID_CHARACTERS), ("type", type_, MAX_TYPE_CHARACTERS)):
        if not text or text != text.strip():
            raise RequestError(f"the {what} must not be empty, nor begin or end with a blank")
        if len(text) > most:
            raise RequestError(f"the {what} has {len(text)} characters; at most {most} are accepted")
        if not text.isprintable():
            raise RequestError(f"the {what} '{printable(shortened(text))}' has characters that cannot be shown")
    if any(part in (".", "..") for part in resource.split("/")):
        raise RequestError("the id has a part '.' or '..', which proxies and programs take out of addresses")
    if type_.startswith(("!", "*")):
        raise RequestError(f"the type '{printable(shortened(type_))}' begins with a reserved sign")


def parse_sites(text: str, node: Node, also: Iterable[str] = ()) -> tuple[str, ...]:
    """The sites that a bare scope names; raises the scope's own errors, with the known sites. Those of `also`
    count as known, whatever became of them."""
    known = node.snapshot()
    lost = {name: SiteInfo(name) for name in also if name not in known.sites}
    known = replace(known, sites={**known.sites, **lost}) if lost else known
    route = resolve(parse(text, scope_functions()), None, known, scope_functions())
    match route:
        case One() | Replicas():
            return tuple(route.sites)
    raise RequestError(
        f"'{shortened(text)}' leaves open where: a command's sites are one name, or several joined by '&'"
    )


async def submission_event(node: Node, wanted: OperationRequest, request: str) -> Submitted:
    """The event for the engine; raises ElsewhereError if another site must take it."""
    check_names(wanted.resource, wanted.type)
    if len(wanted.command.encode()) > MAX_COMMAND_BYTES:
        raise RequestError(f"the command is longer than {MAX_COMMAND_BYTES} bytes")
    named = wanted.names or (parse_sites(wanted.sites, node) if wanted.sites else ())
    replica = await node.pump.replica(wanted.resource)
    site_list = views.sites_of(replica)
    where = site_list or named
    if not where:
        raise RequestError("say at which sites the resource is to be, such as sites='site1 & site2'")
    if node.name not in where:
        check_sites(wanted.by, where)
        raise NotInvolvedError(where, node.name)
    rtype = _type_of(node, replica, wanted)
    check_change(node, wanted.by, replica, rtype, dict.fromkeys((*where, *named)))
    runs_nothing = wanted.kind is Kind.SITES and not wanted.command
    payload = Command(wanted.command, tuple(wanted.files.items()))
    if not runs_nothing:
        node.backends.of_type(rtype).check_payload(rtype, replica, wanted.kind, payload)
    event = Submitted(
        request,
        wanted.resource,
        wanted.type,
        payload,
        wanted.kind,
        rtype,
        named or None,
        wanted.matrix or (None if site_list else node.config.type_named(rtype).matrix),
    )
    _check_policy(node, wanted.by, replica, event)
    return event


def _check_policy(node: Node, by: Principal, replica: Replica, event: Submitted) -> None:
    """Whether this site may do it, and the one that hands it on: or that one could have us do what it may not
    do itself. Raises ForbiddenError."""
    for site in (node.name, *((by.name,) if by.kind is Asker.PEER else ())):
        if problem := policy_violation(replica, event, site):
            raise ForbiddenError(f"{problem}; {_remedy(replica, site)}", AGAINST_POLICY)


def _remedy(replica: Replica, site: str) -> str:
    listing = replica.history.site_list_op
    maker = listing.origin.site if listing else ""
    ask = f"ask the agent of {maker}, or change" if maker and maker != site else "change"
    return f"{ask} 'types.{replica.type.name}.policy', which must be the same at all sites"


def _type_of(node: Node, replica: Replica, wanted: OperationRequest) -> str:
    """The resource's own type; for a new one that of the request, or the only one, or the default."""
    if replica.type.name:
        if wanted.rtype and wanted.rtype != replica.type.name:
            raise RefusedError(f"the resource is of type '{replica.type.name}', not '{wanted.rtype}'")
        return replica.type.name
    types = node.config.types
    only = next(iter(types)) if len(types) == 1 else DEFAULT_TYPE
    return node.config.type_named(wanted.rtype or only).name


async def execute(
    node: Node, wanted: OperationRequest, timeout_s: float
) -> tuple[Answer, tuple[str, ...], AsyncGenerator[Answer, None]]:
    """Submit; gives the acceptance, the sites involved, and what they answer until the time is over."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    with ExitStack() as stack:
        answers = stack.enter_context(node.answers())
        node.submit(await submission_event(node, wanted, answers.request))
        accepted = await _first(answers, timeout_s, node)
        if accepted.stage is Stage.REFUSED:
            raise RefusedError(accepted.detail)
        if accepted.op:
            answers.accepted(wanted.resource, accepted.op)
        replica = await node.pump.replica(wanted.resource)
        return accepted, views.sites_of(replica), _until(deadline_s, answers, stack.pop_all())


async def _first(answers: Answers, timeout_s: float, node: Node) -> Answer:
    """The acceptance. It is a matter of milliseconds, unless the store cannot save."""
    try:
        return await asyncio.wait_for(answers.next(), max(timeout_s, _ACCEPTED_S))
    except TimeoutError:
        why = node.pump.trouble or "its store is slow"
        raise NotAcceptedError(f"{node.name} has not accepted it yet, and still may: {why}") from None


async def _until(deadline_s: float, answers: Answers, stack: ExitStack) -> AsyncGenerator[Answer, None]:
    with stack:
        async for answer in answers.until(deadline_s):
            yield answer
