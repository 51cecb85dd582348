"""Commands of operations on the local machine, and what their end means for the engine.

exit code 0                      OK
another one                      KO: a definite failure
EX_TEMPFAIL (75)                 RETRY: the command says that it did nothing and may be run again
one that prints a text of the type's `retry_on`      RETRY
not started                      KO: no such program, no permission, not allowed here;
                                 RETRY where that passes: no process free, the agent is stopping
timeout, lost, cancelled         MAYBE: it may have had an effect
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from cheops.backends.command.line import CommandNotAllowedError
from cheops.backends.command.runner import CommandRunner, Completed
from cheops.backends.command.wire import CommandStatus
from cheops.config.command import CommandSettings, StateWriter
from cheops.config.types import TypeConfig
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import Command, Timing
from cheops.store.files import FileStore

_TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h
_ANY = ("...",)
_MOST_KEPT = 1024 * 1024  # characters of output in a reply, which goes to all sites


def _nobody_counts(_origin: str, _why: str) -> None:
    return


class Commands:
    """Runs what the engine wants run."""

    def __init__(
        self,
        runner: CommandRunner,
        types: Mapping[str, TypeConfig],
        files: FileStore,
        fetch: Callable[[str, str], None],
        refused: Callable[[str, str], None] = _nobody_counts,
    ) -> None:
        """`fetch` gets a resource, and the hash of a file of it that is not here; `refused` hears of what
        other sites wanted run and may not: whose it was, and why."""
        self._runner = runner
        self._types = types
        self._files = files
        self._fetch = fetch
        self._refused = refused

    async def run(self, run: Run) -> tuple[Outcome, ...]:
        """The outcomes of the steps, up to the one at which the run ends."""
        outcomes: list[Outcome] = []
        for step in run.steps:
            outcome = await self._step(run, step)
            outcomes.append(outcome)
            stops = outcome.result in (Result.RETRY, Result.MAYBE)
            if stops or (run.until_failure and outcome.result is Result.KO):
                break
        return tuple(outcomes)

    async def read(self, rtype: str, resource: str, line: str) -> Completed:
        """Run a command that changes nothing, for `show`: the type's own, or one that its `show` lists. Where
        the type has no such list, any that it allows. Raises ClientError if it may not run."""
        type_ = self._types[rtype]
        if line == type_.read:
            return await self._runner.run(line, self._settings(rtype, of_type=True), resource=resource)
        try:
            return await self._runner.run(line, type_.showing, resource=resource)
        except CommandNotAllowedError as error:
            if type_.show is None:
                raise
            runs = "the state is shown by the type's 'read', or by what its 'show' lists"
            raise CommandNotAllowedError(f"{runs}: {error}") from None

    async def _step(self, run: Run, step: Step) -> Outcome:
        at_ms = time.time_ns() // 1_000_000
        if run.rtype not in self._types:
            text = f"the resource type '{run.rtype}' is not in this site's configuration"
            return Outcome(Result.RETRY, text, Timing(at_ms, 0))
        missing = {name: hash_ for name, hash_ in step.payload.files if not self._files.has(hash_)}
        if missing:
            for hash_ in missing.values():
                self._fetch(run.resource, hash_)
            return Outcome(Result.RETRY, f"not here yet: {', '.join(missing)}", Timing(at_ms, 0))
        try:
            done = await self._runner.run(
                step.payload.line,
                self._settings(run.rtype, of_type=self._is_own(run.rtype, step)),
                resource=run.resource,
                files=self._paths(step.payload),
                with_errors=not step.reads,
            )
        except ClientError as error:
            self._refused(step.op.origin.site if step.op else "", str(error))
            return Outcome(Result.KO, str(error), Timing(at_ms, 0), refused=True)
        except CheopsError as error:
            return Outcome(Result.RETRY, str(error), Timing(at_ms, 0))
        return _outcome(done, self._types[run.rtype], at_ms)

    def _paths(self, payload: Command) -> dict[str, Path]:
        return {name: self._files.path(hash_) for name, hash_ in payload.files}

    def _is_own(self, rtype: str, step: Step) -> bool:
        """Whether the operator wrote it into this site's configuration: it needs no other permission. The
        state of a checkpoint may come from a peer, with a command of that peer."""
        engine = self._types[rtype].engine
        if step.of_base:
            write = engine.checkpoint.write if engine.checkpoint else None
            return isinstance(write, StateWriter) and write.wrote(step.payload)
        return step.of_type or step.payload == engine.reset

    def _settings(self, rtype: str, *, of_type: bool) -> CommandSettings:
        settings = self._types[rtype].command
        return replace(settings, allow=_ANY) if of_type else settings


def _outcome(done: Completed, type_: TypeConfig, at_ms: int) -> Outcome:
    timing = Timing(at_ms, round(done.duration_s * 1000))
    if done.status is CommandStatus.NOT_STARTED:
        return Outcome(Result.RETRY if done.passing else Result.KO, done.output, timing)
    if done.status is not CommandStatus.EXITED:
        return Outcome(Result.MAYBE, _failure_text(done), timing)
    if done.exit_code == 0:
        cut = not done.exact or len(done.output) > _MOST_KEPT
        return Outcome(Result.OK, done.output[:_MOST_KEPT], timing, cut)
    retry = done.exit_code == _TEMPORARY or any(text in done.output for text in type_.retry_on)
    return Outcome(Result.RETRY if retry else Result.KO, _failure_text(done), timing)


def _failure_text(done: Completed) -> str:
    why = {CommandStatus.TIMED_OUT: f"timed out after {done.duration_s:.1f} s"}.get(done.status, "")
    if done.status is CommandStatus.EXITED:
        code = done.exit_code or 0
        why = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    output = done.output[:_MOST_KEPT].strip()
    return f"{why}: {output}" if why and output else why or output
