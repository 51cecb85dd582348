"""Resource types in the configuration file: how operations combine, how a site runs their commands, and the policy.

The commands that the operator writes here (`read`, `reset`, `checkpoint`, `on_error`) need not match `allow`, which
is for the commands that come with operations, nor `show`, which is for those that come with a request for the state
of a resource.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from cheops.config.command import (
    MAX_STATE_BYTES,
    CommandSettings,
    StateWriter,
    command_line,
    command_settings,
    patterns_at,
    shell_sign,
    state_writer,
    unit_steps,
)
from cheops.config.settings import CHECKPOINT, POLICY, TYPE, name_at, optional, path_at
from cheops.documents import Value
from cheops.engine.settings import Checkpoint, Decompose, ResourceType
from cheops.log.matrix import Matrix
from cheops.log.operation import Command
from cheops.log.policy import Allowed, Policy, SiteGroup
from cheops.matrix_file import matrix_within, read_matrix
from cheops.plugins import BUILTIN_BACKENDS, PluginError, backend_named, logic_named, on_error_named
from cheops.text import printable, shortened

MAX_POLICY_SITES = 1_000

# What is replicated by HTTP is asked for at any site, and each hands on what belongs to others; the
# application has its own say in who may do what.
HTTP_POLICY = Policy(sites=SiteGroup.INVOLVED, matrix=SiteGroup.CREATOR, operate=SiteGroup.MESH)
# Of types that are not configured here nothing is run, and what others allow is not known.
UNKNOWN_TYPE_POLICY = Policy(sites=SiteGroup.MESH, matrix=SiteGroup.MESH, operate=SiteGroup.MESH)


def policy_at(value: Value) -> Policy:
    record, default = POLICY.read(value), Policy()
    return Policy(
        optional(record, "sites", lambda at: _allowed(at, *SiteGroup), default.sites),
        optional(record, "matrix", lambda at: _allowed(at, *SiteGroup), default.matrix),
        optional(record, "operate", lambda at: _allowed(at, SiteGroup.INVOLVED, SiteGroup.MESH), default.operate),
    )


def _allowed(value: Value, *words: SiteGroup) -> Allowed:
    if not value.is_text:
        names = tuple(name_at(item) for item in value.items())
        if len(names) > MAX_POLICY_SITES:
            raise value.fail(f"at most {MAX_POLICY_SITES} sites can be named, not {len(names)}")
        return tuple(dict.fromkeys(names))
    text = value.string()
    if text not in words:
        known = ", ".join(word.value for word in words)
        shown = printable(shortened(text))
        raise value.fail(f"expected {known}, or a list of sites such as [site1, site2], found '{shown}'")
    return SiteGroup(text)


T = TypeVar("T")

COMMAND_BACKEND = "command"
MAX_AFTER = 1_000_000
_BUILTIN_ON_ERROR = "decompose"
_PLUGIN_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class TypeConfig:
    """A resource type: what the engine knows of it (`engine`), and what the edge needs beside that."""

    name: str
    matrix: Matrix
    engine: ResourceType
    read: str | None = None  # prints the state, for show and verify
    on_error: str | None = None  # as written: a command, `decompose` or a plugin
    logic: str | None = None  # the name of the plugin
    command: CommandSettings = field(default_factory=CommandSettings)
    retry_on: tuple[str, ...] = ()  # a command that fails and prints one of these did nothing: try again
    show: tuple[str, ...] | None = None  # patterns of commands that only read; None: whatever is allowed
    policy: Policy = field(default_factory=Policy)  # counts with security only: see SiteConfig.engine
    backend: str = COMMAND_BACKEND  # runs the operations: built in, or of an installed package (see cheops.backends)
    options: Mapping[str, str] = field(default_factory=dict)  # for the backend, as written

    @property
    def showing(self) -> CommandSettings:
        """The settings under which a question for the state brings a command of its own."""
        return self.command if self.show is None else replace(self.command, allow=self.show)

    def hints(self) -> Iterator[str]:
        """What works as it stands, and could be made safer."""
        if self.show is None and self.command.allow:
            yield (
                "there is no 'show', so 'cheops show --command' may run any allowed command, also one that "
                "writes; list patterns of those that only read, or [] for 'read' alone"
            )

    def warnings(self) -> Iterator[str]:
        """What may be meant so, but often is not."""
        if not self.command.allow and self.backend == COMMAND_BACKEND:
            yield "no command is allowed; list patterns under 'allow'"
        if not self.matrix.entries:
            yield "there is no matrix, so all operations are ordered and none replaces another"
        if self.engine.reset is None and _has_ordered_pairs(self.matrix):
            yield (
                "there is no 'reset': where operations arrive out of order and none that replaces stands "
                "before them, the resource is marked order-not-enforced"
            )
        yield from self._warnings_of_commands()

    def _warnings_of_commands(self) -> Iterator[str]:
        if self.command.cwd is not None and not self.command.cwd.is_dir():
            yield f"the directory of 'cwd' is not there: {self.command.cwd}"
        if self.engine.checkpoint and self.command.max_output_bytes > MAX_STATE_BYTES:
            yield (
                "'max_output' is more than a checkpoint can write: a state goes into one word of a command "
                "line, which takes less than 128KiB"
            )
        for key, line in self.written_commands():
            if not self.command.shell and (sign := shell_sign(line)):
                yield f"'{sign}' in '{key}' is a plain word without 'shell: true'"

    def written_commands(self) -> Iterator[tuple[str, str]]:
        """The commands that the operator wrote, and under which keys."""
        engine = self.engine
        if self.read:
            yield "read", self.read
        if engine.reset:
            yield "reset", engine.reset.line
        if engine.checkpoint:
            yield "checkpoint.read", engine.checkpoint.read.line
            if isinstance(engine.checkpoint.write, StateWriter):
                yield "checkpoint.write", engine.checkpoint.write.template
        if engine.on_error:
            yield "on_error", engine.on_error.line


def type_at(name: str, value: Value, folder: Path) -> TypeConfig:
    """The type that stands at a place of a document; paths in it start at the folder."""
    record = TYPE.read(value)
    command = command_settings(record, folder)

    def line(at: Value) -> str:
        return command_line(at, shell=command.shell)

    on_error = optional(record, "on_error", line, None)
    decompose, hook = _on_error(value, record, on_error, shell=command.shell)
    return TypeConfig(
        name,
        optional(record, "matrix", lambda at: _matrix(at, folder), Matrix()),
        ResourceType(
            name,
            optional(record, "reset", lambda at: Command(line(at)), None),
            optional(record, "checkpoint", lambda at: _checkpoint(at, record, shell=command.shell), None),
            hook,
            decompose,
            optional(record, "logic", lambda at: _plugin(at, logic_named), None),
            optional(record, "parallel", Value.boolean, False),
        ),
        optional(record, "read", line, None),
        on_error,
        optional(record, "logic", Value.string, None),
        command,
        optional(record, "retry_on", _output_texts, ()),
        optional(record, "show", patterns_at, None),
        optional(record, "policy", policy_at, Policy()),
        optional(record, "backend", _backend, COMMAND_BACKEND),
        optional(record, "options", _options, {}),
    )


def _output_texts(value: Value) -> tuple[str, ...]:
    texts = tuple(item.string() for item in value.items())
    if not all(texts):
        raise value.fail("an empty text is found in every output")
    return texts


def _matrix(value: Value, folder: Path) -> Matrix:
    """A path to a file, or the matrix itself."""
    if value.is_text:
        return read_matrix(path_at(value, folder)).matrix
    return matrix_within(value).matrix


def _checkpoint(value: Value, type_record: dict[str, Value], *, shell: bool) -> Checkpoint:
    """`read` may be that of the type."""
    record = CHECKPOINT.read(value)
    read = record.get("read", type_record.get("read"))
    if read is None:
        raise value.fail("'read' is missing, here or in the type: the command that prints the state")
    checkpoint = Checkpoint(Command(command_line(read, shell=shell)), state_writer(record["write"], shell=shell))
    after = optional(record, "after", lambda at: at.whole(minimum=1, maximum=MAX_AFTER), checkpoint.after)
    return replace(checkpoint, after=after)


def _on_error(
    value: Value, record: dict[str, Value], on_error: str | None, *, shell: bool
) -> tuple[Decompose | None, Command | None]:
    """One word is the built-in or a plugin; a command of one word is told apart by its path."""
    if "decompose" in record and on_error != _BUILTIN_ON_ERROR:
        raise record["decompose"].fail(f"this is without effect unless 'on_error' is {_BUILTIN_ON_ERROR}")
    if on_error is None:
        return None, None
    if on_error == _BUILTIN_ON_ERROR:
        if "decompose" not in record:
            raise value.fail("'on_error: decompose' needs 'decompose: {amount: …, unit: …}' beside it")
        return unit_steps(record["decompose"], shell=shell), None
    if _PLUGIN_NAME.fullmatch(on_error):
        return _plugin(record["on_error"], on_error_named), None
    return None, Command(on_error)


def _backend(value: Value) -> str:
    name = value.string()
    if name not in BUILTIN_BACKENDS:
        _plugin(value, backend_named)
    elif name != COMMAND_BACKEND:
        raise value.fail(f"'{name}' is for the services of a site: configure one under 'services'")
    return name


def _options(value: Value) -> dict[str, str]:
    return {name: at.string() for name, at in value.mapping().items()}


def _plugin(value: Value, load: Callable[[str], T]) -> T:
    try:
        return load(value.string())
    except PluginError as error:
        raise value.fail(str(error)) from None


def _has_ordered_pairs(matrix: Matrix) -> bool:
    types = matrix.types
    return not types or any(matrix.class_of_pair(one, other) == 3 for one in types for other in types)
