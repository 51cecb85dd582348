"""Names of sites and services: which need quotes, and how they are written and read.

A name is any text without control or invisible characters. It needs no quotes if it consists of letters,
digits, `_ - .` and single inner spaces (`DC 1`), and does not look like a duration (`10ms`); any other name
is written in double quotes, with `\\"` and `\\\\` inside. So every name has exactly one canonical spelling.
"""

import re
import unicodedata

from cheops.text import code_point, is_invisible

_DURATION = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:ms|s)")
# NAME in grammar.lark, except that its spaces are already single.
_BARE = re.compile(r"\w[\w.\-]*(?: [\w.\-]+)*")
_BLANKS = re.compile(r"[ \t]+")
_ESCAPE = re.compile(r'(["\\])')
_UNESCAPE = re.compile(r"\\(.)")


def write_name(name: str) -> str:
    """The canonical spelling of a name inside a scope."""
    if _BARE.fullmatch(name) and not is_duration(name):
        return name
    return '"' + _ESCAPE.sub(r"\\\1", name) + '"'


def read_name(spelling: str) -> str:
    """The name that a bare or quoted spelling denotes; the opposite of `write_name`."""
    if spelling.startswith('"'):
        return _UNESCAPE.sub(r"\1", spelling[1:-1])
    return _BLANKS.sub(" ", spelling)


def is_duration(text: str) -> bool:
    """Whether a text reads as a duration, such as 10ms or 1.5s."""
    return _DURATION.fullmatch(text) is not None


def normal(text: str) -> str:
    """The text in the composed form of Unicode (NFC), so that what looks the same is the same."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def name_problem(name: str) -> str | None:
    """Why this text cannot be a name, or None if it can."""
    if not name.strip():
        return "a name cannot be empty"
    if bad := next(filter(is_invisible, name), None):
        return f"a name cannot hold the invisible character {code_point(bad)}"
    return None if name == normal(name) else "a name must be in the composed form of Unicode (NFC)"
