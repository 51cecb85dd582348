"""How databases are called, and how places in their feeds are written.

`cheops` holds everything that sites share, `cheops-for-<site>` what involves one site. CouchDB allows only
small letters, digits and a few signs in the name of a database; of a site's name any other byte is written as
two hexadecimal digits in brackets: `cheops-for-(44)(43)(20)1` is that of `DC 1`.

A place in a feed is written `<number>-<mark>`, where the mark is that of the store's incarnation. To a site
that lost its disk the places of its former life mean nothing: whoever comes with one begins anew.
"""

import hashlib
import re

ALL = "cheops"
_PREFIX = "cheops-for-"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = re.compile(rb"\(([0-9a-f]{2})\)")
_PLACE = re.compile(r"([0-9]{1,18})(?:-([0-9a-f]*))?")


def name_for(site: str) -> str:
    """The database of what involves a site."""
    return _PREFIX + "".join(chr(b) if b in _PLAIN else f"({b:02x})" for b in site.encode())


def site_of(name: str) -> str | None:
    """The site whose database this is; None if it is none, or not written as we write it."""
    if not name.startswith(_PREFIX):
        return None
    raw = name.removeprefix(_PREFIX).encode("utf-8", "replace")
    try:
        site = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw).decode()
    except UnicodeDecodeError:
        return None
    return site if site and name_for(site) == name else None


def uuid_of(incarnation: str) -> str:
    """What makes a server known to others: PouchDB builds the names of its checkpoints with it."""
    return hashlib.sha256(f"cheops {incarnation}".encode()).hexdigest()[:32]


class Places:
    """Between numbers of the feed and how they are written."""

    def __init__(self, incarnation: str) -> None:
        self.uuid = uuid_of(incarnation)
        self._mark = self.uuid[:12]

    def written(self, number: int) -> str:
        return f"{number}-{self._mark}"

    def number(self, text: str, last: int) -> int | None:
        """The number; 0 for one of another life, or that this feed has not reached (the store was set back
        to an older copy); None if the text is no such thing. A bare number, typed by a person, is taken."""
        match = _PLACE.fullmatch(text)
        if match is None:
            return None
        number = int(match[1])
        is_ours = match[2] is None or match[2] == self._mark
        return number if is_ours and number <= last else 0
