"""Whether the paths in a command stay below the directory that the operator named.

    add-line pages/__ID__ *     the id names something below `pages`, in the type's `cwd`
    cat __ID__                  below `cwd`
    rm /data/*                  what the client writes names something below /data

Nothing says which words of a command are paths. So every word that holds an id, or text of a client after text of the
operator, is looked at as one: `redis-cli get __ID__` passes, because a key `a:b` would be a file below `cwd` as well.
Links on the way are followed: one that leads out of the directory is refused. The directory itself may be a link.

This is checked just before a command runs. A program that runs at the same time can still replace a directory by a link
in between: a type that lets clients make links (`ln`, `tar`, `git`) needs a user of its own that can write nowhere
else.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_BEFORE_PATHS = "=:,"  # what comes before a path inside of a word: --file=x, host:x, a,b
_ROOT = "/"


def leads_out(word: str, fixed: str, cwd: Path | None) -> str | None:
    """The directory that a word leaves; None if it leaves none. `fixed` is the beginning of the word that the operator
    wrote, and what follows it is the text of a client or of another site."""
    start = os.fspath(cwd or _ROOT)
    for at in _starts(fixed):
        directory = os.path.join(start, os.path.dirname(fixed[at:]))  # noqa: PTH118, PTH120 - Path drops `.` and `//`
        path = os.path.join(start, word[at:])  # noqa: PTH118 - as above
        try:
            below, found = os.path.realpath(directory), os.path.realpath(path)
        except (OSError, ValueError):
            continue  # no file can have this name
        if below == _ROOT:
            if _is_something_of_the_machine(found):
                return _ROOT
        elif found != below and not found.startswith(below + "/"):
            return os.path.normpath(directory)
    return None


def _starts(fixed: str) -> Iterator[int]:
    """Where in a word a path may begin."""
    yield 0
    for at, sign in enumerate(fixed):
        if sign in _BEFORE_PATHS:
            yield at + 1


def _is_something_of_the_machine(path: str) -> bool:
    """Everything is below the root, so there an id must not name what exists: `etc/passwd` without `cwd`. One name
    alone may be that of a directory, which is no file to read or write: a counter may be named `home`."""
    first, _, rest = path.removeprefix(_ROOT).partition("/")
    return os.path.lexists(_ROOT + first) if rest else os.path.isfile(path)  # noqa: PTH113 - texts, as above
