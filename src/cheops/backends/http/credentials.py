"""Credentials: this site's own, with which it runs what came from other sites, and those of clients.

A site's own come from a file or a command, as lines of headers (`X-Auth-Token: …`). They are read again after a while,
and when the service refuses them.

A client's are used only at the site that accepted its request. They are kept only in memory, under a ticket that the
operation carries. Once this site's service has accepted them for an operation, all sites run it with their own; an
operation for which no service has seen them does not run.
"""

import asyncio
import re
import secrets
import shlex
import time
from collections.abc import Callable

from cheops.backends.command.runner import CommandRunner
from cheops.bounded import BoundedMap
from cheops.config.command import CommandSettings
from cheops.config.services import AuthConfig
from cheops.errors import CheopsError

MAX_BYTES = 64 * 1024
MAX_TICKETS = 10_000
TICKET_S = 600.0
_COMMAND_S = 30.0
_LINE = re.compile(r"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
Header = tuple[str, str]


class CredentialsError(CheopsError):
    """This site's own credentials cannot be read. The text never contains them."""

    status = 503
    definite = False
    reason = "credentials"


class CredentialProvider:
    """The credentials of this site for one service."""

    def __init__(self, service: str, config: AuthConfig, runner: CommandRunner) -> None:
        self._where = f"services.{service}.auth"
        self._config = config
        self._runner = runner
        self._headers: tuple[Header, ...] = ()
        self._until_s = 0.0
        self._asking = asyncio.Lock()

    async def headers(self) -> tuple[Header, ...]:
        async with self._asking:
            if time.monotonic() >= self._until_s:
                self._headers = self._parsed(await self._text())
                self._until_s = time.monotonic() + self._config.every_s
        return self._headers

    def forget(self) -> None:
        """The service refused them: read them again the next time."""
        self._until_s = 0.0

    async def _text(self) -> str:
        return await self._printed() if self._config.command else await asyncio.to_thread(self._read)

    def _read(self) -> str:
        assert self._config.file  # noqa: S101 - one of the two is there
        try:
            with self._config.file.open("rb") as file:
                return file.read(MAX_BYTES).decode("latin-1")
        except OSError as error:
            raise CredentialsError(f"{self._where}.file: {self._config.file}: {error.strerror}") from None

    async def _printed(self) -> str:
        settings = CommandSettings(allow=("...",), timeout_s=_COMMAND_S, max_output_bytes=MAX_BYTES)
        line = shlex.join(self._config.command)
        done = await self._runner.run(line, settings, resource="-", with_errors=False)
        if done.exit_code != 0:
            how = f"exit code {done.exit_code}" if done.exit_code is not None else done.status.value
            raise CredentialsError(f"{self._where}.command: {self._config.command[0]} gave no credentials: {how}")
        return done.output

    def _parsed(self, text: str) -> tuple[Header, ...]:
        lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
        found = [_LINE.fullmatch(line.rstrip()) for line in lines]
        if not found or None in found:
            raise CredentialsError(f"{self._where}: expected lines of headers, such as 'X-Auth-Token: …'")
        return tuple((one[1], one[2]) for one in found if one)


class Tickets:
    """Credentials of clients whose requests are about to run here: in memory only, for a short time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: BoundedMap[str, tuple[float, tuple[Header, ...]]] = BoundedMap(MAX_TICKETS)

    def issue(self, credentials: tuple[Header, ...]) -> str:
        ticket = secrets.token_hex(8)
        self._kept[ticket] = (self._clock() + TICKET_S, credentials)
        while self._oldest_s() < self._clock():  # credentials must not stay longer than they are of use
            self._kept.evict()
        return ticket

    def credentials(self, ticket: str) -> tuple[Header, ...] | None:
        """None: they are forgotten, or belong to another site's ticket."""
        until_s, found = self._kept.get(ticket, (0.0, None))
        return found if until_s >= self._clock() else None

    def _oldest_s(self) -> float:
        return next(iter(self._kept.values()))[0]
