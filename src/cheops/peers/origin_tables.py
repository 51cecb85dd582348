"""Lists of origins that the messages between two agents refer to, so that a resource of many sites need not name all of
them in every message.

A list is referred to by its hash, once the other agent has used it itself: so it has it. Both forget lists after a
while, and when their connection ends. An agent that does not know a list drops the message, as if it were lost, and
answers with an empty envelope: then the other one names all origins again.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from threading import Lock

from cheops.bounded import BoundedMap
from cheops.log.operation import Origin, parse_origin
from cheops.store.interface import CodecError

HASH_BYTES = 16  # two lists with one hash would give numbers to wrong origins, so nobody must be able to find any
_SMALL = 64  # characters of a list that is always written
_LARGE = 32_768  # characters of one that is never kept: others decide how many there are
_MOST_LISTS = 64  # kept for one peer


class UnknownListError(CodecError):
    """A message refers to a list that is not known here."""


class OriginTables:
    """What is kept for one peer. Envelopes may be packed and read in several threads."""

    def __init__(self) -> None:
        self._lists: BoundedMap[bytes, tuple[Origin, ...]] = BoundedMap(_MOST_LISTS)
        self._shown: BoundedMap[bytes, None] = BoundedMap(_MOST_LISTS // 2)  # those that the peer has used
        self._lock = Lock()

    def form_of(self, origins: tuple[Origin, ...]) -> list[str] | bytes:
        """How a message to the peer has this list."""
        if not _is_kept(origins):
            return list(map(str, origins))
        hash_ = _hash(origins)
        with self._lock:
            self._lists[hash_] = origins
            if hash_ not in self._shown:
                return list(map(str, origins))
            self._shown.touch(hash_)
            return hash_

    def read(self, form: Sequence[str] | bytes) -> tuple[Origin, ...]:
        """The list in a message of the peer; raises UnknownListError, or ValueError for one that nobody writes."""
        if isinstance(form, bytes):
            with self._lock:
                if form not in self._lists:
                    raise UnknownListError("it refers to a list of origins that is not known here")
                self._lists.touch(form)
                self._shown[form] = None
                return self._lists[form]
        origins = origins_in(form)
        if _is_kept(origins):
            hash_ = _hash(origins)
            with self._lock:
                self._lists[hash_], self._shown[hash_] = origins, None
        return origins

    def forget_shown(self) -> None:
        """The peer may have forgotten what it had."""
        with self._lock:
            self._shown.clear()


def origins_in(names: Sequence[str]) -> tuple[Origin, ...]:
    """The origins of a list that is written; raises ValueError."""
    if any(one >= other for one, other in pairwise(names)):
        raise ValueError("a list of origins is not in its order, or names one twice")
    return tuple(map(parse_origin, names))


def _is_kept(origins: Sequence[str]) -> bool:
    return _SMALL < sum(map(len, origins)) <= _LARGE


def _hash(origins: Sequence[str]) -> bytes:
    return sha256("\n".join(origins).encode()).digest()[:HASH_BYTES]  # an origin has no line breaks
