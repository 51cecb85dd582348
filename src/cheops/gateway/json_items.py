"""The items of a JSON list that arrives in pieces: bytes in, items out, and no more in memory than one item. Pure.

Two shapes are lists: an array, and an object with one list member, beside which others may stand:

    [{"id": 5}, …]      {"servers": [{"id": 5}, …], "next": "/servers?marker=5"}

Which member of an object is its list, `ListNames` decides by the path that was requested. An object without one is a
document of its own, of which this module gives nothing but the shape.

Only the ends of items are searched here. Each item is then decoded by itself, so what is passed on is always JSON.
"""

import re
from dataclasses import dataclass
from enum import Enum

import msgspec

from cheops.errors import CheopsError, Fault
from cheops.text import printable, shortened

MAX_ITEM_BYTES = 1024 * 1024
MAX_BESIDE_BYTES = 64 * 1024  # of all members beside the list
_MAX_NAME_BYTES = 1024

_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^,\]}\s]*+")
# All that stands before the next bracket, whole strings included. The quantifiers are possessive: there is one way to
# match, so nothing is tried twice.
_FLAT = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OPENING, _CLOSING = b"{[", b"}]"
_SCALARS = b'"-0123456789tfn'  # the first bytes of what is neither an object nor an array
_BEGINNINGS = _SCALARS + _OPENING


class BodyError(CheopsError):
    """A body that is not a list as this module understands it: not JSON, too large, or cut off."""

    fault = Fault.APPLICATION
    definite = False
    status = 502
    reason = "bad list"


class Shape(Enum):
    ARRAY = "array"
    OBJECT = "object"  # with a list member
    DOCUMENT = "document"  # JSON, and no list


# Members that are lists of things whatever the path is.
_USUAL = frozenset(("items", "data", "results", "value", "values", "entries", "members", "records", "objects"))


@dataclass(frozen=True, slots=True)
class ListNames:
    """Which member of an object is the list that was requested: the one that the configuration names, one that is
    named like a part of the path, or one with a usual name. The member `id` shows that the object is one item."""

    named: str = ""
    in_path: frozenset[str] = frozenset()
    id: str = "id"
    is_item: bool = False  # the path leads to one item: an object is that item

    def is_list(self, name: str) -> bool:
        if self.is_item:
            return False
        return name == self.named if self.named else name.lower() in self.in_path or name in _USUAL

    def is_of_item(self, name: str) -> bool:
        return not self.named and name == self.id


class _At(Enum):
    """What comes next."""

    ROOT = "the body"
    FIRST_ITEM = "an item, or ] for none,"
    ITEM = "an item"
    AFTER_ITEM = ", or ] after an item"
    FIRST_NAME = "the name of a member, or } for none,"
    NAME = "the name of a member"
    COLON = ": after a name"
    MEMBER = "the value of a member"
    AFTER_MEMBER = ", or } after a member"
    END = "the end"
    ELSE = "nothing that is looked at"


