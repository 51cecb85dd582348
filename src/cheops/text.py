"""Words for messages, used wherever Cheops tells somebody what is wrong."""

import difflib
from collections.abc import Iterable


def code_point(character: str) -> str:
    """`U+0007`, for a character that cannot be shown itself."""
    return f"U+{ord(character):04X}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, whatever its case, or None."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a message: sorted, and cut where the list would hide the message."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:most]) or "none"
    return f"{shown} and {len(ordered) - most} more" if len(ordered) > most else shown


def in_words(names: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def is_or_are(names: Iterable[str]) -> str:
    return "is" if len(tuple(names)) == 1 else "are"
