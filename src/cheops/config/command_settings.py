"""What a resource type says about its commands: which are allowed, and the bounds they run in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from cheops.config.command_pattern import parse_pattern
from cheops.errors import ClientError
from cheops.text import printable, shortened

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
            raise CommandSettingsError(
                f"timeout_s is {self.timeout_s}; it must be over 0, up to {MAX_TIMEOUT_S:g}"
            )
        if not 0 <= self.max_output_bytes <= MAX_OUTPUT_BYTES:
            raise CommandSettingsError(
                f"max_output_bytes is {self.max_output_bytes}; it must be from 0 to {MAX_OUTPUT_BYTES}"
            )
        if self.cwd is not None and not self.cwd.is_absolute():
            raise CommandSettingsError(f"cwd is '{self.cwd}'; it must be an absolute path")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                shown = printable(shortened(name))
                raise CommandSettingsError(
                    f"env: '{shown}' cannot be set: a name is not empty and has no '='"
                )
