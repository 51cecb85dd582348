"""How a site runs the commands of a resource type: which are allowed, as whom, where, and how much they may take.

Read from the configuration file, obeyed by the command backend. A command is one line. Without `shell` it is split
into words as a shell would, and nothing else that a shell does happens to it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from pathlib import Path

from cheops.config.settings import COMMAND_LIMITS, DECOMPOSE, duration_s, optional, path_at, size
from cheops.documents import Value
from cheops.errors import ClientError
from cheops.log.operation import Command
from cheops.text import printable, shortened

EVERYTHING = "..."
_UPWARDS = re.compile(r"(^|[/=:,])\.\.(/|$)")
_OPTION = re.compile(r"-(?![0-9.]+(?:[eE][+-]?[0-9]+)?$|\s|$)")  # not -12, nor a dash alone or as a bullet


class CommandPatternError(ClientError):
    """A pattern that cannot be meant so."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One expression per word, and whether more words may follow."""

    words: tuple[re.Pattern[str], ...]
    is_open: bool

    def matches(self, words: Sequence[str], filled_in: Sequence[str]) -> bool:
        """Whether it allows these words; with the id filled in they must not lead upwards either."""
        if len(words) < len(self.words) or (len(words) > len(self.words) and not self.is_open):
            return False
        return all(
            expected.fullmatch(word)
            and not (_is_below(expected) and _UPWARDS.search(filled))
            and not (_is_argument(expected) and _OPTION.match(filled))
            for expected, word, filled in zip(self.words, words, filled_in, strict=False)
        )


def _is_argument(expected: re.Pattern[str]) -> bool:
    return expected.pattern.startswith(".*")


def _is_below(expected: re.Pattern[str]) -> bool:
    return "/" in expected.pattern and ".*" in expected.pattern


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> Pattern:
    try:
        words = shlex.split(text)
    except ValueError:
        raise _refused(text, "a quote is not closed, or a backslash stands at its end") from None
    is_open = words[-1:] == [EVERYTHING]
    if is_open:
        words.pop()
    elif not words:
        raise _refused(text, f"it is empty; '{EVERYTHING}' allows everything")
    if EVERYTHING in words:
        raise _refused(text, f"'{EVERYTHING}' can only be the last word; '*' stands for one word")
    return Pattern(tuple(map(_expression, words)), is_open)


def _expression(word: str) -> re.Pattern[str]:
    stars = re.sub(r"\*+", "*", word)  # several mean the same, and would be slow
    return re.compile(".*".join(map(re.escape, stars.split("*"))), re.DOTALL)


def _refused(text: str, why: str) -> CommandPatternError:
    return CommandPatternError(f"the allowed command '{printable(shortened(text))}' cannot be read: {why}")


MAX_TIMEOUT_S = 7 * 24 * 3600.0
MAX_OUTPUT_BYTES = 16 * 1024 * 1024


class CommandSettingsError(ClientError):
    """The settings of a type cannot be meant so."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Resource limits of the kernel, per process but for `processes`, which counts all of the user's.

    Root is not bound by `processes`: give the type a user as well.
    """

    cpu_s: int | None = None
    memory_bytes: int | None = None
    open_files: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        for name, most in (
            ("cpu_s", 2**31),
            ("memory_bytes", 2**62),
            ("open_files", 2**31),
            ("processes", 2**31),
        ):
            limit: int | None = getattr(self, name)
            if limit is not None and not 0 < limit <= most:
                raise CommandSettingsError(f"limits: {name} is {limit}; it must be from 1 to {most}")


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """Per resource type. `allow` holds patterns (see command_pattern); when empty, nothing is allowed.

    A command starts in `cwd`, or in `/`, and sees of the agent's environment only PATH, HOME, LANG and TZ,
    and what `env` gives. With `user` it runs as that user, in its groups and with its HOME; for that the
    agent must be root. `no_new_privileges` keeps setuid programs such as sudo from gaining rights.
    """

    allow: tuple[str, ...] = ()
    timeout_s: float = 30.0
    max_output_bytes: int = 64 * 1024
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    shell: bool = False
    limits: CommandLimits = CommandLimits()
    no_new_privileges: bool = True

    def __post_init__(self) -> None:
        for pattern in self.allow:
            parse_pattern(pattern)
        if not isfinite(self.timeout_s) or not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise CommandSettingsError(f"timeout_s is {self.timeout_s}; it must be over 0, up to {MAX_TIMEOUT_S:g}")
        if not 0 <= self.max_output_bytes <= MAX_OUTPUT_BYTES:
            raise CommandSettingsError(
                f"max_output_bytes is {self.max_output_bytes}; it must be from 0 to {MAX_OUTPUT_BYTES}"
            )
        if self.cwd is not None and not self.cwd.is_absolute():
            raise CommandSettingsError(f"cwd is '{self.cwd}'; it must be an absolute path")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                shown = printable(shortened(name))
                raise CommandSettingsError(f"env: '{shown}' cannot be set: a name is not empty and has no '='")


MAX_LINE_CHARACTERS = 65_536
MAX_WRITTEN_CHARACTERS = 100_000  # with what is filled in
MAX_STATE_BYTES = 131_071  # what Linux takes as one word of a command line (MAX_ARG_STRLEN, less the end mark)
STATE = "{state}"

