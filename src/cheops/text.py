"""Text for messages: foreign text made safe to print, lists of names, and suggestions for misspelled names."""

import difflib
import unicodedata
from collections.abc import Iterable

# Characters that are invisible or reorder the text around them: control and format characters, lone surrogates (bytes
# that were not UTF-8), line and paragraph separators, and letters that Unicode draws as a blank.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BLANK_LETTERS = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0))
)
_KIB, _FEW = 1024, 10  # below 10 a number has a digit after its point


def is_invisible(character: str) -> bool:
    """Whether a character would make two different texts look the same, or cannot be printed at all."""
    return (
        unicodedata.category(character) in _INVISIBLE_CATEGORIES
        or character in _BLANK_LETTERS
        or "\ufe00" <= character <= "\ufe0f"  # variation selectors
        or "\U000e0000" <= character <= "\U000e0fff"  # tags and more selectors
    )


def has_invisible(text: str) -> bool:
    return not _is_plain(text) and any(map(is_invisible, text))


def _is_plain(text: str) -> bool:
    """Nearly all texts are, and looking at each character would cost more than all else that is done with them."""
    return text.isascii() and text.isprintable()


def printable(text: str) -> str:
    """The text with invisible characters replaced by a mark: same length, and safe to print on a terminal."""
    if _is_plain(text):
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if is_invisible(c) else c for c in text)


def escaped(text: str) -> str:
    """The text with invisible characters written as in Python, `\\x1b`: safe to print, and nothing is lost."""
    if _is_plain(text):
        return text
    return "".join(_escape(c) if is_invisible(c) else c for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shortened(text: str, most: int = 60) -> str:
    """A foreign text, cut so that it does not dominate the message."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def code_point(character: str) -> str:
    """`U+0007`: the name of a character that cannot be printed itself."""
    return f"U+{ord(character):04X}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, ignoring case, or None."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a message: sorted, and cut so that a long list does not hide the message."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:most]) or "none"
    return f"{shown} and {len(ordered) - most} more" if len(ordered) > most else shown


def in_words(names: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def is_or_are(names: Iterable[str]) -> str:
    return "is" if len(tuple(names)) == 1 else "are"


def duration_text(duration_ms: float) -> str:
    """`45 s`, `58 min`, `3.5 h`: as exact as a reader needs."""
    seconds = abs(duration_ms) / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:,.1f} h"


def size_text(size: float) -> str:
    """A number of bytes for people: 512 B, 20 KiB, 3.5 MiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= _KIB and len(units) > 1:
        size, _ = size / _KIB, units.pop(0)
    digits = 1 if size < _FEW and units[0] != "B" else 0
    return f"{size:,.{digits}f} {units[0]}"
