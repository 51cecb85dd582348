"""What may be replicated: the rules of a service, checked at the origin and again at every site that would run it.

Whichever site signed an operation, another runs it only if its own configuration allows it (`allow`, `never`), if it
has no credentials in it, and if it is about the resource that it names.
"""

from cheops.backends.http.copies import Copy
from cheops.backends.http.ids import meta_id_of
from cheops.backends.http.moves import had_name
from cheops.backends.http.paths import canonical, filled, item_of, trimmed
from cheops.backends.http.payload import PayloadError, Request
from cheops.config.request_rules import first_match
from cheops.config.services import ServiceConfig
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.text import printable, shortened


def check_rules(service: ServiceConfig, request: Request) -> None:
    """Raises ClientError for a request that is not replicated for this service."""
    config = service.replication
    refuse_never(service, request.method, request.path)
    if config.allow is not None and first_match(config.allow, request.method, canonical(request.path)) is None:
        shown = printable(shortened(f"{request.method} {request.path}"))
        raise ClientError(f"services.{service.name}.allow does not have {shown}: it is not replicated", status=403)
    if named := next((name for name, _ in request.headers if config.is_credential(name)), None):
        raise PayloadError(f"it has a client's credentials in it ('{printable(shortened(named))}')")


def refuse_never(service: ServiceConfig, method: str, path: str) -> None:
    """Raises ClientError for a request that is never replicated."""
    if rule := first_match(service.replication.never, method, canonical(path)):
        raise ClientError(
            f"'{rule}' is never replicated (services.{service.name}.never): choose one site, with a scope without '&'",
            status=422,
        )


def check_place(
    service: ServiceConfig, request: Request, meta_id: str, copy: Copy | None, replica: Replica | None = None
) -> None:
    """Raises PayloadError for an operation that would change something else than its own resource. What a rule
    explains is checked by that rule, once its body is here: `interpretation.check_meaning`."""
    path, own = trimmed(request.path), trimmed(request.item)
    if request.named and (request.kind or request.item):
        is_own = meta_id == meta_id_of("path", service.name, own) or had_name(replica, own)
        is_own = is_own and (bool(request.kind) or (path == own and not request.made_at))
    elif request.state:
        is_own = _is_same(path, filled(request.item, meta_id))
        is_own = is_own and item_of(trimmed(request.made_at), service.replication.items) == request.item
    elif request.kind:
        is_own = True  # the meta-id is in its path or its body: `check_meaning`
    elif request.deletes:
        is_own = _is_same(path, filled(request.item, meta_id))
    elif request.creates:
        is_own = request.item == item_of(path, service.replication.items)
    else:
        is_own = copy is None or _is_same(path, copy.path) or path.lower().startswith(f"{copy.path.lower()}/")
    if not is_own:
        raise PayloadError(f"{printable(shortened(path))} is not the path of {meta_id}, which it is an operation on")


def _is_same(path: str, other: str) -> bool:
    return trimmed(path).lower() == trimmed(other).lower()
