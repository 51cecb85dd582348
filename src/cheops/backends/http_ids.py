"""Meta-ids: the ids under which clients know replicated resources.

A UUID of version 8, so that every validator takes it:

    c4e095a1-SSSS-8RRR-VRRR-RRRRRRRRRRRR

It begins with a fixed mark, by which one regular expression finds it in a path, a query, a header or a body.
S is taken from the name of the site that made it: a site that has never heard of a meta-id asks that one
first. R is 74 random bits. No clock and no randomness here: both are passed in.
"""

import hashlib
import re

MARK = "c4e095a1"
RANDOM_BYTES = 10
_HEX = "[0-9a-fA-F]"
_TEXT = rf"(?<!{_HEX})[cC]4[eE]095[aA]1-{_HEX}{{4}}-8{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}(?!{_HEX})"
META_ID = re.compile(_TEXT)
META_ID_BYTES = re.compile(_TEXT.encode())


def new_meta_id(site: str, randomness: bytes) -> str:
    """A meta-id made at a site, from `RANDOM_BYTES` random bytes."""
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"expected {RANDOM_BYTES} random bytes, found {len(randomness)}")
    return _formed(_site_mark(site), randomness)


def meta_id_of(*words: str) -> str:
    """The one meta-id of these words: for what clients name themselves, so that all sites name it alike."""
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).digest()
    return _formed(digest[-2:].hex(), digest[:RANDOM_BYTES])


def may_be_made_at(meta_id: str, site: str) -> bool:
    """Whether a site may have made a meta-id; of 65 536 other sites, one is mistaken for it."""
    return meta_id[9:13].lower() == _site_mark(site)


def is_meta_id(text: str) -> bool:
    return META_ID.fullmatch(text) is not None


def meta_ids_in(text: str) -> tuple[str, ...]:
    """All meta-ids of a text, in small letters, in their order, each once."""
    return tuple(dict.fromkeys(found.lower() for found in META_ID.findall(text)))


def _site_mark(site: str) -> str:
    return hashlib.sha256(site.encode()).digest()[:2].hex()


def _formed(site_mark: str, random: bytes) -> str:
    bits = int.from_bytes(random, "big")  # 80 of them, of which 74 are used
    low, high = bits & (1 << 62) - 1, bits >> 62 & 0xFFF
    tail = f"{0b10 << 62 | low:016x}"
    return f"{MARK}-{site_mark}-8{high:03x}-{tail[:4]}-{tail[4:]}"
