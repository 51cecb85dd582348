"""Which ids a resource may have.

Every site applies the same rules to every id, whether a client, another site or a file of this site brings it. So the
rules depend on nothing that differs between sites: neither on the configuration nor on the version of Unicode.
"""

import re

MAX_ID_CHARACTERS = 256

# What a terminal, a log or a page does not show as it is: control characters, blanks other than the space, characters
# without width, those that change the direction of the text, halves of surrogate pairs, tags and non-characters.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff0-\uffff\U000e0000-\U000e0fff]"
)


def resource_problem(id_: str) -> str | None:
    """Why no resource can have this id; None if one can."""
    if not id_ or id_ != id_.strip(" "):
        return "the id must not be empty, nor begin or end with a space"
    if len(id_) > MAX_ID_CHARACTERS:
        return f"the id has {len(id_)} characters; at most {MAX_ID_CHARACTERS} are accepted"
    if match := _HIDDEN.search(id_):
        return f"the id has a character that cannot be printed, U+{ord(match[0]):04X}"
    if any(part in (".", "..") for part in id_.split("/")):
        return "the id has a part '.' or '..', which proxies and programs remove from addresses"
    return None


def command_problem(id_: str) -> str | None:
    """Why commands cannot run on a resource with this id; None if they can.

    A command may use the id as the name of a file or as an argument. There a slash at the beginning means another
    directory, and a dash means an option.
    """
    if problem := resource_problem(id_):
        return problem
    if id_.startswith("/"):
        return "the id begins with a slash, so commands would take it for a path outside of their directory"
    if id_.startswith("-"):
        return "the id begins with a dash, so commands would take it for an option"
    if "" in id_.split("/"):
        return "the id ends with a slash or has two in a row, so commands would take it for the same file as another id"
    return None
