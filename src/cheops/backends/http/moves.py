"""Moves: operations that give a replicant another name.

A replicant that clients name is known by its first path, at every site, for as long as it exists: a move changes where
it is, not what it is. So its history goes on, and changes under the new name come after those under the old one. Each
site sends a change to the path that its own copy has at that moment. So a move commutes with changes of the content,
also with those that were made under the old name at the other side of a cut.

Two replicants cannot be at one path. Whichever comes second there fails at that site, and the status says so.
"""

from cheops.backends.http.copies import Copy, Index
from cheops.backends.http.ids import meta_id_of
from cheops.backends.http.interpretation import Meaning
from cheops.backends.http.paths import trimmed
from cheops.backends.http.payload import PayloadError, Request, request_of
from cheops.config.services import MOVE
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.log.operation import Kind, Operation
from cheops.text import printable, shortened


def _new_name(op: Operation) -> str:
    """Where an operation moves its resource; empty if it does not."""
    if op.type != MOVE:
        return ""
    try:
        return trimmed(request_of(op.payload).to) if op.payload else ""
    except PayloadError:
        return ""


def current_name(replica: Replica) -> str:
    """The path to which a replicant was moved last; empty if it never was, or was deleted since."""
    name = ""
    for op in (*replica.history.effective, *replica.drafts):
        name = "" if op.kind is Kind.DELETE else _new_name(op) or name
    return name


def had_name(replica: Replica | None, path: str) -> bool:
    """Whether a replicant was moved to a path at some time."""
    ops = (*replica.history.ops.values(), *replica.drafts) if replica else ()
    return any(_new_name(op) == path for op in ops)


def path_now(request: Request, copy: Copy | None) -> str:
    """The path of a request about a replicant that clients name, where this site's copy is now."""
    own = trimmed(request.item)
    if copy is None or not copy.is_named or not own or copy.item == own:
        return request.path
    is_below = request.path == own or request.path.startswith(f"{own}/")
    return f"{copy.item}{request.path[len(own) :]}" if is_below else request.path


def occupant(index: Index, service: str, meta_id: str, request: Request) -> str:
    """The other replicant that is where a request would put its own; empty if there is none."""
    copy = index.copies.get(meta_id)
    place = request.to or ("" if copy else request.item)
    if not request.named or not place or not request.binds:
        return ""
    found = index.whose_path(service, place) or index.alike(service, place)
    return found if found and found != meta_id else ""


def check_move(index: Index, service: str, meta_id: str, meaning: Meaning) -> None:
    """Raises ClientError for a move that would change something else, too."""
    old, new = (printable(shortened(path)) for path in (meaning.item, meaning.to))
    if index.has_below(service, meaning.item):
        raise ClientError(
            f"{old} contains replicated resources, and a move would change all of their names at this "
            f"site only. Move each of them by its own path, then {old} itself",
            status=422,
        )
    if f"{meaning.to}/".startswith(f"{meaning.item}/") and meaning.to != meaning.item:
        raise ClientError(f"{old} cannot be moved to {new}, which is below it", status=422)
    if (index.whose_path(service, meaning.to) or meta_id) != meta_id or index.alike(service, meaning.to):
        raise ClientError(f"{old} cannot be moved to {new}: something replicated is there", status=409)


def refuse_old_name(service: str, replica: Replica, meaning: Meaning) -> None:
    """Raises ClientError for a change under a name that its resource had before. It cannot be a new resource: sites
    that have not heard of the move yet would take the one for the other."""
    now = current_name(replica)
    if now and now != meaning.item and replica.resource == meta_id_of("path", service, meaning.item):
        # Not where it is now: nobody has asked the service whether this client may see it.
        raise ClientError(
            f"what was at {printable(shortened(meaning.item))} has another name now, and is replicated: its old name "
            "is free again when it is deleted. Use the new name, or another one",
            status=409,
        )


__all__ = ["check_move", "current_name", "had_name", "occupant", "path_now", "refuse_old_name"]
