"""Words for messages, used wherever Cheops tells somebody what is wrong."""

import difflib
import unicodedata
from collections.abc import Iterable

# What cannot be seen, or reorders what is seen: control and format characters, lone surrogates (bytes that
# were not UTF-8), line and paragraph separators, and the letters that Unicode leaves blank.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BLANK_LETTERS = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0))
)


def is_invisible(character: str) -> bool:
    """Whether a character would make two different texts look the same, or cannot be printed at all."""
    return (
        unicodedata.category(character) in _INVISIBLE_CATEGORIES
        or character in _BLANK_LETTERS
        or "\ufe00" <= character <= "\ufe0f"  # variation selectors
        or "\U000e0000" <= character <= "\U000e0fff"  # tags and more selectors
    )


def printable(text: str) -> str:
    """The text with a mark for each invisible character: same length, and harmless on a terminal."""
    return "".join("\N{REPLACEMENT CHARACTER}" if is_invisible(c) else c for c in text)


def shortened(text: str, most: int = 60) -> str:
    """A foreign text for a message, which it must not flood."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
