"""An edit of a text, as data: what is kept, deleted and inserted, from the beginning of the text to its end.

    [120, "milk\\n", -3, 7]    keep 120 characters, insert a line, delete 3 characters, keep the last 7

So an edit knows the length of the text that it was made for. With the hash of that text it is an operation: two words
of a command line, such as

    cheops-text pages/notes 9f86d081884c7d65 '[120,"milk\\n",-3,7]'

Characters are Unicode code points.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import sha256
from itertools import pairwise

# A number keeps as many characters, a negative one deletes them, a text is inserted.
Part = int | str
Edit = tuple[Part, ...]

HASH = re.compile(r"[0-9a-f]{16}")
ANY = "-"  # in place of a hash: the text is one that no hash is known of
MAX_LENGTH = 1_000_000  # of a text, with what an edit inserts: each site merges within bounded memory
# A word, or one character; a character is a word of its own in scripts that put no blanks between words: Thai, Lao,
# Burmese, Khmer, Japanese, Chinese.
_NO_BLANKS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_TOKEN = re.compile(rf"[^\W{_NO_BLANKS}]+|[\W{_NO_BLANKS}]")
_MAX_TOKENS = 4_000  # beyond this the comparison of two passages, which takes quadratic time, is by lines alone


def hash_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def length_before(edit: Edit) -> int:
    """The length of the text that it was made for."""
    return sum(abs(part) for part in edit if isinstance(part, int))


def apply(edit: Edit, text: str) -> str:
    """The text after an edit. Raises ValueError if it was made for a text of another length."""
    if length_before(edit) != len(text):
        raise ValueError(f"the edit was made for a text of {length_before(edit)} characters, this one has {len(text)}")
    parts, place = [], 0
    for part in edit:
        if isinstance(part, str):
            parts.append(part)
            continue
        if part > 0:
            parts.append(text[place : place + part])
        place += abs(part)
    return "".join(parts)


def compact(parts: Iterable[Part]) -> Edit:
    """The same edit in its shortest form: in a place that changes, what is inserted comes before what is deleted."""
    found: list[Part] = []
    inserted, deleted = "", 0

    def end_change() -> None:
        nonlocal inserted, deleted
        found.extend(part for part in (inserted, -deleted) if part)
        inserted, deleted = "", 0

    for part in parts:
        if isinstance(part, str):
            inserted += part
        elif part < 0:
            deleted -= part
        elif part:
            end_change()
            if found and isinstance(found[-1], int) and found[-1] > 0:
                found[-1] += part
            else:
                found.append(part)
    end_change()
    return tuple(found)


# -- as a word of a command line ---------------------------------------------------------------------------


def encoded(edit: Edit) -> str:
    """As JSON, without quotes and placeholders of a command line: in single quotes it is one word of it."""
    text = json.dumps(list(edit), ensure_ascii=False, separators=(",", ":"))
    text = text.replace("'", "\\u0027").replace("__ID__", "\\u005f_ID__")
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def decoded(word: str) -> Edit:
    """Raises ValueError."""
    try:
        value = json.loads(word)
    except RecursionError:
        raise ValueError("an edit is no nested list") from None
    if not isinstance(value, list) or not all(type(part) in (int, str) for part in value):
        raise ValueError("an edit is a list of numbers and texts")
    edit = compact(value)
    if length_before(edit) + sum(len(part) for part in edit if isinstance(part, str)) > MAX_LENGTH:
        raise ValueError(f"a text has at most {MAX_LENGTH:,} characters")
    if any(isinstance(part, str) and not _is_text(part) for part in edit):
        raise ValueError("what is inserted is no Unicode text")
    return edit


def _is_text(text: str) -> bool:
    """Whether it can be written to a file: JSON can have one half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


# -- from two texts ------------------------------------------------------------------------------------------


def difference(before: str, after: str) -> Edit:
    """The edit that makes one text the other. By lines first; within lines that changed, by words, so that concurrent
    edits of one line are merged, and the line is not there twice."""
    return compact(_line_parts(before, after))


def _line_parts(before: str, after: str) -> Iterator[Part]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = "".join(old[i1:i2]), "".join(new[j1:j2])
        if tag == "equal":
            yield len(gone)
        else:
            yield from _word_parts(gone, come)


def _word_parts(before: str, after: str) -> Iterator[Part]:
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    if max(len(old), len(new)) > _MAX_TOKENS:
        old, new = [before], [after]
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = "".join(old[i1:i2]), "".join(new[j1:j2])
        if tag == "equal":
            yield len(gone)
        else:
            yield from _changed_parts(gone, come)


def _changed_parts(gone: str, come: str) -> Iterator[Part]:
    """Without the characters with which both begin and end."""
    most = min(len(gone), len(come))
    start = next((n for n in range(most) if gone[n] != come[n]), most)
    end = next((n for n in range(most - start) if gone[-1 - n] != come[-1 - n]), most - start)
    yield from (start, come[start : len(come) - end], -(len(gone) - start - end), end)


# -- over another edit -----------------------------------------------------------------------------------------


def moved(edit: Edit, over: Edit) -> Edit:
    """The same edit, for the text that another edit of the same text has made. Raises ValueError if both were made for
    texts of different lengths. Where both insert, the other one's text comes first."""
    if length_before(edit) != length_before(over):
        raise ValueError("the two edits were made for texts of different lengths")
    return compact(_moved_parts(list(reversed(edit)), list(reversed(over))))


def _moved_parts(edit: list[Part], over: list[Part]) -> Iterator[Part]:
    while edit or over:
        if over and isinstance(other := over[-1], str):
            yield len(other)
            over.pop()
        elif edit and isinstance(own := edit[-1], str):
            yield own
            edit.pop()
        else:  # both keep or delete, as many characters as the shorter one says
            own, other = edit.pop(), over.pop()
            assert isinstance(own, int)  # noqa: S101 - by the branches above
            assert isinstance(other, int)  # noqa: S101 - as above
            length = min(abs(own), abs(other))
            if other > 0:
                yield length if own > 0 else -length
            _push_rest(edit, own, length)
            _push_rest(over, other, length)


def _push_rest(parts: list[Part], part: int, length: int) -> None:
    if rest := abs(part) - length:
        parts.append(rest if part > 0 else -rest)


# -- in pieces -------------------------------------------------------------------------------------------------


def pieces(edit: Edit, most: int) -> Iterator[Edit]:
    """Edits that do the same, one after the other, none with more than `most` parts and `most` inserted characters."""
    small = [*_small_parts(edit, most)]
    cuts = [*_cuts(small, most), len(small)]
    for start, end in pairwise([0, *cuts]) if small else ():
        done = sum(len(p) if isinstance(p, str) else max(p, 0) for p in small[:start])
        rest = sum(abs(p) for p in small[end:] if isinstance(p, int))
        yield compact((done, *small[start:end], rest))


def _small_parts(edit: Edit, most: int) -> Iterator[Part]:
    for part in edit:
        if isinstance(part, str):
            yield from (part[start : start + most] for start in range(0, len(part), most))
        else:
            yield part


def _cuts(parts: Sequence[Part], most: int) -> Iterator[int]:
    """Where a new piece begins."""
    size = 0
    for place, part in enumerate(parts):
        cost = 1 + (len(part) if isinstance(part, str) else 0)
        if size and size + cost > most:
            yield place
            size = 0
        size += cost
