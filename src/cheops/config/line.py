"""Command lines that the operator writes into the configuration file, checked when it is read.

A command is one line. Without `shell` it is split into words as a shell would, and nothing else that a
shell does happens to it. What `checkpoint.read` printed takes the place of `{state}` in `checkpoint.write`,
quoted, so that whatever it holds stays one word. Linux takes words of up to 128 KiB, which limits the state.
"""

import re
import shlex
from dataclasses import dataclass

from cheops.documents import Value
from cheops.log.operation import Command

MAX_LINE_CHARACTERS = 65_536
MAX_WRITTEN_CHARACTERS = 100_000  # with what is filled in
MAX_STATE_BYTES = (
    131_071  # what Linux takes as one word of a command line (MAX_ARG_STRLEN, less the end mark)
)
STATE = "{state}"

_LINE_BREAKS = re.compile(r"[\x00\n\r\x0b\x0c\x85\u2028\u2029]")
_SHELL_SIGNS = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"))
_QUOTED = re.compile(r"""'(?:[^']|'"'"')*'|[^\s'"]+""")  # what shlex.quote gives
_AWKWARD = """it's "$HOME" \\ `x` """  # no quotes that a user may have put around it survive this


def command_line(value: Value, *, shell: bool) -> str:
    """The command at a place of a document."""
    line = value.string().strip()
    if not line:
        raise value.fail("a command cannot be empty; leave the key out if there is none")
    if _LINE_BREAKS.search(line):
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
        state = _QUOTED.match(command.line, self.template.index(STATE))
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
        expected = [word.replace(STATE, _AWKWARD) for word in shlex.split(line)]
        written = writer(_AWKWARD)
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
