"""Texts in bodies that are protobuf: just enough to find the name that a client chose. No I/O."""

from collections.abc import Iterable, Iterator

_MOST_VARINT_BYTES = 10


def text_at_fields(message: bytes, fields: Iterable[int]) -> str:
    """The text at the end of a path of field numbers; empty if there is none, or not exactly one: programs differ in
    which of two counts."""
    try:
        for field in fields:
            (message,) = (content for number, content in _fields(message) if number == field)
        return message.decode()
    except (ValueError, IndexError):  # also what is no protobuf, and no text
        return ""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields that hold bytes: texts and messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(message, at)
                if at + size > len(message):
                    raise ValueError("a field is longer than the message")
                yield key >> 3, message[at : at + size]
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("no protobuf")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(_MOST_VARINT_BYTES):
        byte = message[at + n]
        value |= (byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return value, at + n + 1
    raise ValueError("a number is too long")
