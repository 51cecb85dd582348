"""How a site runs the commands of a resource type: which, as whom, where, and how much they may take.

Read from the configuration file, obeyed by the command backend. None means that the file says nothing.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from cheops.config.command_pattern import CommandPatternError, parse_pattern
from cheops.config.command_settings import MAX_OUTPUT_BYTES, CommandLimits, CommandSettings
from cheops.config.keys import COMMAND_LIMITS, given
from cheops.config.line import words_of
from cheops.config.paths import path_at
from cheops.config.units import duration_s, size
from cheops.documents import Value
from cheops.text import printable, shortened

MAX_FILES = 1_048_576
MAX_PROCESSES = 4_194_304
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?")


def command_settings(record: Mapping[str, Value], folder: Path) -> CommandSettings:
    """The keys of a type that are about running its commands; paths start at the folder."""
    default = CommandSettings()
    return CommandSettings(
        given(record, "allow", patterns_at, default.allow),
        given(record, "timeout", duration_s, default.timeout_s),
        given(record, "max_output", _max_output, default.max_output_bytes),
        given(record, "cwd", lambda at: path_at(at, folder), default.cwd),
        given(record, "env", _environment, default.env),
        given(record, "user", _user, default.user),
        given(record, "shell", Value.boolean, default.shell),
        given(record, "limits", _limits, default.limits),
        no_new_privileges=given(record, "no_new_privileges", Value.boolean, default.no_new_privileges),
    )


def patterns_at(value: Value) -> tuple[str, ...]:
    """Patterns of commands, see command_pattern.py."""
    patterns = []
    for item in value.items():
        words_of(item)
        patterns.append(item.string().strip())
        try:
            parse_pattern(patterns[-1])
        except CommandPatternError as error:
            raise item.fail(str(error)) from None
    return tuple(patterns)


def _max_output(value: Value) -> int:
    found = size(value)
    if found > MAX_OUTPUT_BYTES:
        raise value.fail(f"at most 16MiB are kept of what a command prints, found '{value.string()}'")
    return found


def _environment(value: Value) -> Mapping[str, str]:
    variables = {}
    for name, at in value.mapping().items():
        if not _VARIABLE.fullmatch(name):
            raise at.fail("the name of a variable has letters, digits and _, and no digit first")
        variables[name] = at.string()
        if "\0" in variables[name]:
            raise at.fail("a variable cannot hold the character U+0000")
    return variables


def _user(value: Value) -> str:
    name = value.string()
    if not _USER.fullmatch(name):
        raise value.fail(f"expected the name of a user of the machine, found '{printable(shortened(name))}'")
    return name


def _whole_seconds(value: Value) -> int:
    """The kernel counts a process's time in whole seconds."""
    found = duration_s(value)
    if found % 1:
        raise value.fail(f"expected whole seconds, found '{value.string()}'")
    return int(found)


def _limits(value: Value) -> CommandLimits:
    record = COMMAND_LIMITS.read(value)
    return CommandLimits(
        given(record, "cpu", _whole_seconds, None),
        given(record, "memory", size, None),
        given(record, "files", lambda at: at.whole(minimum=3, maximum=MAX_FILES), None),
        given(record, "processes", lambda at: at.whole(minimum=1, maximum=MAX_PROCESSES), None),
    )
