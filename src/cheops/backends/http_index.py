"""Which local ids stand for which replicants at this site: looked up both ways in microseconds. No I/O.

A local id that is long and has a digit in it (a UUID, a hash) is known wherever it stands. One such as `5` or
`ubuntu` means something only together with its collection: in a path below it, or at the place where answers
about that collection have their ids.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote

from cheops.backends.http_ids import META_ID
from cheops.backends.http_paths import MAX_SEGMENTS, collection_of, filled, item_of, prefixes, trimmed
from cheops.backends.http_to_local import Form, Local, NotHereError, text_to_local
from cheops.backends.http_to_meta import Place
from cheops.config.replication import ReplicationConfig

_DISTINCTIVE_CHARACTERS = 12
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Copy:
    """This site's copy of a replicant. `item` is where clients find it: with `{id}`, and meta-ids for what it
    is part of; for what clients name themselves it is the path as it stands."""

    meta_id: str
    service: str
    item: str
    local_id: str
    is_number: bool = False
    is_named: bool = False

    @property
    def path(self) -> str:
        """Its path for clients."""
        return self.item if self.is_named else filled(self.item, self.meta_id)


def is_distinctive(local_id: str) -> bool:
    return len(local_id) >= _DISTINCTIVE_CHARACTERS and any(character.isdigit() for character in local_id)


class Index:
    """All copies of this site, in memory."""

    def __init__(self, copies: Iterable[Copy] = ()) -> None:
        self.copies: dict[str, Copy] = {}
        self._places: dict[str, tuple[str, str]] = {}  # of each copy: service and local path
        self._services: dict[str, int] = {}
        self._paths: dict[tuple[str, str], str] = {}  # service and local path → meta-id
        self._collections: dict[
            tuple[str, str], dict[str, str]
        ] = {}  # … of a collection → local id → meta-id
        self._distinctive: dict[str, dict[str, None]] = {}  # local id → meta-ids
        for copy in copies:
            self.add(copy)

    def __len__(self) -> int:
        return len(self.copies)

    def has_service(self, service: str) -> bool:
        return service in self._services

    # -- changing ------------------------------------------------------------------------------------------

    def add(self, copy: Copy) -> None:
        """Take in a copy. Whoever had its place has none any more: the service used an id again."""
        self.drop(copy.meta_id)
        if before := self.whose_place(copy):
            self.drop(before)
        place = self._place(copy)
        self.copies[copy.meta_id] = copy
        self._services[copy.service] = self._services.get(copy.service, 0) + 1
        self._places[copy.meta_id], self._paths[place] = place, copy.meta_id
        if not copy.is_named:
            collection = (copy.service, collection_of(place[1]))
            self._collections.setdefault(collection, {})[copy.local_id] = copy.meta_id
            if is_distinctive(copy.local_id):
                self._distinctive.setdefault(copy.local_id, {})[copy.meta_id] = None

    def whose_place(self, copy: Copy) -> str | None:
        """The other replicant that is at the local path of a copy."""
        found = self._paths.get(self._place(copy))
        return None if found == copy.meta_id else found

    def drop(self, meta_id: str) -> None:
        copy = self.copies.pop(meta_id, None)
        if copy is None:
            return
        place = self._places.pop(meta_id)
        self._paths.pop(place, None)
        self._services[copy.service] -= 1
        if not self._services[copy.service]:
            del self._services[copy.service]
        _take_out(self._collections, (copy.service, collection_of(place[1])), copy.local_id)
        _take_out(self._distinctive, copy.local_id, meta_id)

    # -- looking up ----------------------------------------------------------------------------------------

    def local_of(self, meta_id: str) -> Local | None:
        copy = self.copies.get(meta_id)
        return Local(copy.local_id, copy.is_number) if copy else None

    def at(self, service: str, path: str) -> Copy | None:
        """The copy that a local path leads to, itself or to something below it."""
        for prefix in prefixes(path):
            if meta_id := self._paths.get((service, prefix)):
                return self.copies[meta_id]
        return None

    def in_collection(self, service: str, collection: str, local_id: str) -> str | None:
        return self._collections.get((service, collection), {}).get(local_id)

    def anywhere(self, local_id: str) -> str | None:
        """The meta-id of a distinctive local id, unless two replicants have it."""
        found = self._distinctive.get(local_id, {})
        return next(iter(found)) if len(found) == 1 else None

    def path_with_meta_ids(self, service: str, path: str) -> str:
        """A local path, or one from somewhere above the service's root, with meta-ids in it."""
        segments = path.split("/")
        if len(segments) > MAX_SEGMENTS:
            return path
        for place, segment in enumerate(segments):
            meta_id = self._ending_at(service, segments, place) or self.anywhere(unquote(segment))
            if meta_id and not self.copies[meta_id].is_named:
                segments[place] = meta_id
        return "/".join(segments)

    def _ending_at(self, service: str, segments: list[str], place: int) -> str | None:
        """The copy whose path ends at a segment; `segments` before it may hold meta-ids already."""
        for start in range(place):
            path = "/" + "/".join(segments[start + 1 : place + 1])
            try:
                local = text_to_local(path, self.local_of, Form.URL) if META_ID.search(path) else path
            except NotHereError:
                continue
            if meta_id := self._paths.get((service, local)):
                return meta_id
        return None

    def _place(self, copy: Copy) -> tuple[str, str]:
        item = copy.item if copy.is_named else filled(copy.item, copy.local_id)
        try:
            return copy.service, trimmed(text_to_local(item, self.local_of, Form.URL))
        except NotHereError:  # what it is part of is gone
            return copy.service, trimmed(item)


