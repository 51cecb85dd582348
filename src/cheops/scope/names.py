"""Names of sites and services: which need quotes, and how they are written and read.

A name is any text without control or invisible characters. It stands bare when it is made of letters,
digits, `_ - .` and single inner spaces (`DC 1`), and cannot be taken for a duration (`10ms`); any other
is written in double quotes, with `\\"` and `\\\\` inside. So every name has exactly one canonical spelling.
"""

import re

from cheops.text import code_point

_DURATION = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:ms|s)")
_BARE = re.compile(r"\w[\w.\-]*(?: [\w.\-]+)*")
_BLANKS = re.compile(r"[ \t]+")
_ESCAPE = re.compile(r'(["\\])')
_UNESCAPE = re.compile(r"\\(.)")

# What no name and no scope may hold: control characters (blanks between words aside), characters
# that cannot be seen or that reorder what is seen, and halves of surrogate pairs (bytes that were not
# UTF-8). They make two different names look the same, or cannot be printed at all.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_LINE_BLANKS = re.compile(r"[\t\r\n]")


def write_name(name: str) -> str:
    """The canonical spelling of a name inside a scope."""
    if _BARE.fullmatch(name) and not is_duration(name):
        return name
    return '"' + _ESCAPE.sub(r"\\\1", name) + '"'


def read_name(spelling: str) -> str:
    """The name that a bare or quoted spelling stands for; the opposite of `write_name`."""
    if spelling.startswith('"'):
        return _UNESCAPE.sub(r"\1", spelling[1:-1])
    return _BLANKS.sub(" ", spelling)


def is_duration(text: str) -> bool:
    """Whether a text reads as a duration, such as 10ms or 1.5s."""
    return _DURATION.fullmatch(text) is not None


def name_problem(name: str) -> str | None:
    """Why this text cannot be a name, or None if it can."""
    if not name.strip():
        return "a name cannot be empty"
    if bad := INVISIBLE.search(name) or _LINE_BLANKS.search(name):
        return f"a name cannot hold the invisible character {code_point(bad.group())}"
    return None
