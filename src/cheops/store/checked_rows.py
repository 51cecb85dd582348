"""Documents as rows of a table, each with a checksum."""

from collections.abc import Iterable
from typing import TypeAlias
from zlib import crc32

from cheops.engine.documents import Document
from cheops.store.codec import decode
from cheops.store.common_values import CommonValues
from cheops.store.interface import CodecError

# The id of a document, its bytes and its checksum; None: earlier versions wrote none.
Row: TypeAlias = tuple[str, bytes, int | None]


def checksum(resource: str, id_: str, body: bytes) -> int:
    """Against disks that change what they hold, which SQLite does not notice, not against people: CRC-32 finds every
    change of up to 32 bits in a row. It takes a small part of the time in which a document is decoded."""
    return crc32(body, crc32(id_.encode(), _seed(resource)))


def _seed(resource: str) -> int:
    """The part of a checksum that all documents of a resource share."""
    return crc32(f"{resource}\0".encode())


def verified(resource: str, id_: str, body: bytes, stored: int | None) -> Document | None:
    """The document of a row; None if it is not as it was written."""
    return _verified(_seed(resource), id_, body, stored)


def verified_all(resource: str, rows: Iterable[Row]) -> tuple[list[Document], list[str]]:
    """The documents of a resource, and the ids of those that are damaged."""
    documents, damaged, seed, values = [], [], _seed(resource), CommonValues()
    for id_, body, stored in rows:
        if (document := _verified(seed, id_, body, stored)) is not None:
            values.share(document)
            documents.append(document)
        else:
            damaged.append(id_)
    return documents, damaged


def _verified(seed: int, id_: str, body: bytes, stored: int | None) -> Document | None:
    """The document of a row; None if it is not as it was written. As `checksum`, with less work for each of many."""
    if stored is not None and stored != crc32(body, crc32(id_.encode(), seed)):
        return None
    try:
        return decode(body)
    except CodecError:
        return None
