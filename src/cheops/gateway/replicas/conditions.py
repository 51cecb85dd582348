"""Conditional requests (RFC 9110, section 13): decided by the local replica, before the operation is made.

Pure. What they are decided by is the head of an answer to a GET of the resource.
"""

from email.utils import parsedate_to_datetime

from cheops.gateway.replicas.errors import NotMetError
from cheops.gateway.seam import Head, Headers, every, first

_CONDITIONS = ("If-Match", "If-None-Match", "If-Unmodified-Since")


def is_conditional(head: Head) -> bool:
    return any(first(head, name) is not None for name in _CONDITIONS)


def check_conditions(head: Head, status: int, headers: Headers) -> None:
    """Raises NotMetError. `status` and `headers` are what the replica answers; 404 where there is none."""
    found = Head("GET", "", headers)
    exists, tag = 200 <= status < 300, first(found, "ETag")
    if wanted := every(head, "If-Match"):
        if not exists or not _any_matches(wanted, tag, weakly=False):
            raise NotMetError(f"If-Match: the replica here {_is(exists=exists, tag=tag)}")
    elif (since := first(head, "If-Unmodified-Since")) and _is_later(first(found, "Last-Modified"), since):
        raise NotMetError("If-Unmodified-Since: the replica here is newer, or does not say how old it is")
    if exists and _any_matches(every(head, "If-None-Match"), tag, weakly=True):
        raise NotMetError(f"If-None-Match: the replica here {_is(exists=exists, tag=tag)}")


def _is(*, exists: bool, tag: str | None) -> str:
    if not exists:
        return "does not exist"
    return f"has the tag {tag}" if tag else "exists, and has no tag"


def _any_matches(wanted: list[str], tag: str | None, *, weakly: bool) -> bool:
    tags = [one.strip() for value in wanted for one in value.split(",")]
    if "*" in tags:
        return True
    if tag is None or (not weakly and tag.startswith("W/")):
        return False
    if weakly:
        return tag.removeprefix("W/") in {one.removeprefix("W/") for one in tags}
    return tag in tags


def _is_later(modified: str | None, since: str) -> bool:
    try:
        return modified is None or parsedate_to_datetime(modified) > parsedate_to_datetime(since)
    except (ValueError, TypeError):
        return True  # what cannot be compared is not known to be unchanged
