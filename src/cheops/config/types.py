"""Resource types in the configuration file: how operations combine, how commands run, and which sites may do what.

The operator writes the commands of a type here (`read`, `reset`, `checkpoint`, `on_error`), so they need not match
`allow`, which is for commands that come with operations, nor `show`, which is for commands that come with a request
for the state of a resource.
"""

import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from cheops.config.command import (
    COMMAND,
    MAX_STATE_BYTES,
    PATTERNS,
    STATE_WRITER,
    CommandSettings,
    StateWriter,
    UnitSteps,
    shell_sign,
    split_words,
)
from cheops.config.settings import (
    REQUIRED,
    Section,
    Setting,
    default_of,
    inline,
    is_set,
    place,
    read_record,
    section,
    setting,
)
from cheops.config.values import BOOLEAN, TEXT, ValueType, choice, count, duration, read_name, read_path
from cheops.engine.settings import Checkpoint, Decompose, Logic, ResourceType
from cheops.log.matrix import Matrix
from cheops.log.operation import Command
from cheops.log.policy import Allowed, Policy, SiteGroup
from cheops.matrix_file import matrix_within, read_matrix
from cheops.plugins import BUILTIN_BACKENDS, PluginError, backend_named, logic_named, on_error_named
from cheops.text import printable, shortened
from cheops.yaml_file import Value

T = TypeVar("T")
VERIFY_EVERY = duration(minimum_s=1.0)
VERIFY_EVERY_DOC = (
    "How often the application's states of a resource are compared at all its sites, as `cheops verify` does. If they "
    "differ while all sites have applied the same, the resource is DIVERGED. The first of its sites that is up does "
    "this, by its own setting; see [drift](troubleshooting.md#drift)."
)

COMMAND_BACKEND, HTTP_BACKEND = "command", "http"
MAX_POLICY_SITES = 1_000
_DECOMPOSE = "decompose"
TEXT_LOGIC = "text"
_PLUGIN_NAME = re.compile(r"[A-Za-z_][\w.-]*")

# Any site may receive a request for a replicated service and pass it on to the sites of the resource. The application
# itself decides what its users may do.
HTTP_POLICY = Policy(sites=SiteGroup.INVOLVED, matrix=SiteGroup.CREATOR, operate=SiteGroup.MESH)
# A site runs nothing of a type that it is not configured for, and cannot know what other sites allow.
UNKNOWN_TYPE_POLICY = Policy(sites=SiteGroup.MESH, matrix=SiteGroup.MESH, operate=SiteGroup.MESH)


def _allowed_sites(*groups: SiteGroup) -> ValueType[Allowed]:
    """One of the groups, or a list of sites."""

    def read(value: Value) -> Allowed:
        if not value.is_text:
            names = tuple(read_name(item) for item in value.items())
            if len(names) > MAX_POLICY_SITES:
                raise value.fail(f"at most {MAX_POLICY_SITES} sites can be named, not {len(names)}")
            return tuple(dict.fromkeys(names))
        text = value.string()
        if text not in groups:
            known = ", ".join(group.value for group in groups)
            shown = printable(shortened(text))
            raise value.fail(f"expected {known}, or a list of sites such as [site1, site2], found '{shown}'")
        return SiteGroup(text)

    return ValueType(f"{', '.join(f'`{group.value}`' for group in groups)} or list of sites", read)


# `Policy` belongs to the pure core, which knows no files: its settings are declared here, with its own defaults.
_POLICY = tuple(
    Setting(key, type_, default_of(Policy, key), doc)
    for key, type_, doc in (
        ("sites", _allowed_sites(*SiteGroup), "Which sites may change the list of sites of a resource."),
        ("matrix", _allowed_sites(*SiteGroup), "Which sites may replace its matrix."),
        (
            "operate",
            _allowed_sites(SiteGroup.INVOLVED, SiteGroup.MESH),
            "Which sites may make operations on it, at one of its sites or by passing them on to one.",
        ),
    )
)


def _read_policy(value: Value) -> Policy:
    record = read_record(_POLICY, value)
    return Policy(**{one.key: one.type.read(record[one.key]) for one in _POLICY if one.key in record})


def _read_matrix(value: Value) -> Matrix:
    return (read_matrix(read_path(value)) if value.is_text else matrix_within(value)).matrix


def _read_output_texts(value: Value) -> tuple[str, ...]:
    texts = tuple(item.string() for item in value.items())
    if not all(texts):
        raise value.fail("an empty text is part of every output")
    return texts


def _read_backend(value: Value) -> str:
    name = value.string()
    if name not in BUILTIN_BACKENDS:
        _load_plugin(value, name, backend_named)
    elif name == HTTP_BACKEND:
        raise value.fail(f"'{name}' is for the services of a site: configure one under 'services'")
    return name


