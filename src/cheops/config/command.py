"""How a site runs the commands of a resource type: which it allows, as which user, where, and with which limits.

The command backend obeys these settings. A command is one line. Without `shell` it is split into words as a shell
would do, and no other feature of a shell applies: no variables, no redirection, no second command.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Self

from cheops.config.settings import REQUIRED, Section, place, section, setting
from cheops.config.values import BOOLEAN, DURATION, KIB, MIB, PATH, SIZE, ValueType, count, size
from cheops.errors import ClientError
from cheops.log.operation import Command
from cheops.text import printable, shortened
from cheops.yaml_file import Value

EVERYTHING = "..."
_UPWARDS = re.compile(r"(^|[/=:,])\.\.(/|$)")
_OPTION = re.compile(r"-(?![0-9.]+(?:[eE][+-]?[0-9]+)?$|\s|$)")  # not -12, nor a dash alone or as a bullet


class CommandPatternError(ClientError):
    """A text is not a pattern for commands."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One expression per word, and whether more words may follow."""

    words: tuple[re.Pattern[str], ...]
    is_open: bool
    fixed: tuple[str | None, ...] = ()  # what stands before the first `*` of each word; None: nothing, or no `*`

    def matches(self, words: Sequence[str], filled_in: Sequence[str]) -> bool:
        """Whether it allows these words. `filled_in` are the same words with the resource's id in place."""
        if len(words) < len(self.words) or (len(words) > len(self.words) and not self.is_open):
            return False
        return all(
            expected.fullmatch(word)
            and not (_is_part(expected) and _UPWARDS.search(filled))
            and not (_is_argument(expected) and _OPTION.match(filled))
            for expected, word, filled in zip(self.words, words, filled_in, strict=False)
        )


# `rm /data/*` must not allow `rm /data/../etc`, and `kubectl delete *` must not allow `kubectl delete --all`. Both are
# checked after the id is filled in, because a client chooses the id too.
def _is_argument(expected: re.Pattern[str]) -> bool:
    return expected.pattern.startswith(".*")


def _is_part(expected: re.Pattern[str]) -> bool:
    """Whether a client writes a part of the word. A word of its own may be any path."""
    return ".*" in expected.pattern and expected.pattern != ".*"


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> Pattern:
    try:
        words = shlex.split(text)
    except ValueError:
        raise _pattern_error(text, "a quote is not closed, or a backslash ends it") from None
    is_open = words[-1:] == [EVERYTHING]
    if is_open:
        words.pop()
    elif not words:
        raise _pattern_error(text, f"it is empty; '{EVERYTHING}' allows everything")
    if EVERYTHING in words:
        raise _pattern_error(text, f"'{EVERYTHING}' can only be the last word; '*' matches one word")
    fixed = (word.partition("*")[0] or None if "*" in word else None for word in words)
    return Pattern(tuple(map(_expression, words)), is_open, tuple(fixed))


def _expression(word: str) -> re.Pattern[str]:
    stars = re.sub(r"\*+", "*", word)  # several mean the same as one, but would match slowly
    return re.compile(".*".join(map(re.escape, stars.split("*"))), re.DOTALL)


def _pattern_error(text: str, why: str) -> CommandPatternError:
    return CommandPatternError(f"the allowed command '{printable(shortened(text))}' cannot be read: {why}")


MAX_TIMEOUT_S = 7 * 24 * 3600.0  # for callers in code; the file allows a day, as for any duration
MAX_OUTPUT_BYTES = 16 * MIB
MAX_FILES = 1_048_576
MAX_PROCESSES = 4_194_304
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?")


def _read_patterns(value: Value) -> tuple[str, ...]:
    patterns = []
    for item in value.items():
        split_words(item)
        patterns.append(item.string().strip())
        try:
            parse_pattern(patterns[-1])
        except CommandPatternError as error:
            raise item.fail(str(error)) from None
    return tuple(patterns)


def _read_environment(value: Value) -> Mapping[str, str]:
    variables = {}
    for name, at in value.mapping().items():
        if not _VARIABLE.fullmatch(name):
            raise at.fail("the name of a variable has letters, digits and _, and no digit first")
        variables[name] = at.string()
        if "\0" in variables[name]:
            raise at.fail("a variable cannot contain the character U+0000")
    return variables


def _read_user(value: Value) -> str:
    name = value.string()
    if not _USER.fullmatch(name):
        raise value.fail(f"expected the name of a user of this machine, found '{printable(shortened(name))}'")
    return name