class Answering:
    """What an answer to one request speaks of: see http_to_meta.Known."""

    def __init__(self, index: Index, service: str, config: ReplicationConfig, local_path: str) -> None:
        path = trimmed(local_path)
        self._index = index
        self._service = service
        self._id = config.id or ("id",)
        self._refs = dict(config.refs)
        # the path as a collection, the one that it is an item of, and the one that it is another view of
        self._collections = (path, collection_of(path), collection_of(item_of(path, config.items)))

    def in_text(self, text: str, place: Place) -> str | None:
        if meta_id := self._index.anywhere(text) or self._at_place(text, place):
            return meta_id
        return self._in_url(text) if "/" in text else None

    def of_number(self, number: int, place: Place) -> str | None:
        return self._at_place(str(number), place)

    def in_header(self, value: str) -> str:
        """A `Location` or `Link` with meta-ids."""
        return "<".join(self._in_url(part, ">") or part for part in value.split("<"))

    def _at_place(self, text: str, place: Place) -> str | None:
        name = place[-1] if place else None
        if isinstance(name, str) and name in self._refs:
            return self._index.in_collection(self._service, self._refs[name], text)
        if not self._is_id_place(place):
            if place and place[-1] is None and len(place) > 1 and place[-2] in self._refs:
                return self._index.in_collection(self._service, self._refs[str(place[-2])], text)
            return None
        found = (self._index.in_collection(self._service, where, text) for where in self._collections)
        return next((meta_id for meta_id in found if meta_id), None)

    def _is_id_place(self, place: Place) -> bool:
        """The id of the answer's own item, or of an item of the one list that it is."""
        if place == self._id:
            return True
        if place.count(None) != 1:
            return False
        return place[place.index(None) + 1 :] in (self._id, self._id[-1:])

    def _in_url(self, text: str, end: str = "") -> str | None:
        """A URL or path with meta-ids in its path, or None where it has none."""
        url, mark, rest = text.partition(end) if end else (text, "", "")
        start = url.find("/", url.find("://") + 3) if "://" in url else 0
        stops = [place for sign in "?#" if (place := url.find(sign)) >= 0]
        stop = min(stops, default=len(url))
        if start < 0 or start >= stop or "/" not in url[start:stop]:
            return None
        path = url[start:stop]
        translated = self._index.path_with_meta_ids(self._service, path)
        return f"{url[:start]}{translated}{url[stop:]}{mark}{rest}" if translated != path else None


def _take_out(table: dict[K, dict[str, V]], key: K, inner: str) -> None:
    found = table.get(key)
    if found is not None:
        found.pop(inner, None)
        if not found:
            del table[key]