class ListSplitter:
    """Takes a body apart. Feed it with pieces, then call `finish`. Raises BodyError."""

    def __init__(self, names: ListNames, max_item_bytes: int = MAX_ITEM_BYTES) -> None:
        self.shape: Shape | None = None  # None: not known yet
        self.list_name = ""  # of the list member
        self.beside: dict[str, bytes] = {}  # the other members, as they stand in the body
        self._names = names
        self._max_item_bytes = max_item_bytes
        self._beside_bytes = 0
        self._data = bytearray()  # what is not taken yet; a value that is not complete begins with it
        self._next = _At.ROOT
        self._name = ""
        self._is_in_value = self._is_in_string = False
        self._scanned, self._depth = 0, 0  # how far the value was searched, and how many brackets are open there

    @property
    def is_complete(self) -> bool:
        return self._next is _At.END

    @property
    def _is_left(self) -> bool:
        """Whether it is a document, which is not looked at any further."""
        return self._next is _At.ELSE

    def feed(self, piece: bytes) -> list[bytes]:
        """The items that are complete with this piece."""
        if self._is_left:
            return []
        items: list[bytes] = []
        data, place = self._data, 0
        data += piece
        while True:
            if not self._is_in_value:
                place = _end_of(_SPACE, data, place)
                if place == len(data) or self._is_left:
                    break
                place = self._take_mark(bytes(data[place : place + 1]), place)
            if self._is_in_value:
                end = self._value_end(place)
                if end is None or self._is_left:
                    break
                self._is_in_value = False
                self._take_value(bytes(data[place:end]), items)
                place = end
        del data[:place]
        self._scanned -= place
        return items

    def finish(self) -> None:
        """Raises BodyError if the list is not complete."""
        if self._next not in (_At.END, _At.ELSE):
            raise BodyError(f"its JSON is cut off: {self._next.value} is missing")

    # -- between values --------------------------------------------------------------------------------------

    def _take_mark(  # noqa: C901 - the table of what may follow what
        self, mark: bytes, place: int
    ) -> int:
        """Take a bracket, a comma or a colon, or begin a value. Gives where to go on."""
        match self._next, mark:
            case _At.ROOT, b"[":
                self.shape, self._next = Shape.ARRAY, _At.FIRST_ITEM
            case _At.ROOT, b"{":
                self._next = _At.FIRST_NAME
            case _At.ROOT, _ if mark in _SCALARS:
                self._be_document()
            case ((_At.FIRST_ITEM | _At.AFTER_ITEM), b"]"):
                self._next = _At.END if self.shape is Shape.ARRAY else _At.AFTER_MEMBER
            case _At.AFTER_ITEM, b",":
                self._next = _At.ITEM
            case ((_At.FIRST_NAME | _At.AFTER_MEMBER), b"}"):
                self.shape, self._next = self.shape or Shape.DOCUMENT, _At.END
            case _At.AFTER_MEMBER, b",":
                self._next = _At.NAME
            case _At.COLON, b":":
                self._next = _At.MEMBER
            case _At.MEMBER, b"[" if self._names.is_list(self._name):
                self._enter_list()
            case ((_At.FIRST_ITEM | _At.ITEM | _At.MEMBER), _) if mark in _BEGINNINGS:
                return self._begin_value(place)
            case ((_At.FIRST_NAME | _At.NAME), b'"'):
                return self._begin_value(place)
            case _:
                shown = printable(mark.decode("latin-1"))
                raise BodyError(f"it is not JSON: found '{shown}' instead of {self._next.value}")
        return place + 1

    def _begin_value(self, place: int) -> int:
        self._is_in_value, self._is_in_string = True, False
        self._scanned, self._depth = place, 0
        return place

    def _enter_list(self) -> None:
        if self.shape is not None:
            raise BodyError(f"it has two lists, '{_shown(self.list_name)}' and '{_shown(self._name)}'")
        self.shape, self.list_name, self._next = Shape.OBJECT, self._name, _At.FIRST_ITEM

    def _be_document(self) -> None:
        self.shape, self._next, self._is_in_value = Shape.DOCUMENT, _At.ELSE, False
        self.beside.clear()
        self._data = bytearray()

    # -- values ----------------------------------------------------------------------------------------------

    def _value_end(self, start: int) -> int | None:
        """The end of the value that begins at `start`; None if it is not here yet. What was searched once is not
        searched again, however small the pieces are."""
        data = self._data
        if data[start] not in b'"{[':
            end = self._scanned = _end_of(_SCALAR, data, self._scanned)
            is_whole = end < len(data)
        else:
            is_whole = self._is_closed()
        self._check_size(self._scanned - start)
        return self._scanned if is_whole else None

    def _is_closed(self) -> bool:
        """Search on in a string, an object or an array; whether its end was found."""
        data = self._data
        while self._scanned < len(data):
            if self._is_in_string:
                self._scanned = _end_of(_INSIDE, data, self._scanned)
                if data[self._scanned : self._scanned + 1] != b'"':
                    break  # the string goes on; or a backslash is the last byte, which is looked at again
                self._scanned, self._is_in_string = self._scanned + 1, False
            else:
                if self._depth:
                    self._scanned = _end_of(_FLAT, data, self._scanned)
                mark = bytes(data[self._scanned : self._scanned + 1])
                self._is_in_string = mark == b'"'
                self._depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
                self._scanned += len(mark)
                if not mark or self._is_in_string:
                    continue
            if not self._depth:
                return True
        return False

    def _check_size(self, size: int) -> None:
        if self._next in (_At.FIRST_ITEM, _At.ITEM):
            if size > self._max_item_bytes:
                raise BodyError(f"an item of the list is larger than {self._max_item_bytes:,} bytes")
        elif self._next is not _At.MEMBER:
            if size > _MAX_NAME_BYTES:
                raise BodyError(f"the name of a member is longer than {_MAX_NAME_BYTES:,} bytes")
        elif self._beside_bytes + size > MAX_BESIDE_BYTES:
            self._be_large()

    def _take_value(self, value: bytes, items: list[bytes]) -> None:
        match self._next:
            case _At.FIRST_ITEM | _At.ITEM:
                items.append(value)
                self._next = _At.AFTER_ITEM
            case _At.FIRST_NAME | _At.NAME:
                self._name = _decoded_name(value)
                self._next = _At.COLON
            case _:
                self._take_member(value)

    def _take_member(self, value: bytes) -> None:
        self._next = _At.AFTER_MEMBER
        self._beside_bytes += len(self._name) + len(value)
        if self.shape is None and self._names.is_of_item(self._name):
            self._be_document()
        elif self._beside_bytes > MAX_BESIDE_BYTES:
            self._be_large()
        else:
            checked(value)
            self.beside[self._name] = value

    def _be_large(self) -> None:
        """Much came, and no list: then it is a document. Beside a list there must not be so much."""
        if self.shape is not None:
            raise BodyError(f"what stands beside the list is larger than {MAX_BESIDE_BYTES:,} bytes")
        self._be_document()


def _end_of(pattern: re.Pattern[bytes], data: bytearray, start: int) -> int:
    found = pattern.match(data, start)
    return found.end() if found else start


def _decoded_name(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"it is not JSON: the name of a member: {error}") from None


def _shown(text: str) -> str:
    return printable(shortened(text))


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder(msgspec.Raw)


def checked(value: bytes) -> dict[str, msgspec.Raw]:
    """The members of a value, if it is an object; none otherwise. Raises BodyError if it is not JSON."""
    try:
        value.decode()
        if value[:1] == b"{":
            return _OBJECT.decode(value)
        _ANY.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise BodyError("its JSON is nested too deep") from None
    return {}
