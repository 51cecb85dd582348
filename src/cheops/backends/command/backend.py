"""The command backend: an operation is a command line, run on this machine.

exit code 0                      OK
another one                      KO: a definite failure
EX_TEMPFAIL (75)                 RETRY: the command says that it did nothing and may be run again
one that prints a text of the type's `retry_on`      RETRY
not started                      KO: no such program, no permission, not allowed here;
                                 RETRY where that passes: no process free, the agent is stopping
timeout, lost, cancelled         MAYBE: it may have had an effect
"""

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from cheops.backends.command.line import CommandNotAllowedError, check_allowed
from cheops.backends.command.runner import Completed, where_is
from cheops.backends.command.user_files import UserFiles
from cheops.backends.command.wire import CommandStatus
from cheops.backends.protocol import Backend, BackendContext, Finding
from cheops.config.command import EVERYTHING, CommandSettings, StateWriter
from cheops.config.types import TypeConfig
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.log.names import command_problem
from cheops.log.operation import Command, Kind, Timing
from cheops.text import listed, printable

_TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h
_MAX_OUTPUT_CHARACTERS = 1024 * 1024  # in a reply, which goes to all sites
_SECURITY_ANCHOR = "docs/security.md#commands"
_MAX_LISTED_TYPES = 5


class CommandBackend(Backend):
    """Which commands run is decided by the type's `allow`, where a command is submitted and where it runs."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._user_files = UserFiles(context.config.data, context.config.clients.free_bytes)

    async def start(self) -> None:
        await asyncio.to_thread(self._user_files.clear)

    async def run_step(self, run: Run, step: Step) -> Outcome:
        at_ms = time.time_ns() // 1_000_000
        type_ = self.context.types[run.rtype]
        self._check_resource(run.resource)
        paths = ((file.name, self.context.files.path(file.hash)) for file in step.payload.files)
        async with self._lent({name: path for name, path in paths if path}, type_.command.user) as files:
            completed = await self.context.commands.run(
                step.payload.line,
                _allow_all(type_.command) if _is_of_type(type_, step) else type_.command,
                resource=run.resource,
                files=files,
                # The output of a read is a state: a warning on standard error must not become part of it.
                with_errors=not step.reads,
            )
        return _outcome(completed, type_, at_ms)

    @asynccontextmanager
    async def _lent(self, files: Mapping[str, Path], user: str | None) -> AsyncIterator[Mapping[str, Path]]:
        """The files under paths that the user of the command can read."""
        lent = self._user_files.lent_to(user, files)
        paths = await asyncio.to_thread(lent.__enter__) if files and user else files
        try:
            yield paths
        finally:
            if files and user:
                await asyncio.to_thread(lent.__exit__, None, None, None)

    async def read(self, rtype: str, resource: str, request: str) -> Outcome:
        """Runs the type's own `read`, or a command that its `show` lists; without such a list, any allowed one."""
        type_ = self.context.types[rtype]
        self._check_resource(resource)
        line = request or type_.read
        if not line:
            raise ClientError(f"the type '{rtype}' has no 'read' command, so say which command shows the state")
        if line == type_.read:
            return await self._shown(line, _allow_all(type_.command), resource)
        try:
            return await self._shown(line, type_.show_settings, resource)
        except CommandNotAllowedError as error:
            if type_.show is None:
                raise
            known = "the state is shown by the type's 'read', or by what its 'show' lists"
            raise CommandNotAllowedError(f"{known}: {error}") from None

    async def _shown(self, line: str, settings: CommandSettings, resource: str) -> Outcome:
        return _state(await self.context.commands.run(line, settings, resource=resource, is_read=True))

    def resource_problem(self, resource: str) -> str | None:
        return command_problem(resource)

    def _check_resource(self, resource: str) -> None:
        """The last check before something runs: the operation may have come before its type had this backend."""
        if problem := self.resource_problem(resource):
            raise ClientError(problem)

    def check_payload(self, rtype: str, replica: Replica, kind: Kind, payload: Command) -> None:
        del kind
        type_ = self.context.types[rtype]
        self._check_resource(replica.resource)
        if payload.line != (type_.engine.reset.line if type_.engine.reset else None):
            check_allowed(payload.line, type_.command, replica.resource, self.context.commands.private)

    def describe(self, payload: Command) -> str:
        return printable(payload.line)

    async def doctor(self) -> Sequence[Finding]:
        types = self.context.types.values()
        return await asyncio.to_thread(lambda: [*_findings(types)])  # it searches the disk for programs