def _read_whole_seconds(value: Value) -> int:
    """The kernel counts the CPU time of a process in whole seconds."""
    seconds = DURATION.read(value)
    if seconds % 1:
        raise value.fail(f"expected whole seconds, found '{value.string()}'")
    return int(seconds)


PATTERNS = ValueType("list of patterns", _read_patterns, lambda patterns: f"[{', '.join(patterns)}]")


@dataclass(frozen=True, slots=True)
class CommandLimits(Section):
    """Resource limits of the kernel. Root is not bound by `processes`: give the type a user as well."""

    cpu_s: int | None = setting(
        ValueType("duration in whole seconds", _read_whole_seconds), None, "CPU time of one process."
    )
    memory_bytes: int | None = setting(SIZE, None, "Memory of one process.")
    open_files: int | None = setting(count(3, MAX_FILES), None, "Open files of one process.", key="files")
    processes: int | None = setting(
        count(1, MAX_PROCESSES), None, "Processes of the user. The kernel counts everything that this user runs."
    )

    def __post_init__(self) -> None:
        for name, most in (
            ("cpu_s", 2**31),
            ("memory_bytes", 2**62),
            ("open_files", 2**31),
            ("processes", 2**31),
        ):
            limit: int | None = getattr(self, name)
            if limit is not None and not 0 < limit <= most:
                raise ClientError(f"limits: {name} is {limit}; it must be from 1 to {most}")


@dataclass(frozen=True, slots=True)
class CommandSettings(Section):
    """How the commands of one resource type run. Code makes them too, so the limits of the kernel are checked here."""

    allow: tuple[str, ...] = setting(
        PATTERNS, (), "Patterns of the commands that operations may contain. By default nothing is allowed."
    )
    timeout_s: float = setting(DURATION, 30.0, "How long a command may run before it is stopped.")
    max_output_bytes: int = setting(size(maximum=MAX_OUTPUT_BYTES), 64 * KIB, "How much of a command's output is kept.")
    cwd: Path | None = setting(PATH, None, "The directory in which commands start.", shown="the root, `/`")
    env: Mapping[str, str] = setting(
        ValueType("texts by name", _read_environment),
        {},
        "Environment variables. From the agent's environment, commands get only PATH, HOME, LANG and TZ.",
        shown="`{}`",
    )
    user: str | None = setting(
        ValueType("user name", _read_user),
        None,
        "The user that runs the commands, with its groups and its HOME. The agent must run as root for this.",
        shown="the agent's",
    )
    shell: bool = setting(BOOLEAN, False, "Whether `/bin/sh` interprets the commands.")
    limits: CommandLimits = setting(
        section(CommandLimits), CommandLimits(), "What one command may take from the machine.", shown="none"
    )
    no_new_privileges: bool = setting(
        BOOLEAN, True, "Prevents programs such as `sudo` from gaining rights. A type that needs them says `false`."
    )

    def __post_init__(self) -> None:
        for pattern in self.allow:
            parse_pattern(pattern)
        if not isfinite(self.timeout_s) or not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise ClientError(f"timeout_s is {self.timeout_s}; it must be over 0, up to {MAX_TIMEOUT_S:g}")
        if not 0 <= self.max_output_bytes <= MAX_OUTPUT_BYTES:
            raise ClientError(f"max_output_bytes is {self.max_output_bytes}; it must be from 0 to {MAX_OUTPUT_BYTES}")
        if self.cwd is not None and not self.cwd.is_absolute():
            raise ClientError(f"cwd is '{self.cwd}'; it must be an absolute path")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                shown = printable(shortened(name))
                raise ClientError(f"env: '{shown}' cannot be set: a name is not empty and has no '='")


MAX_LINE_CHARACTERS = 65_536
MAX_WRITTEN_CHARACTERS = 100_000  # of a command line with the id and the state filled in
MAX_STATE_BYTES = 131_071  # Linux takes one word of a command line up to this size: MAX_ARG_STRLEN less the NUL byte
STATE = "{state}"

_LINE_BREAK = re.compile(r"[\x00\n\r\x0b\x0c\x85\u2028\u2029]")
_SHELL_SIGNS = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"))
_QUOTED_WORD = re.compile(r"""'(?:[^']|'"'"')*'|[^\s'"]+""")  # a word as shlex.quote writes it
_HARD_TO_QUOTE = """it's "$HOME" \\ `x` """  # breaks any quotes that a user may have put around {state}


