"""What is not done to something replicated, and what to do instead. Pure."""

from cheops.backends.http_index import Index
from cheops.backends.http_paths import split_target
from cheops.gateway.replicas.errors import MovingError, WholeError
from cheops.gateway.replicas.targets import target_of
from cheops.gateway.seam import Head, first
from cheops.text import in_words

MOVING = frozenset(("MOVE", "COPY"))
_SHOWN = 3


def refuse_moving(index: Index, service: str, head: Head, *, has_scope: bool) -> None:
    """A replicant is known by its name. To give it another is to make one resource and to delete another, and
    there is no operation on two: a site could come to have neither, or both."""
    if head.method not in MOVING:
        return
    source, _ = split_target(head.target)
    destination, _ = split_target(first(head, "Destination") or "")
    touched = [path for path in (source, destination) if _has_replicants(index, service, path)]
    if not has_scope and not touched:
        return
    what = f"{touched[0]} is, or holds, something replicated" if touched else "its scope has '&'"
    raise MovingError(
        f"{head.method} is not done for what is replicated, and {what}. Instead: PUT it under its new "
        "name with the same sites in the scope"
        + (", then DELETE the old one" if head.method == "MOVE" else "")
    )


def refuse_whole(index: Index, service: str, head: Head) -> None:
    """Something that is no replicant is deleted with all that is in it, or is a collection that is written
    as a whole: at one site, while the replicants in it are at others too, and stay as they are there."""
    path, _ = split_target(head.target)
    if head.method == "DELETE":
        is_meant = index.has_below(service, path)
    else:
        is_meant = head.method in ("PUT", "PATCH") and index.is_collection(service, path)
    if not is_meant:
        return
    held = sorted(index.copies[one].path for one in index.below_path(service, path))
    shown = in_words([*held[:_SHOWN], *([f"{len(held) - _SHOWN:,} more"] if len(held) > _SHOWN else [])])
    raise WholeError(
        f"{path} holds something replicated, {shown}, which {head.method} would change at this site alone. "
        f"First {head.method} what is replicated, each by its own path: that is done at all of its sites"
    )


def _has_replicants(index: Index, service: str, path: str) -> bool:
    """Whether a path leads to a replicant, to something below one, or to something above one."""
    return bool(path) and (index.has_below(service, path) or target_of(index, service, path) is not None)
