"""Which ids in the answer to a request are those of replicants, by where they stand. No I/O.

A long id is known wherever it stands. A number, or a word, is one only where ids of a collection stand: in
the answer's own item, in the list that it is, in a list within an item that is named like its collection, and
in members that the configuration names (`refs`).
"""

from cheops.backends.http_index import Index, is_distinctive
from cheops.backends.http_paths import collection_of, item_of, trimmed
from cheops.backends.http_to_meta import Place
from cheops.config.replication import ReplicationConfig


class Answering:
    """What an answer to one request speaks of: see http_to_meta.Known."""

    def __init__(self, index: Index, service: str, config: ReplicationConfig, local_path: str) -> None:
        path = trimmed(local_path)
        self._index = index
        self._service = service
        self._id = config.id or ("id",)
        self._items = config.items
        self._refs = dict(config.refs)
        self._item = path if _is_item(index, service, path) else ""
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
        where = self._collections_at(place)
        found = (self._index.in_collection(self._service, one, text) for one in where)
        return next((meta_id for meta_id in found if meta_id), None)

    def _collections_at(self, place: Place) -> tuple[str, ...]:
        """Where the id of that place may belong. A list within an item (`comments` of a post) holds things of
        another kind than the item, unless it is named like the item's own collection."""
        list_ = place.index(None) if None in place else 0
        name = place[list_ - 1] if list_ else None
        own = collection_of(self._item)
        if not self._item or name is None or own.rpartition("/")[2] == name:
            return self._collections
        within, beside = f"{self._item}/{name}", f"{collection_of(own).rstrip('/')}/{name}"
        return within, collection_of(item_of(within, self._items)), beside

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


def _is_item(index: Index, service: str, path: str) -> bool:
    """Whether a path leads to one thing, rather than to a list or a search, as far as can be told: that of a
    replicant does, and one that ends with what looks like an id."""
    last = path.rpartition("/")[2]
    return index.is_at(service, path) or last.isdigit() or is_distinctive(last)
