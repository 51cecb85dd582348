"""Turns a command line into the words that are executed.

The line is split into words as a POSIX shell would (quotes and backslashes, nothing else), checked against the type's
patterns, and only then filled in: `__ID__` becomes the resource's id, and `{name}` the local path of the file with
that name that was sent with the operation. A value never splits a word in two, whatever it contains, and never
becomes an option or a path upwards (see cheops.log.names for ids, and paths.py). Other braces stay, so that JSON can be
written; but if files were sent and none has the name of an unquoted `{name}`, the line is refused as a mistake.

With `shell: true` the line goes to /bin/sh as it is. Ids and paths become environment variables (CHEOPS_ID,
CHEOPS_FILE_1, …) to which the line refers in double quotes, so the shell never parses them. (Quoting them with shlex
is not enough: inside quotes of the line, such quotes would end those.) Unless the only pattern is `...`, a shell line
must not contain ; | & $ ` < > ( ), line breaks or a comment, nor, outside of quotes, anything that the shell expands
into other words (* ? [ {a,b}): a pattern allows one command, with exactly the words that were compared with it. The
shell still expands `~`.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field

from cheops.backends.command.paths import path_problem
from cheops.config.command import EVERYTHING, MAX_WRITTEN_CHARACTERS, CommandSettings, Pattern, parse_pattern
from cheops.errors import ClientError
from cheops.log.names import command_problem
from cheops.text import listed, nearest, printable, shortened

_ID = "__ID__"
_META = re.compile(r"[;|&$`<>()\r\n]|(?<!\S)#")
_EXPANDED = re.compile(r"[*?\[]|\{[^{}\s]*(?:,|\.\.)")
_QUOTING = frozenset("\"'\\")
_SHELL_WORD = re.compile(r"""[^\s'"<>|&;()`]+""")  # in a line that is not split
_BARE_NAME = re.compile(r"(?<!\S)\{([\w.-]+)\}(?!\S)")
_REMEMBERED_CHARACTERS = 500  # of a line whose words are remembered
_SHOWN_CHARACTERS = 60  # of a line in an error message, on each side of the position


class CommandLineError(ClientError):
    """The command line is malformed."""

    reason = "command line"


class CommandNotAllowedError(ClientError):
    """The type does not allow this command."""

    status = 403
    reason = "command not allowed"


class Invocation(Struct, frozen=True):
    """The words to execute, and the environment variables that they refer to."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def check_allowed(line: str, settings: CommandSettings, resource: str = _ID, private: Collection[str] = ()) -> None:
    """Raise CommandNotAllowedError unless a pattern of the type allows this command, for this resource. `private`:
    see `path_problem`."""
    _checked_words(line, settings, resource, private)


def invocation(
    line: str,
    settings: CommandSettings,
    *,
    resource: str,
    files: Mapping[str, Path],
    private: Collection[str] = (),
) -> Invocation:
    """The command, checked and filled in."""
    words = _checked_words(line, settings, resource, private)
    _check_names(line, files, shell=settings.shell)
    values = {_ID: resource} | {f"{{{name}}}": str(path) for name, path in files.items()}
    if settings.shell:
        return _in_shell(line, values, expands=settings.allow == (EVERYTHING,))
    placeholder = _placeholder(values)
    return Invocation(tuple(placeholder.sub(lambda match: values[match[0]], word) for word in words))


def _placeholder(values: Mapping[str, str]) -> re.Pattern[str]:
    """All placeholders in one pattern, so that a value that looks like a placeholder is not replaced again."""
    return re.compile("|".join(map(re.escape, values)))


# -- what is allowed -------------------------------------------------------------------------------------


def _checked_words(line: str, settings: CommandSettings, resource: str, private: Collection[str]) -> Sequence[str]:
    if len(line) > MAX_WRITTEN_CHARACTERS:
        raise CommandLineError(
            f"the command has {len(line)} characters; {MAX_WRITTEN_CHARACTERS} are allowed; send a file"
        )
    if "\0" in line:
        raise CommandLineError(_at(line, line.index("\0"), "the command holds a NUL character"))
    if not line.strip():
        raise CommandLineError("the command is empty")
    # An event of the site, which a notification reports, has no resource: there the id is empty.
    if resource and _ID in line and (problem := command_problem(resource)):
        raise CommandLineError(problem)
    if settings.shell and settings.allow == (EVERYTHING,):
        # Only the shell can split it: there may be here-documents, comments, …
        words_with_id = (word for word in _SHELL_WORD.findall(line) if _ID in word)
        _check_paths(words_with_id, resource, settings, private)
        return []
    words = _split(line)
    filled_in = [word.replace(_ID, resource) for word in words]
    matching = [p for p in map(parse_pattern, settings.allow) if p.matches(words, filled_in)]
    if not matching:
        allowed = ", ".join(f"'{pattern}'" for pattern in settings.allow) or "none"
        shown = printable(shortened(line.replace(_ID, resource), _SHOWN_CHARACTERS))
        raise CommandNotAllowedError(f"the command '{shown}' is not allowed; the type allows: {allowed}")
    _check_paths(words, resource, settings, private)
    problems = [_problem_below(pattern, filled_in, settings, private) for pattern in matching]
    if all(problems):
        raise CommandNotAllowedError(problems[0])
    if settings.shell:
        _check_shell(line)
    return words


def _check_paths(words: Iterable[str], resource: str, settings: CommandSettings, private: Collection[str]) -> None:
    """Refuse an id by which a word would name something outside of the directory that the word names."""
    for word in words:
        before, id_, _ = word.partition(_ID)
        filled = word.replace(_ID, resource)
        if id_ and (problem := path_problem(filled, before, settings.cwd, private)):
            raise CommandNotAllowedError(f"'{printable(shortened(filled, _SHOWN_CHARACTERS))}' {problem}")


def _problem_below(
    pattern: Pattern, filled_in: Sequence[str], settings: CommandSettings, private: Collection[str]
) -> str:
    """What a word names outside of the directory that the pattern names; empty if all stay below."""
    for fixed, word in zip(pattern.fixed, filled_in, strict=False):
        if fixed is not None and (problem := path_problem(word, fixed, settings.cwd, private)):
            return f"'{printable(shortened(word, _SHOWN_CHARACTERS))}' {problem}"
    return ""


def _check_shell(line: str) -> None:
    unless = "is not allowed in a shell command unless the type allows everything ('...')"
    if match := _META.search(line.strip()):
        place = match.start() + len(line) - len(line.lstrip())
        raise CommandNotAllowedError(_at(line, place, f"this {unless}"))
    if match := _EXPANDED.search(_unquoted(line)):
        problem = f"the shell would expand this, which {unless}; put it in quotes"
        raise CommandNotAllowedError(_at(line, match.start(), problem))


def _split(line: str) -> Sequence[str]:
    try:
        return _remembered_words(line) if len(line) <= _REMEMBERED_CHARACTERS else shlex.split(line)
    except ValueError:
        pass
    place, problem = len(line) - 1, "nothing follows this backslash"
    for start, quote in _quotes(line):
        if quote:
            place, problem = start, "this quote is not closed"
    raise CommandLineError(_at(line, place, problem))


@lru_cache(256)
def _remembered_words(line: str) -> tuple[str, ...]:
    """Where an operation is submitted its line is split twice, and applications repeat their commands."""
    return tuple(shlex.split(line))


def _at(line: str, place: int, problem: str) -> str:
    """The problem, and the line with a mark below the position."""
    first = max(0, place - _SHOWN_CHARACTERS)
    shown = printable(line[first : place + _SHOWN_CHARACTERS])
    return f"{problem} (character {place + 1}):\n  {shown}\n  {' ' * (place - first)}^"


def _check_names(line: str, files: Mapping[str, Path], *, shell: bool) -> None:
    for name in files if shell else ():
        if _QUOTING.intersection(name) and f"{{{name}}}" in line:
            shown = printable(shortened(name))
            raise CommandLineError(f"the file name '{shown}' has quotes, which the shell would interpret")
    for match in _BARE_NAME.finditer(line) if files else ():
        name = match[1]
        if name not in files:
            meant = nearest(name, files)
            hint = f"did you mean {{{meant}}}? " if meant else ""
            problem = (
                f"no file '{name}' was sent with the command; {hint}There are: {listed(files)}. "
                "If no file is meant, put the braces in quotes"
            )
            raise CommandLineError(_at(line, match.start(), problem))


# -- in a shell ------------------------------------------------------------------------------------------


def _in_shell(line: str, values: Mapping[str, str], *, expands: bool) -> Invocation:
    """`expands`: whether the shell may expand * and the like into several words."""
    names = {text: "CHEOPS_ID" if text == _ID else f"CHEOPS_FILE_{place}" for place, text in enumerate(values)}
    forms = {"": '"${%s}"', '"': "${%s}", "'": "'\"${%s}\"'"}  # in any kind of quotes the value stays one word
    used: dict[str, str] = {}
    parts: list[str] = []
    quotes, end = dict(_quotes(line)), 0
    for match in _placeholder(values).finditer(line):
        start = max((place for place in quotes if place < match.start()), default=-1)
        parts += (line[end : match.start()], forms[quotes.get(start, "")] % names[match[0]])
        used[names[match[0]]] = values[match[0]]
        end = match.end()
    options = ("-c",) if expands else ("-f", "-c")  # -f: no expansion of file names
    return Invocation(("/bin/sh", *options, "".join((*parts, line[end:]))), used)


def _quotes(line: str) -> Iterator[tuple[int, str]]:
    """The positions where quoting changes, and the quote from there on (empty: none).

    Nested substitutions and comments are not understood. At worst a value in such a line is not quoted, and the shell
    splits it at blanks; it still does not run it.
    """
    quote, skip = "", False
    for place, character in enumerate(line):
        if skip:
            skip = False
        elif character == "\\" and quote != "'":
            skip = True
        elif quote == character:
            quote = ""
            yield place, quote
        elif not quote and character in "\"'":
            quote = character
            yield place, quote


def _unquoted(line: str) -> str:
    """The line with a blank for every character that is quoted or escaped."""
    parts, end, quote = [], 0, ""
    for place, now in _quotes(line):
        parts.append(" " * (place - end) if quote else _without_escapes(line[end:place]))
        end, quote = place, now
    parts.append(" " * (len(line) - end) if quote else _without_escapes(line[end:]))
    return "".join(parts)


def _without_escapes(text: str) -> str:
    return re.sub(r"\\.", "  ", text, flags=re.DOTALL)