def _read_options(value: Value) -> dict[str, str]:
    return {name: at.string() for name, at in value.mapping().items()}


@dataclass(frozen=True, slots=True)
class CheckpointConfig(Section):
    """How a long history becomes one state. `read` may be that of the type."""

    write: StateWriter = setting(
        STATE_WRITER, REQUIRED, "The command that writes the state; `{state}` is replaced by the output of `read`."
    )
    read: str | None = setting(COMMAND, None, "The command that prints the state.", shown="the type's `read`")
    after: int = setting(
        count(), default_of(Checkpoint, "after"), "How many effective operations a checkpoint replaces at least."
    )


@dataclass(frozen=True, slots=True)
class TypeConfig(Section):
    """A resource type: everything that the file says about it."""

    name: str
    matrix: Matrix = setting(
        ValueType("matrix or path", _read_matrix),
        Matrix(),
        "[How operations combine](matrix.md): the path of a file, or the entries themselves, in either form. Without a "
        "matrix all operations are ordered.",
        shown="none",
    )
    read: str | None = setting(
        COMMAND, None, "The command that prints the state of a resource, for users and to compare sites."
    )
    verify_every_s: float | None = setting(VERIFY_EVERY, None, VERIFY_EVERY_DOC, shown="never")
    show: tuple[str, ...] | None = setting(
        PATTERNS,
        None,
        "Patterns of further read-only commands that a request for the state may contain; see "
        "[below](#running-commands).",
        shown="none: any allowed command",
    )
    reset: str | None = setting(
        COMMAND,
        None,
        "The command that takes a resource back to its initial state, from which operations are run again in the right "
        "order.",
    )
    checkpoint: CheckpointConfig | None = setting(
        section(CheckpointConfig), None, "How a long history becomes one state."
    )
    on_error: str | None = setting(
        ValueType("command, `decompose` or plugin", COMMAND.read),
        None,
        "What to do if an operation fails here that succeeded at its origin: a command, `decompose`, or the name of a "
        "plugin.",
    )
    decompose: UnitSteps | None = setting(section(UnitSteps), None, "How `on_error: decompose` splits a command.")
    logic: str | None = setting(
        ValueType("plugin", TEXT.read),
        None,
        "What combines concurrent operations that do not commute: `text`, which merges [edits of a text]"
        "(howto-text.md), or the name of [a plugin](backends.md#a-logic-of-your-own).",
    )
    parallel: bool = setting(BOOLEAN, False, "Whether all sites run an operation at once, instead of its origin first.")
    outputs: str = setting(
        choice(("fetch", "share"), str),
        "fetch",
        "Where outputs are: `fetch`, at the site that ran the command and where the operation was submitted, and other "
        "sites fetch one when somebody looks at it; `share`, at all sites.",
    )
    policy: Policy = setting(  # applies only with security on: see SiteConfig.engine
        ValueType("section", _read_policy, settings=_POLICY),
        Policy(),
        "Which sites may do what to resources of this type; see [below](#which-sites-may-do-what).",
        shown="see below",
    )
    backend: str = setting(
        ValueType("backend", _read_backend),
        COMMAND_BACKEND,
        "What runs the operations: `command`, or the name of an [installed backend](backends.md).",
    )
    options: Mapping[str, str] = setting(
        ValueType("texts by name", _read_options), {}, "Options for an installed backend: `{file: stock.db}`."
    )
    command: CommandSettings = inline(CommandSettings)
    retry_on: tuple[str, ...] = setting(
        ValueType("list of texts", _read_output_texts),
        (),
        "A command that fails and prints one of these texts had no effect and is tried again (`Could not connect to "
        "Redis`). Exit code 75 always means that.",
        shown="none",
    )
    logic_plugin: Logic | None = None
    on_error_plugin: Decompose | None = None

    def complete(self, value: Value) -> Self:
        if self.checkpoint and not (self.checkpoint.read or self.read):
            raise place(value, "checkpoint").fail(
                "'read' is missing, here or in the type: the command that prints the state"
            )
        if self.verify_every_s is not None and self.read is None:
            raise place(value, "verify_every").fail("'read' is missing: the command that prints the state to compare")
        if is_set(value, "decompose") and self.on_error != _DECOMPOSE:
            raise place(value, "decompose").fail(f"this has no effect unless 'on_error' is {_DECOMPOSE}")
        if self.on_error == _DECOMPOSE and self.decompose is None:
            raise value.fail("'on_error: decompose' needs 'decompose: {amount: …, unit: …}' beside it")
        if self.logic == TEXT_LOGIC and self.reset is None:
            raise place(value, "logic").fail(
                "'reset' is missing: the command that deletes the text, from which edits are merged"
            )
        if not self.command.shell:  # a shell has its own rules for quotes
            for key, _ in self.written_commands():
                split_words(_place_within(value, key))
        return replace(
            self,
            logic_plugin=_load_plugin(place(value, "logic"), self.logic, logic_named),
            on_error_plugin=_load_plugin(place(value, "on_error"), self._on_error_plugin_name, on_error_named),
        )

    @property
    def engine(self) -> ResourceType:
        """The type as the engine knows it. The policy is not part of it here: see SiteConfig.engine."""
        checkpoint = self.checkpoint
        read = Command((checkpoint and checkpoint.read) or self.read or "")
        return ResourceType(
            self.name,
            reset=Command(self.reset) if self.reset else None,
            checkpoint=Checkpoint(read, checkpoint.write, checkpoint.after) if checkpoint else None,
            on_error=Command(self._on_error_command) if self._on_error_command else None,
            decompose=self.on_error_plugin or self.decompose,
            logic=self.logic_plugin,
            parallel=self.parallel,
            shares_outputs=self.outputs == "share",
        )

    @property
    def _on_error_plugin_name(self) -> str | None:
        """One word is a plugin, or the built-in `decompose`; a command of one word is written with its path."""
        name = self.on_error or ""
        return name if name != _DECOMPOSE and _PLUGIN_NAME.fullmatch(name) else None

    @property
    def _on_error_command(self) -> str | None:
        return None if self.on_error == _DECOMPOSE or self._on_error_plugin_name else self.on_error

    @property
    def show_settings(self) -> CommandSettings:
        """The settings for a command that comes with a request for the state."""
        return self.command if self.show is None else replace(self.command, allow=self.show)

    def hints(self) -> Iterator[str]:
        """What works, but could be safer."""
        if self.show is None and self.command.allow:
            yield (
                "there is no 'show', so 'cheops show --command' may run any allowed command, even one that "
                "writes; list patterns of those that only read, or [] for 'read' alone"
            )

    def warnings(self) -> Iterator[str]:
        """What is valid, but probably a mistake."""
        if not self.command.allow and self.backend == COMMAND_BACKEND:
            yield "no command is allowed; list patterns under 'allow'"
        if not self.matrix.entries and self.logic is None:
            yield "there is no matrix, so all operations are ordered and none replaces another"
        if self.reset is None and _has_ordered_pairs(self.matrix):
            yield (
                "there is no 'reset': if operations arrive out of order, and no operation before them replaces "
                "everything, the resource is marked order-not-enforced"
            )
        yield from self._warnings_of_commands()

    def problems(self, data: Path) -> Iterator[str]:
        """Why the first command would fail on this machine. Not part of what was read: the machine may change while
        the file stays the same. The agent makes its data directory when it starts, and those above it."""
        cwd = self.command.cwd
        if cwd is not None and not cwd.is_dir() and not data.is_relative_to(cwd):
            yield f"the directory of 'cwd' does not exist: {cwd}"
        if self.command.user is not None and not _is_user(self.command.user):
            yield f"there is no user '{self.command.user}' on this machine: create it, or correct 'user'"

    def _warnings_of_commands(self) -> Iterator[str]:
        if self.checkpoint and self.command.max_output_bytes > MAX_STATE_BYTES:
            yield (
                "'max_output' is more than a checkpoint can write: a state is one word of a command line, "
                "which takes less than 128KiB"
            )
        for key, line in self.written_commands():
            if not self.command.shell and (sign := shell_sign(line)):
                yield f"'{sign}' in '{key}' is a plain word without 'shell: true'"

    def written_commands(self) -> Iterator[tuple[str, str]]:
        """The commands that the operator wrote, with their keys."""
        if self.read:
            yield "read", self.read
        if self.reset:
            yield "reset", self.reset
        if self.checkpoint:
            yield "checkpoint.read", self.checkpoint.read or self.read or ""
            yield "checkpoint.write", self.checkpoint.write.template
        if self._on_error_command:
            yield "on_error", self._on_error_command


def _place_within(value: Value, key: str) -> Value:
    """The value of a key such as `checkpoint.read`; a checkpoint without `read` uses that of the type."""
    outer, _, inner = key.partition(".")
    at = place(value, outer)
    if not inner:
        return at
    return place(at, inner) if is_set(at, inner) else place(value, inner)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _load_plugin(value: Value, name: str | None, load: Callable[[str], T]) -> T | None:
    if name is None:
        return None
    try:
        return load(name)
    except PluginError as error:
        raise value.fail(str(error)) from None


def _has_ordered_pairs(matrix: Matrix) -> bool:
    types = matrix.types
    return not types or any(matrix.class_of_pair(one, other) == 3 for one in types for other in types)
