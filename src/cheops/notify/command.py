"""Tell by running a command. Exit code 0 means that it was taken.

The event is in a file, whose path takes the place of `{event}` in the command and is in CHEOPS_EVENT_FILE; a
few words of it are in variables. Nothing of an event becomes part of the command line itself.
"""

import asyncio
import os
from pathlib import Path

from cheops.backends.command import CommandRunner, CommandSettings, CommandStatus, Completed
from cheops.config.notify import CommandConfig
from cheops.errors import ClientError
from cheops.notify.events import Event, encoded
from cheops.notify.sending import DeliveryError
from cheops.text import shortened

FILE = "event"
_MAX_OUTPUT_BYTES = 4_096


class Command:
    """See `sending.Sender`. `path` is the target's own file, overwritten with each event."""

    def __init__(self, config: CommandConfig, timeout_s: float, runner: CommandRunner, path: Path) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._runner = runner
        self._path = path

    async def send(self, event: Event) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._write, event)
        try:
            done = await self._runner.run(
                self._config.line, self._settings(event), resource=event.resource, files={FILE: self._path}
            )
        except ClientError as error:
            raise DeliveryError(str(error)) from error
        if done.status is not CommandStatus.EXITED or done.exit_code != 0:
            raise DeliveryError(_said(done))

    def _write(self, event: Event) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.write(encoded(event))
        except OSError as error:
            raise DeliveryError(f"{self._path} cannot be written: {error.strerror}") from error

    def _settings(self, event: Event) -> CommandSettings:
        variables = {
            "CHEOPS_EVENT_FILE": str(self._path),
            "CHEOPS_EVENT_ID": event.id,
            "CHEOPS_EVENT_KIND": event.kind.value,
            "CHEOPS_RESOURCE": event.resource,
            "CHEOPS_OPERATION": event.operation,
            "CHEOPS_STATUS": event.status.value if event.status else "",
        }
        return CommandSettings(
            allow=("...",), timeout_s=self._timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES, env=variables
        )


def _said(done: Completed) -> str:
    how = f"exit code {done.exit_code}" if done.status is CommandStatus.EXITED else str(done.status)
    return f"{how}: {shortened(done.output.strip(), 300)}" if done.output.strip() else how