_LINE_BREAK = re.compile(r"[\x00\n\r\x0b\x0c\x85\u2028\u2029]")
_SHELL_SIGNS = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"))
_QUOTED_WORD = re.compile(r"""'(?:[^']|'"'"')*'|[^\s'"]+""")  # what shlex.quote gives
_HARD_TO_QUOTE = """it's "$HOME" \\ `x` """  # no quotes that a user may have put around it survive this


def command_line(value: Value, *, shell: bool) -> str:
    """The command at a place of a document."""
    line = value.string().strip()
    if not line:
        raise value.fail("a command cannot be empty; leave the key out if there is none")
    if _LINE_BREAK.search(line):
        raise value.fail("a command is one line; to break it in YAML, start it with '>-'")
    if len(line) > MAX_LINE_CHARACTERS:
        raise value.fail(f"a command has at most {MAX_LINE_CHARACTERS:,} characters")
    if not shell:
        words_of(value)
    return line


@dataclass(frozen=True, slots=True)
class StateWriter:
    """The command that writes a state, see Checkpoint.write."""

    template: str

    def wrote(self, command: Command) -> bool:
        """Whether a command is this one with some state filled in. It may have come from another site."""
        state = _QUOTED_WORD.match(command.line, self.template.index(STATE))
        return state is not None and self(shlex.split(state[0])[0]) == command

    def __call__(self, state: str) -> Command | None:
        line = self.template.replace(STATE, shlex.quote(state.removesuffix("\n")))
        fits = len(line) <= MAX_WRITTEN_CHARACTERS and len(line.encode()) < MAX_STATE_BYTES
        return Command(line) if fits and "\0" not in line else None


def state_writer(value: Value, *, shell: bool) -> StateWriter:
    line = command_line(value, shell=shell)
    if STATE not in line:
        raise value.fail(f"the command must hold {STATE}, where the state goes that 'read' printed")
    writer = StateWriter(line)
    try:
        expected = [word.replace(STATE, _HARD_TO_QUOTE) for word in shlex.split(line)]
        written = writer(_HARD_TO_QUOTE)
        stays_a_word = written is not None and shlex.split(written.line) == expected
    except ValueError:
        stays_a_word = False
    if not stays_a_word:
        raise value.fail(
            f"{STATE} must stand outside of quotes: it is quoted when the state is filled in "
            f"(for a script: sh -c 'echo \"$1\" > file' - {STATE})"
        )
    return writer


def shell_sign(line: str) -> str | None:
    """The first word that only a shell would understand, in a line that none will see."""
    return next((word for word in shlex.split(line) if word in _SHELL_SIGNS), None)


def words_of(value: Value) -> list[str]:
    """The words of a command, or of a pattern for commands, as a shell would split it."""
    try:
        words = shlex.split(value.string())
    except ValueError as error:
        what = "a quote is never closed" if "quotation" in str(error) else "a backslash ends the line"
        raise value.fail(f"{what} in this command") from None
    if not words or not words[0]:
        raise value.fail("the first word of a command is a program; here it is empty")
    return words


MAX_FILES = 1_048_576
MAX_PROCESSES = 4_194_304
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?")


def command_settings(record: Mapping[str, Value], folder: Path) -> CommandSettings:
    """The keys of a type that are about running its commands; paths start at the folder."""
    default = CommandSettings()
    return CommandSettings(
        optional(record, "allow", patterns_at, default.allow),
        optional(record, "timeout", duration_s, default.timeout_s),
        optional(record, "max_output", _max_output, default.max_output_bytes),
        optional(record, "cwd", lambda at: path_at(at, folder), default.cwd),
        optional(record, "env", _environment, default.env),
        optional(record, "user", _user, default.user),
        optional(record, "shell", Value.boolean, default.shell),
        optional(record, "limits", _command_limits, default.limits),
        no_new_privileges=optional(record, "no_new_privileges", Value.boolean, default.no_new_privileges),
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


def _command_limits(value: Value) -> CommandLimits:
    record = COMMAND_LIMITS.read(value)
    return CommandLimits(
        optional(record, "cpu", _whole_seconds, None),
        optional(record, "memory", size, None),
        optional(record, "files", lambda at: at.whole(minimum=3, maximum=MAX_FILES), None),
        optional(record, "processes", lambda at: at.whole(minimum=1, maximum=MAX_PROCESSES), None),
    )


MAX_UNITS = 10_000  # steps of one command; a larger number is not split
ID_PLACEHOLDER = "__ID__"

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """See engine.types.Decompose."""

    amount: int  # which word holds the number; the program is word 1
    unit: str

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
        steps = int(number) * int(one)  # below zero where the signs differ
        return steps if 0 < steps <= MAX_UNITS else 0


def unit_steps(value: Value, *, shell: bool) -> UnitSteps:
    """The setting `decompose` of a type."""
    record = DECOMPOSE.read(value)
    unit = command_line(record["unit"], shell=shell)
    words = words_of(record["unit"])
    amount = record["amount"].whole(minimum=2, maximum=max(2, len(words)))
    if words[amount - 1 : amount] not in (["1"], ["-1"]):
        found = words[amount - 1] if amount <= len(words) else "nothing"
        raise record["unit"].fail(
            f"word {amount} of the unit must be 1 or -1, since the number stands there (see 'amount'), found '{found}'"
        )
    return UnitSteps(amount, unit)


def _fits(word: str, unit_word: str) -> bool:
    pattern = ".+".join(map(re.escape, unit_word.split(ID_PLACEHOLDER)))
    return re.fullmatch(pattern, word, re.DOTALL) is not None
