"""Which replicant a request speaks of, if any. Pure."""

import re
from dataclasses import dataclass

from cheops.backends.http_ids import is_meta_id
from cheops.backends.http_index import Copy, Index
from cheops.backends.http_paths import ID, below, canonical, collection_of, prefixes, trimmed

_SLASHES = re.compile("/{2,}")


@dataclass(frozen=True, slots=True)
class Target:
    """A replicant, and what of it a request is about. Paths have meta-ids."""

    meta_id: str
    path: str  # of the request
    item: str  # of the replicant, as an operation has it: with `{id}`, or as the client named it
    sub_path: str = ""
    is_named: bool = False
    within: str = ""  # of what is to be created: the replicated collection that it is in


def target_of(index: Index, service: str, path: str) -> Target | None:
    """By a meta-id in the path, by the local path of a copy here, or by a name that clients gave. Services
    may read two slashes as one, but in a name that clients gave they may mean something."""
    found = _target_of(index, service, canonical(path))
    if found is None and "//" in path:
        found = _target_of(index, service, _SLASHES.sub("/", canonical(path)))
        return None if found is None or found.is_named else found
    return found


def _target_of(index: Index, service: str, path: str) -> Target | None:
    sent, path = path, trimmed(path)
    slash = "/" if path not in (sent, "/") else ""  # by which some services know collections
    public = index.path_with_meta_ids(service, path)
    found = index.at(service, path)
    if found is not None and found.is_named:
        return Target(found.meta_id, path + slash, found.item, below(path, found.item), is_named=True)
    unknown = None
    for prefix in prefixes(public):
        meta_id = prefix.rpartition("/")[2].lower()
        if not is_meta_id(meta_id):
            continue
        copy = index.copies.get(meta_id)
        item = f"{collection_of(prefix)}/{ID}"
        target = Target(meta_id, public + slash, item, below(public, prefix))
        if copy is None:
            unknown = unknown or target
        elif _is_at(copy, service, prefix):
            return target
    return unknown


def _is_at(copy: Copy, service: str, path: str) -> bool:
    """Whether a path is that of a copy, rather than one of something that it is named in."""
    return copy.service == service and copy.path.lower() == path.lower()
