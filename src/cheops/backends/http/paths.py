"""Paths of a REST service: collections, and the items below them. No I/O.

Paths are percent-encoded, without a slash at their end. To a service several spellings mean the same path
(`/images/%35`, `/images/./5`); every lookup uses `canonical`, so that no spelling bypasses replication.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

ID = "{id}"
MAX_SEGMENTS = 64
_PLAIN = "!$&'()*+,;=:@"  # beside letters, digits and -._~: what a part of a path may hold as it is
_MAY_BE_FOLDED = re.compile(r"%|;|//")
_PARAMETERS = re.compile(r";[^/]*")
_SLASHES = re.compile("/{2,}")
_MAY_BE_SPELLED_OTHERWISE = re.compile(r"%|/\.|[^\x21-\x7e]")


def split_target(target: str) -> tuple[str, str]:
    """Path and query of a request's target, which may be a URL (`http://host/path`)."""
    if not target.startswith("/") and "://" in target:
        parts = urlsplit(target)
        return parts.path or "/", parts.query
    path, _, query = target.partition("?")
    return path, query


def joined(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def trimmed(path: str) -> str:
    """Without slashes at the end: `/images/` and `/images` are the same collection."""
    return path.rstrip("/") or "/"


def canonical(path: str) -> str:
    """The one spelling of all that mean the same by RFC 3986 (section 6.2.2): nothing is percent-encoded that
    need not be, and there are no dots to go up with."""
    if not _MAY_BE_SPELLED_OTHERWISE.search(path):
        return path
    kept: list[str] = []
    for part in path.split("/"):
        spelled = quote(unquote_to_bytes(part), safe=_PLAIN)
        if spelled == "..":
            del kept[max(len(kept) - 1, 1) :]  # the first is what stands before the first slash
        elif spelled != ".":
            kept.append(spelled)
    return "/".join(kept) or "/"


def folded(path: str) -> str:
    """The path for which some services take this one: they decode more than RFC 3986 allows, merge slashes, and drop
    what is behind a `;`. The same for all that may be one to a service. `path` in its one spelling."""
    if not _MAY_BE_FOLDED.search(path):
        return trimmed(path)
    plain = _PARAMETERS.sub("", unquote(unquote(path))).replace("\\", "/")
    return trimmed(_SLASHES.sub("/", canonical(quote(plain, safe=f"/{_PLAIN}"))))


def item_of(collection: str, items: Iterable[tuple[str, str]]) -> str:
    """The path of the items that are created at a path: below it, unless the configuration says otherwise."""
    collection = trimmed(collection)
    for pattern, item in items:
        stars = _stars(pattern, collection)
        if stars is not None:
            parts = iter(stars)
            return "/".join(next(parts) if part == "*" else part for part in item.split("/"))
    return f"{collection.rstrip('/')}/{ID}"


def is_listed(path: str, items: Iterable[tuple[str, str]]) -> bool:
    """Whether the configuration says that things are created at a path."""
    return any(_stars(pattern, trimmed(path)) is not None for pattern, _ in items)


def filled(item: str, id_: str) -> str:
    """The path of an item, given its id."""
    return item.replace(ID, quote(id_, safe=""))


def collection_of(item: str) -> str:
    return item.rpartition("/")[0] or "/"


def last_segment(path: str) -> str:
    """The last part of a path, decoded: what a `Location` names."""
    return unquote(trimmed(urlsplit(path).path).rpartition("/")[2])


def prefixes(path: str) -> Iterator[str]:
    """The path itself, and all above it, longest first."""
    path = trimmed(path)
    for _ in range(MAX_SEGMENTS):
        if path in ("/", ""):
            return
        yield path
        path = path.rpartition("/")[0]


def below(path: str, item: str) -> str:
    """The part of a path below an item: `tags/x`; empty for the item itself."""
    return trimmed(path)[len(item) :].strip("/")


def _stars(pattern: str, path: str) -> list[str] | None:
    """The segments of a path at each * of a pattern; None if the path does not match it."""
    wanted, segments = pattern.split("/"), path.split("/")
    if len(wanted) != len(segments):
        return None
    if any(part not in ("*", actual) for part, actual in zip(wanted, segments, strict=True)):
        return None
    return [actual for part, actual in zip(wanted, segments, strict=True) if part == "*"]