def _read_line(value: Value) -> str:
    line = value.string().strip()
    if not line:
        raise value.fail("a command cannot be empty; leave the key out if there is none")
    if _LINE_BREAK.search(line):
        raise value.fail("a command is one line; to break it in YAML, start it with '>-'")
    if len(line) > MAX_LINE_CHARACTERS:
        raise value.fail(f"a command has at most {MAX_LINE_CHARACTERS:,} characters")
    return line


def split_words(value: Value) -> list[str]:
    """The words of a command, or of a pattern for commands, as a shell splits them."""
    try:
        words = shlex.split(value.string())
    except ValueError as error:
        what = "a quote is never closed" if "quotation" in str(error) else "a backslash ends the line"
        raise value.fail(f"{what} in this command") from None
    if not words or not words[0]:
        raise value.fail("the first word of a command is a program; here it is empty")
    return words


COMMAND = ValueType("command", _read_line)


@dataclass(frozen=True, slots=True)
class StateWriter:
    """The command that writes a state, with the state filled in (see Checkpoint.write)."""

    template: str

    def matches(self, command: Command) -> bool:
        """Whether a command is this one with some state filled in. It may come from another site."""
        state = _QUOTED_WORD.match(command.line, self.template.index(STATE))
        return state is not None and self(shlex.split(state[0])[0]) == command

    def __call__(self, state: str) -> Command | None:
        line = self.template.replace(STATE, shlex.quote(state.removesuffix("\n")))
        fits = len(line) <= MAX_WRITTEN_CHARACTERS and len(line.encode()) < MAX_STATE_BYTES
        return Command(line) if fits and "\0" not in line else None


def _read_state_writer(value: Value) -> StateWriter:
    line = _read_line(value)
    if STATE not in line:
        raise value.fail(f"the command must contain {STATE}, which is replaced by the state that 'read' printed")
    writer = StateWriter(line)
    # The only reliable test: write a state full of quotes, and see whether it comes back as a part of one word.
    try:
        expected = [word.replace(STATE, _HARD_TO_QUOTE) for word in shlex.split(line)]
        written = writer(_HARD_TO_QUOTE)
        stays_one_word = written is not None and shlex.split(written.line) == expected
    except ValueError:
        stays_one_word = False
    if not stays_one_word:
        raise value.fail(
            f"{STATE} must stand outside of quotes: it is quoted when the state is filled in "
            f"(for a script: sh -c 'echo \"$1\" > file' - {STATE})"
        )
    return writer


STATE_WRITER = ValueType("command", _read_state_writer)


def shell_sign(line: str) -> str | None:
    """The first word that only a shell would understand, in a command that runs without one."""
    return next((word for word in shlex.split(line) if word in _SHELL_SIGNS), None)


# Steps of one command; a command with a larger number is not split. Each step is a process of its own.
MAX_UNITS = 10_000
ID_PLACEHOLDER = "__ID__"

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class UnitSteps(Section):
    """Splits a command into equal steps of one unit (see engine.settings.Decompose)."""

    amount: int = setting(count(2, 1_000), REQUIRED, "Which word of the command is the number; the program is word 1.")
    unit: str = setting(COMMAND, REQUIRED, "The same command with 1 (or -1) as its number.")

    def complete(self, value: Value) -> Self:
        words = split_words(place(value, "unit"))
        if words[self.amount - 1 : self.amount] not in (["1"], ["-1"]):
            word = words[self.amount - 1] if self.amount <= len(words) else "nothing"
            raise place(value, "unit").fail(
                f"word {self.amount} of the unit must be 1 or -1, because the number is there (see 'amount'), "
                f"found '{word}'"
            )
        return self

    def __call__(self, command: Command) -> tuple[Command, ...]:
        return (Command(self.unit, command.files),) * self._steps(command.line)

    def _steps(self, line: str) -> int:
        try:
            words, unit = shlex.split(line), shlex.split(self.unit)
        except ValueError:
            return 0
        if len(words) != len(unit):
            return 0
        number, one = words.pop(self.amount - 1), unit.pop(self.amount - 1)
        if not _WHOLE_NUMBER.fullmatch(number) or not all(map(_fits, words, unit)):
            return 0
        steps = int(number) * int(one)  # negative if the signs differ: then the command is not the unit repeated
        return steps if 0 < steps <= MAX_UNITS else 0


def _fits(word: str, unit_word: str) -> bool:
    pattern = ".+".join(map(re.escape, unit_word.split(ID_PLACEHOLDER)))
    return re.fullmatch(pattern, word, re.DOTALL) is not None
