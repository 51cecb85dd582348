"""The ways to send an event: web hook, command and mail. Each succeeds, or raises DeliveryError and is retried.

A web hook gets the event as a signed JSON POST. Any status from 200 to 299 means accepted; the body of the response is
not read, so it may be arbitrarily long.

A command gets the path of a file with the event, as `{event}` in its line and as CHEOPS_EVENT_FILE. Nothing of an
event becomes part of the command line itself. Exit code 0 means accepted.

A mail is one message per event, handed to a mail server.

Web hooks and mails are in modules of their own (`webhook`, `mail`), which are imported if a target needs them: aiohttp
takes 5 MB.
"""

import asyncio
import os
from pathlib import Path
from typing import Protocol

from cheops.backends.command.runner import CommandRunner, Completed
from cheops.backends.command.wire import CommandStatus
from cheops.config.command import CommandSettings
from cheops.config.notify import CommandConfig
from cheops.errors import CheopsError, ClientError, Fault
from cheops.notify.event import Event, encoded
from cheops.text import shortened

_MAX_SECRET_BYTES = 4_096


class DeliveryError(CheopsError):
    """A target did not accept an event; the delivery is retried."""

    fault = Fault.APPLICATION
    definite = False
    status = 502


class Sender(Protocol):
    """Sends events to one target."""

    async def send(self, event: Event) -> None:
        """Return when the target has the event; raises DeliveryError."""


def read_secret(path: Path) -> bytes:
    """A secret from a file, without the line end. Read for each event, so that it can be changed."""
    try:
        with path.open("rb") as file:
            secret = file.read(_MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise DeliveryError(f"{path} cannot be read: {error.strerror}") from error
    if not 0 < len(secret) <= _MAX_SECRET_BYTES:
        raise DeliveryError(f"{path} must hold 1 to {_MAX_SECRET_BYTES} bytes")
    return secret


FILE = "event"
_MAX_OUTPUT_BYTES = 4_096


class CommandSender:
    """See `Sender`. `path` is the target's own file, overwritten with each event."""

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
            raise DeliveryError(_failure_text(done))

    def _write(self, event: Event) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            # The mode is set when the file is created: an event may hold what a command printed.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.write(encoded(event))
        except OSError as error:
            raise DeliveryError(f"{self._path} cannot be written: {error.strerror}") from error

    def _settings(self, event: Event) -> CommandSettings:
        variables = {
            "CHEOPS_EVENT_FILE": str(self._path),
            "CHEOPS_EVENT_ID": event.id,
            "CHEOPS_EVENT_KIND": event.kind,
            "CHEOPS_RESOURCE": event.resource,
            "CHEOPS_OPERATION": event.operation,
            "CHEOPS_STATUS": event.status.value if event.status else "",
        }
        # `allow` is for commands of clients. This line comes from the operator's configuration file.
        return CommandSettings(
            allow=("...",), timeout_s=self._timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES, env=variables
        )


def _failure_text(done: Completed) -> str:
    how = f"exit code {done.exit_code}" if done.status is CommandStatus.EXITED else str(done.status)
    return f"{how}: {shortened(done.output.strip(), 300)}" if done.output.strip() else how