def _is_of_type(type_: TypeConfig, step: Step) -> bool:
    """Whether the operator wrote the command into this site's configuration: then it needs no other permission."""
    write = type_.engine.checkpoint.write if type_.engine.checkpoint else None
    # A whole state may come from a peer, with a command that the peer wrote.
    if step.of_base and isinstance(write, StateWriter) and write.matches(step.payload):
        return True
    return step.of_type or step.payload == type_.engine.reset


def _allow_all(settings: CommandSettings) -> CommandSettings:
    return replace(settings, allow=(EVERYTHING,))


# -- outcomes ----------------------------------------------------------------------------------------------


def _outcome(completed: Completed, type_: TypeConfig, at_ms: int) -> Outcome:
    timing = Timing(at_ms, round(completed.duration_s * 1000))
    if completed.status is CommandStatus.NOT_STARTED:
        return Outcome(Result.RETRY if completed.passing else Result.KO, completed.output, timing)
    if completed.status is not CommandStatus.EXITED:
        return Outcome(Result.MAYBE, _failure_text(completed), timing)
    if completed.exit_code == 0:
        cut = not completed.exact or len(completed.output) > _MAX_OUTPUT_CHARACTERS
        return Outcome(Result.OK, completed.output[:_MAX_OUTPUT_CHARACTERS], timing, cut)
    retry = completed.exit_code == _TEMPORARY or any(text in completed.output for text in type_.retry_on)
    return Outcome(Result.RETRY if retry else Result.KO, _failure_text(completed), timing)


def _failure_text(completed: Completed) -> str:
    reason = {CommandStatus.TIMED_OUT: f"timed out after {completed.duration_s:.1f} s"}.get(completed.status, "")
    if completed.status is CommandStatus.EXITED:
        code = completed.exit_code or 0
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    output = completed.output[:_MAX_OUTPUT_CHARACTERS].strip()
    return f"{reason}: {output}" if reason and output else reason or output


def _state(completed: Completed) -> Outcome:
    if completed.exit_code is None:
        return Outcome(Result.RETRY, completed.output)
    return Outcome(Result.OK if completed.exit_code == 0 else Result.KO, completed.output)


# -- doctor ------------------------------------------------------------------------------------------------


def _findings(types: Collection[TypeConfig]) -> Iterator[Finding]:
    yield root_finding(types)
    for type_ in types:
        yield from _permission_findings(type_)
    for type_ in types:
        yield from _program_findings(type_)


def root_finding(types: Collection[TypeConfig]) -> Finding:
    as_root = [type_.name for type_ in types if type_.command.user in (None, "root")]
    if os.geteuid() != 0 or not as_root:
        return _security_finding("commands do not run as root", "the agent is not root, or every type has a 'user'")
    names = listed([f'"{name}"' for name in as_root[:_MAX_LISTED_TYPES]])
    name = f"commands of {'type' if len(as_root) == 1 else 'types'} {names} run as root"
    return _security_finding(name, "", "run the agent as a dedicated user, or set 'user' for these types")


def _permission_findings(type_: TypeConfig) -> Iterator[Finding]:
    if EVERYTHING in type_.command.allow:
        name, hint = f"type {type_.name}: every command is allowed", "list patterns under 'allow' instead of '...'"
        yield _security_finding(name, "allow: [...]", hint)
    if type_.command.shell:
        name = f"type {type_.name}: commands run in a shell"
        hint = "a script with its own pattern is safer; see the how-to for files"
        yield _security_finding(name, "shell: true", hint)


def _security_finding(name: str, detail: str, hint: str = "") -> Finding:
    return Finding(name, detail, hint, is_warning=bool(hint), group="security", anchor=_SECURITY_ANCHOR)


def _program_findings(type_: TypeConfig) -> Iterator[Finding]:
    """Whether the programs are installed: those that the configuration runs, and those that it allows."""
    if type_.command.shell:
        return  # only a shell knows which programs such a line runs
    seen = set()
    for key, line in type_.written_commands():
        if program := _program(line):
            seen.add(program)
            path = where_is(program, type_.command)
            hint = "" if path else f"install {program}, or fix 'types.{type_.name}.{key}'"
            name = f"{type_.name}: {key} {'can' if path else 'cannot'} run"
            yield Finding(name, str(path or f"no program {program}"), hint)
    for program in dict.fromkeys(filter(None, map(_program, type_.command.allow))):
        if program not in seen:
            path = where_is(program, type_.command)
            hint = "" if path else f"install {program}: an operation with it would fail here but not at its origin"
            name = f"{type_.name}: allowed program {program} {'can' if path else 'cannot'} run"
            yield Finding(name, str(path or f"no program {program}"), hint, is_warning=not path)


def _program(line: str) -> str | None:
    """The first word of a command or of a pattern; None where that is not one program."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    is_one = words and words[0] != EVERYTHING and not any(sign in words[0] for sign in ("*", "__ID__"))
    return words[0] if is_one else None
